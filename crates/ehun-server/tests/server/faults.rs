//! What clients see of backends that misbehave: answers by the next one, faults of an item alone, and places that are given up.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ehun_backend::{BackendError, Precision, RunOptions, RunReport};
use ehun_engine::{
    Deployment, HealthPolicy, Input, ItemOutput, ItemRows, Lane, Observer, Prepared, Runner, Service, ServiceConfig,
    Shape,
};
use ehun_models::{Checkpoint, LoadOptions, Model};
use ehun_server::{App, Limits, Metrics, Served};
use serde_json::{Value, json};

use crate::{Any, Running, goldens};

/// What a backend does with a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Good,
    Error,
    Nan,
    Lost,
    /// It does not come back until its mood is another one.
    Hang,
}

/// Logits of three labels for each text; not a number for one that says so.
struct Planted {
    name: &'static str,
    mood: Mutex<Mood>,
    changed: Condvar,
    calls: AtomicUsize,
}

impl Planted {
    fn new(name: &'static str, mood: Mood) -> Arc<Self> {
        Arc::new(Self { name, mood: Mutex::new(mood), changed: Condvar::new(), calls: AtomicUsize::new(0) })
    }

    fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap_or_else(PoisonError::into_inner) = mood;
        self.changed.notify_all();
    }
}

impl Runner for Planted {
    fn name(&self) -> &str {
        self.name
    }

    fn shape(&self) -> Shape {
        Shape::Tokens { max_tokens: 512, max_items: 16 }
    }

    fn run(&self, items: &[Arc<Prepared>], _: &RunOptions) -> Result<Vec<ItemOutput>, BackendError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let mood = *self.mood.lock().unwrap_or_else(PoisonError::into_inner);
        match mood {
            Mood::Good | Mood::Nan => {}
            Mood::Error => return Err(BackendError::Failed("planted".into())),
            Mood::Lost => return Err(BackendError::DeviceLost("planted".into())),
            Mood::Hang => {
                let guard = self.mood.lock().unwrap_or_else(PoisonError::into_inner);
                let hangs = |mood: &mut Mood| *mood == Mood::Hang;
                drop(self.changed.wait_while(guard, hangs).unwrap_or_else(PoisonError::into_inner));
            }
        }
        let report = Arc::new(RunReport {
            backend: self.name.to_owned(),
            device: "test".into(),
            precision: Precision::F32,
            sequences: items.len(),
            tokens: items.iter().map(|item| item.num_tokens()).sum(),
            ..RunReport::default()
        });
        let output = |item: &Arc<Prepared>| {
            let is_nan = mood == Mood::Nan || matches!(&item.input, Input::Text(text) if text.contains("nan"));
            let data = vec![if is_nan { f32::NAN } else { 1.0 }, 2.0, 3.0];
            let values = vec![ItemRows { name: "logits".into(), rows: 1, width: 3, data }];
            ItemOutput { values, report: Arc::clone(&report), attention: "".into() }
        };
        Ok(items.iter().map(output).collect())
    }
}

fn start(
    runners: &[&Arc<Planted>],
    policy: HealthPolicy,
    deadline: Option<Duration>,
) -> Result<(Running, Arc<Service>), Any> {
    let checkpoint = Checkpoint::open(goldens().join("bert.sequence-classification"))?;
    let model = Arc::new(Model::load(&checkpoint, &LoadOptions::default())?);
    let lanes = runners.iter().map(|&runner| Lane::new(Arc::clone(runner) as Arc<dyn Runner>, policy)).collect();
    let deployment = Deployment::of_lanes(Arc::clone(&model), lanes);
    let metrics = Arc::new(Metrics::new(["s"]));
    let config = ServiceConfig { name: "s".into(), ..ServiceConfig::default() };
    let observers = vec![Arc::clone(&metrics) as Arc<dyn Observer>];
    let service = Arc::new(Service::start(config, deployment, observers)?);
    let served = Arc::new(Served { name: "s".into(), model, service: Arc::clone(&service), deadline });
    let limits = Limits { drain: Duration::from_secs(1), ..Limits::default() };
    Ok((Running::start(Arc::new(App::new(vec![served], limits, Vec::new(), metrics)))?, service))
}

/// Who answered, as the header says.
fn who(server: &Running) -> Result<String, Any> {
    let (status, head, body) = server.send("POST", "/v1/classify", "", b"{\"inputs\": [\"a text\"]}")?;
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
    let line = head.lines().find_map(|line| line.strip_prefix("x-ehun-backend: ")).ok_or("no header")?;
    Ok(line.trim().to_owned())
}

fn state(server: &Running) -> Result<Value, Any> {
    Ok(server.json("GET", "/v1/services", &Value::Null)?.1["services"][0]["backends"][0]["health"]["state"].clone())
}

/// Waits until `done`, which must be soon.
fn until(what: &str, mut done: impl FnMut() -> Result<bool, Any>) -> Result<(), Any> {
    let end = Instant::now() + Duration::from_secs(30);
    while !done()? {
        if Instant::now() > end {
            return Err(format!("never: {what}").into());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

#[test]
fn a_bad_item_fails_alone_where_the_format_can_say_so() -> Result<(), Any> {
    let (server, _) = start(&[&Planted::new("one", Mood::Good)], HealthPolicy::default(), None)?;
    let texts = ["a text", "nan", "another"];
    let (status, answer) = server.json("POST", "/v1/classify", &json!({"inputs": texts}))?;
    assert_eq!(status, 200, "{answer}");
    for (i, bad) in [false, true, false].into_iter().enumerate() {
        let result = &answer["results"][i];
        assert_eq!((result["error"].is_string(), result[0]["score"].is_number()), (bad, !bad), "{result}");
    }
    // One status for all: the bad item's, and which it was.
    let (status, answer) = server.json("POST", "/predict", &json!({"inputs": texts.map(|text| [text])}))?;
    assert_eq!((status, &answer["error_type"]), (424, &json!("Backend")), "{answer}");
    let (status, answer) = server.json("POST", "/predict", &json!({"inputs": [["a text"], ["another"]]}))?;
    assert_eq!(status, 200, "what is good is still answered: {answer}");
    Ok(())
}

#[test]
fn the_next_backend_answers_until_probes_bring_the_first_one_back() -> Result<(), Any> {
    // What is wrong, and after how many batches the first backend rests.
    for (mood, batches) in [(Mood::Error, 3), (Mood::Nan, 3), (Mood::Lost, 1), (Mood::Hang, 1)] {
        let (first, second) = (Planted::new("first", Mood::Good), Planted::new("second", Mood::Good));
        let policy = HealthPolicy {
            cooldown: Duration::from_millis(40),
            max_cooldown: Duration::from_millis(80),
            latency_limit: (mood == Mood::Hang).then_some(Duration::from_secs(1)),
            ..HealthPolicy::default()
        };
        let (server, _) = start(&[&first, &second], policy, None)?;
        until("the first answers", || Ok(who(&server)? == "first"))?;
        assert_eq!(state(&server)?, "closed", "{mood:?}");
        first.set(mood);
        for _ in 0..batches {
            assert_eq!(who(&server)?, "second", "{mood:?}");
        }
        assert_eq!(state(&server)?, "open", "{mood:?}");
        let metrics = String::from_utf8(server.send("GET", "/metrics", "", b"")?.2)?;
        for line in [
            "ehun_backend_up{service=\"s\",backend=\"first\"} 0".to_owned(),
            "ehun_backend_up{service=\"s\",backend=\"second\"} 1".to_owned(),
            format!("ehun_backend_failures_total{{service=\"s\",backend=\"first\"}} {batches}"),
        ] {
            assert!(metrics.contains(&line), "{mood:?}: {line} is not in\n{metrics}");
        }
        first.set(Mood::Good);
        until("it comes back", || Ok(who(&server)? == "first"))?;
        assert_eq!(state(&server)?, "closed", "{mood:?}");
    }
    Ok(())
}

#[test]
fn who_is_too_late_is_told_and_who_hangs_up_leaves_the_queue() -> Result<(), Any> {
    let hung = Planted::new("hung", Mood::Hang);
    let (server, service) = start(&[&hung], HealthPolicy::default(), Some(Duration::from_millis(100)))?;
    for (route, body) in [("/v1/classify", json!({"inputs": ["a"]})), ("/predict", json!({"inputs": "a"}))] {
        let (status, answer) = server.json("POST", route, &body)?;
        assert!(status == 504 && answer.to_string().contains("deadline"), "{route}: {status} {answer}");
    }
    assert_eq!(service.load().tokens, 0);
    hung.set(Mood::Good);

    let hung = Planted::new("hung", Mood::Hang);
    let (server, service) = start(&[&hung], HealthPolicy::default(), None)?;
    let body = json!({"inputs": ["a text"]}).to_string();
    let send = || -> Result<TcpStream, Any> {
        let mut stream = TcpStream::connect(server.address)?;
        let head = format!("POST /v1/classify HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(head.as_bytes())?;
        Ok(stream)
    };
    let running = send()?;
    until("the first runs", || Ok(hung.calls.load(Ordering::SeqCst) == 1))?;
    let waiting = [send()?, send()?];
    until("the others wait", || Ok(service.load().waiting_items == 2))?;
    drop(waiting);
    until("they leave the queue", || Ok(service.load().waiting_items == 0))?;
    hung.set(Mood::Good);
    until("the first is answered", || Ok(service.load().tokens == 0))?;
    assert_eq!(hung.calls.load(Ordering::SeqCst), 1, "what was given up was not run");
    drop(running);
    Ok(())
}
