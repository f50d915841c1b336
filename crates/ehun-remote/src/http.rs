//! JSON over HTTP/1.1 with connections that are kept, bounded in time and size.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use ureq::Agent;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use crate::address::Address;
use crate::error::{Failure, RemoteError, excerpt};

/// Largest answer that is read: 256 items of a vocabulary's width in digits.
const MOST_BYTES: u64 = 512 << 20;

/// A client of one service.
pub(crate) struct Client {
    kept: Agent,
    /// Without kept connections, for the second try: a kept one may have been closed by the service in the meantime.
    fresh: Agent,
    origin: String,
    authorization: Option<String>,
}

impl Client {
    pub(crate) fn new(address: &Address) -> Result<Self, RemoteError> {
        let tls = match &address.ca {
            Some(path) => TlsConfig::builder().root_certs(RootCerts::Specific(Arc::new(certificates(path)?))).build(),
            None => TlsConfig::default(),
        };
        let config = || {
            Agent::config_builder()
                .http_status_as_error(false)
                .max_redirects(0)
                .max_redirects_will_error(false)
                .proxy(None)
                .user_agent(concat!("ehun/", env!("CARGO_PKG_VERSION")))
                .tls_config(tls.clone())
        };
        Ok(Self {
            kept: config().max_idle_connections(64).max_idle_connections_per_host(64).build().into(),
            fresh: config().max_idle_connections(0).build().into(),
            origin: address.origin(),
            authorization: address.key()?.map(|key| format!("Bearer {key}")),
        })
    }

    /// Posts `body` and reads the answer as `T`. Asking a model changes nothing there, so a cut connection is tried once
    /// more; nothing else is: an overloaded service is not asked again, another backend is.
    pub(crate) fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &serde_json::Value,
        until: Instant,
    ) -> Result<T, Failure> {
        let body = body.to_string();
        let answer = match self.exchange(&self.kept, path, Some(&body), until) {
            Err(Failure::Cut(_)) => self.exchange(&self.fresh, path, Some(&body), until)?,
            other => other?,
        };
        read(&answer)
    }

    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str, until: Instant) -> Result<T, Failure> {
        read(&self.exchange(&self.fresh, path, None, until)?)
    }

    fn exchange(&self, agent: &Agent, path: &str, body: Option<&str>, until: Instant) -> Result<Vec<u8>, Failure> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Failure::Timeout(left));
        }
        let url = format!("{}{path}", self.origin);
        let authorization = self.authorization.as_deref();
        let sent = match body {
            Some(body) => {
                let mut request = agent.post(&url).header("content-type", "application/json");
                if let Some(key) = authorization {
                    request = request.header("authorization", key);
                }
                request.config().timeout_global(Some(left)).build().send(body)
            }
            None => {
                let mut request = agent.get(&url);
                if let Some(key) = authorization {
                    request = request.header("authorization", key);
                }
                request.config().timeout_global(Some(left)).build().call()
            }
        };
        let mut response = sent.map_err(|error| failure(error, left))?;
        let status = response.status().as_u16();
        let bytes =
            response.body_mut().with_config().limit(MOST_BYTES).read_to_vec().map_err(|error| failure(error, left))?;
        if (200..300).contains(&status) {
            return Ok(bytes);
        }
        Err(Failure::Status { status, excerpt: excerpt(&bytes) })
    }
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(bytes).map_err(|error| Failure::Answer(format!("{error} in `{}`", excerpt(bytes))))
}

fn failure(error: ureq::Error, left: Duration) -> Failure {
    use std::io::ErrorKind;
    match error {
        ureq::Error::Timeout(_) => Failure::Timeout(left),
        ureq::Error::HostNotFound => Failure::Connect("the host's name is not known".into()),
        ureq::Error::ConnectionFailed => Failure::Connect("no connection".into()),
        ureq::Error::Io(error) => match error.kind() {
            ErrorKind::TimedOut | ErrorKind::WouldBlock => Failure::Timeout(left),
            ErrorKind::ConnectionRefused
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::AddrNotAvailable => Failure::Connect(error.to_string()),
            _ => Failure::Cut(error.to_string()),
        },
        // An answer that ends early, or that is no HTTP.
        ureq::Error::Protocol(error) => Failure::Cut(error.to_string()),
        other => Failure::Answer(other.to_string()),
    }
}

/// The certificates of a PEM file.
pub(crate) fn certificates(path: &str) -> Result<Vec<Certificate<'static>>, RemoteError> {
    let wrong = |reason: String| RemoteError::File { path: path.to_owned(), reason };
    let pem = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let mut all = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| wrong(error.to_string()))? {
            all.push(certificate);
        }
    }
    if all.is_empty() { Err(wrong("there is no certificate in it".into())) } else { Ok(all) }
}
