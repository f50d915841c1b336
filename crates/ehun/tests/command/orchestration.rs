//! `ehun serve` and `ehun ctl` as a person runs them: swaps under load, memory given back, the reload, and the end.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{command, ehun, root, xla_cpu_plugin};

/// A server that is killed when the test ends.
struct Server {
    child: Child,
    address: String,
    admin: String,
    /// Lines on standard error.
    log: Mutex<mpsc::Receiver<String>>,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        Self::start_on(arguments, "http://")
    }

    /// The same where the address that clients ask begins with `scheme`.
    fn start_on(arguments: &[&str], scheme: &str) -> Self {
        let all = [&["serve", "--listen", "127.0.0.1:0"], arguments].concat();
        let mut command = command(&all);
        if let Some(plugin) = xla_cpu_plugin() {
            command.env("EHUN_PJRT_PLUGIN_CPU", plugin);
        }
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (lines, log) = mpsc::channel();
        std::thread::spawn(move || stderr.lines().map_while(Result::ok).for_each(|line| drop(lines.send(line))));
        let mut server = Self { child, address: String::new(), admin: String::new(), log: Mutex::new(log) };
        let port = |line: String| line.split_once("://").unwrap().1.split([',', '/', ' ']).next().unwrap().to_owned();
        // Which of the two comes first is chance.
        while server.address.is_empty() || server.admin.is_empty() {
            let line = server.log_line("://");
            // It is bound before its services are loaded, and says that it listens once they are.
            if line.starts_with("starting on") {
                continue;
            }
            assert!(line.contains("administration") || line.contains(scheme), "{line}");
            if line.contains("administration") { server.admin = port(line) } else { server.address = port(line) }
        }
        server
    }

    /// The next line of the log with `part` in it.
    fn log_line(&self, part: &str) -> String {
        let mut seen = Vec::new();
        loop {
            match self.log.lock().unwrap().recv_timeout(Duration::from_secs(60)) {
                Ok(line) if line.contains(part) => return line,
                Ok(line) => seen.push(line),
                Err(_) => panic!("no line with `{part}`: {seen:?}"),
            }
        }
    }

    fn ctl(&self, arguments: &[&str]) -> crate::common::Ran {
        let url = format!("http://{}", self.admin);
        ehun(&[&["ctl"], arguments, &["--server", &url]].concat())
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    fn embed(&self, text: &str) -> Result<Vec<f32>, String> {
        answer(send(self.connect(), text))
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(std::process::Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }

    /// Memory in use, in MB, where the system says so.
    fn resident(&self) -> Option<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
        line.split_whitespace().nth(1)?.parse::<f64>().ok().map(|kib| kib / 1024.0)
    }

    fn wait(&mut self) -> Option<i32> {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < end, "it never ends");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn send(mut stream: TcpStream, text: &str) -> TcpStream {
    let body = json!({"inputs": text}).to_string();
    let head =
        format!("POST /embed HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).unwrap();
    stream
}

fn answer(mut stream: TcpStream) -> Result<Vec<f32>, String> {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(|error| error.to_string())?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no end of the head")?;
    if !head.starts_with("HTTP/1.1 200") || !head.contains("x-ehun-backend") {
        return Err(answer);
    }
    let rows: Vec<Vec<f32>> = serde_json::from_str(body).map_err(|error| error.to_string())?;
    rows.into_iter().next().ok_or_else(|| "no row".to_owned())
}

fn drift(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum::<f64>();
    1.0 - dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// Swaps through `changes` while clients ask. Every answer must be one of `right`'s within `bound`, and no request may fail.
fn swaps_under_load(server: &Server, changes: &[&[&str]], right: &[Vec<f32>], bound: f64) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ask = || {
            let mut asked = 0usize;
            while !over.load(Ordering::SeqCst) {
                let vector = server.embed("the moon moves the sea")?;
                if !right.iter().any(|right| drift(right, &vector) <= bound) {
                    return Err(format!("request {asked} got an answer that no deployment gives"));
                }
                asked += 1;
            }
            Ok(asked)
        };
        let clients: Vec<_> = (0..3).map(|_| scope.spawn(ask)).collect();
        let swaps: Vec<_> =
            changes.iter().map(|change| server.ctl(&[&["swap", "default", "--json"], *change].concat())).collect();
        over.store(true, Ordering::SeqCst);
        for client in clients {
            assert!(client.join().unwrap().unwrap() > 0);
        }
        for swap in swaps {
            let report: Value = serde_json::from_str(&swap.expect(0)).unwrap();
            assert_eq!(report["result"]["released"], true, "{report}");
        }
    });
}

#[test]
fn swaps_under_load_fail_nothing_and_give_memory_back() {
    let server = Server::start(&[]);
    let f32 = server.embed("the moon moves the sea").unwrap();
    let refused = server.ctl(&["swap", "default", "--precision", "int8", "--max-drift", "0"]);
    assert!(refused.stderr.contains("cosine drift") && refused.code == Some(1), "{}", refused.stderr);
    server.ctl(&["swap", "default", "--precision", "int8"]).expect(0);
    let int8 = server.embed("the moon moves the sea").unwrap();
    assert!(drift(&f32, &int8) > 1e-7, "int8 is not f32");
    server.ctl(&["swap", "default", "--precision", "f32"]).expect(0);
    let before = server.resident();
    let there = ["--precision", "int8"];
    let back = ["--precision", "f32"];
    swaps_under_load(&server, &[&there, &back, &there, &back], &[f32.clone(), int8], 0.0);
    assert_eq!(server.embed("the moon moves the sea").unwrap(), f32);
    if let (Some(before), Some(after)) = (before, server.resident()) {
        println!("resident before {before:.0} MB, after four swaps {after:.0} MB");
        // The packed weights alone are 43 MB; four that were kept would be 170.
        assert!(after < before + 40.0, "{before:.0} MB before, {after:.0} MB after four swaps");
    }
    let status = server.ctl(&["status"]).expect(0);
    assert!(status.contains("default  live  embed") && status.contains("promoted"), "{status}");
}

#[test]
fn swaps_between_the_cpu_and_xla_under_load_fail_nothing() {
    if xla_cpu_plugin().is_none() {
        println!("not run: no XLA CPU plugin (cargo xtask plugins)");
        return;
    }
    let golden = root().join("goldens/st-mean");
    let server = Server::start(&["--model", golden.to_str().unwrap()]);
    let right = vec![server.embed("the moon moves the sea").unwrap()];
    swaps_under_load(&server, &[&["--backend", "xla:cpu"], &["--backend", "cpu"]], &right, 1e-5);
    assert_eq!(server.embed("the moon moves the sea").unwrap(), right[0], "back on the cpu, bit for bit");
}

#[cfg(unix)]
#[test]
fn a_hangup_reads_the_file_again_and_a_termination_answers_what_is_in_flight() {
    let folder = tempfile::tempdir().unwrap();
    let (file, audit) = (folder.path().join("ehun.toml"), folder.path().join("audit.jsonl"));
    let golden = root().join("goldens/st-mean");
    let text =
        format!("[server]\naudit = \"audit.jsonl\"\n[service.default]\nmodel = {:?}\n", golden.to_str().unwrap());
    std::fs::write(&file, &text).unwrap();
    let mut server = Server::start(&["--config", file.to_str().unwrap()]);
    let f32 = server.embed("tides").unwrap();
    std::fs::write(&file, format!("{text}precisoin = \"int8\"\n")).unwrap();
    server.signal("HUP");
    let line = server.log_line("stays as it was");
    assert!(line.contains("ehun.toml"), "{line}");
    assert_eq!(server.embed("tides").unwrap(), f32);
    std::fs::write(&file, format!("{text}precision = \"int8\"\n")).unwrap();
    server.signal("HUP");
    server.log_line("was read again");
    assert_ne!(server.embed("tides").unwrap(), f32);
    let records = std::fs::read_to_string(&audit).unwrap();
    let last: Value = serde_json::from_str(records.lines().last().unwrap()).unwrap();
    assert_eq!((&last["what"], &last["outcome"]), (&json!("reload"), &json!("done")), "{records}");
    assert!(records.contains("precisoin"), "a file that was refused is in the log with the reason: {records}");

    // Requests that were sent are answered; then it ends, with 0.
    let open: Vec<TcpStream> =
        (0..20).map(|i| send(server.connect(), &format!("text {i} {}", "word ".repeat(50)))).collect();
    std::thread::sleep(Duration::from_millis(200));
    server.signal("TERM");
    for (i, stream) in open.into_iter().enumerate() {
        if let Err(error) = answer(stream) {
            panic!("request {i}: {error}");
        }
    }
    assert_eq!(server.wait(), Some(0));
}

#[cfg(unix)]
#[test]
fn requests_are_logged_and_a_hangup_changes_how() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ehun.toml");
    let golden = root().join("goldens/st-mean");
    let text =
        |server: &str| format!("[server]\n{server}\n[service.default]\nmodel = {:?}\n", golden.to_str().unwrap());
    std::fs::write(&file, text("log = \"json\"")).unwrap();
    let server = Server::start(&["--config", file.to_str().unwrap()]);
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let ask = |id: &str| {
        let body = json!({"inputs": "a text"}).to_string();
        let head = format!(
            "POST /embed HTTP/1.1\r\nhost: test\r\nconnection: close\r\nx-request-id: {id}\r\n\
             traceparent: 00-{trace}-00f067aa0ba902b7-01\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = server.connect();
        stream.write_all(head.as_bytes()).unwrap();
        answer(stream).unwrap();
    };
    ask("first");
    let line: Value = serde_json::from_str(&server.log_line("\"first\"")).unwrap();
    for (key, value) in [
        ("level", json!("info")),
        ("request_id", json!("first")),
        ("trace_id", json!(trace)),
        ("method", json!("POST")),
        ("route", json!("/embed")),
        ("status", json!(200)),
        ("backend", json!("cpu")),
    ] {
        assert_eq!(line[key], value, "{line}");
    }
    assert!(line["tokens"].as_u64() > Some(2) && line["run_ms"].as_f64() > Some(0.0), "{line}");
    std::fs::write(&file, text("log = \"text\"\notlp = \"http://127.0.0.1:9\"")).unwrap();
    server.signal("HUP");
    let said = server.log_line("was read again");
    assert!(said.ends_with("a restart is needed for server.otlp, which stay as they were"), "{said}");
    ask("second");
    let line = server.log_line("id=second");
    assert!(
        line.contains(" 200 POST /embed ") && line.contains(&format!(" trace={trace} backend=cpu tokens=")),
        "{line}"
    );
}

/// What the server shows to whoever connects: the fingerprint of its certificate.
#[cfg(unix)]
fn shown(address: &str) -> Option<String> {
    let script = format!(
        "openssl s_client -connect {address} </dev/null 2>/dev/null | openssl x509 -noout -fingerprint -sha256"
    );
    let ran = std::process::Command::new("sh").args(["-c", &script]).output().ok()?;
    Some(String::from_utf8(ran.stdout).ok()?.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(unix)]
#[test]
fn a_hangup_reads_a_renewed_certificate_and_refuses_a_broken_one() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let renew = || {
        let new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"];
        let (cert, key) = (at("cert.pem"), at("key.pem"));
        let rest = ["-subj", "/CN=localhost", "-out", &cert, "-keyout", &key];
        std::process::Command::new("openssl").args(new).args(rest).output().is_ok_and(|ran| ran.status.success())
    };
    if !renew() {
        println!("not run: no openssl to make a certificate with");
        return;
    }
    let golden = root().join("goldens/st-mean");
    let text = format!(
        "[server]\ntls = {{ cert = \"cert.pem\", key = \"key.pem\" }}\n[service.default]\nmodel = {:?}\n",
        golden.to_str().unwrap()
    );
    std::fs::write(at("ehun.toml"), text).unwrap();
    let server = Server::start_on(&["--config", &at("ehun.toml")], "https://");
    let first = shown(&server.address).unwrap();
    std::fs::write(at("cert.pem"), "not a certificate").unwrap();
    server.signal("HUP");
    let line = server.log_line("stays as it was");
    assert!(line.contains("cert.pem"), "{line}");
    assert_eq!(shown(&server.address).unwrap(), first);
    assert!(renew());
    server.signal("HUP");
    server.log_line("was read again");
    assert_ne!(shown(&server.address).unwrap(), first);
}

#[test]
fn what_cannot_be_served_is_said() {
    for (arguments, code, part) in [
        (&["serve", "--listen", "127.0.0.1:0", "--admin", "0.0.0.0:0"][..], 1, "without keys"),
        (&["serve", "--admin", "anywhere"], 2, "anywhere"),
        (&["ctl", "status", "--server", "http://127.0.0.1:9"], 1, "is `ehun serve` running there?"),
        (&["ctl", "swap"], 2, "SERVICE"),
    ] {
        let ran = ehun(arguments);
        assert!(ran.code == Some(code) && ran.stderr.contains(part), "{arguments:?}: {:?} {}", ran.code, ran.stderr);
    }
    let schema: Value = serde_json::from_str(&ehun(&["serve", "--schema"]).expect(0)).unwrap();
    assert_eq!(schema["title"], "ehun.toml");
}
