//! What goes over the wire: the list of files, and files that go on where they were cut.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest, Sha256};
use ureq::config::RedirectAuthHeaders;
use ureq::http::{Response, StatusCode};

use super::{HubError, HubOptions, Result, io_at};

/// The list of a repository's files is read up to this size.
const MAX_LIST_BYTES: u64 = 32 << 20;

/// A file as the hub lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RemoteFile {
    /// Path in the repository: relative, without `..`.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// The hub's name of the content: a sha256 for large files, a git hash for others.
    pub blob: String,
    /// sha256, where the hub knows it.
    pub sha256: Option<String>,
}

#[derive(Debug)]
pub(super) struct Transfer {
    agent: ureq::Agent,
    endpoint: String,
    token: Option<String>,
    retries: u32,
    longest_wait: Duration,
}

/// Why a request is tried again.
enum Again {
    After(Duration, HubError),
    Never(HubError),
}

impl Transfer {
    pub fn new(options: &HubOptions) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(Duration::from_secs(15)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            // Large files come from another host, which must not see the token.
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .user_agent(concat!("ehun/", env!("CARGO_PKG_VERSION")))
            .build();
        Self {
            agent: config.new_agent(),
            endpoint: options.endpoint.clone(),
            token: options.token.clone(),
            retries: options.retries,
            longest_wait: options.longest_wait,
        }
    }

    /// The commit of a revision, and its files.
    pub fn list(&self, model: &str, revision: &str) -> Result<(String, Vec<RemoteFile>)> {
        let revision = revision.replace('/', "%2F");
        let url = format!("{}/api/models/{model}/revision/{revision}?blobs=true", self.endpoint);
        let bytes = self.persist(|_| {
            let mut response = self.get(&url, None)?;
            let body = response.body_mut().with_config().limit(MAX_LIST_BYTES).read_to_vec();
            body.map_err(|e| self.later(&url, e.to_string(), 0))
        })?;
        let wrong = |reason: &str| {
            HubError::Unusable(model.to_owned(), format!("the hub's answer is not understood: {reason}"))
        };
        let answer: Value = serde_json::from_slice(&bytes).map_err(|e| wrong(&e.to_string()))?;
        let commit = answer.get("sha").and_then(Value::as_str).ok_or_else(|| wrong("it has no commit"))?;
        if !is_hash(commit) {
            return Err(wrong("its commit is no hash"));
        }
        let files = answer.get("siblings").and_then(Value::as_array).ok_or_else(|| wrong("it has no list of files"))?;
        let files =
            files.iter().map(|file| remote_file(file).ok_or_else(|| wrong("a file has no usable name, size or hash")));
        Ok((commit.to_owned(), files.collect::<Result<_>>()?))
    }

    /// Fetches a file to `blob` as far as it is not there, and gives its sha256. `report` is told how many bytes are there.
    pub fn fetch(
        &self,
        model: &str,
        commit: &str,
        file: &RemoteFile,
        blob: &Path,
        report: &mut dyn FnMut(u64),
    ) -> Result<String> {
        if !blob.is_file() {
            let url = format!("{}/{model}/resolve/{commit}/{}", self.endpoint, file.path);
            let partial = blob.with_extension("incomplete");
            self.persist(|attempt| self.append(&url, &partial, file.size, attempt, report))?;
            if let Err(error) = check(file, &partial) {
                std::fs::remove_file(&partial).map_err(io_at(&partial))?;
                return Err(error);
            }
            File::open(&partial).and_then(|f| f.sync_all()).map_err(io_at(&partial))?;
            std::fs::rename(&partial, blob).map_err(io_at(blob))?;
        }
        report(file.size);
        check(file, blob)
    }

    /// Appends what is missing to `partial`.
    fn append(
        &self,
        url: &str,
        partial: &Path,
        size: u64,
        attempt: u32,
        report: &mut dyn FnMut(u64),
    ) -> std::result::Result<(), Again> {
        let io = |error| Again::Never(io_at(partial)(error));
        let mut have = std::fs::metadata(partial).map_or(0, |meta| meta.len());
        if have > size {
            std::fs::remove_file(partial).map_err(io)?;
            have = 0;
        }
        if have == size && size > 0 {
            return Ok(());
        }
        let response = self.get(url, (have > 0).then_some(have))?;
        // A server that does not know ranges sends the whole file.
        let whole = response.status() != StatusCode::PARTIAL_CONTENT;
        let mut out =
            OpenOptions::new().create(true).write(true).append(!whole).truncate(whole).open(partial).map_err(io)?;
        if whole {
            have = 0;
        }
        let mut body = response.into_body().into_reader();
        let mut buffer = vec![0; 1 << 16];
        loop {
            let read = match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) => return Err(self.later(url, error.to_string(), attempt)),
            };
            have += read as u64;
            if have > size {
                let reason = format!("more than the {size} bytes that the hub lists");
                return Err(Again::Never(HubError::Damaged { file: url.to_owned(), reason }));
            }
            out.write_all(&buffer[..read]).map_err(io)?;
            report(have);
        }
        if have < size {
            return Err(self.later(url, format!("the connection ended after {have} of {size} bytes"), attempt));
        }
        Ok(())
    }

    fn get(&self, url: &str, from: Option<u64>) -> std::result::Result<Response<ureq::Body>, Again> {
        let mut request = self.agent.get(url);
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        if let Some(from) = from {
            request = request.header("Range", format!("bytes={from}-"));
        }
        let response = request.call().map_err(|e| self.later(url, e.to_string(), 0))?;
        let status = response.status().as_u16();
        match status {
            200..=299 => Ok(response),
            401 | 403 => Err(Again::Never(HubError::Refused(url.to_owned(), status))),
            404 => Err(Again::Never(HubError::NotFound(url.to_owned()))),
            429 => {
                let stated = response.headers().get("Retry-After").and_then(|value| value.to_str().ok()?.parse().ok());
                let seconds: u64 = stated.unwrap_or(1);
                let error = HubError::TooManyRequests(url.to_owned(), seconds);
                let wait = Duration::from_secs(seconds);
                Err(if wait > self.longest_wait { Again::Never(error) } else { Again::After(wait, error) })
            }
            500..=599 => Err(self.later(url, format!("HTTP {status}"), 0)),
            _ => Err(Again::Never(HubError::Network { url: url.to_owned(), reason: format!("HTTP {status}") })),
        }
    }

    /// Doubles from a tenth of a second with every attempt.
    fn later(&self, url: &str, reason: String, attempt: u32) -> Again {
        let wait = Duration::from_millis(100 << attempt.min(8)).min(self.longest_wait);
        Again::After(wait, HubError::Network { url: url.to_owned(), reason })
    }

    fn persist<T>(&self, mut request: impl FnMut(u32) -> std::result::Result<T, Again>) -> Result<T> {
        let mut attempt = 0;
        loop {
            match request(attempt) {
                Ok(value) => return Ok(value),
                Err(Again::Never(error)) => return Err(error),
                Err(Again::After(_, error)) if attempt >= self.retries => return Err(error),
                Err(Again::After(wait, _)) => std::thread::sleep(wait),
            }
            attempt += 1;
        }
    }
}

fn is_hash(text: &str) -> bool {
    !text.is_empty() && text.len() <= 64 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

fn remote_file(entry: &Value) -> Option<RemoteFile> {
    let path = entry.get("rfilename")?.as_str()?;
    let inside = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains(['\\', ':', '\0']);
    if !path.split('/').all(inside) {
        return None;
    }
    let large = entry.get("lfs").filter(|lfs| !lfs.is_null());
    let sha256 = match large {
        Some(lfs) => Some(lfs.get("sha256")?.as_str().filter(|hash| is_hash(hash))?.to_lowercase()),
        None => None,
    };
    let blob = match &sha256 {
        Some(hash) => hash.clone(),
        None => entry.get("blobId")?.as_str().filter(|hash| is_hash(hash))?.to_owned(),
    };
    Some(RemoteFile { path: path.to_owned(), size: entry.get("size")?.as_u64()?, blob, sha256 })
}

/// The sha256 of a fetched file. Fails where size or hash are not those that the hub lists.
fn check(file: &RemoteFile, path: &Path) -> Result<String> {
    let damaged = |reason: String| HubError::Damaged { file: file.path.clone(), reason };
    let size = std::fs::metadata(path).map_err(io_at(path))?.len();
    if size != file.size {
        return Err(damaged(format!("{size} bytes, the hub lists {}", file.size)));
    }
    let found = sha256_of(path)?;
    match &file.sha256 {
        Some(listed) if *listed != found => Err(damaged(format!("its sha256 is {found}, the hub lists {listed}"))),
        _ => Ok(found),
    }
}

/// The sha256 of a file as hexadecimal digits.
pub(super) fn sha256_of(path: &Path) -> Result<String> {
    let mut file = File::open(path).map_err(io_at(path))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).map_err(io_at(path))? {
            0 => break,
            read => hasher.update(&buffer[..read]),
        }
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
