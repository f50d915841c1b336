//! The cache's layout, which is Hugging Face's: `models--ORG--NAME/{blobs,refs,snapshots/COMMIT}`.

use std::path::{Path, PathBuf};

use super::transfer::RemoteFile;
use super::{HubError, Pulled, Result, io_at};

/// The record of what was pulled, in the snapshot's folder. Written last.
const RECORD: &str = ".ehun-pull.json";

#[derive(Debug)]
pub(super) struct Cache {
    root: PathBuf,
}

impl Cache {
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    fn model(&self, model: &str) -> PathBuf {
        self.root.join(format!("models--{}", model.replace('/', "--")))
    }

    /// Where the content of a file lies, under the name that the hub has for it.
    pub fn blob(&self, model: &str, file: &RemoteFile) -> Result<PathBuf> {
        let folder = self.model(model).join("blobs");
        std::fs::create_dir_all(&folder).map_err(io_at(&folder))?;
        Ok(folder.join(&file.blob))
    }

    /// Makes the blob appear as `path` in the snapshot.
    pub fn link(&self, model: &str, commit: &str, path: &str, blob: &Path) -> Result<()> {
        let target = self.model(model).join("snapshots").join(commit).join(path);
        if let Some(folder) = target.parent() {
            std::fs::create_dir_all(folder).map_err(io_at(folder))?;
        }
        match std::fs::remove_file(&target) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io_at(&target)(error)),
            _ => {}
        }
        // A hard link needs no right to make symbolic ones; a copy is for file systems that have neither.
        std::fs::hard_link(blob, &target).or_else(|_| std::fs::copy(blob, &target).map(drop)).map_err(io_at(&target))
    }

    /// Writes the record and the reference; the directory of the snapshot.
    pub fn record(&self, pulled: &Pulled) -> Result<PathBuf> {
        let folder = self.model(&pulled.model);
        let snapshot = folder.join("snapshots").join(&pulled.commit);
        let record = serde_json::to_vec_pretty(pulled).map_err(|e| io_at(&snapshot)(e.into()))?;
        write(&snapshot.join(RECORD), &record)?;
        write(&folder.join("refs").join(&pulled.revision), pulled.commit.as_bytes())?;
        Ok(snapshot)
    }

    /// A pulled model by revision: a reference, or a commit.
    pub fn find(&self, model: &str, revision: &str) -> Result<Option<Pulled>> {
        let folder = self.model(model);
        let reference = std::fs::read_to_string(folder.join("refs").join(revision));
        let commit = reference.map_or_else(|_| revision.to_owned(), |commit| commit.trim().to_owned());
        if commit.is_empty() || !commit.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Ok(None);
        }
        self.read(folder.join("snapshots").join(commit))
    }

    fn read(&self, snapshot: PathBuf) -> Result<Option<Pulled>> {
        let path = snapshot.join(RECORD);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_at(&path)(error)),
        };
        let pulled: Pulled = serde_json::from_slice(&bytes).map_err(|e| io_at(&path)(e.into()))?;
        // A file that was removed since makes the model one that has to be pulled again.
        let whole = pulled.files.iter().all(|file| snapshot.join(&file.path).is_file());
        Ok(whole.then_some(Pulled { directory: snapshot, ..pulled }))
    }

    pub fn list(&self) -> Result<Vec<Pulled>> {
        let mut all = Vec::new();
        for model in folders(&self.root)? {
            for snapshot in folders(&model.join("snapshots"))? {
                all.extend(self.read(snapshot)?);
            }
        }
        all.sort_by(|a, b| (&a.model, &a.commit).cmp(&(&b.model, &b.commit)));
        Ok(all)
    }

    pub fn remove(&self, model: &str) -> Result<()> {
        let folder = self.model(model);
        match std::fs::remove_dir_all(&folder) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(HubError::NotPulled(model.to_owned())),
            Err(error) => Err(io_at(&folder)(error)),
        }
    }
}

/// The folders in `path`; none where it is not there.
fn folders(path: &Path) -> Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io_at(path)(error)),
    };
    let mut all = Vec::new();
    for entry in entries {
        let entry = entry.map_err(io_at(path))?.path();
        if entry.is_dir() {
            all.push(entry);
        }
    }
    Ok(all)
}

/// Writes a file beside its place and moves it there, so that it is whole or not there.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(io_at(folder))?;
    }
    let partial = path.with_extension("partial");
    std::fs::write(&partial, bytes).map_err(io_at(&partial))?;
    std::fs::rename(&partial, path).map_err(io_at(path))
}
