//! A service that names a backend after XLA's: whatever is wrong with the plugin, the compiler or the device, the other one
//! answers and the reason is on record; where none is named it is a typed error.

use std::error::Error;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use ehun_backend::{BackendError, BucketChoice, Options, Registry, Unavailable};
use ehun_backend_cpu::CpuFactory;
use ehun_backend_xla::{CompileIn, XlaConfig, XlaFactory};
use ehun_engine::{DeployError, Deployment, HealthPolicy, Lane, NoBackend, Request, Service, ServiceConfig};
use ehun_models::{Checkpoint, LoadOptions, Model};

use crate::common;

/// What is wrong, how it is brought about, and the words of its reason.
struct Case {
    name: &'static str,
    config: XlaConfig,
    words: &'static str,
}

/// A file that is taken for the plugin.
fn plugin(name: &'static str, path: PathBuf, words: &'static str) -> Case {
    let config = XlaConfig { plugins: [("cpu".to_owned(), path)].into(), ..XlaConfig::default() };
    Case { name, config, words }
}

fn script(folder: &Path, name: &str, body: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// A plugin without a device, compiled here.
fn without_device(folder: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/no_device.c");
    let library = folder.join("no_device.so");
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).output();
    match compiled {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some(library)
        }
        Err(error) => {
            println!("not run: a client that cannot start, as there is no C compiler `cc` ({error})");
            None
        }
    }
}

fn cases(folder: &Path) -> Vec<Case> {
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let header = |machine: u8| {
        let mut header = b"\x7fELF\x02\x01\x01".to_vec();
        header.resize(64, 0);
        (header[16], header[18]) = (3, machine);
        header
    };
    let mut cut = header(if cfg!(target_arch = "aarch64") { 183 } else { 62 });
    (cut[41], cut[58], cut[60]) = (16, 64, 2);
    let mut cases = vec![
        plugin("missing", folder.join("missing.so"), "No such file"),
        plugin("a folder", folder.to_owned(), "Is a directory"),
        plugin("a text file", file("text.so", b"this is text\n"), "is no shared library"),
        plugin("cut short", file("cut.so", &cut), "is cut short"),
        plugin("another machine's", file("riscv.so", &header(243)), "is built for"),
    ];
    if let Some(library) = without_device(folder) {
        cases.push(plugin("a client that cannot start", library, "no device of this kind is here"));
    }
    let Some(path) = common::plugin() else {
        println!("not run: faults of the compiler and the device, as there is no XLA CPU plugin (cargo xtask setup)");
        return cases;
    };
    let minute = Duration::from_secs(60);
    let killed = script(folder, "killed", "echo halfway through >&2; kill -KILL $$");
    let hung = script(folder, "hung", "exec sleep 600");
    for (name, compile_in, memory_limit, words) in [
        ("the compiler is killed", Some((killed, minute)), None, "halfway through"),
        ("the compiler hangs", Some((hung, Duration::from_millis(200))), None, "the compiler was stopped"),
        ("too little memory", None, Some(16), "no form fits"),
    ] {
        let compile_in = compile_in.map(|(program, time_limit)| CompileIn::Child { program, time_limit });
        let config = XlaConfig { compile_in, memory_limit, ..plugin(name, path.clone(), "").config };
        cases.push(Case { name, config, words });
    }
    cases
}

#[test]
fn the_backend_that_is_named_next_answers() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens/st-mean");
    let model = Arc::new(Model::load(&Checkpoint::open(golden).unwrap(), &LoadOptions::default()).unwrap());
    let options = Options { threads: Some(1), buckets: BucketChoice::List(vec![(2, 16)]), ..Options::default() };
    let deploy = |config: &XlaConfig, names: &[&str]| {
        let registry = Registry::new().with(XlaFactory::new(config.clone())).with(CpuFactory);
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        Deployment::of_those_ready(Arc::clone(&model), &names, |name| {
            let lane = Lane::of_model(&model, &registry.open(name)?, &options, HealthPolicy::default())?;
            Ok::<_, Box<dyn Error>>(lane)
        })
    };
    let vector = |deployment: Arc<Deployment>| {
        let service = Service::start(ServiceConfig::default(), deployment, Vec::new()).unwrap();
        let item = service.request(Request::new(vec!["tides".into()])).unwrap().wait().items.remove(0).unwrap().output;
        (item.report.backend.clone(), item.values[0].data.clone())
    };
    let alone = vector(deploy(&XlaConfig::default(), &["cpu"]).unwrap());
    let folder = tempfile::tempdir().unwrap();
    for Case { name, config, words } in cases(folder.path()) {
        let deployment = deploy(&config, &["xla:cpu", "cpu"]).unwrap();
        let left_out = deployment.left_out.clone();
        assert_eq!((left_out.len(), left_out[0].backend.as_str()), (1, "xla:cpu"), "{name}");
        assert!(left_out[0].reason.contains(words), "{name}: {}", left_out[0].reason);
        assert_eq!(vector(deployment), alone, "{name}");
        let Err(NoBackend(failed)) = deploy(&config, &["xla:cpu"]) else { panic!("{name}: it is ready") };
        let error = &failed[0].1;
        let is_unavailable = error.downcast_ref::<Unavailable>().is_some();
        let is_refused = error
            .downcast_ref::<DeployError>()
            .is_some_and(|error| matches!(error.source.as_ref(), BackendError::Refused(_)));
        assert!(is_unavailable || is_refused, "{name}: {error}");
    }
}
