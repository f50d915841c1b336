//! Where plugins are found, and how they get there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ehun_backend::wheel::{Pinned, WheelError};

use crate::pjrt::{Plugin, PluginError};
use crate::tools;

/// The platforms that this crate knows.
pub const PLATFORMS: [&str; 3] = ["cpu", "tpu", "cuda"];

/// A wheel that holds a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wheel {
    /// Platform that the plugin is for.
    pub platform: &'static str,
    /// Package and version, as pip takes them.
    pub requirement: &'static str,
    /// SHA-256 of the wheel for Linux on x86-64.
    pub sha256: &'static str,
    /// The plugin inside the wheel.
    pub member: &'static str,
    /// Name of its licence.
    pub licence: &'static str,
    /// Whether the user must accept the licence first.
    pub must_accept: bool,
}

/// The wheels that [`install`] gets, one for each platform.
pub const WHEELS: [Wheel; 3] = [
    Wheel {
        platform: "cpu",
        requirement: "lammps-jax-pjrt-cpu==0.11.2",
        sha256: "1319390d948b39f69f7dade496b7c385149d9ca6097a6b62114da113216d9ad1",
        member: "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so",
        licence: "Apache-2.0",
        must_accept: false,
    },
    Wheel {
        platform: "tpu",
        requirement: "libtpu==0.0.52",
        sha256: "f5e2e596eaea9357fbb5a6755a7a9007c6ab75bfde4a55191b03eff402971140",
        member: "libtpu/libtpu.so",
        licence: "Google Cloud Platform Terms of Service",
        must_accept: true,
    },
    Wheel {
        platform: "cuda",
        requirement: "jax-cuda13-pjrt==0.12.0.1",
        sha256: "5899bb6177eda86ea532afb9a26794f2bdd04966f6a01f9028266b16c2b6cf90",
        member: "jax_plugins/xla_cuda13/xla_cuda_plugin.so",
        licence: "Apache-2.0",
        must_accept: false,
    },
];

/// A plugin depends on no Python, so its wheel is asked for by platform and not by interpreter.
const PIP_ARGUMENTS: [&str; 8] = [
    "--python-version",
    "3.11",
    "--platform",
    "manylinux_2_31_x86_64",
    "--platform",
    "manylinux_2_27_x86_64",
    "--platform",
    "manylinux2014_x86_64",
];

/// The environment that a platform's library must find when it is loaded.
///
/// For a TPU: no query of the cloud's metadata server, more than one process may load the library, and no search for
/// other workers. A variable that is set already keeps its value.
///
/// For CUDA: where NVIDIA's tools are, if that is not a place that the plugin knows.
pub fn environment(platform: &str) -> Vec<(&'static str, String)> {
    if platform == "cuda" {
        return tools::flags().into_iter().collect();
    }
    if platform != "tpu" {
        return Vec::new();
    }
    let wanted = [
        ("TPU_SKIP_MDS_QUERY", "1"),
        ("ALLOW_MULTIPLE_LIBTPU_LOAD", "1"),
        ("TPU_WORKER_HOSTNAMES", "localhost"),
        ("TPU_ACCELERATOR_TYPE", "v5litepod-4"),
        ("TPU_WORKER_ID", "0"),
    ];
    let unset = wanted.into_iter().filter(|(name, _)| std::env::var_os(name).is_none());
    unset.map(|(name, value)| (name, value.to_owned())).collect()
}

/// The environment variable that names the plugin of `platform`.
pub fn variable(platform: &str) -> String {
    format!("EHUN_PJRT_PLUGIN_{}", platform.to_uppercase())
}

/// The folder that [`install`] writes to: `~/.local/share/ehun/plugins/PLATFORM`.
pub fn folder(platform: &str) -> PathBuf {
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("."), PathBuf::from);
    let data = std::env::var_os("XDG_DATA_HOME").map_or_else(|| home.join(".local/share"), PathBuf::from);
    data.join("ehun/plugins").join(platform)
}

/// The plugin's file: from the environment, else `configured`, else the first library in [`folder`].
pub fn find(platform: &str, configured: &BTreeMap<String, PathBuf>) -> Result<PathBuf, PluginError> {
    let variable = variable(platform);
    if let Some(path) = std::env::var_os(&variable) {
        return Ok(PathBuf::from(path));
    }
    if let Some(path) = configured.get(platform) {
        return Ok(path.clone());
    }
    let folder = folder(platform);
    let mut libraries: Vec<PathBuf> = std::fs::read_dir(&folder)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    libraries.retain(|path| path.extension().is_some_and(|extension| extension == "so"));
    libraries.sort_unstable();
    libraries.into_iter().next().ok_or(PluginError::NotFound { platform: platform.to_owned(), variable, folder })
}

/// What a platform needs beside its plugin and is not here: devices, drivers, tools; each with where it was looked for.
/// Empty where nothing is known to be missing. Some tools are looked for beside the plugin.
pub fn missing(platform: &str, plugin: Option<&Path>) -> Vec<String> {
    let there = |paths: &[&str]| paths.iter().any(|path| Path::new(path).exists());
    let mut missing = Vec::new();
    match platform {
        "tpu" if !there(&["/dev/accel0", "/dev/vfio/0"]) => {
            missing.push("a TPU (no /dev/accel0 and no /dev/vfio/0)".to_owned());
        }
        "cuda" => {
            if !there(&["/dev/nvidiactl", "/dev/dxg"]) {
                missing.push("a GPU (no /dev/nvidiactl)".to_owned());
            }
            // SAFETY: the driver's library has no initialiser that needs anything; it is closed again at once.
            if unsafe { libloading::Library::new("libcuda.so.1") }.is_err() {
                missing.push("the driver's library libcuda.so.1".to_owned());
            }
            missing.extend(tools::missing(plugin));
        }
        _ => {}
    }
    missing
}

/// Loads the plugin of `platform` with the environment that it needs.
pub fn load(platform: &str, path: &Path) -> Result<Arc<Plugin>, PluginError> {
    for (name, value) in environment(platform) {
        // SAFETY: std serialises this with every other access through std. A C library that reads the environment in
        // another thread at this moment would race; the library that is meant to read these is loaded below.
        unsafe { std::env::set_var(name, &value) };
    }
    Plugin::load(path)
}

/// Why a plugin was not installed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InstallError {
    /// There is no wheel for the platform.
    #[error("there is no plugin to install for `{0}`; there are cpu, tpu and cuda")]
    UnknownPlatform(String),
    /// The licence must be accepted first.
    #[error("{requirement} is under the {licence}; install it with --accept-licence if you accept them")]
    LicenceNotAccepted {
        /// The package.
        requirement: String,
        /// Name of the licence.
        licence: String,
    },
    /// A step failed.
    #[error(transparent)]
    Wheel(#[from] WheelError),
}

/// Gets the wheel of `platform` by pip, pinned to its version and hash, and writes the plugin to `destination` (or to
/// [`folder`]). Returns the plugin's path. Needs `python3` with pip; nothing of the wheel but the plugin and its notices
/// is kept.
pub fn install(platform: &str, accept_licence: bool, destination: Option<&Path>) -> Result<PathBuf, InstallError> {
    let wheel = WHEELS
        .iter()
        .find(|wheel| wheel.platform == platform)
        .ok_or_else(|| InstallError::UnknownPlatform(platform.to_owned()))?;
    if wheel.must_accept && !accept_licence {
        return Err(InstallError::LicenceNotAccepted {
            requirement: wheel.requirement.to_owned(),
            licence: wheel.licence.to_owned(),
        });
    }
    let destination = destination.map_or_else(|| folder(platform), Path::to_owned);
    let pinned = Pinned { requirement: wheel.requirement, sha256: wheel.sha256, pip_arguments: &PIP_ARGUMENTS };
    let name = Path::new(wheel.member).file_name().unwrap_or_default();
    pinned.unpack(&["LICENSE", "THIRD_PARTY", &name.to_string_lossy()], &destination)?;
    Ok(destination.join(name))
}
