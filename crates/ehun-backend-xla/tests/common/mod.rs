//! The CPU plugin that `cargo xtask setup` fetches, and small models.

use std::path::PathBuf;

use ehun_backend_xla::{XlaBackend, XlaConfig, XlaFactory};

/// The plugin's file.
pub fn plugin() -> Option<PathBuf> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.cache/plugins/xla-cpu/pjrt_c_api_cpu_plugin.so");
    path.exists().then_some(path)
}

/// Opens `xla:cpu`, or says that the test did not run.
pub fn backend_with(config: XlaConfig) -> Option<XlaBackend> {
    let Some(path) = plugin() else {
        println!("not run: no XLA CPU plugin (cargo xtask setup)");
        return None;
    };
    let config = XlaConfig { plugins: [("cpu".to_owned(), path)].into(), ..config };
    Some(XlaFactory::new(config).open_xla("xla:cpu").expect("the plugin is there, so it opens"))
}

/// Opens `xla:cpu` as it is by default.
pub fn backend() -> Option<XlaBackend> {
    backend_with(XlaConfig::default())
}
