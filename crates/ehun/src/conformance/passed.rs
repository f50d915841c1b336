//! What passed on this machine: one small file for each plug-in file, machine and version of the suite.

use std::path::{Path, PathBuf};

use ehun_backend::{Attention, Precision};
use ehun_conformance::{ConformOptions, Profile, Report, SUITE_VERSION};
use serde::{Deserialize, Serialize};

use crate::error::CommandError;

/// A run of the suite on a plug-in that counts: everything was tried, in float32.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The file as it was named.
    pub file: PathBuf,
    /// blake3 of its bytes.
    pub file_hash: String,
    /// The backend that loads it.
    pub backend: String,
    /// Processor and its features.
    pub machine: String,
    /// Version of the suite.
    pub suite: u32,
    /// Whether it conforms.
    pub passed: bool,
    /// The report in one sentence.
    pub verdict: String,
}

/// Whether a run with these options, on a plug-in, counts.
fn counts(options: &ConformOptions) -> bool {
    options.profile == Profile::Full
        && options.groups.is_empty()
        && options.only.is_none()
        && options.precision == Precision::F32
}

/// Remembers the result where it counts; the place, if so.
pub fn record(backend: &str, options: &ConformOptions, report: &Report) -> Result<Option<PathBuf>, CommandError> {
    let Attention::File(file) = &options.attention else { return Ok(None) };
    let Some(folder) = folder().filter(|_| counts(options)) else { return Ok(None) };
    let key = Key::of(backend, file)?;
    let place = folder.join(key.name());
    let record = Record {
        file: file.clone(),
        file_hash: key.file_hash,
        backend: key.backend,
        machine: key.machine,
        suite: SUITE_VERSION,
        passed: report.passed(),
        verdict: report.verdict(),
    };
    let text = serde_json::to_vec_pretty(&record).map_err(|error| CommandError::Usage(error.to_string()))?;
    let name = place.display().to_string();
    let beside = place.with_extension(format!("{}.part", std::process::id()));
    std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(&beside, text))
        .and_then(|()| std::fs::rename(&beside, &place))
        .map_err(CommandError::io(name))?;
    Ok(Some(place))
}

/// Lets an attention implementation through that is no file, that has passed here, or that is trusted.
///
/// # Errors
/// With what to do, where a plug-in has not passed on this machine.
pub fn require<'a>(
    backends: impl IntoIterator<Item = &'a str>,
    attention: &Attention,
    trust: bool,
) -> Result<(), CommandError> {
    let Attention::File(file) = attention else { return Ok(()) };
    if trust {
        return Ok(());
    }
    for backend in backends {
        let backend = if backend == "auto" { ehun_backend_cpu::NAME } else { backend };
        let command = format!("`ehun conform --backend {backend} --attention {}`", file.display());
        let why = match found(backend, file)? {
            Some(record) if record.passed => continue,
            Some(record) => {
                format!("it failed the conformance suite on this machine ({}); run {command}", record.verdict)
            }
            None => format!(
                "it has not passed the conformance suite on this machine; run {command} (all of it, without --quick)"
            ),
        };
        return Err(CommandError::NotTrusted(format!(
            "attention plug-in `{}`: {why}, or give --trust to load it all the same",
            file.display()
        )));
    }
    Ok(())
}

/// What is known of `file` on this machine.
pub fn found(backend: &str, file: &Path) -> Result<Option<Record>, CommandError> {
    let Some(folder) = folder() else { return Ok(None) };
    let key = Key::of(backend, file)?;
    let Ok(text) = std::fs::read(folder.join(key.name())) else { return Ok(None) };
    let record: Option<Record> = serde_json::from_slice(&text).ok();
    Ok(record.filter(|record| record.file_hash == key.file_hash && record.machine == key.machine))
}

struct Key {
    backend: String,
    file_hash: String,
    machine: String,
}

impl Key {
    fn of(backend: &str, file: &Path) -> Result<Self, CommandError> {
        let bytes = std::fs::read(file).map_err(CommandError::io(file.display().to_string()))?;
        let file_hash = blake3::hash(&bytes).to_hex().to_string();
        Ok(Self { backend: backend.to_owned(), file_hash, machine: machine() })
    }

    fn name(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for part in [&self.backend, &self.file_hash, &self.machine, &SUITE_VERSION.to_string()] {
            hasher.update(part.as_bytes()).update(&[0]);
        }
        format!("{}.json", hasher.finalize().to_hex())
    }
}

/// The processor with its features: a plug-in may choose its code by any of them.
fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |names: [&str; 2]| {
        let value = |line: &str| {
            let (name, value) = line.split_once(':')?;
            names.contains(&name.trim()).then(|| value.trim().to_owned())
        };
        info.lines().find_map(value)
    };
    let model = field(["model name", "CPU part"]).unwrap_or_default();
    let features = field(["flags", "Features"]).unwrap_or_default();
    format!("{} {} {model}: {features}", std::env::consts::OS, std::env::consts::ARCH)
}

/// `$XDG_DATA_HOME/ehun/conformance`, or under `~/.local/share`; nowhere without a home.
fn folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let data = set("XDG_DATA_HOME").or_else(|| Some(set("HOME")?.join(".local/share")));
    data.map(|data| data.join("ehun/conformance"))
}
