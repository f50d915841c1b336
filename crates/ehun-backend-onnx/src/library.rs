//! Where ONNX Runtime's library is found, and how it gets there.

use std::path::{Path, PathBuf};
use std::process::Command;

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
    #[error("{step} failed: {reason}")]
    Failed {
        /// What was done.
        step: String,
        /// What went wrong.
        reason: String,
    },
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
    let failed = |step: &str, reason: String| InstallError::Failed { step: step.to_owned(), reason };
    let io = |step: &'static str| move |error: std::io::Error| failed(step, error.to_string());
    let destination = destination.map_or_else(folder, Path::to_owned);
    let work = destination.join(format!(".install-{}", std::process::id()));
    std::fs::create_dir_all(&work).map_err(io("making the folder"))?;
    let result = (|| {
        let requirements = work.join("requirements.txt");
        let pinned = format!("{REQUIREMENT} --hash=sha256:{SHA256}\n");
        std::fs::write(&requirements, pinned).map_err(io("writing the requirement"))?;
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes", "--quiet"]);
        pip.args(PIP_ARGUMENTS).arg("--dest").arg(&work).arg("-r").arg(&requirements);
        run("pip download", &mut pip)?;
        // Renamed one by one when written whole, the library last: what is found there is never half a file.
        let unpack = "import sys,glob,zipfile,os,shutil\nwork,target=sys.argv[1:]\n\
                      z=zipfile.ZipFile(glob.glob(os.path.join(work,'*.whl'))[0])\n\
                      base=os.path.basename\n\
                      wanted=lambda n: base(n).startswith(('libonnxruntime','LICENSE','ThirdParty'))\n\
                      names=sorted((n for n in z.namelist() if wanted(n)),key=lambda n:base(n).startswith('libonnxruntime.'))\n\
                      for n in names:\n    to=os.path.join(target,base(n))\n    \
                      shutil.copyfileobj(z.open(n),open(to+'.new','wb'))\n    os.replace(to+'.new',to)\n";
        let mut python = Command::new("python3");
        python.args(["-c", unpack]).arg(&work).arg(&destination);
        run("unpacking the wheel", &mut python)?;
        in_folder(&destination).ok_or_else(|| failed("unpacking the wheel", "it has no library".to_owned()))
    })();
    // A left-over download is only space; the result stands either way.
    let _ = std::fs::remove_dir_all(&work);
    result
}

fn run(step: &str, command: &mut Command) -> Result<(), InstallError> {
    let failed = |reason: String| InstallError::Failed { step: step.to_owned(), reason };
    let output = command.output().map_err(|error| failed(format!("python3 cannot be started: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(failed(words.lines().rev().take(3).collect::<Vec<_>>().join(" / ")))
}
