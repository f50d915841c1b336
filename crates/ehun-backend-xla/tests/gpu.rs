//! Compiling for GPUs that are not here, with the CUDA plugin where one is: named by `EHUN_PJRT_PLUGIN_CUDA` or installed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ehun_backend::{Attention, BucketChoice, Options, Precision};
use ehun_backend_xla::aot::{self, AotConfig};
use ehun_backend_xla::{AotTarget, CompileIn, Form, XlaError, target};
use ehun_models::{Checkpoint, LoadOptions, Model};

/// What can be compiled with, or that the test did not run.
fn config(out: Option<PathBuf>) -> Option<AotConfig> {
    if let Err(error) = aot::without_device("cuda", &BTreeMap::new()) {
        assert!(matches!(&error, XlaError::Missing { missing, .. } if !missing.is_empty()), "{error}");
        println!("not run: {error}");
        return None;
    }
    let program = PathBuf::from(env!("CARGO_BIN_EXE_ehun-xla"));
    let compile_in = CompileIn::Child { program, time_limit: Duration::from_secs(120) };
    Some(AotConfig { compile_in, all_forms: true, out, ..AotConfig::new().unwrap() })
}

fn model() -> Model {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens/st-mean");
    Model::load(&Checkpoint::open(folder).unwrap(), &LoadOptions::default()).unwrap()
}

fn options() -> Options {
    Options { buckets: BucketChoice::List(vec![(2, 32)]), precision: Precision::Bf16, ..Options::default() }
}

#[test]
fn every_known_gpu_gets_programs() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut config) = config(Some(folder.path().to_owned())) else { return };
    let model = model();
    let mut arguments = Vec::new();
    for name in target::gpu_names() {
        let target = AotTarget::of("cuda", name).unwrap();
        config.all_forms = name == "h100_sxm";
        let table = aot::aot(&target, model.graph(), &options(), &config, &mut |_| {}).unwrap();
        assert!(table.device_kind.starts_with("NVIDIA ") && table.memory_limit == target.memory(), "{table:?}");
        let report = &table.buckets[0];
        assert_eq!(report.attempts.len(), if config.all_forms { 2 } else { 1 }, "{report:?}");
        for attempt in &report.attempts {
            let figures = attempt.outcome.as_ref().unwrap_or_else(|words| panic!("{name} {:?}: {words}", attempt.form));
            // The plugin has no cost analysis: nothing is made up.
            assert!(figures.flops.is_none() && figures.optimal_seconds.is_none(), "{figures:?}");
            arguments.push(figures.argument_bytes);
        }
        assert!(report.form.is_some(), "{report:?}");
        let program = std::fs::read(&table.artefacts["2x32"]).unwrap();
        assert!(program.len() > 1000 && table.artefacts["2x32"].ends_with(format!("{name}-2x32.pjrt")));
    }
    // What a program is given does not depend on what it is compiled for.
    assert!(arguments.iter().all(|&bytes| bytes == arguments[0] && bytes > 0), "{arguments:?}");
}

/// What the compiler cannot do is a refusal in its words, and what ends its process ends nothing else.
#[test]
fn a_gpu_that_cannot_be_compiled_for_is_refused() {
    let Some(mut config) = config(None) else { return };
    config.all_forms = false;
    let model = model();
    let folder = tempfile::tempdir().unwrap();
    let known = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/targets/a6000.txtpb");
    let described = |from: &str, to: &str| {
        let text = std::fs::read_to_string(&known).unwrap();
        assert!(text.contains(from), "{from}");
        let path = folder.path().join("mine.txtpb");
        std::fs::write(&path, text.replace(from, to)).unwrap();
        AotTarget::of("cuda", path.to_str().unwrap()).unwrap()
    };
    let native = Options { attention: Attention::Named(Form::Native.name().into()), ..options() };
    let compile = |target: &AotTarget| aot::aot(target, model.graph(), &native, &config, &mut |_| {});
    // No compiler of today knows it.
    let table = compile(&described("major: 8", "major: 5")).unwrap();
    assert!(table.buckets[0].form.is_none() && !table.buckets[0].reason.is_empty(), "{table:?}");
    let error = compile(&described("threads_per_warp", "threads_per_wrap")).unwrap_err();
    assert!(matches!(&error, XlaError::Pjrt(error) if error.message.contains("target_config")), "{error}");
    // Less memory than the weights take.
    let table = compile(&described("device_memory_size: 51041271808", "device_memory_size: 1000")).unwrap();
    assert!(table.buckets[0].form.is_none(), "{table:?}");
}
