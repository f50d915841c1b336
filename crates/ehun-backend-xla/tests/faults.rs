//! Everything around the compiler that can be broken: each a typed error or a note, and what is left works.

mod common;
#[path = "common/fallback.rs"]
mod fallback;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ehun_backend::{Backend, BackendError, BackendFactory, BucketChoice, Options};
use ehun_backend_xla::pjrt::PluginError;
use ehun_backend_xla::{CompileIn, InstallError, XlaConfig, XlaError, XlaFactory, install, plugins};
use ehun_graph::{Graph, GraphBuilder, Index, PoolingMode, RaggedBatch, WeightRef, WeightStore};

fn load(path: &Path) -> PluginError {
    plugins::load("cpu", path).map(|_| ()).unwrap_err()
}

fn small() -> (Arc<Graph>, WeightStore) {
    let mut b = GraphBuilder::new();
    let x = b.embedding("words", WeightRef::whole("words", &[5, 2]), Index::TokenId).unwrap();
    let pooled = b.pooling("pooling", x, PoolingMode::Mean).unwrap();
    b.output("embedding", pooled);
    let table = (0..10).map(|i| i as f32).collect();
    let weights = WeightStore::from_tensors(vec![("words".into(), vec![5, 2], table)]).unwrap();
    (Arc::new(b.finish().unwrap()), weights)
}

fn options(cache: Option<PathBuf>) -> Options {
    Options { buckets: BucketChoice::List(vec![(2, 4)]), cache, ..Options::default() }
}

#[test]
fn files_that_are_no_plugin_are_refused_by_reason() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    assert!(matches!(load(&folder.path().join("missing.so")), PluginError::Unreadable { .. }));
    assert!(matches!(load(&file("text.so", b"this is text\n")), PluginError::NotALibrary { .. }));
    assert!(matches!(load(&file("empty.so", b"")), PluginError::NotALibrary { .. }));
    assert!(matches!(load(&file("stub.so", b"\x7fELF\x02\x01")), PluginError::Truncated { .. }));
    // An ELF header of a shared object for RISC-V, then for this machine with section headers beyond the end.
    let mut header = b"\x7fELF\x02\x01\x01".to_vec();
    header.resize(64, 0);
    header[16] = 3;
    header[18] = 243;
    assert!(matches!(load(&file("riscv.so", &header)), PluginError::WrongArchitecture { .. }));
    header[18] = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    header[41] = 16;
    header[58] = 64;
    header[60] = 2;
    let message = load(&file("cut.so", &header)).to_string();
    assert!(message.contains("cut short") && message.contains("4224"), "{message}");
    // A library of the system is whole and for this machine, and yet no plugin.
    let libraries = ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6", "/lib/aarch64-linux-gnu/libm.so.6"];
    if let Some(library) = libraries.iter().map(Path::new).find(|path| path.exists()) {
        let message = load(library).to_string();
        assert!(message.contains("GetPjrtApi"), "{message}");
    } else {
        println!("not run: no system library to try");
    }
}

#[test]
fn a_plugin_that_is_cut_short_does_not_end_the_process() {
    let Some(plugin) = common::plugin() else {
        println!("not run: no XLA CPU plugin (cargo xtask setup)");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("half.so");
    let half = std::fs::metadata(&plugin).unwrap().len() / 2;
    let mut reader = std::io::Read::take(std::fs::File::open(plugin).unwrap(), half);
    std::io::copy(&mut reader, &mut std::fs::File::create(&path).unwrap()).unwrap();
    assert!(matches!(load(&path), PluginError::Truncated { found, .. } if found == half));
}

#[test]
fn absent_plugins_and_unknown_names_say_what_to_do() {
    let factory = XlaFactory::new(XlaConfig {
        plugins: [("cuda".to_owned(), PathBuf::from("/nowhere/plugin.so"))].into(),
        ..XlaConfig::default()
    });
    assert_eq!(factory.names(), ["xla:cpu", "xla:tpu", "xla:cuda"]);
    let reason = |name: &str| factory.open(name).map(|_| ()).unwrap_err().reason;
    // A plugin that the environment names comes first.
    if std::env::var_os(plugins::variable("cuda")).is_none() {
        assert!(reason("xla:cuda").contains("/nowhere/plugin.so"));
    }
    if !Path::new("/dev/nvidiactl").exists() {
        assert!(reason("xla:cuda").contains("a GPU (no /dev/nvidiactl)"), "{}", reason("xla:cuda"));
    }
    assert!(matches!(ehun_backend_xla::aot::without_device("abacus", &BTreeMap::new()), Err(XlaError::Refused(_))));
    assert!(reason("xla:abacus").contains("xla:cpu"));
    assert!(matches!(install("abacus", true, None), Err(InstallError::UnknownPlatform(_))));
    let message = install("tpu", false, None).unwrap_err().to_string();
    assert!(message.contains("Google Cloud") && message.contains("--accept-licence"), "{message}");
}

/// The environment for a TPU's library keeps it from asking the cloud's metadata server.
#[test]
fn no_metadata_query() {
    let names: Vec<&str> = plugins::environment("tpu").into_iter().map(|(name, _)| name).collect();
    assert!(names.contains(&"TPU_SKIP_MDS_QUERY") || std::env::var_os("TPU_SKIP_MDS_QUERY").is_some());
    assert!(plugins::environment("cpu").is_empty());
}

/// With a library that has no device here, the factory says so in the library's words. The file is not part of this
/// project's set-up, as its licence must be accepted by the user; name it by EHUN_PJRT_PLUGIN_TPU.
#[test]
fn a_client_that_cannot_start_is_unavailable() {
    if std::env::var_os("EHUN_PJRT_PLUGIN_TPU").is_none() || Path::new("/dev/accel0").exists() {
        println!("not run: no libtpu (EHUN_PJRT_PLUGIN_TPU), or a TPU is here");
        return;
    }
    let reason = XlaFactory::default().open("xla:tpu").map(|_| ()).unwrap_err().reason;
    assert!(reason.contains("was loaded, but"), "{reason}");
}

#[test]
fn a_broken_cache_costs_time_and_nothing_else() {
    let Some(backend) = common::backend() else { return };
    let (graph, weights) = small();
    let batch = RaggedBatch::from_ids(&[[1u32, 3].as_slice(), &[], &[4]]);
    let folder = tempfile::tempdir().unwrap();
    let run = |cache: &Path| {
        let executable = backend.compile_xla(graph.clone(), &weights, &options(Some(cache.to_owned()))).unwrap();
        let outputs = ehun_backend::run(&executable, &batch, &Default::default()).unwrap();
        assert_eq!(outputs.values[0].data, [4.0, 5.0, 0.0, 0.0, 8.0, 9.0]);
        let report = executable.reports().next().unwrap();
        (report.from_cache, report.notes.clone())
    };
    assert_eq!(run(folder.path()), (false, vec![]));
    assert_eq!(run(folder.path()), (true, vec![]));
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0xff;
        std::fs::write(&path, bytes).unwrap();
    }
    let (from_cache, notes) = run(folder.path());
    assert!(!from_cache && notes[0].contains("checksum"), "{notes:?}");
    assert_eq!(run(folder.path()), (true, vec![]));
    // A file where the folder should be cannot be written under, whoever runs the test.
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let (_, notes) = run(&file);
    assert!(notes.iter().any(|note| note.contains("not cached")), "{notes:?}");
}

#[test]
fn a_child_compiles_and_its_end_is_an_error_of_the_bucket() {
    let (graph, weights) = small();
    let compile = |program: &str, time_limit: Duration| {
        let place = CompileIn::Child { program: program.into(), time_limit };
        let backend = common::backend_with(XlaConfig { compile_in: Some(place), ..XlaConfig::default() })?;
        Some(backend.compile(graph.clone(), &weights, &options(None)).map(|executable| {
            let batch = RaggedBatch::from_ids(&[[2u32]]);
            ehun_backend::run(executable.as_ref(), &batch, &Default::default()).unwrap().values[0].data.clone()
        }))
    };
    let minute = Duration::from_secs(60);
    let Some(result) = compile(env!("CARGO_BIN_EXE_ehun-xla"), minute) else { return };
    assert_eq!(result.unwrap(), [4.0, 5.0]);
    let folder = tempfile::tempdir().unwrap();
    let script = |name: &str, body: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        let mut permissions = std::fs::metadata(&path).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
        std::fs::set_permissions(&path, permissions).unwrap();
        path.to_string_lossy().into_owned()
    };
    for (program, limit, words) in [
        (script("abort", "echo the compiler gave up >&2; kill -SEGV $$"), minute, "the compiler gave up"),
        (script("hang", "exec sleep 600"), Duration::from_millis(300), "stopped after"),
        ("/nowhere/ehun".to_owned(), minute, "cannot be started"),
    ] {
        match compile(&program, limit) {
            Some(Err(BackendError::Refused(refusals))) => {
                assert!(refusals[0].reason.contains(words), "{refusals:?}");
            }
            other => panic!("{program}: {other:?}"),
        }
    }
}

/// Programs that need more memory than the device has are no error of the process: the bucket is left out with the figures,
/// and a model none of whose buckets fit is refused.
#[test]
fn too_little_device_memory_is_refused_with_the_figures() {
    let (graph, weights) = small();
    let compile = |memory_limit: u64, buckets: &[(usize, usize)]| {
        let config = XlaConfig { memory_limit: Some(memory_limit), ..XlaConfig::default() };
        let options = Options { buckets: BucketChoice::List(buckets.to_vec()), ..Options::default() };
        Some(common::backend_with(config)?.compile_xla(graph.clone(), &weights, &options))
    };
    let Some(refused) = compile(16, &[(2, 4)]) else { return };
    let Err(BackendError::Refused(refusals)) = refused else { panic!("16 bytes are enough") };
    assert_eq!(refusals[0].operation, "bucket 2x4");
    assert!(refusals[0].reason.contains("no form fits: native needs 0 MiB"), "{refusals:?}");
    // A megabyte holds the small bucket and not the large one, whose token ids alone are larger.
    let executable = compile(1 << 20, &[(2, 4), (1024, 512)]).unwrap().unwrap();
    let forms: Vec<bool> = executable.reports().map(|report| report.form.is_some()).collect();
    assert_eq!(forms, [true, false]);
    let long = RaggedBatch::from_ids(&[[1u32; 100].as_slice()]);
    let Err(BackendError::Refused(refusals)) = ehun_backend::run(&executable, &long, &Default::default()) else {
        panic!("no bucket holds it")
    };
    assert!(refusals[0].reason.contains("bucket 1024x512 was left out: no form fits"), "{refusals:?}");
}
