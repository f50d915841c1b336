//! Models from the Hugging Face Hub, or from a server that speaks like it.
//!
//! Files lie where every Hugging Face program keeps them (`HF_HUB_CACHE`, `HF_HOME`), so what one has fetched the others find. Only
//! the files that the loader reads are fetched, safetensors and never a pickle. A download that was cut goes on where it ended;
//! every file is checked against the size and the sha256 that the hub states, and a record beside the files is written last,
//! so a model with a record is whole. With `HF_HUB_OFFLINE` nothing is ever asked of the network.

mod cache;
mod transfer;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use cache::Cache;
use transfer::{RemoteFile, Transfer};

/// What can go wrong with the hub. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The name is not `ORG/NAME` or `ORG/NAME@REVISION`.
    #[error("`{0}` is no name of a model; it is ORG/NAME or ORG/NAME@REVISION")]
    Name(String),
    /// The network was needed and `HF_HUB_OFFLINE` is set.
    #[error("{0} is not in the cache, and HF_HUB_OFFLINE is set; unset it to fetch the model")]
    Offline(String),
    /// The hub does not know the model, the revision or the file.
    #[error("{0}: not found on the hub; check the name and the revision")]
    NotFound(String),
    /// The hub wants to know who asks.
    #[error(
        "{0}: the hub refuses access (HTTP {1}); set HF_TOKEN to a token that may read the model, and accept its terms"
    )]
    Refused(String, u16),
    /// The hub asks to wait for longer than is waited.
    #[error("{0}: the hub asks to wait {1} seconds; try again later, or set HF_TOKEN for a higher limit")]
    TooManyRequests(String, u64),
    /// The server or the network failed again and again.
    #[error("{url}: {reason}; what was fetched is kept, and the next pull goes on from there")]
    Network {
        /// What was asked for.
        url: String,
        /// What went wrong last.
        reason: String,
    },
    /// A file is not what the hub says that it is.
    #[error("{file}: {reason}; the file was thrown away, pull it again")]
    Damaged {
        /// The file.
        file: String,
        /// The two sizes or hashes.
        reason: String,
    },
    /// The model cannot be loaded from what the hub has.
    #[error("{0}: {1}")]
    Unusable(String, String),
    /// There is no such model in the cache.
    #[error("{0} is not in the cache; fetch it with `ehun models pull {0}`")]
    NotPulled(String),
    /// A file of the cache could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

pub(crate) type Result<T> = std::result::Result<T, HubError>;

pub(crate) fn io_at(path: &Path) -> impl FnOnce(std::io::Error) -> HubError {
    let path = path.to_owned();
    move |source| HubError::Io { path, source }
}

/// Where the hub is and how it is asked.
#[derive(Debug, Clone)]
pub struct HubOptions {
    /// Address of the hub (`HF_ENDPOINT`).
    pub endpoint: String,
    /// Token that is sent to the hub, and to no other host (`HF_TOKEN`).
    pub token: Option<String>,
    /// The folder that holds `models--ORG--NAME` folders (`HF_HUB_CACHE`, or `hub` in `HF_HOME`).
    pub cache: PathBuf,
    /// Whether the network is never to be used (`HF_HUB_OFFLINE`).
    pub offline: bool,
    /// How often a request that failed is tried again.
    pub retries: u32,
    /// The longest wait that the hub may ask for.
    pub longest_wait: Duration,
}

impl HubOptions {
    /// As the variables `get` says (`std::env::var` in a program), which are those of Hugging Face's own programs.
    pub fn from_variables(get: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| get(name).filter(|value| !value.is_empty());
        let on =
            |name: &str| set(name).is_some_and(|v| matches!(v.to_lowercase().as_str(), "1" | "true" | "yes" | "on"));
        let home = set("HF_HOME").map(PathBuf::from).unwrap_or_else(|| {
            let cache = set("XDG_CACHE_HOME").map(PathBuf::from);
            let cache =
                cache.or_else(|| Some(PathBuf::from(set("HOME").or_else(|| set("USERPROFILE"))?).join(".cache")));
            cache.unwrap_or_else(|| PathBuf::from(".cache")).join("huggingface")
        });
        let token_file = || std::fs::read_to_string(home.join("token")).ok().map(|token| token.trim().to_owned());
        Self {
            endpoint: set("HF_ENDPOINT")
                .unwrap_or_else(|| "https://huggingface.co".into())
                .trim_end_matches('/')
                .to_owned(),
            token: set("HF_TOKEN").or_else(token_file).filter(|token| !token.is_empty()),
            cache: set("HF_HUB_CACHE").map_or_else(|| home.join("hub"), PathBuf::from),
            offline: on("HF_HUB_OFFLINE") || on("TRANSFORMERS_OFFLINE"),
            retries: 5,
            longest_wait: Duration::from_secs(60),
        }
    }
}

/// How far a pull is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The file that is being fetched.
    pub file: &'a str,
    /// Bytes there, of all files together.
    pub done: u64,
    /// Bytes of all files together.
    pub total: u64,
}

/// A file of a pulled model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PulledFile {
    /// Path in the model's directory.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// sha256 as hexadecimal digits.
    pub sha256: String,
}

/// What was pulled; written beside the files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pulled {
    /// `ORG/NAME`.
    pub model: String,
    /// The revision that was asked for.
    pub revision: String,
    /// The commit that it was.
    pub commit: String,
    /// The files.
    pub files: Vec<PulledFile>,
    /// The directory, to be loaded.
    #[serde(skip)]
    pub directory: PathBuf,
}

/// A hub with a cache.
#[derive(Debug)]
pub struct Hub {
    options: HubOptions,
    cache: Cache,
    transfer: Transfer,
}

impl Hub {
    /// A hub as `options` say. Touches neither the network nor the cache.
    pub fn new(options: HubOptions) -> Self {
        Self { cache: Cache::new(options.cache.clone()), transfer: Transfer::new(&options), options }
    }

    /// Fetches what the loader reads of `name` (`ORG/NAME` or `ORG/NAME@REVISION`), as far as it is not there. With
    /// `HF_HUB_OFFLINE`, what is in the cache, or an error.
    pub fn pull(&self, name: &str, progress: &mut dyn FnMut(Progress)) -> Result<Pulled> {
        let (model, revision) = parse(name)?;
        if self.options.offline {
            return self.find(name)?.ok_or_else(|| HubError::Offline(name.to_owned()));
        }
        let (commit, listed) = self.transfer.list(model, revision)?;
        let wanted = wanted(name, listed)?;
        let total = wanted.iter().map(|file| file.size).sum();
        let mut done = 0;
        let mut files = Vec::new();
        for file in &wanted {
            let blob = self.cache.blob(model, file)?;
            let before = done;
            let mut report = |bytes: u64| progress(Progress { file: &file.path, done: before + bytes, total });
            let sha256 = self.transfer.fetch(model, &commit, file, &blob, &mut report)?;
            done += file.size;
            self.cache.link(model, &commit, &file.path, &blob)?;
            files.push(PulledFile { path: file.path.clone(), size: file.size, sha256 });
        }
        let mut pulled =
            Pulled { model: model.into(), revision: revision.into(), commit, files, directory: PathBuf::new() };
        pulled.directory = self.cache.record(&pulled)?;
        Ok(pulled)
    }

    /// The model `name` in the cache, where it is there and whole. Never asks the network.
    pub fn find(&self, name: &str) -> Result<Option<Pulled>> {
        let (model, revision) = parse(name)?;
        self.cache.find(model, revision)
    }

    /// All models in the cache that were pulled by this program.
    pub fn list(&self) -> Result<Vec<Pulled>> {
        self.cache.list()
    }

    /// Reads every file of a pulled model and compares it with its record. The first that differs is the error.
    pub fn verify(&self, name: &str) -> Result<Pulled> {
        let pulled = self.find(name)?.ok_or_else(|| HubError::NotPulled(name.to_owned()))?;
        for file in &pulled.files {
            let found = transfer::sha256_of(&pulled.directory.join(&file.path))?;
            if found != file.sha256 {
                let reason = format!("its sha256 is {found}, it was {} when it was pulled", file.sha256);
                return Err(HubError::Damaged { file: file.path.clone(), reason });
            }
        }
        Ok(pulled)
    }

    /// Removes all revisions of a model from the cache. Fails where there is none.
    pub fn remove(&self, name: &str) -> Result<()> {
        let (model, _) = parse(name)?;
        self.cache.remove(model)
    }
}

/// `ORG/NAME` and the revision, `main` where none is named. Both become parts of paths, so they may not lead out of a folder.
fn parse(name: &str) -> Result<(&str, &str)> {
    let (model, revision) = name.split_once('@').unwrap_or((name, "main"));
    let plain = |part: &str| {
        let allowed = part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
        allowed && !part.is_empty() && !part.starts_with('.') && !part.contains("..")
    };
    let parts: Vec<&str> = model.split('/').collect();
    if parts.len() == 2 && parts.iter().all(|part| plain(part)) && revision.split('/').all(plain) {
        return Ok((model, revision));
    }
    Err(HubError::Name(name.to_owned()))
}

/// The files that the loader reads, out of all that there are. Fails where there are no safetensors weights.
fn wanted(name: &str, listed: Vec<RemoteFile>) -> Result<Vec<RemoteFile>> {
    const TOP: &[&str] = &[
        "config.json",
        "config_sentence_transformers.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "modules.json",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    let has = |path: &str| listed.iter().any(|file| file.path == path);
    let (single, sharded) = (has("model.safetensors"), has("model.safetensors.index.json"));
    if !single && !sharded {
        let reason = "it has no safetensors weights; a pickle is never read, so convert it where you trust it";
        return Err(HubError::Unusable(name.to_owned(), reason.into()));
    }
    let shard = |path: &str| !single && path.starts_with("model-") && path.ends_with(".safetensors");
    let take = |file: &RemoteFile| match file.path.split_once('/') {
        None => {
            // `sentence_bert_config.json` has had other names too.
            let of_transformer = file.path.starts_with("sentence_") && file.path.ends_with("_config.json");
            TOP.contains(&file.path.as_str()) || of_transformer || shard(&file.path) || file.path.starts_with("LICENSE")
        }
        // Modules of sentence-transformers: `1_Pooling`, `2_Dense`.
        Some((folder, rest)) => {
            folder.starts_with(|c: char| c.is_ascii_digit()) && matches!(rest, "config.json" | "model.safetensors")
        }
    };
    Ok(listed.into_iter().filter(take).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(parse("a-b/c.d").unwrap(), ("a-b/c.d", "main"));
        assert_eq!(parse("a/b@refs/pr/1").unwrap(), ("a/b", "refs/pr/1"));
        for name in ["a", "a/b/c", "../b", "a/..", "/b", "a/b@../../x", "a/b@", "a b/c", "http://x/y"] {
            assert!(parse(name).is_err(), "{name}");
        }
    }

    #[test]
    fn variables() {
        let get = |list: &'static [(&str, &str)]| {
            HubOptions::from_variables(move |name| {
                list.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            })
        };
        let options =
            get(&[("HF_HOME", "/h"), ("HF_TOKEN", "t"), ("HF_ENDPOINT", "http://m/"), ("HF_HUB_OFFLINE", "1")]);
        assert_eq!(options.cache, PathBuf::from("/h/hub"));
        assert_eq!(
            (options.endpoint.as_str(), options.token.as_deref(), options.offline),
            ("http://m", Some("t"), true)
        );
        let options = get(&[("HOME", "/home/a"), ("HF_HUB_OFFLINE", "0")]);
        assert_eq!(options.cache, PathBuf::from("/home/a/.cache/huggingface/hub"));
        assert!(!options.offline && options.endpoint == "https://huggingface.co");
        assert_eq!(get(&[("HF_HUB_CACHE", "/c")]).cache, PathBuf::from("/c"));
    }
}
