//! NVIDIA's tools that XLA compiles for CUDA with: the assembler `ptxas`, and `libdevice`, the mathematical functions.
//!
//! XLA looks for them in the folder that its flag names, in fixed places, and in some beside the plugin; for `ptxas` also on
//! `PATH`. This looks in the same places, and names those by the flag that XLA would not find.

use std::path::{Path, PathBuf};

/// XLA's flag for the folder with both.
const FLAG: &str = "--xla_gpu_cuda_data_dir";
const PTXAS: &str = "bin/ptxas";
const LIBDEVICE: &str = "nvvm/libdevice/libdevice.10.bc";
/// Places that XLA knows.
const FIXED: [&str; 2] = ["/usr/local/cuda", "/opt/cuda"];
/// The same beside a plugin: as wheels lie side by side in a Python environment, and as its own folder.
const BESIDE: [&str; 3] = ["../nvidia/cu13", "../../nvidia/cu13", "cuda"];

/// The variable that tells XLA where the tools are that `CUDA_HOME` or `PATH` lead to, unless it tells already.
pub(crate) fn flags() -> Option<(&'static str, String)> {
    let before = std::env::var("XLA_FLAGS").unwrap_or_default();
    if before.contains(FLAG) {
        return None;
    }
    let named: Vec<PathBuf> = home().into_iter().chain(above_path()).collect();
    let found = |file: &str| named.iter().find(|root| root.join(file).is_file());
    let root = found(LIBDEVICE).or_else(|| found(PTXAS))?;
    Some(("XLA_FLAGS", format!("{before} {FLAG}={}", root.display()).trim().to_owned()))
}

/// Which tools are not here, each with where it was looked for.
pub(crate) fn missing(plugin: Option<&Path>) -> Vec<String> {
    let flagged = std::env::var("XLA_FLAGS").ok();
    let flagged =
        flagged.as_deref().and_then(|flags| flags.split_whitespace().find_map(|flag| flag.strip_prefix(FLAG)));
    let flagged = flagged.map(|value| PathBuf::from(value.trim_start_matches('=')));
    let beside = plugin.and_then(Path::parent).into_iter().flat_map(|folder| BESIDE.map(|place| folder.join(place)));
    let fixed = FIXED.map(PathBuf::from);
    let roots: Vec<PathBuf> = home().into_iter().chain(flagged).chain(fixed).chain(beside).collect();
    let above = above_path();
    let here = |file: &str| roots.iter().chain(&above).any(|root| root.join(file).is_file());
    let places = roots.iter().map(|root| root.display().to_string()).collect::<Vec<_>>().join(", ");
    let home = if std::env::var_os("CUDA_HOME").is_some() { "" } else { "; $CUDA_HOME is not set" };
    let mut missing = Vec::new();
    if !here(PTXAS) && above.is_empty() {
        missing.push(format!("ptxas (not on PATH, and no {PTXAS} in {places}{home})"));
    }
    if !here(LIBDEVICE) {
        missing.push(format!("libdevice.10.bc (no {LIBDEVICE} in {places}{home})"));
    }
    missing
}

fn home() -> Option<PathBuf> {
    std::env::var_os("CUDA_HOME").filter(|home| !home.is_empty()).map(PathBuf::from)
}

/// The folders above those of `PATH` that have `ptxas`.
fn above_path() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).filter(|folder| folder.join("ptxas").is_file());
    folders.filter_map(|folder| folder.parent().map(Path::to_owned)).collect()
}
