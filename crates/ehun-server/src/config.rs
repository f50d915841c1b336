//! `ehun.toml`: which services there are. Every error names the line and the key.
//!
//! ```toml
//! [server]
//! listen = "127.0.0.1:8080"
//! log = "json"                       # a line for each request: off, text, json
//! otlp = "http://collector:4318"     # spans of requests, OpenTelemetry by OTLP/HTTP
//! tls = { cert = "cert.pem", key = "key.pem" }   # absent is plain HTTP
//! admin = "127.0.0.1:8081"           # swap, shadow, canary; "off" has no such listener
//! audit = "audit.jsonl"              # every change of a service, one JSON object a line
//!
//! [service.search]
//! task = "embed"                     # optional: what the checkpoint is made for
//! model = "models/all-MiniLM-L6-v2"  # a directory; absent is the embedded model
//! backends = ["xla:cpu", "cpu"]      # in order; the next answers where one fails; also the addresses of services
//!                                    # elsewhere that have the same model, such as "oip+grpc://host:8001/search"
//! precision = "f32"
//! attention = "auto"
//! threads = 2
//! buckets = "32x128,8x512"           # static shapes, where a backend has them; also { lengths = "lengths.txt" }, a
//!                                    # histogram, or { sample = "texts.txt" }; absent is "auto"
//! keep_warm_s = 3600                 # unloaded after an hour without requests, back with the next; absent is never
//! probes = ["tide tables"]           # asked of both sides before a swap; absent is a list of Ehun's own
//!
//! [service.search.limits]
//! queue_tokens = 200_000             # beyond it 429 with Retry-After
//! deadline_ms = 2_000
//! latency_ms = 500                   # a batch that takes longer is run on the next backend, and this one rests
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

use ehun_backend::{Attention, BucketSource, Precision};
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
    /// Where services are changed.
    pub admin: AdminListen,
    /// The audit log; absent is standard error.
    pub audit: Option<PathBuf>,
    /// How long the head and the body of a request may each take to arrive, in milliseconds.
    pub slow_ms: u64,
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
            admin: AdminListen::Default,
            audit: None,
            slow_ms: limits.slow.as_millis() as u64,
            body_bytes: limits.body_bytes,
            items: limits.items,
            drain_ms: limits.drain.as_millis() as u64,
            tls: None,
            log: LogFormat::default(),
            otlp: None,
        }
    }
}

/// Where services are changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AdminListen {
    /// The loopback address, at the port after the server's.
    #[default]
    Default,
    /// Nowhere.
    Off,
    /// There.
    At(SocketAddr),
}

impl AdminListen {
    /// The address beside a server at `listen`.
    pub fn beside(self, listen: SocketAddr) -> Option<SocketAddr> {
        let next = if listen.port() == 0 { 0 } else { listen.port().wrapping_add(1) };
        match self {
            Self::Default => Some(SocketAddr::from((Ipv4Addr::LOCALHOST, next))),
            Self::Off => None,
            Self::At(address) => Some(address),
        }
    }
}

impl std::str::FromStr for AdminListen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            _ => {
                text.parse().map(Self::At).map_err(|_| format!("`{text}` is neither an address with a port nor `off`"))
            }
        }
    }
}

impl<'de> Deserialize<'de> for AdminListen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// `[service.NAME]`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceConfig {
    /// What it is for; absent is what the checkpoint is made for.
    pub task: Option<Task>,
    /// Directory of the model; absent is the embedded one.
    pub model: Option<PathBuf>,
    /// Backends, the preferred first.
    #[serde(default = "cpu", deserialize_with = "at_least_one")]
    pub backends: Vec<String>,
    /// In what the products are computed.
    #[serde(default)]
    pub precision: Precision,
    /// Attention kernel, or a plug-in file.
    #[serde(default, deserialize_with = "attention")]
    pub attention: Attention,
    /// Threads of a backend on the CPU.
    pub threads: Option<usize>,
    /// Static shapes, for the backends that have them.
    #[serde(default)]
    pub buckets: BucketSource,
    /// Seconds without requests after which it is unloaded, until the next one; absent is never.
    pub keep_warm_s: Option<u64>,
    /// Texts that both sides are asked before a swap; empty is a list of Ehun's own.
    #[serde(default)]
    pub probes: Vec<String>,
    /// Bounds.
    #[serde(default)]
    pub limits: ServiceLimits,
}

/// `[service.NAME.limits]`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServiceLimits {
    /// Most tokens in the service, from arrival to answer.
    pub queue_tokens: usize,
    /// How long a request may take; absent is for ever.
    pub deadline_ms: Option<u64>,
    /// Longest that a backend may take for a batch: then it counts as failed and rests, and the next one is asked. Absent is
    /// half the deadline where another backend follows, else as long as the deadline allows.
    pub latency_ms: Option<u64>,
    /// Most tokens of a batch.
    pub batch_tokens: usize,
    /// Most tokens of an item, below what the model allows.
    pub max_tokens: Option<usize>,
}

impl Default for ServiceLimits {
    fn default() -> Self {
        Self { queue_tokens: 200_000, deadline_ms: None, latency_ms: None, batch_tokens: 4096, max_tokens: None }
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
            buckets: BucketSource::default(),
            keep_warm_s: None,
            probes: Vec::new(),
            limits: ServiceLimits::default(),
        }
    }

    /// The same model on the same backends, with the bounds of `other`.
    pub fn with_limits_of(self, other: &Self) -> Self {
        let ServiceLimits { max_tokens, latency_ms, .. } = self.limits;
        let limits = ServiceLimits { max_tokens, latency_ms, ..other.limits.clone() };
        Self { keep_warm_s: other.keep_warm_s, probes: other.probes.clone(), limits, ..self }
    }

    /// Whether `other` is the same model on the same backends, in the same way.
    pub fn loads_like(&self, other: &Self) -> bool {
        self.clone().with_limits_of(other) == *other
    }
}

fn at_least_one<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let names = Vec::<String>::deserialize(deserializer)?;
    if names.is_empty() {
        return Err(serde::de::Error::custom("`backends` is empty: at least one is needed"));
    }
    Ok(names)
}

fn cpu() -> Vec<String> {
    vec!["cpu".to_owned()]
}

fn attention<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Attention, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(serde::de::Error::custom)
}

impl Config {
    /// Reads a file. Paths of models, histograms, samples, certificates and keys are relative to its folder.
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
                // What is no directory here may be the name of a model that was pulled.
                let here = folder.join(&*model);
                if here.exists() {
                    *model = here;
                }
            }
            if let BucketSource::Lengths(path) | BucketSource::Sample(path) = &mut service.buckets {
                *path = folder.join(&*path);
            }
        }
        if let Some(audit) = &mut config.server.audit {
            *audit = folder.join(&*audit);
        }
        Ok(config)
    }

    fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    /// What a server with this file cannot take over from `other` without a restart: the keys of `[server]` that differ.
    pub fn needs_restart(&self, other: &Self) -> Vec<&'static str> {
        let (a, b) = (&self.server, &other.server);
        [
            ("server.listen", a.listen != b.listen),
            ("server.admin", a.admin != b.admin),
            ("server.audit", a.audit != b.audit),
            ("server.otlp", a.otlp != b.otlp),
            // Another certificate is read; whether there is TLS at all is the listener's.
            ("server.tls", a.tls.is_some() != b.tls.is_some()),
        ]
        .into_iter()
        .filter_map(|(key, differs)| differs.then_some(key))
        .collect()
    }

    /// The JSON schema of the file.
    pub fn schema() -> &'static str {
        include_str!("ehun.schema.json")
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
        assert_eq!(search.buckets, BucketSource::List(vec![(32, 128), (8, 512)]));
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
            ("[service.a]\nbackends = []", &["line 2", "backends"]),
            ("[server]\nadmin = \"anywhere\"", &["line 2", "anywhere"]),
            ("[service.a]\nattention = 1", &["line 2", "attention"]),
            ("[service.a]\nbuckets = \"8\"", &["line 2", "buckets", "BATCHxLENGTH"]),
            ("[service.a]\nbuckets = { length = \"a\" }", &["line 2", "buckets", "`length`"]),
            ("[service.a]\nbuckets = { lengths = \"a\", sample = \"b\" }", &["line 2", "buckets", "one of"]),
            ("[service.a.limits]\nbuckets = \"8x8\"", &["line 2", "buckets"]),
            ("[[key]]\nname = \"k\"\nblake3 = \"12\"\nscope = \"infer\"", &["line 3", "blake3"]),
            ("[service.a", &["line 1"]),
        ] {
            let message = Config::parse(text).unwrap_err();
            for needle in needles {
                assert!(message.contains(needle), "{text:?}: {message}");
            }
        }
    }

    /// Keys and types of the schema are those that are read: each example value is taken, each value of another type and each
    /// key that the schema does not have is refused.
    #[test]
    fn the_schema_is_what_is_read() {
        let schema: serde_json::Value = serde_json::from_str(Config::schema()).unwrap();
        let of = |name: &str| schema["$defs"][name]["properties"].as_object().unwrap();
        let key = "name = \"k\"\nscope = \"infer\"\nblake3 = \"af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262\"\n";
        for (name, table, besides) in [
            ("server", "[server]", ""),
            ("service", "[service.a]", ""),
            ("limits", "[service.a.limits]", ""),
            ("key", "[[key]]", key),
        ] {
            let error = Config::parse(&format!("{table}\nno_such_key = 1")).unwrap_err();
            let (_, list) = error.split_once("expected").unwrap();
            let mut read: Vec<&str> = list.split('`').skip(1).step_by(2).collect();
            let mut described: Vec<&str> = of(name).keys().map(String::as_str).collect();
            read.sort_unstable();
            described.sort_unstable();
            assert_eq!(described, read, "{table}");
            for (property, about) in of(name) {
                if about.get("$ref").is_some() {
                    continue;
                }
                let besides: String =
                    besides.split_inclusive('\n').filter(|line| !line.starts_with(&format!("{property} "))).collect();
                let file = |value: &str| format!("{table}\n{property} = {value}\n{besides}");
                let examples = about["examples"].as_array().unwrap();
                assert!(!examples.is_empty(), "{property}");
                for example in examples {
                    let example = example.to_string().replace("\":", "\"=");
                    if let Err(error) = Config::parse(&file(&example)) {
                        panic!("{property} = {example}: {error}");
                    }
                }
                // A date is nothing that any key takes.
                assert!(Config::parse(&file("2026-12-02")).is_err(), "{property}");
                let other = if about["type"] == "integer" { "\"1\"" } else { "1" };
                assert!(Config::parse(&file(other)).is_err(), "{property} takes {other}");
            }
        }
        for required in schema["$defs"]["key"]["required"].as_array().unwrap() {
            let start = format!("{} ", required.as_str().unwrap());
            let without: String = key.split_inclusive('\n').filter(|line| !line.starts_with(&start)).collect();
            assert!(Config::parse(&format!("[[key]]\n{without}")).is_err(), "{required}");
        }
    }
}
