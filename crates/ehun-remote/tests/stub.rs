//! A service elsewhere that misbehaves on command: what the runner says of it, and that a service falls back to the CPU with
//! the right answer.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ehun_backend::{BackendError, BackendFactory, Options, RunOptions};
use ehun_backend_cpu::CpuFactory;
use ehun_engine::{
    Deployment, HealthPolicy, Input, ItemOptions, Lane, Prepared, Request, Runner, Service, ServiceConfig, Tokenize,
};
use ehun_models::{Checkpoint, LoadOptions, Model};
use serde_json::{Value, json};

type Any = Box<dyn Error>;

/// What the stub does with a connection after it has read a request.
type Behaviour = fn(&mut TcpStream);

struct Stub {
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
}

impl Stub {
    /// Runs until the test ends. Every connection serves one request.
    fn start(behave: Behaviour) -> Result<Self, Any> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let requests = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&requests);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                if read_request(&mut stream).is_some() {
                    count.fetch_add(1, Ordering::SeqCst);
                    behave(&mut stream);
                }
            }
        });
        Ok(Self { address, requests })
    }
}

fn read_request(stream: &mut TcpStream) -> Option<()> {
    let mut read = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let end = read.windows(4).position(|w| w == b"\r\n\r\n");
        if let Some(end) = end {
            let head = String::from_utf8_lossy(&read[..end]).to_lowercase();
            let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()?.parse().ok());
            if read.len() >= end + 4 + length.unwrap_or(0) {
                return Some(());
            }
        }
        match stream.read(&mut buffer) {
            Ok(count) if count > 0 => read.extend(&buffer[..count]),
            _ => return None,
        }
    }
}

fn send(stream: &mut TcpStream, status: &str, body: &str) {
    let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
}

fn embeddings(stream: &mut TcpStream, all: &[(usize, Value)]) {
    let data: Vec<Value> = all.iter().map(|(index, e)| json!({"index": index, "embedding": e})).collect();
    send(stream, "200 OK", &json!({"data": data}).to_string());
}

/// What the stub does, a word of what the runner must say, and how many requests one call may make.
const FAULTS: &[(&str, Behaviour, &str, usize)] = &[
    ("500", |s| send(s, "500 Internal Server Error", "{\"error\": \"no memory\"}"), "status 500", 1),
    ("429", |s| send(s, "429 Too Many Requests", "slower"), "status 429: slower", 1),
    ("503", |s| send(s, "503 Service Unavailable", ""), "status 503: no body", 1),
    ("401", |s| send(s, "401 Unauthorized", "a key is needed"), "status 401", 1),
    ("400", |s| send(s, "400 Bad Request", "no"), "status 400", 1),
    ("302", |s| send(s, "302 Found\r\nlocation: /elsewhere", ""), "status 302", 1),
    ("hangs up", |_| {}, "cut", 2),
    ("half an answer", |s| drop(s.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n{\"data\"")), "cut", 2),
    ("no HTTP", |s| drop(s.write_all(b"SSH-2.0-OpenSSH\r\n")), "cut", 2),
    ("HTML", |s| send(s, "200 OK", "<html>welcome</html>"), "<html>", 1),
    ("fewer", |s| embeddings(s, &[(0, json!(vec![0.5; 48]))]), "fewer", 1),
    ("twice", |s| embeddings(s, &[(0, json!(vec![0.5; 48])), (0, json!(vec![0.5; 48]))]), "twice", 1),
    ("beyond", |s| embeddings(s, &[(0, json!(vec![0.5; 48])), (9, json!(vec![0.5; 48]))]), "index 9", 1),
    ("narrow", |s| embeddings(s, &[(0, json!([0.5])), (1, json!([0.5]))]), "a row of 1 numbers", 1),
    ("null", |s| embeddings(s, &[(0, json!([null])), (1, json!([null]))]), "of no use", 1),
    ("slow", |_| std::thread::sleep(Duration::from_millis(400)), "no answer within", 1),
];

fn model() -> Result<Arc<Model>, Any> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens/st-mean");
    Ok(Arc::new(Model::load(&Checkpoint::open(golden)?, &LoadOptions::default())?))
}

fn cpu(model: &Arc<Model>) -> Result<Arc<Lane>, Any> {
    let options = Options { threads: Some(1), ..Options::default() };
    Ok(Lane::of_model(model, &CpuFactory.open("cpu")?, &options, HealthPolicy::default())?)
}

fn remote(address: SocketAddr, model: &Arc<Model>) -> Result<Arc<dyn Runner>, Any> {
    Ok(ehun_remote::open(&format!("openai+http://{address}/v1?timeout_ms=200#m"), Arc::clone(model), None)?)
}

fn items(model: &Arc<Model>, texts: &[&str]) -> Result<Vec<Arc<Prepared>>, Any> {
    let one = |text: &&str| {
        let tokenizer = Arc::clone(model) as Arc<dyn Tokenize>;
        Ok(Arc::new(Prepared::new(Input::from(*text), ItemOptions::default(), tokenizer)?))
    };
    texts.iter().map(one).collect()
}

#[test]
fn faults_have_names_and_no_more_tries_than_are_safe() -> Result<(), Any> {
    let model = model()?;
    let items = items(&model, &["a", "b"])?;
    for (name, behave, needle, tries) in FAULTS {
        let stub = Stub::start(*behave)?;
        let error = remote(stub.address, &model)?.run(&items, &RunOptions::default()).unwrap_err();
        assert!(error.to_string().contains(needle), "{name}: {error}");
        assert_eq!(stub.requests.load(Ordering::SeqCst), *tries, "{name}");
        let refused = matches!(error, BackendError::Refused(_));
        assert_eq!(refused, *name == "400", "only what the request is to blame for: {name}");
    }
    // Nobody listens where a listener was just closed.
    let gone = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let error = remote(gone, &model)?.run(&items, &RunOptions::default()).unwrap_err();
    assert!(matches!(error, BackendError::DeviceLost(_)), "{error}");
    Ok(())
}

#[test]
fn a_deadline_is_told_from_a_slow_service() -> Result<(), Any> {
    let model = model()?;
    let items = items(&model, &["a"])?;
    let stub = Stub::start(|_| std::thread::sleep(Duration::from_millis(300)))?;
    let options = RunOptions { deadline: Some(Instant::now() + Duration::from_millis(30)), profile: false };
    assert_eq!(remote(stub.address, &model)?.run(&items, &options).unwrap_err(), BackendError::Deadline);
    Ok(())
}

#[test]
fn whatever_it_does_the_answer_is_right() -> Result<(), Any> {
    let model = model()?;
    let texts = ["first text", "a second one"];
    let request = || Request::new(texts.iter().map(|&text| Input::from(text)).collect());
    let start = |lanes| {
        let deployment = Deployment::of_lanes(Arc::clone(&model), lanes);
        Service::start(ServiceConfig::default(), deployment, Vec::new())
    };
    let vectors = |service: &Service| -> Result<Vec<Vec<f32>>, Any> {
        let response = service.request(request())?.wait();
        response
            .items
            .into_iter()
            .map(|item| {
                let answer = item?;
                assert_eq!(answer.output.report.backend, "cpu");
                Ok(answer.output.values[0].data.clone())
            })
            .collect()
    };
    let want = vectors(&start(vec![cpu(&model)?])?)?;
    // Numbers that are not finite are for the engine to see.
    let nan: Behaviour = |s| {
        use base64::Engine as _;
        let bytes: Vec<u8> = std::iter::repeat_n(f32::NAN, 48).flat_map(f32::to_le_bytes).collect();
        let text = base64::engine::general_purpose::STANDARD.encode(bytes);
        embeddings(s, &[(0, json!(text)), (1, json!(text))]);
    };
    for (name, behave) in FAULTS.iter().map(|(name, behave, ..)| (*name, *behave)).chain([("NaN", nan)]) {
        let stub = Stub::start(behave)?;
        let service = start(vec![Lane::new(remote(stub.address, &model)?, HealthPolicy::default()), cpu(&model)?])?;
        for _ in 0..5 {
            assert_eq!(vectors(&service)?, want, "{name}");
        }
        let health = service.deployment().lanes[0].health();
        // A request that it does not like says nothing about its health; all else gives it a rest.
        let rested = if name == "400" { 0 } else { 3 };
        assert_eq!(health.consecutive_failures, rested, "{name}: {health:?}");
    }
    Ok(())
}
