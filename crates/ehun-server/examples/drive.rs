//! Loads a started `ehun serve` from a process of its own and compares it with the engine without a server.
//!
//! ```text
//! drive EHUN MODEL-DIR [SECONDS]
//! ```
//!
//! Prints one JSON object: texts a second of the engine and through HTTP, the latency that HTTP adds to one text, and what
//! happens at ten times the load that keeps the server busy. Everything is bounded by time.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ehun_backend::{BackendFactory, Options};
use ehun_backend_cpu::CpuFactory;
use ehun_engine::{Deployment, HealthPolicy, Input, Request, Service, ServiceConfig};
use ehun_models::{Checkpoint, LoadOptions, Model};
use serde_json::{Value, json};

type Any = Box<dyn Error + Send + Sync>;

/// Texts of a request.
const ITEMS: usize = 32;

/// Connections that keep the server busy.
const CONNECTIONS: usize = 4;

/// Tokens that the service takes before it turns requests away.
const QUEUE_TOKENS: usize = 40_000;

/// English-like texts of 4 to 120 words, the same in every run.
fn texts(count: usize) -> Vec<String> {
    const WORDS: &str = "the tide of a woven cloth and river in winter was measured by old clocks again";
    let words: Vec<&str> = WORDS.split(' ').collect();
    let mut state = 7u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    let mut one = || (0..4 + next() % 117).map(|_| words[next() % words.len()]).collect::<Vec<_>>().join(" ");
    (0..count).map(|_| one()).collect()
}

fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let place = (values.len() as f64 * share) as usize;
    values.get(place.min(values.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

fn engine(model: &Path) -> Result<Service, Any> {
    let model = Arc::new(Model::load(&Checkpoint::open(model)?, &LoadOptions::default())?);
    let backend = CpuFactory.open("cpu")?;
    let deployment = Deployment::of_model(model, &[backend], &Options::default(), HealthPolicy::default())?;
    let config = ServiceConfig { queue_tokens: QUEUE_TOKENS, ..ServiceConfig::default() };
    Ok(Service::start(config, deployment, Vec::new())?)
}

/// Texts a second of `CONNECTIONS` threads that each do `ask` again and again.
fn rate<C>(
    texts: &[String],
    time: Duration,
    connect: impl Fn() -> Result<C, Any> + Sync,
    ask: impl Fn(&mut C, &[String]) -> Result<usize, Any> + Sync,
) -> Result<f64, Any> {
    let (done, start) = (AtomicUsize::new(0), Instant::now());
    let one = |thread: usize| -> Result<(), Any> {
        let mut connection = connect()?;
        for part in texts.chunks(ITEMS).cycle().skip(thread * 7) {
            if start.elapsed() >= time {
                break;
            }
            done.fetch_add(ask(&mut connection, part)?, Ordering::SeqCst);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> = (0..CONNECTIONS).map(|i| scope.spawn(move || one(i))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| Any::from("a thread panicked"))?)
    })?;
    Ok(done.load(Ordering::SeqCst) as f64 / start.elapsed().as_secs_f64())
}

/// Texts a second of the engine, asked by as many threads as the server is.
fn offline(service: &Service, texts: &[String], time: Duration) -> Result<f64, Any> {
    let ask = |(): &mut (), part: &[String]| {
        let inputs = part.iter().map(|text| Input::from(text.as_str())).collect();
        let answers = service.request_when_room(Request::new(inputs))?.wait().items;
        answers.into_iter().try_fold(0, |count, answer| answer.map(|_| count + 1).map_err(Any::from))
    };
    rate(texts, time, || Ok(()), ask)
}

/// A kept HTTP/1.1 connection.
struct Connection(BufReader<TcpStream>);

impl Connection {
    fn open(address: SocketAddr) -> Result<Self, Any> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Status and body.
    fn post(&mut self, path: &str, body: &[u8]) -> Result<(u16, Vec<u8>), Any> {
        let head = format!("POST {path} HTTP/1.1\r\nhost: d\r\ncontent-length: {}\r\n\r\n", body.len());
        self.0.get_mut().write_all(&[head.as_bytes(), body].concat())?;
        let (mut status, mut length, mut line) = (0, 0, String::new());
        loop {
            line.clear();
            self.0.read_line(&mut line)?;
            let text = line.trim().to_lowercase();
            if text.is_empty() {
                break;
            }
            if let Some(rest) = text.strip_prefix("http/1.1 ") {
                status = rest.split(' ').next().unwrap_or_default().parse()?;
            }
            if let Some(rest) = text.strip_prefix("content-length: ") {
                length = rest.parse()?;
            }
        }
        if status == 0 {
            return Err("the server hung up".into());
        }
        let mut answer = vec![0; length];
        self.0.read_exact(&mut answer)?;
        Ok((status, answer))
    }
}

struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start(ehun: &str, model: &Path, folder: &Path) -> Result<Self, Any> {
        let config = folder.join("ehun.toml");
        let limits = format!("[service.m.limits]\nqueue_tokens = {QUEUE_TOKENS}\n");
        std::fs::write(&config, format!("[service.m]\nmodel = {model:?}\n{limits}"))?;
        let arguments = ["serve", "--listen", "127.0.0.1:0", "--config"];
        let mut child = Command::new(ehun).args(arguments).arg(&config).stderr(Stdio::piped()).spawn()?;
        let lines = BufReader::new(child.stderr.take().ok_or("no standard error")?).lines();
        for line in lines.map_while(Result::ok) {
            if let Some(rest) = line.split("listening on http://").nth(1) {
                let address = rest.split(',').next().unwrap_or_default().parse()?;
                return Ok(Self { child, address });
            }
        }
        Err("the server did not start".into())
    }

    /// Resident memory in MiB.
    fn memory(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok()).map_or(f64::NAN, |kib| kib / 1024.0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn openai(part: &[String]) -> Vec<u8> {
    json!({"model": "m", "input": part, "encoding_format": "base64"}).to_string().into_bytes()
}

fn tei(part: &[String]) -> Vec<u8> {
    json!({"inputs": part}).to_string().into_bytes()
}

/// Makes a request of texts.
type Body = fn(&[String]) -> Vec<u8>;

fn online(server: &Server, texts: &[String], time: Duration, (path, body): (&str, Body)) -> Result<f64, Any> {
    let ask = |connection: &mut Connection, part: &[String]| match connection.post(path, &body(part))? {
        (200, _) => Ok(part.len()),
        (status, answer) => Err(format!("{status} {}", String::from_utf8_lossy(&answer)).into()),
    };
    rate(texts, time, || Connection::open(server.address), ask)
}

/// Median time of one text in milliseconds, one after the other: in the engine, and through the server.
fn latency(service: &Service, server: &Server, time: Duration) -> Result<(f64, f64), Any> {
    let text = "how were the tides predicted before computers";
    let body = openai(&[text.to_owned()]);
    let mut connection = Connection::open(server.address)?;
    let (mut engine, mut http) = (Vec::new(), Vec::new());
    let start = Instant::now();
    // By turns, so that both see the same machine.
    while start.elapsed() < time {
        let begun = Instant::now();
        let answers = service.request_when_room(Request::new(vec![Input::from(text)]))?.wait().items;
        engine.push(begun.elapsed().as_secs_f64() * 1e3);
        answers.into_iter().collect::<Result<Vec<_>, _>>()?;
        let begun = Instant::now();
        let (status, _) = connection.post("/v1/embeddings", &body)?;
        http.push(begun.elapsed().as_secs_f64() * 1e3);
        if status != 200 {
            return Err(format!("status {status}").into());
        }
    }
    Ok((quantile(engine, 0.5), quantile(http, 0.5)))
}

/// Ten times the connections. Who is turned away comes again soon.
fn overload(server: &Server, texts: &[String], time: Duration) -> Result<Value, Any> {
    let (good, stop, start, before) = (AtomicUsize::new(0), AtomicBool::new(false), Instant::now(), server.memory());
    let one = |thread: usize| -> Result<Vec<f64>, Any> {
        let mut connection = Connection::open(server.address)?;
        let mut away = Vec::new();
        for part in texts.chunks(ITEMS).cycle().skip(thread * 3) {
            if stop.load(Ordering::SeqCst) {
                break;
            }
            let begun = Instant::now();
            match connection.post("/v1/embeddings", &openai(part))? {
                (200, _) => drop(good.fetch_add(part.len(), Ordering::SeqCst)),
                (429, _) => {
                    away.push(begun.elapsed().as_secs_f64() * 1e3);
                    // A client that does not heed Retry-After, but not one that only burns the machine that both share.
                    std::thread::sleep(Duration::from_millis(100));
                }
                (status, body) => return Err(format!("{status} {}", String::from_utf8_lossy(&body)).into()),
            }
        }
        Ok(away)
    };
    let (away, most) = std::thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> = (0..CONNECTIONS * 10).map(|i| scope.spawn(move || one(i))).collect();
        let mut most = before;
        while start.elapsed() < time {
            std::thread::sleep(Duration::from_millis(200));
            most = most.max(server.memory());
        }
        stop.store(true, Ordering::SeqCst);
        let mut away = Vec::new();
        for thread in threads {
            away.extend(thread.join().map_err(|_| Any::from("a thread panicked"))??);
        }
        Ok::<_, Any>((away, most))
    })?;
    Ok(json!({
        "connections": CONNECTIONS * 10,
        "texts_per_second": good.load(Ordering::SeqCst) as f64 / start.elapsed().as_secs_f64(),
        "turned_away": away.len(),
        "turned_away_ms_median": quantile(away.clone(), 0.5),
        "turned_away_ms_p99": quantile(away, 0.99),
        "memory_mib_before": before,
        "memory_mib_most": most,
    }))
}

fn main() -> Result<(), Any> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [ehun, model, rest @ ..] = &arguments[..] else { return Err("drive EHUN MODEL-DIR [SECONDS]".into()) };
    let time = Duration::from_secs_f64(rest.first().map_or(Ok(8.0), |text| text.parse())?);
    let model = std::fs::canonicalize(model)?;
    let folder = std::env::temp_dir().join(format!("ehun-drive-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let texts = texts(2048);
    let service = engine(&model)?;
    let server = Server::start(ehun, &model, &folder)?;
    let (mut alone, mut base64, mut digits) = (Vec::new(), Vec::new(), Vec::new());
    // By turns, three times: the spread is printed and not only the best.
    for _ in 0..3 {
        alone.push(offline(&service, &texts, time)?);
        base64.push(online(&server, &texts, time, ("/v1/embeddings", openai))?);
        digits.push(online(&server, &texts, time, ("/embed", tei))?);
    }
    let (engine_ms, http_ms) = latency(&service, &server, time)?;
    let overload = overload(&server, &texts, time)?;
    drop(server);
    std::fs::remove_dir_all(&folder)?;
    let result = json!({
        "texts_per_second": {"engine": alone, "openai_base64": base64, "tei_json": digits},
        "one_text_ms": {"engine": engine_ms, "http": http_ms, "added": http_ms - engine_ms},
        "overload": overload,
    });
    println!("{result:#}");
    Ok(())
}
