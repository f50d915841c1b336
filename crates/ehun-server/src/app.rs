//! The services behind the server, by name.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ehun_documents::WorkerPool;
use ehun_engine::Service;
use ehun_models::{Model, Task};

use crate::auth::Key;
use crate::fault::{Fault, Kind};
use crate::metrics::Metrics;
use crate::tls::Tls;
use crate::trace::Telling;

/// A service with what its answers mean.
pub struct Served {
    /// Name in the configuration; clients name it as the model.
    pub name: String,
    /// The model: task, labels, prompts, limits.
    pub model: Arc<Model>,
    /// The engine's service.
    pub service: Service,
    /// How long a request may take.
    pub deadline: Option<Duration>,
}

/// Bounds on what one request may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of a request's body.
    pub body_bytes: usize,
    /// Most items of a request. The engine splits them; this bounds memory.
    pub items: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { body_bytes: 32 << 20, items: 8192 }
    }
}

/// All that a request may need. Shared by all of them.
pub struct App {
    served: Vec<Arc<Served>>,
    /// Bounds on requests.
    pub limits: Limits,
    /// Keys; none means that everything is allowed.
    pub keys: Vec<Key>,
    /// Counters and histograms, also observed by the services.
    pub metrics: Arc<Metrics>,
    /// Parsers of documents, in processes of their own.
    pub parsers: Option<Arc<WorkerPool>>,
    /// The certificate that the listener shows; none is plain HTTP.
    pub tls: Option<Tls>,
    /// Who is told of requests.
    pub telling: Telling,
    started: SystemTime,
    ready: AtomicBool,
}

impl App {
    /// The services in their order: where a wire format names no model, the first with the task answers.
    pub fn new(served: Vec<Arc<Served>>, limits: Limits, keys: Vec<Key>, metrics: Arc<Metrics>) -> Self {
        Self {
            served,
            limits,
            keys,
            metrics,
            parsers: None,
            tls: None,
            telling: Telling::default(),
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
    pub fn with_telling(mut self, telling: Telling) -> Self {
        self.telling = telling;
        self
    }

    /// All services.
    pub fn services(&self) -> &[Arc<Served>] {
        &self.served
    }

    /// The service that a request means: by name where it gives one, else the first with the first of `tasks` that any has.
    pub fn find(&self, name: Option<&str>, tasks: &[Task]) -> Result<&Arc<Served>, Fault> {
        let can = |served: &&Arc<Served>| tasks.contains(&served.model.task());
        let wanted: Vec<&str> = tasks.iter().map(|task| task.name()).collect();
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            let first = |task: &Task| self.served.iter().find(|served| served.model.task() == *task);
            return tasks.iter().find_map(first).ok_or_else(|| {
                Fault::new(Kind::NotFound, format!("no service here has the task {}", wanted.join(" or ")))
            });
        };
        let found = self.served.iter().find(|served| served.is_called(name));
        let Some(found) = found else {
            let known: Vec<&str> = self.served.iter().map(|served| served.name.as_str()).collect();
            let message = format!("there is no model `{name}`; this server has {}", known.join(", "));
            return Err(Fault::new(Kind::NotFound, message).at("model"));
        };
        if can(&found) {
            return Ok(found);
        }
        let task = found.model.task();
        Err(Fault::invalid(format!("`{name}` is a model for {task}, this route is for {}", wanted.join(" or ")))
            .at("model"))
    }

    /// When the server started, in seconds since 1970.
    pub fn started(&self) -> u64 {
        self.started.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }

    /// Whether new requests are welcome.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::SeqCst)
    }

    /// From now on says that it is not ready, so that a balancer sends no more.
    pub fn close(&self) {
        self.ready.store(false, Ordering::SeqCst);
    }
}

impl Served {
    fn is_called(&self, name: &str) -> bool {
        // Clients of other servers send the hub's name, with or without the organisation.
        let model = self.model.name();
        self.name == name || model == name || model.rsplit('/').next() == name.rsplit('/').next()
    }
}
