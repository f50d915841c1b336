//! A checkpoint: a directory in the Hugging Face or sentence-transformers layout, or the same files inside the program.
//!
//! A checkpoint is untrusted. Every text file is read up to a fixed size, JSON is nested to a fixed depth (128, the limit
//! of `serde_json`), names of weight shards must stay inside the folder, and a pickle is never opened.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ehun_graph::WeightStore;
use serde_json::{Map, Value};

use crate::error::{ModelError, Result};

/// Largest configuration file: real ones are a few kilobytes, a shard index under ten megabytes.
const MAX_CONFIG_BYTES: u64 = 32 << 20;
/// Largest tokenizer file: the largest real ones are about 35 megabytes.
const MAX_TOKENIZER_BYTES: u64 = 256 << 20;

/// A file inside the program: its path in the checkpoint (`1_Pooling/config.json`) and its bytes.
pub type EmbeddedFile = (&'static str, &'static [u8]);

/// The files of a model, not yet looked into.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    name: String,
    source: Source,
}

#[derive(Debug, Clone)]
enum Source {
    Directory(PathBuf),
    Embedded(&'static [EmbeddedFile]),
}

impl Checkpoint {
    /// A checkpoint directory. Fails where there is no such directory.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        let directory = directory.as_ref();
        let io = |source| ModelError::Io { path: directory.to_owned(), source };
        if !std::fs::metadata(directory).map_err(io)?.is_dir() {
            return Err(ModelError::InvalidFile {
                path: directory.display().to_string(),
                reason: "this is a file; a model is a directory with config.json, weights and a tokenizer".into(),
            });
        }
        Ok(Self { name: directory.display().to_string(), source: Source::Directory(directory.to_owned()) })
    }

    /// A checkpoint that is part of the program, called `name` in messages and columns.
    pub fn embedded(name: &str, files: &'static [EmbeddedFile]) -> Self {
        Self { name: name.to_owned(), source: Source::Embedded(files) }
    }

    /// The directory's path, or the name of an embedded checkpoint.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The directory, where there is one.
    pub fn directory(&self) -> Option<&Path> {
        match &self.source {
            Source::Directory(directory) => Some(directory),
            Source::Embedded(_) => None,
        }
    }

    /// The revision that the directory is known by: the commit in the path of a Hugging Face cache snapshot.
    pub fn revision(&self) -> Option<String> {
        let directory = self.directory()?;
        let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
        let last = directory.file_name()?.to_str()?;
        let parent = directory.parent()?.file_name()?;
        let is_commit = last.len() == 40 && last.bytes().all(|b| b.is_ascii_hexdigit());
        (parent == "snapshots" && is_commit).then(|| last.to_owned())
    }

    /// Where `file` lies, for messages.
    pub fn path_of(&self, file: &str) -> String {
        match &self.source {
            Source::Directory(directory) => directory.join(file).display().to_string(),
            Source::Embedded(_) => format!("{}/{file}", self.name),
        }
    }

    /// Whether the checkpoint has `file`.
    pub fn has(&self, file: &str) -> bool {
        match &self.source {
            Source::Directory(directory) => directory.join(file).is_file(),
            Source::Embedded(files) => files.iter().any(|(name, _)| *name == file),
        }
    }

    /// The bytes of `file`, or `None` where there is none. Fails where it is larger than `limit`.
    fn read(&self, file: &str, limit: u64) -> Result<Option<Cow<'static, [u8]>>> {
        if !self.has(file) {
            return Ok(None);
        }
        match &self.source {
            Source::Embedded(files) => {
                Ok(files.iter().find(|(name, _)| *name == file).map(|(_, bytes)| Cow::Borrowed(*bytes)))
            }
            Source::Directory(directory) => {
                let path = directory.join(file);
                let io = |source| ModelError::Io { path: path.clone(), source };
                let size = std::fs::metadata(&path).map_err(io)?.len();
                if size > limit {
                    return Err(ModelError::InvalidFile {
                        path: path.display().to_string(),
                        reason: format!("{size} bytes; more than {limit} are not read"),
                    });
                }
                Ok(Some(Cow::Owned(std::fs::read(&path).map_err(io)?)))
            }
        }
    }

    /// The JSON in `file`, or `None` where there is no such file.
    pub(crate) fn json(&self, file: &str) -> Result<Option<Value>> {
        let Some(bytes) = self.read(file, MAX_CONFIG_BYTES)? else { return Ok(None) };
        let value = serde_json::from_slice(&bytes).map_err(|e| ModelError::InvalidFile {
            path: self.path_of(file),
            reason: format!("not valid JSON: {e}"),
        })?;
        Ok(Some(value))
    }

    /// The JSON object in `file`, or `None` where there is no such file.
    pub(crate) fn json_object(&self, file: &str) -> Result<Option<Map<String, Value>>> {
        match self.json(file)? {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(_) => {
                Err(ModelError::InvalidFile { path: self.path_of(file), reason: "a JSON object is expected".into() })
            }
        }
    }

    /// The bytes of a tokenizer file, or `None` where there is no such file.
    pub(crate) fn tokenizer_file(&self, file: &str) -> Result<Option<Cow<'static, [u8]>>> {
        self.read(file, MAX_TOKENIZER_BYTES)
    }

    /// The weight files of the folder `folder` (empty for the checkpoint's own), relative to the checkpoint.
    fn weight_files(&self, folder: &str) -> Result<Vec<String>> {
        let at = |file: &str| if folder.is_empty() { file.to_owned() } else { format!("{folder}/{file}") };
        let (single, index) = (at("model.safetensors"), at("model.safetensors.index.json"));
        if self.has(&single) {
            return Ok(vec![single]);
        }
        if let Some(index_map) = self.json_object(&index)? {
            let invalid = |reason: String| ModelError::InvalidFile { path: self.path_of(&index), reason };
            let Some(Value::Object(map)) = index_map.get("weight_map") else {
                return Err(invalid("there is no object `weight_map`".into()));
            };
            let mut shards = BTreeSet::new();
            for (tensor, shard) in map {
                let shard = shard.as_str().unwrap_or_default();
                let plain =
                    !shard.is_empty() && !shard.contains(['/', '\\', '\0', ':']) && shard != "." && shard != "..";
                if !plain || !shard.ends_with(".safetensors") {
                    return Err(invalid(format!(
                        "tensor `{tensor}` is said to be in `{shard}`, which is no safetensors file of this folder"
                    )));
                }
                shards.insert(at(shard));
            }
            if let Some(missing) = shards.iter().find(|shard| !self.has(shard)) {
                return Err(self.missing(missing, "the index lists it; download the missing shard"));
            }
            if shards.is_empty() {
                return Err(invalid("no shard is listed".into()));
            }
            return Ok(shards.into_iter().collect());
        }
        if self.has(&at("pytorch_model.bin")) || self.has(&at("pytorch_model.bin.index.json")) {
            return Err(self.missing(
                &single,
                "pytorch_model.bin is a pickle, which can run code when it is read, so it never is; convert it with \
                 `AutoModel.from_pretrained(...).save_pretrained(DIR, safe_serialization=True)` where you trust it",
            ));
        }
        Err(self.missing(&single, "weights are read from safetensors files; download the model again"))
    }

    /// Maps the weights of the checkpoint and of the `modules` beside it, whose tensors get the folder and a slash in front
    /// of their names.
    pub(crate) fn weights(&self, modules: &[String]) -> Result<WeightStore> {
        let mut files: Vec<(String, String)> = Vec::new();
        for folder in std::iter::once(String::new()).chain(modules.iter().cloned()) {
            let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
            files.extend(self.weight_files(&folder)?.into_iter().map(|file| (file, prefix.clone())));
        }
        Ok(match &self.source {
            Source::Directory(directory) => {
                let files: Vec<_> =
                    files.iter().map(|(file, prefix)| (directory.join(file), prefix.as_str())).collect();
                WeightStore::open_prefixed(&files)?
            }
            Source::Embedded(embedded) => {
                let parts = files.iter().filter_map(|(file, prefix)| {
                    let found = embedded.iter().find(|(name, _)| name == file);
                    found.map(|(_, bytes)| (prefix.as_str(), *bytes))
                });
                WeightStore::from_static_prefixed(&parts.collect::<Vec<_>>())?
            }
        })
    }

    pub(crate) fn missing(&self, file: &str, advice: &str) -> ModelError {
        ModelError::MissingFile { checkpoint: self.name.clone(), file: file.to_owned(), advice: advice.to_owned() }
    }
}
