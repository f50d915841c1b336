//! Compiled programs on disk.
//!
//! An entry is written beside its place and renamed, so that two processes may write the same one and a reader never sees
//! half of it; its checksum tells a torn or changed file, which is then compiled again. A folder that cannot be written
//! costs time at the next start and nothing else.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const MARK: &[u8; 8] = b"EHUNXLA1";
const HASH: usize = 32;

/// A folder of compiled programs.
#[derive(Debug, Clone)]
pub struct Cache {
    folder: PathBuf,
}

/// What came of looking for an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The description and the program.
    Entry(String, Vec<u8>),
    /// There is none.
    Nothing,
    /// There is one that cannot be used, with the reason.
    Damaged(String),
}

impl Cache {
    /// The cache in `folder`, which is made at the first write.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.xla"))
    }

    /// The entry `key`.
    pub fn load(&self, key: &str) -> Found {
        let path = self.path(key);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Found::Nothing,
            Err(error) => return Found::Damaged(format!("{}: {error}", path.display())),
        };
        parse(&bytes)
            .unwrap_or_else(|| Found::Damaged(format!("{}: its checksum does not fit its content", path.display())))
    }

    /// Writes the entry `key`. The error says what could not be written.
    pub fn store(&self, key: &str, description: &str, program: &[u8]) -> Result<(), String> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let mut body = (description.len() as u64).to_le_bytes().to_vec();
        body.extend_from_slice(description.as_bytes());
        body.extend_from_slice(program);
        let mut bytes = MARK.to_vec();
        bytes.extend_from_slice(blake3::hash(&body).as_bytes());
        bytes.append(&mut body);
        let place = self.path(key);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let beside = self.folder.join(format!(".{key}.{}.{number}", std::process::id()));
        let written = std::fs::create_dir_all(&self.folder)
            .and_then(|()| std::fs::write(&beside, &bytes))
            .and_then(|()| std::fs::rename(&beside, &place));
        written.map_err(|error| {
            // What was begun is of no use to anyone; that it may not be removable either changes nothing.
            let _ = std::fs::remove_file(&beside);
            format!("{}: {error}", place.display())
        })
    }
}

fn parse(bytes: &[u8]) -> Option<Found> {
    let rest = bytes.strip_prefix(MARK)?;
    let (hash, body) = rest.split_at_checked(HASH)?;
    if blake3::hash(body).as_bytes() != hash {
        return None;
    }
    let (length, rest) = body.split_first_chunk::<8>()?;
    let (description, program) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    Some(Found::Entry(String::from_utf8(description.to_vec()).ok()?, program.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_and_damage_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(&folder.path().join("new"));
        assert_eq!(cache.load("k"), Found::Nothing);
        cache.store("k", "description", b"program").unwrap();
        assert_eq!(cache.load("k"), Found::Entry("description".into(), b"program".to_vec()));
        let path = cache.path("k");
        let whole = std::fs::read(&path).unwrap();
        for cut in [0, 7, 20, 40, 47, whole.len() - 1] {
            std::fs::write(&path, &whole[..cut]).unwrap();
            assert!(matches!(cache.load("k"), Found::Damaged(_)), "cut to {cut}");
        }
        for flipped in [0, 9, 45, whole.len() - 1] {
            let mut bytes = whole.clone();
            bytes[flipped] ^= 1;
            std::fs::write(&path, &bytes).unwrap();
            assert!(matches!(cache.load("k"), Found::Damaged(_)), "byte {flipped}");
        }
        let blocked = Cache::new(&path.join("under a file"));
        assert!(blocked.store("k", "", b"").is_err());
    }

    /// This test program again, with only the test `name`, which finds `folder` in its environment: another process.
    #[cfg(unix)]
    fn again(before: &str, name: &str, folder: &Path) -> std::process::Command {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &format!("{before} exec \"$0\" --exact cache::tests::{name} --quiet")]);
        command
            .arg(std::env::current_exe().unwrap())
            .env("EHUN_CACHE_WRITER", folder)
            .stdout(std::process::Stdio::null());
        command
    }

    /// Two processes write one entry again and again, a third reads it: it is always one of theirs, and whole.
    #[cfg(unix)]
    #[test]
    fn two_processes_write_the_same_entry() {
        let whole = |content: &Found| match content {
            Found::Entry(description, program) => program.iter().all(|byte| description == &byte.to_string()),
            Found::Nothing => true,
            Found::Damaged(_) => false,
        };
        if let Some(folder) = std::env::var_os("EHUN_CACHE_WRITER") {
            let cache = Cache::new(Path::new(&folder));
            let byte = std::process::id() as u8;
            (0..200).for_each(|_| cache.store("k", &byte.to_string(), &[byte; 100_000]).unwrap());
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(&folder.path().join("new"));
        let start = || again("", "two_processes_write_the_same_entry", &cache.folder).spawn().unwrap();
        let mut writers = [start(), start()];
        let mut entries = 0;
        while writers.iter_mut().any(|writer| writer.try_wait().unwrap().is_none()) {
            let found = cache.load("k");
            assert!(whole(&found));
            entries += usize::from(matches!(found, Found::Entry(..)));
        }
        assert!(writers.iter_mut().all(|writer| writer.wait().unwrap().success()) && entries > 0, "{entries}");
        // Nothing that was begun is left beside the entry.
        assert_eq!(std::fs::read_dir(&cache.folder).unwrap().count(), 1);
    }

    /// A file system that takes no more, by a limit on the size of files: the error says so, and nothing is left.
    #[cfg(unix)]
    #[test]
    fn a_full_disk_leaves_nothing() {
        if let Some(folder) = std::env::var_os("EHUN_CACHE_WRITER") {
            let reason = Cache::new(Path::new(&folder)).store("k", "description", &[7; 100_000]).unwrap_err();
            assert!(reason.contains("File too large"), "{reason}");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let limits = "ulimit -f 1; trap '' XFSZ;";
        assert!(again(limits, "a_full_disk_leaves_nothing", folder.path()).status().unwrap().success());
        assert_eq!(Cache::new(folder.path()).load("k"), Found::Nothing);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    /// A folder that is there and takes no file, whoever asks.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_folder_that_cannot_be_written_is_an_error_and_reads_as_empty() {
        let cache = Cache::new(Path::new("/proc/self"));
        assert!(cache.store("k", "", b"").unwrap_err().contains("/proc/self/k.xla"));
        assert_eq!(cache.load("k"), Found::Nothing);
    }
}
