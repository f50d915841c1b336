//! The services behind the server, by name.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ehun_documents::WorkerPool;
use ehun_models::Task;

use crate::auth::{Key, Keys};
use crate::config::ServerConfig;
use crate::fault::{Fault, Kind};
use crate::metrics::Metrics;
pub use crate::services::Served;
use crate::services::Services;
use crate::tls::Tls;
use crate::trace::{LogFormat, Telling};

/// Bounds on what one request may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of a request's body.
    pub body_bytes: usize,
    /// Most items of a request. The engine splits them; this bounds memory.
    pub items: usize,
    /// How long the head and the body of a request may each take to arrive.
    pub slow: Duration,
    /// How long requests in flight may take after the server was told to end, and after a swap.
    pub drain: Duration,
}

impl From<&ServerConfig> for Limits {
    fn from(config: &ServerConfig) -> Self {
        Self {
            body_bytes: config.body_bytes,
            items: config.items,
            slow: Duration::from_millis(config.slow_ms),
            drain: Duration::from_millis(config.drain_ms),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { body_bytes: 32 << 20, items: 8192, slow: Duration::from_secs(30), drain: Duration::from_secs(10) }
    }
}

/// All that a request may need. Shared by all of them.
pub struct App {
    /// The services by name.
    pub services: Services,
    limits: RwLock<Arc<Limits>>,
    /// Keys; none means that everything is allowed.
    pub keys: Keys,
    /// Counters and histograms, also observed by the services.
    pub metrics: Arc<Metrics>,
    /// Parsers of documents, in processes of their own.
    pub parsers: Option<Arc<WorkerPool>>,
    /// The certificate that the listener shows; none is plain HTTP.
    pub tls: Option<Tls>,
    telling: RwLock<Telling>,
    started: SystemTime,
    ready: AtomicBool,
}

impl App {
    /// The services in their order: where a wire format names no model, the first with the task answers.
    pub fn new(served: Vec<Arc<Served>>, limits: Limits, keys: Vec<Key>, metrics: Arc<Metrics>) -> Self {
        let services = Services::default();
        served.into_iter().for_each(|served| services.add(served));
        Self {
            services,
            limits: RwLock::new(Arc::new(limits)),
            keys: Keys::new(keys),
            metrics,
            parsers: None,
            tls: None,
            telling: RwLock::default(),
            started: SystemTime::now(),
            ready: AtomicBool::new(true),
        }
    }

    /// The same with parsers, for `/v1/documents`.
    pub fn with_parsers(mut self, parsers: Arc<WorkerPool>) -> Self {
        self.parsers = Some(parsers);
        self
    }

    /// The same behind TLS.
    pub fn with_tls(mut self, tls: Option<Tls>) -> Self {
        self.tls = tls;
        self
    }

    /// The same, telling of each request.
    pub fn with_telling(self, telling: Telling) -> Self {
        *self.telling.write().unwrap_or_else(PoisonError::into_inner) = telling;
        self
    }

    /// Bounds on requests, as they are now.
    pub fn limits(&self) -> Arc<Limits> {
        Arc::clone(&self.limits.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// These bounds for requests from now on.
    pub fn set_limits(&self, limits: Limits) {
        *self.limits.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(limits);
    }

    /// Who is told of requests, as it is now.
    pub fn telling(&self) -> Telling {
        self.telling.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Logs requests in this form from now on.
    pub fn set_log(&self, log: LogFormat) {
        self.telling.write().unwrap_or_else(PoisonError::into_inner).log = log;
    }

    /// The services that are loaded.
    pub fn services(&self) -> Vec<Arc<Served>> {
        self.services.live()
    }

    /// The service that a request means: by name where it gives one, else the first with the first of `tasks` that any has.
    pub fn find(&self, name: Option<&str>, tasks: &[Task]) -> Result<Arc<Served>, Fault> {
        self.services.find(name, tasks)
    }

    /// When the server started, in seconds since 1970.
    pub fn started(&self) -> u64 {
        self.started.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }

    /// Whether new requests are welcome: every service has been loaded, and the server is not ending.
    pub fn is_ready(&self) -> bool {
        self.readiness().is_ok()
    }

    /// The same, with the reason why not.
    pub fn readiness(&self) -> Result<(), Fault> {
        if !self.ready.load(Ordering::SeqCst) {
            return Err(Fault::new(Kind::Unavailable, "the server is ending"));
        }
        self.services.starting().map_or(Ok(()), |entry| Err(entry.is_starting()))
    }

    /// From now on says that it is not ready, so that a balancer sends no more.
    pub fn close(&self) {
        self.ready.store(false, Ordering::SeqCst);
    }
}
