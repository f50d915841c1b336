//! A service elsewhere as a backend: the other end is `ehun serve` in a process of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ehun_backend::{BackendFactory, Options};
use ehun_engine::{
    Deployment, HealthPolicy, HealthState, Input, ItemOptions, Lane, Request, Service, ServiceConfig, Truncation,
};
use ehun_models::{Checkpoint, LoadOptions, Model};
use serde_json::json;

use crate::common::root;
use crate::server::{Server, free_address};

/// A vector and the backend that gave it, or an error.
type Answered = Result<(Vec<f32>, String), String>;

fn golden(name: &str) -> PathBuf {
    root().join("goldens").join(name).canonicalize().unwrap()
}

fn model(name: &str) -> Arc<Model> {
    Arc::new(Model::load(&Checkpoint::open(golden(name)).unwrap(), &LoadOptions::default()).unwrap())
}

fn cpu(model: &Arc<Model>) -> Arc<Lane> {
    let backend = ehun_backend_cpu::CpuFactory.open("cpu").unwrap();
    let options = Options { threads: Some(1), ..Options::default() };
    Lane::of_model(model, &backend, &options, HealthPolicy::default()).unwrap()
}

fn remote(address: &str, model: &Arc<Model>) -> Arc<Lane> {
    let health = HealthPolicy { cooldown: Duration::from_millis(50), ..HealthPolicy::default() };
    Lane::new(ehun_remote::open(address, Arc::clone(model), None).unwrap(), health)
}

fn service(model: &Arc<Model>, lanes: Vec<Arc<Lane>>) -> Service {
    let config = ServiceConfig { workers: 4, ..ServiceConfig::default() };
    Service::start(config, Deployment::of_lanes(Arc::clone(model), lanes), Vec::new()).unwrap()
}

/// Answers with the name of the backend that gave each.
fn rows(service: &Service, inputs: Vec<Input>, options: &ItemOptions) -> Vec<Result<(Vec<f32>, String), String>> {
    let request = Request { inputs, options: options.clone(), deadline: None };
    let answers = service.request_when_room(request).unwrap().wait().items;
    answers
        .into_iter()
        .map(|answer| {
            let output = answer.map_err(|error| error.to_string())?.output;
            Ok((output.values[0].data.clone(), output.report.backend.clone()))
        })
        .collect()
}

/// Starts a server with a service of each kind.
fn server(folder: &std::path::Path) -> Server {
    server_with(folder, &[])
}

fn server_with(folder: &std::path::Path, arguments: &[&str]) -> Server {
    let mut config = String::new();
    for name in ["st-mean", "ce-roberta", "bert.sequence-classification", "bert.masked-lm"] {
        let golden = golden(name);
        config += &format!("[service.\"{name}\"]\nmodel = {golden:?}\nthreads = 1\n");
    }
    let path = folder.join("ehun.toml");
    std::fs::write(&path, config).unwrap();
    Server::start(&[&["--config", path.to_str().unwrap()], arguments].concat(), free_address())
}

#[test]
fn every_protocol_gives_the_bits_of_the_model_here() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path());
    let host = server.address;
    let long = "many words of a long text with süße Wörter and 漢字 in it, ".repeat(40);
    let texts: Vec<Input> =
        ["a", "The tides, predicted.", "naïve café — 漢字 🙂", &long].iter().map(|&t| Input::from(t)).collect();
    let ids = vec![Input::Tokens([2, 50, 60, 3].into()), Input::Tokens([2, 77, 3].into())];
    let pair = |a: &str, b: &str| Input::Pair(a.into(), b.into());
    let pairs = vec![pair("who", "he did"), pair("who", "she did"), pair("what now", "it is late"), pair("who", &long)];
    let right = ItemOptions::default();
    let left = ItemOptions { truncation: Truncation::Left, prompt: None };
    for (address, name, inputs, options) in [
        (format!("openai+http://{host}/v1#st-mean"), "st-mean", &texts, &right),
        (format!("openai+http://{host}/v1#st-mean"), "st-mean", &texts, &left),
        (format!("openai+http://{host}/v1#st-mean"), "st-mean", &ids, &right),
        (format!("tei+http://{host}?items=3"), "st-mean", &texts, &right),
        (format!("tei+http://{host}"), "st-mean", &texts, &left),
        (format!("tei+http://{host}"), "st-mean", &ids, &right),
        (format!("tei+http://{host}"), "ce-roberta", &pairs, &right),
        (format!("tei+http://{host}"), "bert.sequence-classification", &texts, &right),
        (format!("tei+http://{host}"), "bert.sequence-classification", &pairs, &right),
        (format!("tei+http://{host}"), "bert.masked-lm", &texts, &right),
        (format!("oip+http://{host}/st-mean"), "st-mean", &texts, &right),
        (format!("oip+http://{host}/st-mean"), "st-mean", &ids, &right),
        (format!("oip+http://{host}/ce-roberta"), "ce-roberta", &pairs, &right),
        (format!("oip+grpc://{host}/st-mean?items=2"), "st-mean", &texts, &right),
        (format!("oip+grpc://{host}/st-mean"), "st-mean", &texts, &left),
        (format!("oip+grpc://{host}/st-mean"), "st-mean", &ids, &right),
        (format!("oip+grpc://{host}/ce-roberta"), "ce-roberta", &pairs, &right),
        (format!("oip+grpc://{host}/bert.sequence-classification"), "bert.sequence-classification", &pairs, &right),
    ] {
        let model = model(name);
        let here = rows(&service(&model, vec![cpu(&model)]), inputs.clone(), options);
        let there = rows(&service(&model, vec![remote(&address, &model)]), inputs.clone(), options);
        for (i, (here, there)) in here.into_iter().zip(there).enumerate() {
            let (here, there) = (here.unwrap(), there.unwrap_or_else(|error| panic!("{address} item {i}: {error}")));
            assert_eq!(here.0, there.0, "{address} item {i}");
            assert!(address.starts_with(there.1.as_str()), "{address} {}", there.1);
        }
    }
}

#[test]
fn a_server_in_front_says_who_answered() {
    let folder = tempfile::tempdir().unwrap();
    let mut behind = server(folder.path());
    let path = folder.path().join("front.toml");
    let golden = golden("st-mean");
    let address = format!("oip+grpc://{}/st-mean", behind.address);
    let config = format!("[service.search]\nmodel = {golden:?}\nbackends = [{address:?}, \"cpu\"]\nthreads = 1\n");
    std::fs::write(&path, config).unwrap();
    let front = Server::start(&["--config", path.to_str().unwrap()], free_address());
    let body = json!({"inputs": ["a text", "another"]});
    let (status, head, through) = front.post("/embed", &body);
    assert_eq!(status, 200, "{through}");
    assert!(head.contains(&format!("x-ehun-backend: {address}")), "{head}");
    behind.kill();
    let (status, head, alone) = front.post("/embed", &body);
    assert_eq!((status, &alone), (200, &through));
    assert!(head.contains("x-ehun-backend: cpu"), "{head}");
}

#[test]
fn a_service_that_is_killed_under_load_loses_no_request_and_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = server(folder.path());
    let (host, model) = (server.address, model("st-mean"));
    let texts: Vec<String> = (0..40).map(|i| format!("text {i} {}", "word ".repeat(i % 7))).collect();
    let inputs = |range: std::ops::Range<usize>| texts[range].iter().map(|t| Input::from(t.as_str())).collect();
    let options = ItemOptions::default();
    let want: Vec<Vec<f32>> = rows(&service(&model, vec![cpu(&model)]), inputs(0..40), &options)
        .into_iter()
        .map(|row| row.unwrap().0)
        .collect();
    for protocol in ["oip+grpc://HOST/st-mean", "openai+http://HOST/v1#st-mean"] {
        let address = protocol.replace("HOST", &host.to_string());
        let service = service(&model, vec![remote(&address, &model), cpu(&model)]);
        let ask = |seed: usize| -> Vec<String> {
            let start = (seed * 7) % 36;
            let answers = rows(&service, inputs(start..start + 4), &options);
            assert_eq!(answers.len(), 4);
            let check = |(answer, want): (Answered, &Vec<f32>)| {
                let (row, backend) = answer.unwrap();
                assert_eq!(&row, want, "{backend}");
                backend
            };
            answers.into_iter().zip(&want[start..start + 4]).map(check).collect()
        };
        assert!(ask(0).iter().all(|backend| address.starts_with(backend.as_str())));
        let answered = AtomicUsize::new(0);
        let counted = |seed: usize| {
            let names = ask(seed);
            answered.fetch_add(1, Ordering::SeqCst);
            names
        };
        let names: Vec<String> = std::thread::scope(|scope| {
            let counted = &counted;
            let threads: Vec<_> = (0..4)
                .map(|thread| scope.spawn(move || (0..150).flat_map(|i| counted(thread * 150 + i)).collect::<Vec<_>>()))
                .collect();
            while answered.load(Ordering::SeqCst) < 100 {
                std::thread::yield_now();
            }
            server.kill();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(names.len(), 4 * 150 * 4, "every item is answered once");
        assert!(names.iter().any(|name| name == "cpu"), "nothing fell back");
        assert_ne!(service.deployment().lanes[0].health().state, HealthState::Closed);

        server = Server::start(&["--config", folder.path().join("ehun.toml").to_str().unwrap()], host);
        let patience = Instant::now() + Duration::from_secs(20);
        while !ask(1).iter().all(|backend| address.starts_with(backend.as_str())) {
            assert!(Instant::now() < patience, "it never came back");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn through_tls_with_a_certificate_that_is_trusted_and_not_without() {
    let folder = tempfile::tempdir().unwrap();
    let cert = root().join("tests/tls/cert.pem").canonicalize().unwrap();
    let (cert, key) = (cert.to_str().unwrap(), cert.with_file_name("key.pem"));
    let server = server_with(folder.path(), &["--tls-cert", cert, "--tls-key", key.to_str().unwrap()]);
    let (port, model) = (server.address.port(), model("st-mean"));
    let ask = |address: &str| {
        let service = service(&model, vec![remote(address, &model)]);
        rows(&service, vec![Input::from("a text")], &ItemOptions::default()).remove(0)
    };
    let here = rows(&service(&model, vec![cpu(&model)]), vec![Input::from("a text")], &ItemOptions::default());
    let here = here[0].clone().unwrap().0;
    for (protocol, path, model) in
        [("openai+https", "/v1", "#st-mean"), ("oip+https", "/st-mean", ""), ("oip+grpcs", "/st-mean", "")]
    {
        let address = format!("{protocol}://localhost:{port}{path}?ca={cert}{model}");
        let (row, _) = ask(&address).unwrap_or_else(|error| panic!("{address}: {error}"));
        assert_eq!(row, here, "{address}");
        let error = ask(&format!("{protocol}://localhost:{port}{path}{model}")).unwrap_err();
        assert!(error.contains("certificate"), "{address} without its certificate: {error}");
    }
    let broken = crate::common::ehun(&["serve", "--tls-cert", cert, "--tls-key", cert]);
    assert_eq!(broken.code, Some(1));
    assert!(broken.stderr.contains("cert.pem: "), "{}", broken.stderr);
}
