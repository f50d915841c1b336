//! Compilation in a child process: a compiler that aborts or hangs takes the child with it and nothing else.
//!
//! The child is the same program, started as `PROGRAM __xla-compile REQUEST`; the program's `main` hands over to
//! [`compile_worker_main`] when it sees [`WORKER_ARGUMENT`]. Request and answer are files in a folder of their own.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::pjrt::{Client, CompiledFigures, Plugin};
use crate::plugins;
use crate::target::AotTarget;

/// First argument of the child.
pub const WORKER_ARGUMENT: &str = "__xla-compile";

/// Where programs are compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompileIn {
    /// In this process.
    ThisProcess,
    /// In a child process with a time limit.
    Child {
        /// The program to start; its `main` must know [`WORKER_ARGUMENT`].
        program: PathBuf,
        /// After so long the child is killed.
        time_limit: Duration,
    },
}

/// What a program is compiled for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CompileFor {
    /// The plugin's first device.
    Device,
    /// Devices that need not be here.
    Absent(AotTarget),
}

#[derive(Serialize, Deserialize)]
struct Request {
    platform: String,
    plugin: PathBuf,
    program: PathBuf,
    target: CompileFor,
    answer: PathBuf,
    executable: PathBuf,
}

/// A compiled program as the child hands it over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Compiled {
    /// The compiler's figures.
    pub figures: CompiledFigures,
    /// Kind of the device.
    pub device_kind: String,
    /// The program for [`Client::deserialize`]; empty where the plugin cannot write it.
    #[serde(skip)]
    pub executable: Vec<u8>,
}

/// Compiles `program` in a child. The error is the compiler's words, or how the child ended.
pub fn compile_in_child(
    child: &Path,
    time_limit: Duration,
    platform: &str,
    plugin: &Path,
    target: &CompileFor,
    program: &str,
) -> Result<Compiled, String> {
    let folder = Folder::new()?;
    let request = Request {
        platform: platform.to_owned(),
        plugin: plugin.to_owned(),
        program: folder.path.join("program.mlir"),
        target: target.clone(),
        answer: folder.path.join("answer.json"),
        executable: folder.path.join("executable"),
    };
    let failed = |what: &str, error: &dyn std::fmt::Display| format!("{what} of the compiler's process: {error}");
    let request_file = folder.path.join("request.json");
    let text = serde_json::to_string(&request).map_err(|error| failed("request", &error))?;
    std::fs::write(&request.program, program).map_err(|error| failed("program file", &error))?;
    std::fs::write(&request_file, text).map_err(|error| failed("request file", &error))?;
    let words = folder.path.join("stderr");
    let stderr = std::fs::File::create(&words).map_err(|error| failed("error file", &error))?;
    let mut process = Command::new(child)
        .arg(WORKER_ARGUMENT)
        .arg(&request_file)
        .envs(plugins::environment(platform))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr)
        .spawn()
        .map_err(|error| format!("{} cannot be started to compile: {error}", child.display()))?;
    let start = Instant::now();
    let status = loop {
        match process.try_wait().map_err(|error| failed("end", &error))? {
            Some(status) => break status,
            None if start.elapsed() >= time_limit => {
                // The child may have ended in between; then there is nothing to kill.
                let _ = process.kill();
                let _ = process.wait();
                return Err(format!("the compiler was stopped after {} s", time_limit.as_secs()));
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let answer = std::fs::read_to_string(&request.answer).unwrap_or_default();
    match serde_json::from_str::<Result<Compiled, String>>(&answer) {
        Ok(Ok(mut compiled)) => {
            compiled.executable = std::fs::read(&request.executable).unwrap_or_default();
            Ok(compiled)
        }
        Ok(Err(words)) => Err(words),
        Err(_) => {
            let words = std::fs::read_to_string(&words).unwrap_or_default();
            let tail: Vec<&str> = words.lines().rev().take(3).collect();
            let tail: Vec<&str> = tail.into_iter().rev().collect();
            Err(format!("the compiler's process ended with {status} and no answer: {}", tail.join(" / ")))
        }
    }
}

/// The child's side: does what the request file, the second argument of the process, asks for.
pub fn compile_worker_main() -> ExitCode {
    let Some(request) = std::env::args_os().nth(2).map(PathBuf::from) else {
        eprintln!("{WORKER_ARGUMENT} is for this program's own use");
        return ExitCode::from(2);
    };
    let request: Request = match std::fs::read_to_string(&request)
        .map_err(|error| error.to_string())
        .and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()))
    {
        Ok(request) => request,
        Err(error) => {
            eprintln!("{}: {error}", request.display());
            return ExitCode::from(2);
        }
    };
    let result = answer(&request);
    if let Ok(compiled) = &result
        && std::fs::write(&request.executable, &compiled.executable).is_err()
    {
        return ExitCode::FAILURE;
    }
    match serde_json::to_string(&result).map(|text| std::fs::write(&request.answer, text)) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn answer(request: &Request) -> Result<Compiled, String> {
    let program = std::fs::read_to_string(&request.program).map_err(|error| error.to_string())?;
    let plugin = Plugin::load(&request.plugin).map_err(|error| error.to_string())?;
    let (executable, device_kind) = match &request.target {
        CompileFor::Device => {
            let client = Client::of(&plugin).map_err(|error| error.to_string())?;
            let loaded = client.compile(&program).map_err(|error| error.to_string())?;
            (loaded.executable().map_err(|error| error.to_string())?, client.device_kind().to_owned())
        }
        CompileFor::Absent(target) => {
            let topology = target.topology(&plugin).map_err(|error| error.to_string())?;
            let executable = topology.compile(&program).map_err(|error| error.to_string())?;
            (executable, topology.device_kind().map_err(|error| error.to_string())?)
        }
    };
    let figures = executable.figures().map_err(|error| error.to_string())?;
    // A plugin that cannot serialise still has figures to give.
    let executable = executable.serialize().unwrap_or_default();
    Ok(Compiled { figures, device_kind, executable })
}

/// A folder that goes away with its owner.
struct Folder {
    path: PathBuf,
}

impl Folder {
    fn new() -> Result<Self, String> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("ehun-xla-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self { path })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Left-overs in the temporary folder are the system's to clean.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
