//! `ehun.toml`: which services there are. Every error names the line and the key.
//!
//! ```toml
//! [server]
//! listen = "127.0.0.1:8080"
//! log = "json"                       # a line for each request: off, text, json
//! otlp = "http://collector:4318"     # spans of requests, OpenTelemetry by OTLP/HTTP
//! tls = { cert = "cert.pem", key = "key.pem" }   # absent is plain HTTP
//!
//! [service.search]
//! task = "embed"                     # optional: what the checkpoint is made for
//! model = "models/all-MiniLM-L6-v2"  # a directory; absent is the embedded model
//! backends = ["xla:cpu", "cpu"]      # in order; the next answers where one fails; also the addresses of services
//!                                    # elsewhere that have the same model, such as "oip+grpc://host:8001/search"
//! precision = "f32"
//! attention = "auto"
//! threads = 2
//!
//! [service.search.limits]
//! queue_tokens = 200_000             # beyond it 429 with Retry-After
//! deadline_ms = 2_000
//! batch_tokens = 4_096
//! max_tokens = 256
//!
//! [[key]]
//! name = "search page"
//! blake3 = "..."                     # printf %s KEY | b3sum
//! scope = "infer"
//! ```

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use ehun_backend::{Attention, Precision};
use ehun_models::Task;
use serde::{Deserialize, Deserializer};

use crate::auth::Key;
use crate::tls::TlsFiles;
use crate::trace::LogFormat;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not what it should be; the text shows the line and the key.
    #[error("{path}: {message}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Where and what.
        message: String,
    },
}

/// The whole file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The listener and bounds of requests.
    #[serde(default)]
    pub server: ServerConfig,
    /// Services by name, in the order of their names.
    #[serde(default)]
    pub service: BTreeMap<String, ServiceConfig>,
    /// API keys; none means that everything is allowed.
    #[serde(default)]
    pub key: Vec<Key>,
}

/// `[server]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConfig {
    /// Address and port.
    pub listen: SocketAddr,
    /// Most bytes of a body.
    pub body_bytes: usize,
    /// Most items of a request.
    pub items: usize,
    /// How long requests in flight may take after the server was told to end, in milliseconds.
    pub drain_ms: u64,
    /// Certificate and key; absent is plain HTTP.
    pub tls: Option<TlsFiles>,
    /// A line for each request on standard error.
    pub log: LogFormat,
    /// Collector of traces, `http://host:4318`; absent sends none.
    pub otlp: Option<String>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        let limits = crate::app::Limits::default();
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            body_bytes: limits.body_bytes,
            items: limits.items,
            drain_ms: 10_000,
            tls: None,
            log: LogFormat::default(),
            otlp: None,
        }
    }
}

/// `[service.NAME]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceConfig {
    /// What it is for; absent is what the checkpoint is made for.
    pub task: Option<Task>,
    /// Directory of the model; absent is the embedded one.
    pub model: Option<PathBuf>,
    /// Backends, the preferred first.
    #[serde(default = "cpu")]
    pub backends: Vec<String>,
    /// In what the products are computed.
    #[serde(default)]
    pub precision: Precision,
    /// Attention kernel, or a plug-in file.
    #[serde(default, deserialize_with = "attention")]
    pub attention: Attention,
    /// Threads of a backend on the CPU.
    pub threads: Option<usize>,
    /// Bounds.
    #[serde(default)]
    pub limits: ServiceLimits,
}

/// `[service.NAME.limits]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServiceLimits {
    /// Most tokens in the service, from arrival to answer.
    pub queue_tokens: usize,
    /// How long a request may take; absent is for ever.
    pub deadline_ms: Option<u64>,
    /// Most tokens of a batch.
    pub batch_tokens: usize,
    /// Most tokens of an item, below what the model allows.
    pub max_tokens: Option<usize>,
}

impl Default for ServiceLimits {
    fn default() -> Self {
        Self { queue_tokens: 200_000, deadline_ms: None, batch_tokens: 4096, max_tokens: None }
    }
}

impl ServiceConfig {
    /// The embedded model on the CPU with the default limits.
    pub fn embedded() -> Self {
        Self {
            task: None,
            model: None,
            backends: cpu(),
            precision: Precision::default(),
            attention: Attention::default(),
            threads: None,
            limits: ServiceLimits::default(),
        }
    }
}

fn cpu() -> Vec<String> {
    vec!["cpu".to_owned()]
}

fn attention<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Attention, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(serde::de::Error::custom)
}

impl Config {
    /// Reads a file. Paths of models, certificates and keys are relative to its folder.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Io { path: path.to_owned(), source })?;
        let mut config =
            Self::parse(&text).map_err(|message| ConfigError::Invalid { path: path.to_owned(), message })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        if let Some(tls) = &mut config.server.tls {
            tls.cert = folder.join(&tls.cert);
            tls.key = folder.join(&tls.key);
        }
        for service in config.service.values_mut() {
            if let Some(model) = &mut service.model {
                *model = folder.join(&*model);
            }
        }
        Ok(config)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let config: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        for (name, service) in &config.service {
            if service.backends.is_empty() {
                return Err(format!("service.{name}.backends: at least one is needed"));
            }
        }
        for key in &config.key {
            if blake3::Hash::from_hex(&key.blake3).is_err() {
                return Err(format!(
                    "key `{}`: `blake3` must be 64 hexadecimal digits, not `{}`",
                    key.name, key.blake3
                ));
            }
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_file_is_read() {
        let text = include_str!("config.rs");
        let example: String = text
            .lines()
            .skip_while(|line| *line != "//! ```toml")
            .skip(1)
            .take_while(|line| *line != "//! ```")
            .map(|line| line.trim_start_matches("//!").to_owned() + "\n")
            .collect();
        let example = example.replace("blake3 = \"...\"", &format!("blake3 = \"{}\"", blake3::hash(b"k").to_hex()));
        let config = Config::parse(&example).unwrap();
        let search = &config.service["search"];
        assert_eq!(search.backends, ["xla:cpu", "cpu"]);
        assert_eq!(search.limits.deadline_ms, Some(2000));
        assert_eq!(config.key.len(), 1);
    }

    #[test]
    fn errors_name_line_and_key() {
        for (text, needles) in [
            ("[server]\nlisten = \"nowhere\"", &["line 2", "listen"][..]),
            ("[server]\ntls = { cert = \"a\" }", &["line 2", "key"]),
            ("[service.a]\nmodle = \"x\"", &["line 2", "modle"]),
            ("[service.a]\ntask = \"dance\"", &["line 2", "dance"]),
            ("[service.a.limits]\nqueue_tokens = \"many\"", &["line 2", "queue_tokens"]),
            ("[service.a]\nbackends = []", &["service.a.backends"]),
            ("[[key]]\nname = \"k\"\nblake3 = \"12\"\nscope = \"infer\"", &["key `k`", "blake3"]),
            ("[service.a", &["line 1"]),
        ] {
            let message = Config::parse(text).unwrap_err();
            for needle in needles {
                assert!(message.contains(needle), "{text:?}: {message}");
            }
        }
    }
}
