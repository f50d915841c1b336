//! A server whose service takes long to load: what it answers meanwhile, on every face.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ehun_backend::{Bucket, OnProgress, Progress};
use ehun_server::config::ServiceConfig;
use ehun_server::host::Action;
use ehun_server::{App, Audit, Config, Host, HostError, Limits, Loaded, Loader, Metrics};
use serde_json::{Value, json};

use crate::{Any, Running, admin, goldens};

/// Says that one program of three is ready, and goes on when it is told to.
struct Slow {
    began: Sender<()>,
    go_on: Mutex<Receiver<()>>,
}

impl Loader for Slow {
    fn load(&self, wanted: &ServiceConfig, told: OnProgress) -> Result<Loaded, String> {
        let (elapsed, next) = (Duration::from_secs(20), Some(Bucket { batch: 8, length: 512 }));
        told(Progress { done: 1, total: 3, elapsed, next });
        self.began.send(()).map_err(|error| error.to_string())?;
        self.go_on.lock().unwrap().recv().map_err(|error| error.to_string())?;
        told(Progress { done: 3, total: 3, elapsed, next: None });
        admin::loaded(wanted).map_err(|error| error.to_string())
    }
}

struct Warming {
    server: Running,
    host: Arc<Host>,
    go_on: Sender<()>,
    loading: std::thread::JoinHandle<Result<(), HostError>>,
}

/// A server that is in the middle of loading its one service.
fn warming(service: &str) -> Result<Warming, Any> {
    let folder = std::env::temp_dir().join(format!("ehun-starting-{}-{}", std::process::id(), service.len()));
    std::fs::create_dir_all(&folder)?;
    let path = folder.join("ehun.toml");
    std::fs::write(&path, service.replace("GOLDENS", &goldens().display().to_string()))?;
    let config = Config::read(&path)?;
    std::fs::remove_dir_all(&folder)?;
    let metrics = Arc::new(Metrics::new([]));
    let app = Arc::new(App::new(Vec::new(), Limits::default(), Vec::new(), metrics));
    let ((began, begun), (go_on, goes_on)) = (channel(), channel());
    let loader = Arc::new(Slow { began, go_on: Mutex::new(goes_on) });
    let host = Host::new(Arc::clone(&app), loader, Audit::open(None::<&Path>)?, config);
    let server = Running::start(app)?;
    let of_thread = Arc::clone(&host);
    let loading = std::thread::spawn(move || of_thread.load_all(|_| {}));
    begun.recv()?;
    Ok(Warming { server, host, go_on, loading })
}

const SEARCH: &str = "[service.search]\nmodel = \"GOLDENS/st-mean\"\ntask = \"embed\"\n";

#[test]
fn a_service_that_warms_up_says_so_on_every_face() -> Result<(), Any> {
    let Warming { server, host, go_on, loading } = warming(SEARCH)?;
    let embed = json!({"inputs": "tides"});
    // One program took 20 s, so two take 40.
    let words = "the service `search` is starting: program 2 of 3, 8x512, about 40 s left";
    let openai = json!({"input": "tides", "model": "search"});
    let infer = json!({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["tides"]}]});
    for (method, path, body, place, kind) in [
        ("GET", "/health", &Value::Null, "/error", ("/error_type", "Unhealthy")),
        ("POST", "/embed", &embed, "/error", ("/error_type", "Unhealthy")),
        ("GET", "/info", &Value::Null, "/error", ("/error_type", "Unhealthy")),
        ("POST", "/v1/embeddings", &openai, "/error/message", ("/error/code", "starting")),
        ("POST", "/v2/models/search/infer", &infer, "/error", ("/none", "")),
        ("GET", "/v2/models/search/ready", &Value::Null, "/error", ("/none", "")),
    ] {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (status, head, answer) =
            server.send(method, path, "content-type: application/json\r\n", body.as_bytes())?;
        let answer: Value = serde_json::from_slice(&answer)?;
        assert_eq!(status, 503, "{path}: {answer}");
        assert!(head.contains("\r\nretry-after: 40"), "{path}: {head}");
        let said = answer.pointer(place).and_then(Value::as_str).unwrap_or_default();
        assert!(said.contains(words), "{path}: {answer}");
        assert_eq!(answer.pointer(kind.0).and_then(Value::as_str).unwrap_or_default(), kind.1, "{path}: {answer}");
    }
    assert_eq!(server.json("GET", "/v2/health/live", &Value::Null)?.0, 200);
    assert_eq!(server.json("GET", "/v2/health/ready", &Value::Null)?, (503, json!({"ready": false})));
    let framed = [&[0u8, 0, 0, 0, 8, 10, 6][..], b"search"].concat();
    let path = "/inference.GRPCInferenceService/ModelReady";
    let (_, head, _) = server.send("POST", path, "content-type: application/grpc\r\n", &framed)?;
    assert!(head.contains("grpc-status: 14") && head.contains("is starting: program 2 of 3"), "{head}");

    let (status, services) = server.json("GET", "/v1/services", &Value::Null)?;
    let service = &services["services"][0];
    assert_eq!((status, &service["state"], &service["task"]), (200, &json!("starting"), &json!("embed")), "{services}");
    let warm_up = json!({"programs_ready": 1, "programs": 3, "next": "8x512", "seconds": 20.0, "seconds_left": 40.0});
    assert_eq!(service["warm_up"], warm_up);
    let metrics = || Ok::<_, Any>(String::from_utf8(server.send("GET", "/metrics", "", b"")?.2)?);
    let text = metrics()?;
    for line in [
        "ehun_service_loaded{service=\"search\"} 0",
        "ehun_warm_up_programs{service=\"search\",state=\"ready\"} 1",
        "ehun_warm_up_programs{service=\"search\",state=\"all\"} 3",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    // What changes services waits for them, and a name that nobody has is still unknown.
    assert!(matches!(host.act("test", "search", &Action::Promote), Err(HostError::Starting(name)) if name == "search"));
    assert!(matches!(host.reload(Config::default()), Err(HostError::Starting(_))));
    assert_eq!(server.json("POST", "/v1/embeddings", &json!({"input": "tides", "model": "other"}))?.0, 404);

    go_on.send(())?;
    loading.join().map_err(|_| "the loading thread panicked")??;
    assert_eq!(server.json("GET", "/health", &Value::Null)?.0, 200);
    assert_eq!(server.json("GET", "/v2/health/ready", &Value::Null)?.0, 200);
    assert_eq!(server.json("POST", "/embed", &embed)?.0, 200);
    let (_, services) = server.json("GET", "/v1/services", &Value::Null)?;
    let service = &services["services"][0];
    assert_eq!((&service["state"], &service["warm_up"]["programs_ready"]), (&json!("live"), &json!(3)), "{services}");
    assert!(metrics()?.contains("ehun_service_loaded{service=\"search\"} 1"));
    Ok(())
}

/// Only its model can tell the task of the first service: until then no other one answers in its place.
#[test]
fn a_service_whose_task_is_not_known_yet_keeps_its_place() -> Result<(), Any> {
    let first = "[service.first]\nmodel = \"GOLDENS/st-mean\"\n";
    let Warming { server, go_on, loading, .. } = warming(first)?;
    let (_, head, answer) = server.send("POST", "/rerank", "", b"{\"query\": \"a\", \"texts\": [\"b\"]}")?;
    assert!(head.contains(" 503 "), "{head}");
    assert!(String::from_utf8(answer)?.contains("the service `first` is starting"));
    assert_eq!(server.json("GET", "/v1/services", &Value::Null)?.1["services"][0]["task"], Value::Null);
    go_on.send(())?;
    loading.join().map_err(|_| "the loading thread panicked")??;
    // Now it is known to be no service for that.
    let (status, _) = server.json("POST", "/rerank", &json!({"query": "a", "texts": ["b"]}))?;
    assert_eq!(status, 404);
    Ok(())
}

/// A service that cannot be loaded is the error of the start, as it was before anything was listened on.
#[test]
fn a_start_that_fails_says_so() -> Result<(), Any> {
    let Warming { go_on, loading, .. } = warming("[service.gone]\nmodel = \"/nowhere/model\"\n")?;
    go_on.send(())?;
    let result = loading.join().map_err(|_| "the loading thread panicked")?;
    assert!(matches!(&result, Err(HostError::Load(reason)) if reason.contains("/nowhere/model")), "{result:?}");
    Ok(())
}
