//! Addresses of services: `PROTOCOL+TRANSPORT://HOST[:PORT][/PATH][?SETTINGS][#MODEL]`.

use std::time::Duration;

use crate::error::RemoteError;

/// What a service elsewhere speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// OpenAI embeddings.
    OpenAi,
    /// text-embeddings-inference.
    Tei,
    /// Open Inference Protocol v2, JSON.
    OipHttp,
    /// Open Inference Protocol v2, gRPC.
    OipGrpc,
}

/// A parsed address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// How it is reported: the address without its settings.
    pub name: String,
    /// What is spoken there.
    pub protocol: Protocol,
    /// Whether through TLS.
    pub tls: bool,
    /// Host without brackets, as TLS wants it.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Path without the slash at its end; of Open Inference Protocol, what is before the model.
    pub path: String,
    /// The model's name there; `None` is the name of the model here.
    pub model: Option<String>,
    /// Longest wait for an answer; `None` leaves it to the service's deadline.
    pub timeout: Option<Duration>,
    /// Most items of a request.
    pub items: usize,
    /// Environment variable that holds the API key.
    pub key_env: Option<String>,
    /// File of certificates to trust instead of the public ones.
    pub ca: Option<String>,
}

const SCHEMES: &[(&str, Protocol, bool)] = &[
    ("openai+http", Protocol::OpenAi, false),
    ("openai+https", Protocol::OpenAi, true),
    ("tei+http", Protocol::Tei, false),
    ("tei+https", Protocol::Tei, true),
    ("oip+http", Protocol::OipHttp, false),
    ("oip+https", Protocol::OipHttp, true),
    ("oip+grpc", Protocol::OipGrpc, false),
    ("oip+grpcs", Protocol::OipGrpc, true),
];

/// Whether a backend's name is the address of a service elsewhere.
pub fn is_remote(name: &str) -> bool {
    name.contains("://")
}

impl Protocol {
    /// Most items that servers of the protocol take by default.
    fn default_items(self) -> usize {
        match self {
            // The default of text-embeddings-inference's --max-client-batch-size.
            Self::Tei => 32,
            Self::OpenAi | Self::OipHttp | Self::OipGrpc => 256,
        }
    }
}

impl std::str::FromStr for Address {
    type Err = RemoteError;

    fn from_str(text: &str) -> Result<Self, RemoteError> {
        let wrong = |reason: String| RemoteError::Address { address: text.to_owned(), reason };
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("`://` is missing".into()))?;
        let Some(&(_, protocol, tls)) = SCHEMES.iter().find(|(known, ..)| *known == scheme) else {
            let known: Vec<&str> = SCHEMES.iter().map(|(known, ..)| *known).collect();
            return Err(wrong(format!("there is no `{scheme}`; there are {}", known.join(", "))));
        };
        let (rest, fragment) = rest.split_once('#').map_or((rest, None), |(rest, model)| (rest, Some(model)));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.contains('@') {
            return Err(wrong("a key does not belong into an address; name a variable with `?key_env=NAME`".into()));
        }
        let default_port = match (protocol, tls) {
            (Protocol::OipGrpc, false) => 8001,
            (_, true) => 443,
            (_, false) => 80,
        };
        let (host, port) = host_and_port(authority).map_err(&wrong)?;
        let path = path.trim_end_matches('/');
        let (path, model) = match protocol {
            Protocol::OpenAi | Protocol::Tei => (path.to_owned(), fragment.map(str::to_owned)),
            Protocol::OipHttp | Protocol::OipGrpc => {
                let (before, model) = path.rsplit_once('/').unwrap_or(("", path));
                if model.is_empty() || fragment.is_some() {
                    return Err(wrong("the model is the last part of the path: `oip+http://host:port/model`".into()));
                }
                (before.to_owned(), Some(model.to_owned()))
            }
        };
        let name = text.split_once('?').map_or(text, |(before, _)| before);
        let name = match (name == text, fragment) {
            (false, Some(model)) => format!("{name}#{model}"),
            _ => name.to_owned(),
        };
        let mut address = Self {
            name,
            protocol,
            tls,
            host,
            port: port.unwrap_or(default_port),
            path: if path.is_empty() { path } else { format!("/{path}") },
            model: model.filter(|model| !model.is_empty()),
            timeout: None,
            items: protocol.default_items(),
            key_env: None,
            ca: None,
        };
        for setting in query.split('&').filter(|setting| !setting.is_empty()) {
            address.set(setting).map_err(&wrong)?;
        }
        Ok(address)
    }
}

impl Address {
    fn set(&mut self, setting: &str) -> Result<(), String> {
        let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
        let number = || match value.parse::<u64>() {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(format!("`{key}` must be a whole number from 1, not `{value}`")),
        };
        match key {
            "timeout_ms" => self.timeout = Some(Duration::from_millis(number()?)),
            "items" => self.items = usize::try_from(number()?).unwrap_or(usize::MAX),
            "key_env" if !value.is_empty() => self.key_env = Some(value.to_owned()),
            "ca" if !value.is_empty() => self.ca = Some(value.to_owned()),
            _ => return Err(format!("there is no setting `{setting}`; there are timeout_ms, items, key_env, ca")),
        }
        Ok(())
    }

    /// `http://host:port` or `https://host:port`, without the path.
    pub fn origin(&self) -> String {
        format!("http{}://{}", if self.tls { "s" } else { "" }, self.authority())
    }

    /// `host:port`, IPv6 in brackets.
    pub fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    /// The API key from the environment.
    pub(crate) fn key(&self) -> Result<Option<String>, RemoteError> {
        let Some(name) = &self.key_env else { return Ok(None) };
        match std::env::var(name) {
            Ok(key) if !key.is_empty() => Ok(Some(key)),
            _ => Err(RemoteError::Setup(format!("{}: the environment variable {name} is not set", self.name))),
        }
    }
}

fn host_and_port(authority: &str) -> Result<(String, Option<u16>), String> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or("`]` is missing")?;
            (host, after.strip_prefix(':'))
        }
        None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() {
        return Err("the host is missing".into());
    }
    let port = port.map(|port| port.parse().map_err(|_| format!("`{port}` is no port"))).transpose()?;
    Ok((host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, name, origin, path, model) in [
            ("openai+http://h:8000/v1#m/x", "openai+http://h:8000/v1#m/x", "http://h:8000", "/v1", Some("m/x")),
            ("openai+https://h/v1?key_env=K#m", "openai+https://h/v1#m", "https://h:443", "/v1", Some("m")),
            ("tei+http://10.0.0.1:3000/", "tei+http://10.0.0.1:3000/", "http://10.0.0.1:3000", "", None),
            ("oip+http://h:8000/a/b/search", "oip+http://h:8000/a/b/search", "http://h:8000", "/a/b", Some("search")),
            ("oip+grpc://[::1]/m?items=8", "oip+grpc://[::1]/m", "http://[::1]:8001", "", Some("m")),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(
                (address.name.as_str(), address.origin().as_str(), address.path.as_str(), address.model.as_deref()),
                (name, origin, path, model)
            );
        }
    }

    #[test]
    fn faults_are_named() {
        for (text, needle) in [
            ("cpu", "`://`"),
            ("ftp://h", "there is no `ftp`"),
            ("tei+http://", "host"),
            ("tei+http://h:x", "`x` is no port"),
            ("tei+http://u:secret@h", "key_env"),
            ("oip+grpc://h:1", "the model is the last part"),
            ("tei+http://h?items=0", "`items`"),
            ("tei+http://h?depth=1", "`depth=1`"),
        ] {
            let message = text.parse::<Address>().unwrap_err().to_string();
            assert!(message.contains(needle), "{text}: {message}");
        }
    }
}
