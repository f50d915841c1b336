//! The administration over a real socket, with golden checkpoints: swap, shadow, canary, keys, the audit log, idle services,
//! the reload, and clients that are slow.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ehun_backend::{OnProgress, Options, Registry};
use ehun_backend_cpu::CpuFactory;
use ehun_engine::{Deployment, HealthPolicy};
use ehun_models::{Checkpoint, LoadOptions, Model};
use ehun_server::config::ServiceConfig;
use ehun_server::host::Action;
use ehun_server::{App, Audit, Config, Host, Limits, Loaded, Loader, Metrics};
use serde_json::{Value, json};

use crate::{Any, Running, goldens, send};

/// Golden checkpoints by name, on the CPU.
struct Goldens;

impl Loader for Goldens {
    fn load(&self, wanted: &ServiceConfig, _: OnProgress) -> Result<Loaded, String> {
        loaded(wanted).map_err(|error| error.to_string())
    }
}

pub fn loaded(wanted: &ServiceConfig) -> Result<Loaded, Any> {
    let directory = wanted.model.clone().ok_or("no model")?;
    let max_tokens = wanted.limits.max_tokens;
    let options = LoadOptions { task: wanted.task, max_tokens, ..LoadOptions::default() };
    let model = Arc::new(Model::load(&Checkpoint::open(directory)?, &options)?);
    let registry = Registry::new().with(CpuFactory);
    let backends = wanted.backends.iter().map(|name| registry.open(name)).collect::<Result<Vec<_>, _>>()?;
    let options = Options { threads: Some(1), precision: wanted.precision, ..Options::default() };
    let deployment = Deployment::of_model(Arc::clone(&model), &backends, &options, HealthPolicy::default())?;
    Ok(Loaded { model, deployment, workers: 1 })
}

const KEYS: &str = "[[key]]\nname = \"reader\"\nscope = \"infer\"\nblake3 = \"READER\"\n\
                    [[key]]\nname = \"root\"\nscope = \"admin\"\nblake3 = \"ROOT\"\n";

/// The header with the key for requests.
pub const BEARER: &str = "authorization: Bearer reader\r\n";

/// Both listeners of a server, and its audit log.
pub struct Administered {
    pub public: Running,
    admin: SocketAddr,
    host: Arc<Host>,
    pub folder: PathBuf,
    _stop: tokio::sync::oneshot::Sender<()>,
}

impl Administered {
    pub fn start(name: &str, text: &str) -> Result<Self, Any> {
        let folder = std::env::temp_dir().join(format!("ehun-admin-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder)?;
        let config = read(&folder, text)?;
        let metrics = Arc::new(Metrics::new(config.service.keys().map(String::as_str)));
        let limits = Limits { drain: Duration::from_secs(1), ..Limits::from(&config.server) };
        let app = Arc::new(App::new(Vec::new(), limits, config.key.clone(), metrics));
        let audit = Audit::open(config.server.audit.as_deref())?;
        let host = Host::start(Arc::clone(&app), Arc::new(Goldens), audit, config, |_| {})?;
        let public = Running::start(app)?;
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let (listening, address) = std::sync::mpsc::channel();
        let of_thread = Arc::clone(&host);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let any = SocketAddr::from(([127, 0, 0, 1], 0));
            let until = async { drop(stopped.await) };
            runtime.block_on(ehun_server::admin::serve(of_thread, any, move |at| listening.send(at).unwrap(), until))
        });
        Ok(Self { public, admin: address.recv()?, host, folder, _stop: stop })
    }

    /// A request to the administration with a key.
    pub fn ask(&self, method: &str, path: &str, key: &str, body: &Value) -> Result<(u16, Value), Any> {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let bearer = format!("authorization: Bearer {key}\r\n");
        let (status, _, answer) = send(self.admin, method, &format!("/admin/v1/services{path}"), &bearer, &body)?;
        Ok((status, serde_json::from_slice(&answer)?))
    }

    fn embed(&self, text: &str) -> Result<Vec<f32>, Any> {
        let body = json!({"inputs": text}).to_string();
        let (status, head, answer) =
            self.public.send("POST", "/embed", "authorization: Bearer reader\r\n", body.as_bytes())?;
        assert_eq!(status, 200, "{head} {}", String::from_utf8_lossy(&answer));
        let rows: Vec<Vec<f32>> = serde_json::from_slice(&answer)?;
        rows.into_iter().next().ok_or_else(|| "no row".into())
    }

    fn audit(&self) -> Result<Vec<Value>, Any> {
        let text = std::fs::read_to_string(self.folder.join("audit.jsonl"))?;
        Ok(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
    }
}

impl Drop for Administered {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn read(folder: &Path, text: &str) -> Result<Config, Any> {
    let keys = KEYS
        .replace("READER", blake3::hash(b"reader").to_hex().as_str())
        .replace("ROOT", blake3::hash(b"root").to_hex().as_str());
    let path = folder.join("ehun.toml");
    let golden = |name: &str| format!("model = \"{}\"", goldens().join(name).display());
    let text = text.replace("model = \"st-mean\"", &golden("st-mean"));
    std::fs::write(&path, text.replace("model = \"ce-roberta\"", &golden("ce-roberta")) + &keys)?;
    Ok(Config::read(&path)?)
}

const ONE: &str = "[server]\naudit = \"audit.jsonl\"\n[service.search]\nmodel = \"st-mean\"\n";

/// The vector of the golden model at a precision, without a server.
fn offline(precision: &str, text: &str) -> Result<Vec<f32>, Any> {
    let wanted = ServiceConfig {
        model: Some(goldens().join("st-mean")),
        precision: precision.parse()?,
        ..ServiceConfig::embedded()
    };
    let deployment = loaded(&wanted)?.deployment;
    let service = ehun_engine::Service::start(ehun_engine::ServiceConfig::default(), deployment, Vec::new())?;
    let answer = service.request(ehun_engine::Request::new(vec![text.into()]))?.wait().items.remove(0)?;
    Ok(ehun_engine::tasks::row(answer)?)
}

#[test]
fn a_swap_over_http_with_keys_refusals_and_an_audit_log() -> Result<(), Any> {
    let server = Administered::start("swap", ONE)?;
    let int8 = json!({"precision": "int8"});
    // Path, key, body, status, and what the message says.
    for (path, key, body, status, part) in [
        ("/search/swap", "nobody", int8.clone(), 401, "not known"),
        ("/search/swap", "reader", int8.clone(), 403, "may not change services"),
        ("/nothing/swap", "root", int8.clone(), 404, "no service `nothing`"),
        ("/search/dance", "root", int8.clone(), 404, "no `dance`"),
        ("/search/swap", "root", json!({"precison": "int8"}), 400, "precison"),
        ("/search/swap", "root", json!({"precision": "int9"}), 400, "int9"),
        ("/search/swap", "root", json!({"buckets": "2by8"}), 400, "2by8"),
        ("/search/shadow", "root", json!({"percent": 0}), 400, "above 0"),
        ("/search/swap", "root", json!({"backends": ["abacus"]}), 400, "abacus"),
        ("/search/swap", "root", json!({"model": "/nowhere"}), 400, "nowhere"),
        ("/search/promote", "root", Value::Null, 409, "neither"),
        ("/search/swap", "root", json!({"precision": "int8", "bounds": {"cosine_drift": 0.0}}), 409, "cosine drift"),
    ] {
        let (found, answer) = server.ask("POST", path, key, &body)?;
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(found == status && message.contains(part), "{path} {body}: {found} {answer}");
    }
    assert_eq!(server.embed("tides")?, offline("f32", "tides")?, "whatever was refused changed nothing");
    let (status, answer) = server.ask("POST", "/search/swap", "root", &int8)?;
    assert_eq!((status, &answer["result"]["released"]), (200, &json!(true)), "{answer}");
    let drift = answer["result"]["lanes"][0]["figures"]["cosine_drift"]["worst"].as_f64().ok_or("no drift")?;
    assert!(drift > 0.0 && drift < 0.05, "{drift}");
    assert_eq!(server.embed("tides")?, offline("int8", "tides")?);
    let (_, status) = server.ask("GET", "", "root", &Value::Null)?;
    assert_eq!(status["services"][0]["rollout"]["last"]["outcome"], "promoted", "{status}");

    let audit = server.audit()?;
    let outcomes: Vec<&str> = audit.iter().filter_map(|record| record["outcome"].as_str()).collect();
    assert_eq!(outcomes, ["failed", "failed", "failed", "refused", "done"], "{audit:?}");
    let last = audit.last().ok_or("no record")?;
    assert_eq!((&last["who"], &last["what"], &last["service"]), (&json!("root"), &json!("swap"), &json!("search")));
    assert!(last["from"].as_str().is_some_and(|from| from.ends_with("on cpu in f32")), "{last}");
    assert!(last["to"].as_str().is_some_and(|to| to.ends_with("on cpu in int8")), "{last}");
    assert!(last["figures"]["lanes"][0]["figures"]["compared"].as_u64() == Some(8), "{last}");

    let (_, _, text) = server.public.send("GET", "/metrics", "", b"")?;
    let text = String::from_utf8(text)?;
    for line in [
        "ehun_rollouts_total{service=\"search\",action=\"swap\",outcome=\"done\"} 1",
        "ehun_rollouts_total{service=\"search\",action=\"swap\",outcome=\"refused\"} 1",
        "ehun_rollout_phase{service=\"search\",phase=\"steady\"} 1",
        "ehun_service_loaded{service=\"search\"} 1",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    Ok(())
}

#[test]
fn a_shadow_then_a_canary_are_reported_and_promoted() -> Result<(), Any> {
    let server = Administered::start("stage", ONE)?;
    let int8 = json!({"precision": "int8", "percent": 50});
    assert_eq!(server.ask("POST", "/search/shadow", "root", &int8)?.0, 200);
    assert_eq!(server.ask("POST", "/search/swap", "root", &json!({}))?.0, 409, "one at a time");
    for i in 0..40 {
        server.embed(&format!("text number {i}"))?;
    }
    let end = Instant::now() + Duration::from_secs(20);
    let figures = loop {
        let (_, _, body) = server.public.send("GET", "/v1/services", "authorization: Bearer reader\r\n", b"")?;
        let status: Value = serde_json::from_slice(&body)?;
        let figures = status["services"][0]["rollout"]["figures"].clone();
        if figures["compared"].as_u64() >= Some(18) {
            break figures;
        }
        assert!(Instant::now() < end, "{status}");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(figures["cosine_drift"]["worst"].as_f64() > Some(0.0), "{figures}");
    let (_, _, text) = server.public.send("GET", "/metrics", "", b"")?;
    assert!(String::from_utf8(text)?.contains("ehun_rollout_cosine_drift{service=\"search\",statistic=\"p99\"}"));
    let (status, answer) = server.ask("POST", "/search/abort", "root", &Value::Null)?;
    assert_eq!((status, &answer["result"]["unloaded"]["released"]), (200, &json!(true)), "{answer}");

    assert_eq!(server.ask("POST", "/search/canary", "root", &int8)?.0, 200);
    let (f32, int8) = (offline("f32", "tides")?, offline("int8", "tides")?);
    let mut by_candidate = 0;
    for _ in 0..40 {
        let vector = server.embed("tides")?;
        assert!(vector == f32 || vector == int8);
        by_candidate += usize::from(vector == int8);
    }
    assert!((17..=23).contains(&by_candidate), "{by_candidate} of 40 at 50 %");
    let (status, answer) = server.ask("POST", "/search/promote", "root", &Value::Null)?;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(server.embed("tides")?, int8);
    let what: Vec<String> = server
        .audit()?
        .iter()
        .map(|record| format!("{} {}", record["what"], record["outcome"]).replace('"', ""))
        .collect();
    assert_eq!(what, ["shadow started", "swap failed", "abort done", "canary started", "promote done"]);
    Ok(())
}

#[test]
fn swaps_of_precision_under_load_fail_no_request_and_give_the_memory_back() -> Result<(), Any> {
    let server = Administered::start("load", ONE)?;
    let texts: Vec<String> = (0..8).map(|i| format!("the tide tables of harbour {i}")).collect();
    let mut right = BTreeSet::new();
    for text in &texts {
        for precision in ["f32", "int8"] {
            right.insert((text.clone(), offline(precision, text)?.iter().map(|x| x.to_bits()).collect::<Vec<u32>>()));
        }
    }
    assert_eq!(right.len(), 16, "int8 gives other vectors than f32");
    let over = AtomicBool::new(false);
    let ask = || -> Result<usize, String> {
        let mut asked = 0;
        while !over.load(Ordering::SeqCst) {
            let text = &texts[asked % texts.len()];
            let vector = server.embed(text).map_err(|error| error.to_string())?;
            let bits: Vec<u32> = vector.iter().map(|x| x.to_bits()).collect();
            assert!(right.contains(&(text.clone(), bits)), "{text}: neither the vector of f32 nor that of int8");
            asked += 1;
        }
        Ok(asked)
    };
    let asked = std::thread::scope(|scope| -> Result<usize, Any> {
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        let swaps = (0..6).map(|i| {
            let precision = ["int8", "f32"][i % 2];
            let answer = server.ask("POST", "/search/swap", "root", &json!({"precision": precision}))?;
            std::thread::sleep(Duration::from_millis(20));
            Ok(answer)
        });
        let swaps: Vec<Result<(u16, Value), Any>> = swaps.collect();
        over.store(true, Ordering::SeqCst);
        let mut asked = 0;
        for client in clients {
            asked += client.join().map_err(|_| "a client found a wrong answer")??;
        }
        for swap in swaps {
            let (status, answer) = swap?;
            assert_eq!((status, &answer["result"]["released"]), (200, &json!(true)), "{answer}");
        }
        Ok(asked)
    })?;
    assert!(asked > 50, "{asked} requests are no load");
    Ok(())
}

#[test]
fn an_idle_service_is_unloaded_and_back_with_the_next_request() -> Result<(), Any> {
    let server =
        Administered::start("idle", &ONE.replace("[service.search]\n", "[service.search]\nkeep_warm_s = 0\n"))?;
    let vector = server.embed("tides")?;
    let old = Arc::downgrade(&server.host.app().services()[0].service);
    server.host.tend();
    let (_, status) = server.ask("GET", "", "root", &Value::Null)?;
    assert_eq!((&status["services"][0]["state"], old.strong_count()), (&json!("idle"), 0), "{status}");
    let (_, _, text) = server.public.send("GET", "/metrics", "", b"")?;
    assert!(String::from_utf8(text)?.contains("ehun_service_loaded{service=\"search\"} 0"));
    // Several at once: it is loaded once, and all of them wait for it.
    let vectors = std::thread::scope(|scope| {
        let ask = || server.embed("tides").map_err(|error| error.to_string());
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Result<Vec<_>, _>>()
    })?;
    assert!(vectors.iter().all(|found| *found == vector));
    let what: Vec<Value> = server.audit()?.iter().map(|record| record["what"].clone()).collect();
    assert_eq!(what, ["unload", "load"]);
    // A swap of an idle service loads it first.
    server.host.tend();
    assert_eq!(server.ask("POST", "/search/swap", "root", &json!({"precision": "int8"}))?.0, 200);
    // What is loaded again is what was swapped to.
    server.host.tend();
    assert_eq!(server.embed("tides")?, offline("int8", "tides")?);
    Ok(())
}

#[test]
fn an_idle_service_that_cannot_come_back_says_so() -> Result<(), Any> {
    let server =
        Administered::start("gone", &ONE.replace("[service.search]\n", "[service.search]\nkeep_warm_s = 0\n"))?;
    let gone = server.folder.join("model");
    std::fs::create_dir(&gone)?;
    for file in std::fs::read_dir(goldens().join("st-mean"))? {
        let file = file?.path();
        if file.is_file() {
            std::fs::copy(&file, gone.join(file.file_name().ok_or("no name")?))?;
        } else {
            let inner = gone.join(file.file_name().ok_or("no name")?);
            std::fs::create_dir(&inner)?;
            for file in std::fs::read_dir(&file)? {
                let file = file?.path();
                std::fs::copy(&file, inner.join(file.file_name().ok_or("no name")?))?;
            }
        }
    }
    assert_eq!(server.ask("POST", "/search/swap", "root", &json!({"model": gone}))?.0, 200);
    server.host.tend();
    std::fs::remove_dir_all(&gone)?;
    let body = json!({"inputs": "tides"}).to_string();
    let (status, head, answer) =
        server.public.send("POST", "/embed", "authorization: Bearer reader\r\n", body.as_bytes())?;
    let answer = String::from_utf8(answer)?;
    assert!(status == 503 && head.contains("retry-after"), "{status} {head}");
    assert!(answer.contains("starting") && answer.contains("failed"), "{answer}");
    Ok(())
}

#[test]
fn a_reload_changes_adds_removes_and_refuses() -> Result<(), Any> {
    let both = format!("{ONE}[service.rank]\nmodel = \"ce-roberta\"\n");
    let server = Administered::start("reload", &both)?;
    let names = |server: &Administered| -> Vec<String> {
        server.host.app().services.entries().iter().map(|entry| entry.name.clone()).collect()
    };
    assert_eq!(names(&server), ["rank", "search"]);
    // A bad file is not read, and a service that cannot be loaded keeps all as it was.
    assert!(read(&server.folder, &format!("{ONE}prescision = \"int8\"\n")).is_err());
    let bad = read(&server.folder, &format!("{ONE}precision = \"int8\"\n[service.more]\nmodel = \"/nowhere\"\n"))?;
    assert!(server.host.reload(bad).is_err());
    assert_eq!(names(&server), ["rank", "search"]);
    assert_eq!(server.embed("tides")?, offline("f32", "tides")?);
    let good = read(&server.folder, &format!("{ONE}precision = \"int8\"\n[service.more]\nmodel = \"ce-roberta\"\n"))?;
    server.host.reload(good)?;
    assert_eq!(names(&server), ["search", "more"]);
    assert_eq!(server.embed("tides")?, offline("int8", "tides")?);
    // Limits alone need no other deployment.
    let before = server.host.app().services.entry("search").and_then(|e| e.live()).ok_or("not live")?;
    let limits = "precision = \"int8\"\n[service.search.limits]\ndeadline_ms = 9000\nqueue_tokens = 77\n";
    server.host.reload(read(&server.folder, &format!("{ONE}{limits}"))?)?;
    let after = server.host.app().services.entry("search").and_then(|e| e.live()).ok_or("not live")?;
    assert!(Arc::ptr_eq(&before.service.deployment(), &after.service.deployment()));
    assert_eq!((after.deadline, after.service.config().queue_tokens), (Some(Duration::from_secs(9)), 77));
    assert_eq!(server.embed("tides")?, offline("int8", "tides")?);
    // A service that someone changes by hand meanwhile is not disturbed by a file that says nothing new of it.
    server.host.act(
        "test",
        "search",
        &Action::Swap {
            change: serde_json::from_value(json!({"precision": "f32"}))?,
            bounds: Default::default(),
            force: false,
        },
    )?;
    server.host.reload(read(&server.folder, &format!("{ONE}{limits}"))?)?;
    assert_eq!(server.embed("tides")?, offline("f32", "tides")?);
    let other = "precision = \"int8\"\n[service.search.limits]\ndeadline_ms = 8000\nqueue_tokens = 77\n";
    server.host.reload(read(&server.folder, &format!("{ONE}{other}"))?)?;
    assert_eq!(server.embed("tides")?, offline("f32", "tides")?, "nor by one that says something else of it");
    let limits = other;
    // Keys that are gone are gone.
    let mut config = read(&server.folder, &format!("{ONE}{limits}"))?;
    config.key.retain(|key| key.name == "root");
    server.host.reload(config)?;
    let (status, ..) =
        server.public.send("POST", "/embed", "authorization: Bearer reader\r\n", b"{\"inputs\": \"a\"}")?;
    assert_eq!(status, 401);
    Ok(())
}

#[test]
fn a_reload_takes_over_what_it_can_of_the_server_and_names_the_rest() -> Result<(), Any> {
    let server = Administered::start("server", ONE)?;
    let embed = |body: &str| server.public.send("POST", "/embed", BEARER, body.as_bytes()).map(|answer| answer.0);
    let two = json!({"inputs": ["a", "b"]}).to_string();
    assert_eq!(embed(&two)?, 200);
    // The keys of `[server]`, and those that the reload says need a restart.
    let cases: [(&str, &[&str]); 7] = [
        ("items = 1", &[]),
        ("body_bytes = 10", &[]),
        ("slow_ms = 500", &[]),
        ("log = \"json\"\ndrain_ms = 700", &[]),
        ("listen = \"127.0.0.1:9\"\notlp = \"http://127.0.0.1:9\"", &["server.listen", "server.otlp"]),
        ("admin = \"off\"", &["server.admin"]),
        ("tls = { cert = \"c.pem\", key = \"k.pem\" }", &["server.tls"]),
    ];
    for (keys, restart) in cases {
        let text = ONE.replace("[server]\n", &format!("[server]\n{keys}\n"));
        assert_eq!(server.host.reload(read(&server.folder, &text)?)?, restart, "{keys}");
        let (want, app) = (if keys.starts_with("items") { 422 } else { 200 }, server.host.app());
        assert_eq!(embed(&two)?, if keys.starts_with("body") { 413 } else { want }, "{keys}");
        assert_eq!(app.limits().slow.as_millis(), if keys.starts_with("slow") { 500 } else { 30_000 }, "{keys}");
        let json = app.telling().log == ehun_server::trace::LogFormat::Json;
        assert_eq!((json, app.limits().drain.as_millis() == 700), (keys.starts_with("log"), keys.starts_with("log")));
    }
    let last = server.audit()?.pop().ok_or("no record")?;
    assert_eq!(last["reason"], "a restart is needed for server.tls", "{last}");
    assert!(server.host.reload(read(&server.folder, ONE)?)?.is_empty(), "as it was started");
    Ok(())
}

#[test]
fn slow_clients_are_hung_up_on_and_nobody_else_may_ask_from_a_page() -> Result<(), Any> {
    let server = Administered::start("slow", &ONE.replace("[server]\n", "[server]\nslow_ms = 500\n"))?;
    let start = "POST /embed HTTP/1.1\r\nhost: test\r\nauthorization: Bearer reader\r\n";
    for (what, sent, status) in [
        ("nothing", String::new(), None),
        ("half a head", start.to_owned(), None),
        ("half a body", format!("{start}content-length: 100\r\n\r\n{{\"inputs\""), Some("408")),
    ] {
        let mut stream = TcpStream::connect(server.public.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        stream.write_all(sent.as_bytes())?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).map_err(|error| format!("{what}: never hung up on: {error}"))?;
        let answer = String::from_utf8(answer)?;
        match status {
            Some(status) => assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{what}: {answer}"),
            None => assert!(!answer.contains("200"), "{what}: {answer}"),
        }
    }
    let long = format!("x-long: {}\r\nauthorization: Bearer reader\r\n", "a".repeat(100_000));
    assert_eq!(server.public.send("GET", "/v1/models", &long, b"").map_or(431, |answer| answer.0), 431);
    let page = "origin: https://example.org\r\nauthorization: Bearer reader\r\n";
    let (status, head, _) = server.public.send("GET", "/v1/models", page, b"")?;
    assert!(status == 200 && !head.contains("access-control"), "{head}");
    assert_eq!(
        server.public.send("POST", "/admin/v1/services/search/swap", page, b"{}")?.0,
        404,
        "not where clients are"
    );
    Ok(())
}
