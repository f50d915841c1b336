//! TLS in front of every route: rustls with HTTP/1.1 and HTTP/2.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::serve::Listener;
use serde::Deserialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::server::TlsStream;

/// A client that takes longer for its handshake is hung up on.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Handshakes at the same time; what comes beyond them waits in the system's queue.
const HANDSHAKES: usize = 256;

/// `[server.tls]`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// The certificate and those that vouch for it, PEM.
    pub cert: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
}

/// Why a certificate or its key cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct TlsError {
    path: PathBuf,
    reason: String,
}

/// A certificate with its key, ready to be shown to clients.
#[derive(Clone)]
pub struct Tls {
    acceptor: Arc<RwLock<TlsAcceptor>>,
}

impl Tls {
    /// Reads the files and checks that they belong together.
    pub fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let wrong = |path: &Path, reason: String| TlsError { path: path.to_owned(), reason };
        let chain = CertificateDer::pem_file_iter(&files.cert)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| wrong(&files.cert, error.to_string()))?;
        if chain.is_empty() {
            return Err(wrong(&files.cert, "there is no certificate in it".into()));
        }
        let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| wrong(&files.key, error.to_string()))?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map(|builder| builder.with_no_client_auth())
            .and_then(|builder| builder.with_single_cert(chain, key))
            .map_err(|error| wrong(&files.key, error.to_string()))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { acceptor: Arc::new(RwLock::new(TlsAcceptor::from(Arc::new(config)))) })
    }

    /// Shows what `other` has to whoever connects from now on.
    pub fn replace(&self, other: &Self) {
        let acceptor = other.acceptor();
        *self.acceptor.write().unwrap_or_else(PoisonError::into_inner) = acceptor;
    }

    fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes connections of `listener` and shakes hands with them, many at a time: a slow client holds up no other.
    pub(crate) fn listen(self, mut listener: TcpListener) -> io::Result<TlsListener> {
        let address = listener.local_addr()?;
        let (done, ready) = mpsc::channel(HANDSHAKES);
        let slots = Arc::new(Semaphore::new(HANDSHAKES));
        let task = tokio::spawn(async move {
            while let Ok(slot) = Arc::clone(&slots).acquire_owned().await {
                let (stream, peer) = Listener::accept(&mut listener).await;
                // Small answers must not wait for company.
                let _ = stream.set_nodelay(true);
                let (acceptor, done) = (self.acceptor(), done.clone());
                tokio::spawn(async move {
                    if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                        let _ = done.send((stream, peer)).await;
                    }
                    drop(slot);
                });
            }
        });
        Ok(TlsListener { ready, address, task })
    }
}

/// Connections after their handshakes.
pub(crate) struct TlsListener {
    ready: mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
    address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.ready.recv().await {
            Some(connection) => connection,
            // The task ends with this listener alone.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(self.address)
    }
}

impl Drop for TlsListener {
    fn drop(&mut self) {
        self.task.abort();
    }
}
