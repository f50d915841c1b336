//! Running other programs, with errors that say what was run.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What a task comes to: nothing, or a message for the person who ran it.
pub type Outcome = Result<(), String>;

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

/// What is fetched lies here; git ignores it. `EHUN_CACHE` puts it elsewhere, to try what a first run does.
pub fn cache() -> PathBuf {
    std::env::var_os("EHUN_CACHE").map_or_else(|| root().join(".cache"), PathBuf::from)
}

/// `program` with `arguments`, to be run in the root of the repository.
pub fn program<S: AsRef<std::ffi::OsStr>>(program: impl AsRef<std::ffi::OsStr>, arguments: &[S]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root());
    command
}

/// `cargo` with `arguments`.
pub fn cargo(arguments: &[&str]) -> Command {
    program(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), arguments)
}

/// Runs a command whose output the person sees; an exit status other than 0 is an error.
pub fn run(command: &mut Command) -> Outcome {
    let text = format!("{command:?}");
    let status = command.status().map_err(|e| format!("{text}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{text}: {status}")) }
}

/// The Python of a virtual environment in `.cache/python/NAME` with the packages of a requirements file, made if it is not
/// there or the file has changed.
pub fn python(name: &str, requirements: &Path) -> Result<PathBuf, String> {
    let folder = cache().join("python").join(name);
    let python = folder.join("bin/python");
    let wanted = std::fs::read_to_string(requirements).map_err(|e| format!("{}: {e}", requirements.display()))?;
    let stamp = folder.join("requirements.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) && python.exists() {
        return Ok(python);
    }
    println!("setting up Python packages of {}", requirements.display());
    run(&mut program("python3", &["-m", "venv", "--clear", &folder.to_string_lossy()]))?;
    run(&mut program(
        &python,
        &["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", &requirements.to_string_lossy()],
    ))?;
    std::fs::write(&stamp, wanted).map_err(|e| format!("{}: {e}", stamp.display()))?;
    Ok(python)
}

/// A path as an argument.
pub fn text(path: impl AsRef<Path>) -> String {
    path.as_ref().to_string_lossy().into_owned()
}
