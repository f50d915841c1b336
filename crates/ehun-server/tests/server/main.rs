//! Every route over a real socket, with golden checkpoints as the models: statuses, shapes, order and numbers.

mod admin;
mod faults;
mod starting;
mod swaps;

use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ehun_backend::{BackendFactory, Options};
use ehun_backend_cpu::CpuFactory;
use ehun_engine::{Deployment, HealthPolicy, Observer, Service, ServiceConfig};
use ehun_models::{Checkpoint, LoadOptions, Model, Task};
use ehun_server::{App, Limits, Metrics, Served, auth};
use serde_json::{Value, json};

type Any = Box<dyn Error>;

const SERVICES: &[(&str, &str, Option<Task>)] = &[
    ("embed", "st-mean", None),
    ("rerank", "ce-roberta", None),
    ("classify", "bert.sequence-classification", None),
    ("tag", "bert.token-classification", None),
    ("sparse", "bert.masked-lm", None),
    ("tokens", "st-mean", Some(Task::Tokens)),
];

fn goldens() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens")
}

fn app(queue_tokens: usize, keys: Vec<auth::Key>) -> Result<App, Any> {
    let metrics = Arc::new(Metrics::new(SERVICES.iter().map(|(name, ..)| *name)));
    let backend = CpuFactory.open("cpu")?;
    let mut served = Vec::new();
    for (name, golden, task) in SERVICES {
        let checkpoint = Checkpoint::open(goldens().join(golden))?;
        let model = Arc::new(Model::load(&checkpoint, &LoadOptions { task: *task, ..LoadOptions::default() })?);
        let options = Options { threads: Some(1), ..Options::default() };
        let deployment =
            Deployment::of_model(Arc::clone(&model), &[Arc::clone(&backend)], &options, HealthPolicy::default())?;
        let config = ServiceConfig { name: (*name).to_owned(), queue_tokens, ..ServiceConfig::default() };
        let service = Service::start(config, deployment, vec![Arc::clone(&metrics) as Arc<dyn Observer>])?;
        served.push(Arc::new(Served { name: (*name).to_owned(), model, service: Arc::new(service), deadline: None }));
    }
    Ok(App::new(
        served,
        Limits { body_bytes: 1 << 20, items: 100, drain: Duration::from_secs(1), ..Limits::default() },
        keys,
        metrics,
    ))
}

/// A running server, ended and waited for when dropped.
pub struct Running {
    address: SocketAddr,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    /// Starts serving on a free port.
    pub fn start(app: Arc<App>) -> Result<Self, Any> {
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (listening, address) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            let any = SocketAddr::from(([127, 0, 0, 1], 0));
            let ready = move |address| listening.send(address).unwrap();
            let stopped = async {
                let _ = stopped.await;
            };
            runtime.block_on(ehun_server::serve(app, any, ready, stopped)).unwrap();
        });
        Ok(Self { address: address.recv()?, stop: Some(stop), thread: Some(thread) })
    }

    /// Status, head and body of one request.
    pub fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Result<Answer, Any> {
        send(self.address, method, path, headers, body)
    }

    fn json(&self, method: &str, path: &str, body: &Value) -> Result<(u16, Value), Any> {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let (status, _, answer) = self.send(method, path, "content-type: application/json\r\n", &body)?;
        let value = if answer.is_empty() { Value::Null } else { serde_json::from_slice(&answer)? };
        Ok((status, value))
    }
}

/// Status, headers in lower case, and body.
type Answer = (u16, String, Vec<u8>);

fn send(address: SocketAddr, method: &str, path: &str, headers: &str, body: &[u8]) -> Result<Answer, Any> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    // A server may answer and hang up before it has read all of a body that is too large.
    let _ = stream.write_all(body);
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let split = answer.windows(4).position(|w| w == b"\r\n\r\n").ok_or("no end of the headers")?;
    let head = String::from_utf8(answer[..split].to_vec())?.to_lowercase();
    let status = head.split(' ').nth(1).ok_or("no status")?.parse()?;
    Ok((status, head, answer[split + 4..].to_vec()))
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

#[test]
fn statuses_and_shapes() -> Result<(), Any> {
    let server = Running::start(Arc::new(app(200_000, Vec::new())?))?;
    // Method, path, body, status, and what must stand at a place of the answer.
    let oip = |data: Value, shape: Value| json!({"id": "7", "inputs": [{"name": "text", "shape": shape, "datatype": "BYTES", "data": data}]});
    let cases: Vec<(&str, &str, Value, u16, &str, Value)> = vec![
        ("POST", "/v1/embeddings", json!({"input": "a", "model": "embed"}), 200, "/object", json!("list")),
        ("POST", "/v1/embeddings", json!({"input": ["a", "b"], "model": "embed"}), 200, "/data/1/index", json!(1)),
        (
            "POST",
            "/v1/embeddings",
            json!({"input": [2, 50, 3], "model": "embed"}),
            200,
            "/usage/total_tokens",
            json!(3),
        ),
        ("POST", "/v1/embeddings", json!({"input": [], "model": "embed"}), 400, "/error/param", json!("input")),
        (
            "POST",
            "/v1/embeddings",
            json!({"input": ["a", ""], "model": "embed"}),
            400,
            "/error/type",
            json!("invalid_request_error"),
        ),
        ("POST", "/v1/embeddings", json!({"input": "a", "model": "gpt"}), 404, "/error/code", json!("model_not_found")),
        ("POST", "/v1/embeddings", json!({"input": "a", "model": "tag"}), 400, "/error/param", json!("model")),
        ("POST", "/v1/embeddings", json!({"input": "a", "dimensions": 0}), 400, "/error/param", json!("dimensions")),
        (
            "POST",
            "/v1/embeddings",
            json!({"input": [999_999_999], "model": "embed"}),
            400,
            "/error/type",
            json!("invalid_request_error"),
        ),
        (
            "POST",
            "/v1/embeddings",
            json!({"input": "word ".repeat(2000)}),
            400,
            "/error/type",
            json!("invalid_request_error"),
        ),
        ("POST", "/v1/embeddings", json!({}), 400, "/error/type", json!("invalid_request_error")),
        ("GET", "/v1/embeddings", Value::Null, 405, "/error/type", json!("invalid_request_error")),
        ("GET", "/v1/models", Value::Null, 200, "/data/0/id", json!("embed")),
        ("GET", "/v1/models/nobody", Value::Null, 404, "/error/code", json!("model_not_found")),
        ("GET", "/nowhere", Value::Null, 404, "/error/type", json!("invalid_request_error")),
        ("POST", "/embed", json!({"inputs": []}), 400, "/error_type", json!("Empty")),
        ("POST", "/embed", json!({"inputs": ""}), 422, "/error_type", json!("Validation")),
        ("POST", "/embed", json!({"inputs": "a", "dimensions": 49}), 422, "/error_type", json!("Validation")),
        (
            "POST",
            "/embed",
            json!({"inputs": "word ".repeat(2000), "truncate": false}),
            422,
            "/error_type",
            json!("Validation"),
        ),
        ("POST", "/embed", json!({"inputs": vec!["a"; 101]}), 422, "/error_type", json!("Validation")),
        ("POST", "/predict", json!({"inputs": "a"}), 200, "/2/label", json!("LABEL_")),
        (
            "POST",
            "/similarity",
            json!({"inputs": {"source_sentence": "a", "sentences": []}}),
            400,
            "/error_type",
            json!("Empty"),
        ),
        ("POST", "/rerank", json!({"query": "a", "texts": []}), 400, "/error_type", json!("Empty")),
        (
            "POST",
            "/v2/rerank",
            json!({"query": "a", "documents": []}),
            400,
            "/message",
            json!("`documents` has no items"),
        ),
        (
            "POST",
            "/v2/embed",
            json!({"texts": ["a"], "embedding_types": ["float", "int3"]}),
            400,
            "/message",
            json!("`int3`"),
        ),
        ("POST", "/v2/embed", json!({"texts": ["a"], "truncate": "MIDDLE"}), 400, "/message", json!("`truncate`")),
        ("GET", "/v2/health/ready", Value::Null, 200, "/ready", json!(true)),
        ("GET", "/v2/models/embed", Value::Null, 200, "/outputs/0/shape/1", json!(48)),
        ("GET", "/v2/models/nobody", Value::Null, 404, "/error", json!("no model")),
        ("POST", "/v2/models/embed/infer", oip(json!(["a", "b"]), json!([2])), 200, "/outputs/0/shape", json!([2, 48])),
        ("POST", "/v2/models/embed/infer", oip(json!(["a", "b"]), json!([2])), 200, "/id", json!("7")),
        ("POST", "/v2/models/embed/infer", oip(json!(["a", "b"]), json!([3])), 400, "/error", json!("shape")),
        ("POST", "/v2/models/embed/infer", oip(json!([1]), json!([1])), 400, "/error", json!("strings")),
        (
            "POST",
            "/v1/classify",
            json!({"inputs": ["a", ["a", "b"]], "top_k": 1}),
            200,
            "/results/1/0/label",
            json!("LABEL_"),
        ),
        ("POST", "/v1/classify", json!({"inputs": ["a"], "topk": 1}), 400, "/error/message", json!("topk")),
        ("POST", "/v1/documents", Value::Null, 404, "/error/message", json!("without document parsers")),
        ("GET", "/v1/services", Value::Null, 200, "/services/0/backends/0/name", json!("cpu")),
        ("GET", "/openapi.json", Value::Null, 200, "/openapi", json!("3.0.3")),
    ];
    for (method, path, body, status, place, want) in cases {
        let (found, answer) = server.json(method, path, &body)?;
        let shown = answer.to_string();
        let brief: String = shown.chars().take(300).collect();
        assert_eq!(found, status, "{method} {path} {body}: {brief}");
        let value = answer.pointer(place).unwrap_or(&Value::Null);
        let holds = match (value, &want) {
            (Value::String(text), Value::String(part)) => text.contains(part.as_str()),
            _ => *value == want,
        };
        assert!(holds, "{method} {path} {body}: at {place} {value}, not {want}");
    }
    Ok(())
}

#[test]
fn numbers_are_those_of_the_goldens_on_every_face() -> Result<(), Any> {
    let server = Running::start(Arc::new(app(200_000, Vec::new())?))?;
    let expected: Value = serde_json::from_slice(&std::fs::read(goldens().join("st-mean/expected.json"))?)?;
    let case = &expected["cases"][0];
    let (text, want) = (&case["text"], case["embedding"].as_array().ok_or("no embedding")?);
    let close = |found: &Value| -> bool {
        let found = found.as_array().map_or(&[][..], Vec::as_slice);
        found.len() == want.len()
            && found.iter().zip(want).all(|(a, b)| (a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < 2e-4)
    };
    let (_, answer) = server.json("POST", "/v1/embeddings", &json!({"input": text}))?;
    assert!(close(&answer["data"][0]["embedding"]), "OpenAI");
    let floats = answer["data"][0]["embedding"].clone();
    let (_, answer) = server.json("POST", "/embed", &json!({"inputs": text}))?;
    assert!(close(&answer[0]), "TEI answers an array of arrays also for one text");
    let (_, answer) = server.json("POST", "/v2/embed", &json!({"texts": [text]}))?;
    assert!(close(&answer["embeddings"]["float"][0]), "Cohere");
    let tensor = json!({"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]});
    let (_, answer) = server.json("POST", "/v2/models/embed/infer", &json!({"inputs": [tensor]}))?;
    assert!(close(&answer["outputs"][0]["data"]), "Open Inference Protocol");

    use base64::Engine as _;
    let (_, answer) = server.json("POST", "/v1/embeddings", &json!({"input": text, "encoding_format": "base64"}))?;
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(answer["data"][0]["embedding"].as_str().ok_or("no base64")?)?;
    let decoded: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let written: Vec<f32> = floats.as_array().ok_or("no floats")?.iter().map(|x| x.as_f64().unwrap() as f32).collect();
    assert_eq!(decoded, written, "base64 has the same bits as the digits");

    let (_, answer) =
        server.json("POST", "/v2/embed", &json!({"texts": [text], "embedding_types": ["ubinary", "binary"]}))?;
    let unsigned = answer["embeddings"]["ubinary"][0].as_array().ok_or("no ubinary")?.clone();
    let signed = answer["embeddings"]["binary"][0].as_array().ok_or("no binary")?.clone();
    for (i, (unsigned, signed)) in unsigned.iter().zip(&signed).enumerate() {
        let bits = (0..8).fold(0, |byte, bit| byte | i64::from(decoded[i * 8 + bit] >= 0.0) << (7 - bit));
        assert_eq!((unsigned.as_i64(), signed.as_i64()), (Some(bits), Some(bits - 128)));
    }

    let (_, all) = server.json("POST", "/embed_all", &json!({"inputs": text}))?;
    let (_, tokens) = server.json("POST", "/tokenize", &json!({"inputs": text}))?;
    assert_eq!(all[0].as_array().map(Vec::len), tokens[0].as_array().map(Vec::len), "a row for each token");
    Ok(())
}

#[test]
fn ranking_is_descending_and_the_two_rerank_routes_agree() -> Result<(), Any> {
    let server = Running::start(Arc::new(app(200_000, Vec::new())?))?;
    let expected: Value = serde_json::from_slice(&std::fs::read(goldens().join("ce-roberta/expected.json"))?)?;
    let texts: Vec<&Value> = expected["cases"].as_array().ok_or("no cases")?.iter().map(|case| &case["text"]).collect();
    let (_, answer) =
        server.json("POST", "/rerank", &json!({"query": expected["query"], "texts": texts, "return_text": true}))?;
    let rows = answer.as_array().ok_or("no rows")?;
    assert_eq!(rows.len(), texts.len());
    assert!(rows.windows(2).all(|w| w[0]["score"].as_f64() >= w[1]["score"].as_f64()));
    for row in rows {
        let index = row["index"].as_u64().ok_or("no index")? as usize;
        assert_eq!(&row["text"], texts[index]);
        let want = &expected["cases"][index]["score"];
        let want = want.as_f64().or_else(|| want[0].as_f64()).ok_or("no score")?;
        assert!((row["score"].as_f64().ok_or("no score")? - want).abs() < 2e-4, "{row} {want}");
    }
    let (_, cohere) =
        server.json("POST", "/rerank", &json!({"query": expected["query"], "documents": texts, "top_n": 2}))?;
    assert_eq!(cohere["results"].as_array().map(Vec::len), Some(2));
    assert_eq!(cohere["results"][0]["index"], rows[0]["index"]);
    assert_eq!(cohere["results"][0]["relevance_score"], rows[0]["score"]);
    Ok(())
}

#[test]
fn limits_keys_metrics_and_headers() -> Result<(), Any> {
    let key = auth::Key {
        name: "reader".into(),
        blake3: blake3::hash(b"secret").to_hex().to_string(),
        scope: auth::Scope::Infer,
    };
    let server = Running::start(Arc::new(app(64, vec![key])?))?;
    let body = json!({"inputs": "a"}).to_string().into_bytes();
    let bearer = "authorization: Bearer secret\r\n";
    assert_eq!(server.send("POST", "/embed", "", &body)?.0, 401);
    assert_eq!(server.send("GET", "/health", "", b"")?.0, 200, "health needs no key");
    let (status, head, _) = server.send("POST", "/embed", bearer, &body)?;
    assert_eq!(status, 200);
    for header in ["x-ehun-backend: cpu", "x-compute-tokens: ", "x-queue-time: ", "x-ehun-attention: "] {
        assert!(head.contains(header), "{head}");
    }
    assert_eq!(server.send("POST", "/embed", bearer, &vec![b' '; 2 << 20])?.0, 413);
    assert_eq!(server.send("POST", "/embed", bearer, b"{\"inputs\": ")?.0, 400);
    // The queue takes one request of any size; what comes while it is in is turned away.
    let many = json!({"inputs": vec!["many words of text ".repeat(40); 100]}).to_string().into_bytes();
    let answers = std::thread::scope(|scope| {
        let send = || server.send("POST", "/embed", bearer, &many).map_err(|error| error.to_string());
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(send)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Result<Vec<_>, _>>()
    })?;
    let away: Vec<&String> = answers.iter().filter(|answer| answer.0 == 429).map(|answer| &answer.1).collect();
    assert!(answers.iter().all(|answer| [200, 429].contains(&answer.0)) && !away.is_empty() && away.len() < 8);
    assert!(away.iter().all(|head| head.contains("retry-after: 1")), "{away:?}");

    let (_, _, text) = server.send("GET", "/metrics", "", b"")?;
    let text = String::from_utf8(text)?;
    assert!(text.ends_with("# EOF\n"));
    for line in [
        &format!("ehun_items_total{{service=\"embed\",outcome=\"ok\"}} {}", 1 + 100 * (8 - away.len())),
        &format!("ehun_items_total{{service=\"embed\",outcome=\"queue_full\"}} {}", 100 * away.len()),
        "ehun_items_total{service=\"tag\",outcome=\"ok\"} 0",
        "ehun_queue_tokens{service=\"embed\"} 0",
        "ehun_backend_up{service=\"embed\",backend=\"cpu\"} 1",
        "ehun_backend_failures_total{service=\"embed\",backend=\"cpu\"} 0",
        "ehun_rollouts_total{service=\"embed\",action=\"swap\",outcome=\"done\"} 0",
        "ehun_http_requests_total{route=\"/embed\",status=\"413\"} 1",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    Ok(())
}

#[test]
fn long_texts_are_tagged_through_windows_and_sparse_terms_have_weights() -> Result<(), Any> {
    let server = Running::start(Arc::new(app(200_000, Vec::new())?))?;
    let (status, answer) =
        server.json("POST", "/v1/tag", &json!({"inputs": ["Ana lives in Oslo", "word ".repeat(500)]}))?;
    assert_eq!(status, 200);
    assert_eq!(
        answer["results"].as_array().map(Vec::len),
        Some(2),
        "a text beyond the window is tagged through several"
    );
    assert!(answer["results"][1].is_array(), "{}", answer["results"][1]);
    let (_, answer) = server.json("POST", "/v1/sparse", &json!({"inputs": ["a"]}))?;
    let terms = answer["results"][0].as_array().ok_or("no terms")?;
    assert!(!terms.is_empty() && terms.iter().all(|term| term["value"].as_f64() > Some(0.0)));
    Ok(())
}

#[test]
fn the_dashboard_asks_for_metrics_that_are_exported() -> Result<(), Any> {
    let server = Running::start(Arc::new(app(200_000, Vec::new())?))?;
    let (_, _, text) = server.send("GET", "/metrics", "", b"")?;
    let mut exported = std::collections::BTreeSet::new();
    for line in String::from_utf8(text)?.lines() {
        let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) else { continue };
        let endings: &[&str] = match kind {
            "counter" => &["_total"],
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        exported.extend(endings.iter().map(|ending| format!("{name}{ending}")));
    }
    let dashboard = std::fs::read_to_string(goldens().join("../docs/grafana/ehun.json"))?;
    let dashboard: Value = serde_json::from_str(&dashboard)?;
    let mut asked = std::collections::BTreeSet::new();
    for panel in dashboard["panels"].as_array().ok_or("no panels")? {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().ok_or("no expression")?;
            let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            for name in words.filter(|word| word.starts_with("ehun_")) {
                assert!(exported.contains(name), "`{name}` of the panel {} is not exported", panel["title"]);
                asked.insert(name.to_owned());
            }
            for label in ["backend", "device", "precision", "attention"] {
                let chooses = [format!("{label}=\""), format!("{label}=~\""), format!("{label}!")];
                assert!(!chooses.iter().any(|part| expression.contains(part)), "{expression} is not for every backend");
            }
        }
    }
    // Of each family something is shown: of a histogram its buckets.
    let shown = exported.iter().filter(|name| !name.ends_with("_seconds_sum") && !name.ends_with("_seconds_count"));
    let missing: Vec<&String> = shown.filter(|name| !asked.contains(*name)).collect();
    assert!(missing.is_empty(), "no panel shows {missing:?}");
    Ok(())
}

#[test]
fn a_collector_gets_the_spans_of_a_request() -> Result<(), Any> {
    let collector = std::net::TcpListener::bind("127.0.0.1:0")?;
    let exporter = ehun_server::otlp::Exporter::start(&format!("http://{}", collector.local_addr()?))?;
    let telling = ehun_server::trace::Telling { exporter: Some(Arc::new(exporter)), ..Default::default() };
    let server = Running::start(Arc::new(app(200_000, Vec::new())?.with_telling(telling)))?;
    let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let body = json!({"inputs": "a text"}).to_string().into_bytes();
    let quiet = format!("traceparent: 00-{trace}-{parent}-00\r\n");
    server.send("POST", "/embed", &quiet, &body)?;
    let loud = format!("traceparent: 00-{trace}-{parent}-01\r\nx-request-id: mine-7\r\n");
    let (_, head, _) = server.send("POST", "/embed", &loud, &body)?;
    assert!(head.contains("x-request-id: mine-7"), "{head}");

    let (mut stream, _) = collector.accept()?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut read = Vec::new();
    let message: Value = loop {
        let mut buffer = [0; 4096];
        let count = stream.read(&mut buffer)?;
        read.extend(&buffer[..count]);
        let body = read.windows(4).position(|w| w == b"\r\n\r\n").map(|end| &read[end + 4..]);
        if let Some(message) = body.and_then(|body| serde_json::from_slice(body).ok()) {
            break message;
        }
        assert!(count > 0, "{}", String::from_utf8_lossy(&read));
    };
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")?;
    assert!(read.starts_with(b"POST /v1/traces "));
    let spans = message["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().ok_or("no spans")?;
    let names: Vec<&str> = spans.iter().filter_map(|span| span["name"].as_str()).collect();
    assert_eq!(names, ["POST /embed", "tokenize", "queue", "run"], "only what the caller wants recorded");
    assert!(spans.iter().all(|span| span["traceId"] == trace));
    assert_eq!(spans[0]["parentSpanId"], parent);
    assert!(spans[1..].iter().all(|span| span["parentSpanId"] == spans[0]["spanId"]));
    let has = |key: &str, value: Value| {
        spans[0]["attributes"].as_array().is_some_and(|all| all.contains(&json!({"key": key, "value": value})))
    };
    assert!(has("http.response.status_code", json!({"intValue": "200"})));
    assert!(
        has("ehun.backend", json!({"stringValue": "cpu"})) && has("ehun.request_id", json!({"stringValue": "mine-7"}))
    );
    Ok(())
}
