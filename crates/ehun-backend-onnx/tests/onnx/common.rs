//! The library that `cargo xtask plugins` fetches.

use std::path::PathBuf;

use ehun_backend_onnx::{OnnxBackend, OnnxConfig, OnnxFactory, library};

/// A factory on that library, or nothing, said once for each test that asks.
pub fn factory() -> Option<OnnxFactory> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.cache/plugins/onnxruntime");
    let Some(library) = library::in_folder(&folder) else {
        println!("not run: no ONNX Runtime library (cargo xtask plugins)");
        return None;
    };
    Some(OnnxFactory::new(OnnxConfig { library: Some(library) }))
}

/// Opens `onnx:cpu`.
pub fn backend() -> Option<OnnxBackend> {
    Some(factory()?.open_onnx("onnx").expect("the library is there, so it opens"))
}
