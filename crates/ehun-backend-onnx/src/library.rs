//! Where ONNX Runtime's library is found, and how it gets there.

use std::path::{Path, PathBuf};

use ehun_backend::wheel::{Pinned, WheelError};

use crate::runtime::RuntimeError;

/// The environment variable that names the library.
pub const VARIABLE: &str = "EHUN_ONNXRUNTIME";

/// The wheel that [`install`] gets: ONNX Runtime for the CPU, Linux on x86-64 (MIT).
pub const REQUIREMENT: &str = "onnxruntime==1.32.0";
/// SHA-256 of that wheel.
pub const SHA256: &str = "5a34fc4dfeb5a7b4a74c95dcba1e773d722abda720b474edf1b0c419dc6d163d";
/// What makes pip choose that wheel, whatever Python asks. The library itself depends on no Python.
pub const PIP_ARGUMENTS: [&str; 8] =
    ["--python-version", "3.11", "--implementation", "cp", "--abi", "cp311", "--platform", "manylinux_2_28_x86_64"];

/// The folder that [`install`] writes to: `~/.local/share/ehun/onnxruntime`.
pub fn folder() -> PathBuf {
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("."), PathBuf::from);
    let data = std::env::var_os("XDG_DATA_HOME").map_or_else(|| home.join(".local/share"), PathBuf::from);
    data.join("ehun/onnxruntime")
}

/// The library: from the environment, else `configured`, else from [`folder`].
pub fn find(configured: Option<&Path>) -> Result<PathBuf, RuntimeError> {
    if let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        return Ok(PathBuf::from(path));
    }
    if let Some(path) = configured {
        return Ok(path.to_owned());
    }
    let folder = folder();
    in_folder(&folder).ok_or(RuntimeError::NotFound { folder, variable: VARIABLE })
}

/// The library in `folder`, the last by name where there are several.
pub fn in_folder(folder: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?;
    let is_library = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name == "onnxruntime.dll"
            || name.starts_with("libonnxruntime.so")
            || (name.starts_with("libonnxruntime.") && name.ends_with(".dylib"))
    };
    entries.flatten().map(|entry| entry.path()).filter(is_library).max()
}

/// Why the library was not installed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InstallError {
    /// There is no pinned wheel for what was asked for.
    #[error("{0}; name a library of your own in {VARIABLE}")]
    NoWheel(String),
    /// A step failed.
    #[error(transparent)]
    Wheel(#[from] WheelError),
    /// The wheel has no library.
    #[error("there is no library in {0}, although {REQUIREMENT} was unpacked there")]
    NoLibrary(PathBuf),
}

/// Gets ONNX Runtime's wheel by pip, pinned to its version and hash, and writes its libraries and notices to `destination`
/// (or to [`folder`]). Returns the library's path. Needs `python3` with pip; nothing else of the wheel is kept.
pub fn install(backend: &str, destination: Option<&Path>) -> Result<PathBuf, InstallError> {
    if !matches!(backend, "onnx" | "onnx:cpu") {
        let provider = crate::provider::Provider::of_backend(backend);
        let package = provider.map_or("no package that is known here", |provider| provider.package);
        return Err(InstallError::NoWheel(format!(
            "only onnx:cpu is installed from here; `{backend}` is in {package}"
        )));
    }
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err(InstallError::NoWheel("the pinned wheel is for Linux on x86-64".to_owned()));
    }
    let destination = destination.map_or_else(folder, Path::to_owned);
    let wheel = Pinned { requirement: REQUIREMENT, sha256: SHA256, pip_arguments: &PIP_ARGUMENTS };
    // The library last: one that is found has the libraries that it loads beside it.
    wheel.unpack(&["LICENSE", "ThirdParty", "libonnxruntime_", "libonnxruntime."], &destination)?;
    in_folder(&destination).ok_or(InstallError::NoLibrary(destination))
}
