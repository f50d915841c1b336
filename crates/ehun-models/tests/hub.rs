//! Pulling models from a server that behaves like the hub, on this machine alone.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ehun_models::hub::{Hub, HubError, HubOptions};
use ehun_models::{Checkpoint, LoadOptions, Model};
use sha2::{Digest, Sha256};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A request as the server saw it.
#[derive(Debug, Clone)]
struct Request {
    path: String,
    range: Option<usize>,
    authorization: Option<String>,
}

/// How the server misbehaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The connection of the first request for the weights ends in the middle.
    Cut,
    /// As cut, and ranges are not known.
    CutWithoutRanges,
    /// The first request for the list is answered with 429 and this many seconds.
    Busy(u64),
    /// The first request for each path fails with 503.
    Unavailable,
    /// The weights are other bytes than the hub lists.
    WrongBytes,
    /// A token is needed.
    Private,
    /// There are no safetensors.
    OnlyPickle,
    /// A file name leads out of the folder.
    Escapes,
}

struct Server {
    address: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    fn start(fault: Fault) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                serve(stream, fault, &seen);
            }
        });
        Self { address, requests }
    }

    fn seen(&self, part: &str) -> Vec<Request> {
        self.requests.lock().unwrap().iter().filter(|request| request.path.contains(part)).cloned().collect()
    }

    fn hub(&self, cache: &Path) -> Hub {
        Hub::new(self.options(cache))
    }

    fn options(&self, cache: &Path) -> HubOptions {
        HubOptions {
            endpoint: self.address.clone(),
            token: None,
            cache: cache.to_owned(),
            offline: false,
            retries: 2,
            longest_wait: Duration::from_secs(2),
        }
    }
}

fn golden() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens/st-mean")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn listing(fault: Fault) -> String {
    let mut files = Vec::new();
    let names = [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "modules.json",
        "1_Pooling/config.json",
        "README.md",
        "config_sentence_transformers.json",
        "sentence_bert_config.json",
    ];
    for name in names {
        let bytes = std::fs::read(golden().join(name)).unwrap();
        if name == "model.safetensors" {
            if fault == Fault::OnlyPickle {
                continue;
            }
            let hash = hex(&Sha256::digest(&bytes));
            files.push(serde_json::json!({"rfilename": name, "size": bytes.len(), "blobId": "a".repeat(40), "lfs": {"sha256": hash}}));
        } else {
            let blob = hex(&Sha256::digest(name.as_bytes()))[..40].to_owned();
            files.push(serde_json::json!({"rfilename": name, "size": bytes.len(), "blobId": blob}));
        }
    }
    files.push(serde_json::json!({"rfilename": "pytorch_model.bin", "size": 9, "blobId": "b".repeat(40)}));
    if fault == Fault::Escapes {
        files.push(serde_json::json!({"rfilename": "../config.json", "size": 9, "blobId": "c".repeat(40)}));
    }
    serde_json::json!({"sha": COMMIT, "siblings": files}).to_string()
}

fn serve(mut stream: TcpStream, fault: Fault, seen: &Mutex<Vec<Request>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    if reader.read_line(&mut line).is_err() || line.is_empty() {
        return;
    }
    let mut request =
        Request { path: line.split(' ').nth(1).unwrap_or_default().to_owned(), range: None, authorization: None };
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header).is_err() || header.trim().is_empty() {
            break;
        }
        let (name, value) = header.split_once(':').unwrap();
        match name.to_lowercase().as_str() {
            "range" => {
                request.range = value.trim().strip_prefix("bytes=").and_then(|r| r.strip_suffix('-')?.parse().ok())
            }
            "authorization" => request.authorization = Some(value.trim().to_owned()),
            _ => {}
        }
    }
    let nth = {
        let mut seen = seen.lock().unwrap();
        seen.push(request.clone());
        seen.iter().filter(|other| other.path == request.path).count()
    };
    let mut reply = |status: &str, headers: &str, body: &[u8], sent: usize| {
        let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.write_all(&body[..sent]);
    };
    match fault {
        Fault::Busy(seconds) if nth == 1 && request.path.starts_with("/api/") => {
            return reply("429 Too Many Requests", &format!("Retry-After: {seconds}\r\n"), b"", 0);
        }
        Fault::Unavailable if nth == 1 => return reply("503 Service Unavailable", "", b"", 0),
        Fault::Private
            if request.authorization.as_deref() != Some("Bearer secret") && !request.path.starts_with("/cdn") =>
        {
            return reply("401 Unauthorized", "", b"", 0);
        }
        _ => {}
    }
    if request.path.starts_with("/api/models/org/name/revision/main") {
        let body = listing(fault);
        return reply("200 OK", "", body.as_bytes(), body.len());
    }
    if let Some(file) = request.path.strip_prefix(&format!("/org/name/resolve/{COMMIT}/")) {
        if file == "model.safetensors" {
            return reply("302 Found", "Location: /cdn/model\r\n", b"", 0);
        }
        let bytes = std::fs::read(golden().join(file)).unwrap();
        return reply("200 OK", "ETag: \"x\"\r\n", &bytes, bytes.len());
    }
    if request.path == "/cdn/model" {
        let mut bytes = std::fs::read(golden().join("model.safetensors")).unwrap();
        if fault == Fault::WrongBytes {
            *bytes.last_mut().unwrap() ^= 1;
        }
        if matches!(fault, Fault::Cut | Fault::CutWithoutRanges) && nth == 1 {
            return reply("200 OK", "", &bytes, bytes.len() / 2);
        }
        return match request.range.filter(|_| fault != Fault::CutWithoutRanges) {
            Some(from) => {
                let range = format!("Content-Range: bytes {from}-{}/{}\r\n", bytes.len() - 1, bytes.len());
                reply("206 Partial Content", &range, &bytes[from..], bytes.len() - from);
            }
            None => reply("200 OK", "", &bytes, bytes.len()),
        };
    }
    reply("404 Not Found", "", b"", 0);
}

#[test]
fn a_pulled_model_is_whole_and_loads() {
    for fault in [Fault::None, Fault::Cut, Fault::CutWithoutRanges, Fault::Busy(1), Fault::Unavailable] {
        let cache = tempfile::tempdir().unwrap();
        let server = Server::start(fault);
        let hub = server.hub(cache.path());
        let mut last = None;
        let pulled =
            hub.pull("org/name", &mut |p| last = Some((p.done, p.total))).unwrap_or_else(|e| panic!("{fault:?}: {e}"));
        let total: u64 = pulled.files.iter().map(|file| file.size).sum();
        assert_eq!(last, Some((total, total)), "{fault:?}");
        assert!(pulled.files.iter().all(|file| file.path != "README.md" && file.path != "pytorch_model.bin"));
        assert!(
            server.seen("README").is_empty() && server.seen("pytorch").is_empty(),
            "only what is needed is fetched"
        );
        if fault == Fault::Cut {
            let half = std::fs::metadata(golden().join("model.safetensors")).unwrap().len() as usize / 2;
            assert_eq!(server.seen("/cdn/model").last().unwrap().range, Some(half), "it goes on where it was cut");
        }
        let model = Model::load(&Checkpoint::open(&pulled.directory).unwrap(), &LoadOptions::default()).unwrap();
        assert_eq!((model.revision(), pulled.commit.as_str()), (Some(COMMIT), COMMIT));
        assert_eq!(hub.verify("org/name").unwrap(), pulled);
        assert_eq!(hub.list().unwrap(), std::slice::from_ref(&pulled));
        assert_eq!(hub.find(&format!("org/name@{COMMIT}")).unwrap(), Some(pulled));
    }
}

#[test]
fn what_is_there_is_not_fetched_again_and_offline_asks_nobody() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(Fault::None);
    let first = server.hub(cache.path()).pull("org/name", &mut |_| {}).unwrap();
    let weights = server.seen("/cdn/model").len();
    assert_eq!(server.hub(cache.path()).pull("org/name", &mut |_| {}).unwrap(), first);
    assert_eq!(server.seen("/cdn/model").len(), weights);

    let asked = server.seen("/").len();
    let offline = Hub::new(HubOptions { offline: true, ..server.options(cache.path()) });
    assert_eq!(offline.pull("org/name", &mut |_| {}).unwrap(), first);
    assert!(matches!(offline.pull("org/other", &mut |_| {}), Err(HubError::Offline(_))));
    assert_eq!(server.seen("/").len(), asked, "nothing was asked of the network");
}

#[test]
fn faults_have_names() {
    for (fault, name, want) in [
        (Fault::None, "org/missing", "not found"),
        (Fault::Private, "org/name", "HF_TOKEN"),
        (Fault::Busy(3600), "org/name", "3600 seconds"),
        (Fault::WrongBytes, "org/name", "sha256"),
        (Fault::OnlyPickle, "org/name", "pickle"),
        (Fault::Escapes, "org/name", "no usable name"),
    ] {
        let cache = tempfile::tempdir().unwrap();
        let server = Server::start(fault);
        let message = server.hub(cache.path()).pull(name, &mut |_| {}).unwrap_err().to_string();
        assert!(message.contains(want), "{fault:?}: {message}");
        assert_eq!(server.hub(cache.path()).list().unwrap(), [], "{fault:?}: a model without a record is not there");
    }
}

#[test]
fn the_token_goes_to_the_hub() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(Fault::Private);
    let hub = Hub::new(HubOptions { token: Some("secret".into()), ..server.options(cache.path()) });
    hub.pull("org/name", &mut |_| {}).unwrap();
    assert!(server.seen("/api/").iter().all(|request| request.authorization.as_deref() == Some("Bearer secret")));
}

#[test]
fn a_changed_file_is_found_and_a_removed_model_is_gone() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(Fault::None);
    let hub = server.hub(cache.path());
    let pulled = hub.pull("org/name", &mut |_| {}).unwrap();
    std::fs::write(pulled.directory.join("config.json"), "{}").unwrap();
    assert!(matches!(hub.verify("org/name"), Err(HubError::Damaged { file, .. }) if file == "config.json"));
    hub.remove("org/name").unwrap();
    assert_eq!(hub.find("org/name").unwrap(), None);
    assert!(matches!(hub.remove("org/name"), Err(HubError::NotPulled(_))));
    assert!(matches!(hub.verify("org/name"), Err(HubError::NotPulled(_))));
}

#[test]
fn a_server_that_is_not_there() {
    let cache = tempfile::tempdir().unwrap();
    let options = HubOptions {
        endpoint: "http://127.0.0.1:9".into(),
        retries: 0,
        ..Server::start(Fault::None).options(cache.path())
    };
    assert!(matches!(Hub::new(options).pull("org/name", &mut |_| {}), Err(HubError::Network { .. })));
}
