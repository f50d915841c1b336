//! Changing what is served: the commands of the administration, the reload of the configuration, and idle services.

mod reload;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ehun_backend::{Attention, BucketSource, OnProgress, Precision};
use ehun_engine::rollout::{
    Bounds, CanaryBounds, CanaryPlan, Candidate, Outcome, Phase, RolloutError, ShadowPlan, Share, SwapPlan,
    default_probes,
};
use ehun_engine::{Deployment, Input, Observer, Service, ServiceConfig as EngineConfig};
use ehun_models::{Model, Task};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::audit::{Audit, Record};
use crate::config::{Config, ServiceConfig};
use crate::services::{Entry, Served, State};
use crate::tls::TlsError;

/// What a [`Loader`] gives.
pub struct Loaded {
    /// The model.
    pub model: Arc<Model>,
    /// The model on its backends.
    pub deployment: Arc<Deployment>,
    /// Batches that are run at the same time.
    pub workers: usize,
}

/// Makes what a configuration asks for: the program that has the backends is one.
pub trait Loader: Send + Sync {
    /// Loads a service. `told` is to hear how far backends are that compile programs first.
    fn load(&self, wanted: &ServiceConfig, told: OnProgress) -> Result<Loaded, String>;
}

/// What of a service is to be another way. What is absent stays.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// Backends, the preferred first.
    pub backends: Option<Vec<String>>,
    /// Directory of a model, or ORG/NAME of one that was pulled; ORG/NAME@REVISION is one of its revisions.
    pub model: Option<PathBuf>,
    /// In what the products are computed.
    pub precision: Option<Precision>,
    /// Attention kernel, or a plug-in file.
    pub attention: Option<String>,
    /// Threads of a backend on the CPU.
    pub threads: Option<usize>,
    /// Static shapes, for the backends that have them.
    pub buckets: Option<BucketSource>,
}

impl Change {
    fn of(&self, current: &ServiceConfig, task: Task) -> ServiceConfig {
        let mut wanted = current.clone();
        wanted.task = Some(task);
        if let Some(backends) = &self.backends {
            wanted.backends.clone_from(backends);
        }
        if self.model.is_some() {
            wanted.model.clone_from(&self.model);
        }
        if let Some(precision) = self.precision {
            wanted.precision = precision;
        }
        if let Some(attention) = &self.attention {
            // Parsing cannot fail: a name that no backend knows is refused by the backend.
            wanted.attention = attention.parse().unwrap_or(Attention::Auto);
        }
        wanted.threads = self.threads.or(wanted.threads);
        if let Some(buckets) = &self.buckets {
            wanted.buckets.clone_from(buckets);
        }
        wanted
    }
}

/// What is asked of a service.
#[derive(Debug, Clone)]
pub enum Action {
    /// Another deployment, at once, after its probes.
    Swap {
        /// What is to be another way.
        change: Change,
        /// How far the answers to the probes may be apart.
        bounds: Bounds,
        /// Whatever the probes say.
        force: bool,
    },
    /// A candidate that runs a share of the requests again.
    Shadow {
        /// How it differs.
        change: Change,
        /// The share.
        share: Share,
    },
    /// A candidate that answers a share of the requests.
    Canary {
        /// How it differs.
        change: Change,
        /// The share.
        share: Share,
        /// Past these it goes back by itself.
        bounds: CanaryBounds,
    },
    /// The candidate takes over.
    Promote,
    /// The candidate is taken out.
    Abort,
}

impl Action {
    fn name(&self) -> &'static str {
        match self {
            Self::Swap { .. } => "swap",
            Self::Shadow { .. } => "shadow",
            Self::Canary { .. } => "canary",
            Self::Promote => "promote",
            Self::Abort => "abort",
        }
    }
}

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// There is no such service.
    #[error("there is no service `{0}`")]
    Unknown(String),
    /// Another change of it is under way.
    #[error("another change of the service `{0}` is under way; try again when it is done")]
    Busy(String),
    /// The model or a backend cannot be loaded.
    #[error("the candidate cannot be loaded: {0}")]
    Load(String),
    /// The engine refused.
    #[error(transparent)]
    Rollout(#[from] RolloutError),
    /// The services are not all loaded yet.
    #[error("the service `{0}` is starting; try again when it is ready")]
    Starting(String),
    /// Services that stay as they were.
    #[error("not changed: {0}")]
    Reload(String),
    /// The certificate cannot be used.
    #[error("the certificate: {0}")]
    Tls(#[from] TlsError),
    /// Threads of a service could not be started.
    #[error("threads of the engine: {0}")]
    Threads(#[from] std::io::Error),
}

/// Most tokens that wait for a comparison.
const MIRROR_TOKENS: usize = 65_536;

/// What a service is made of.
#[derive(Clone)]
pub(crate) struct Made {
    /// What serves.
    pub(crate) now: ServiceConfig,
    /// The candidate of a shadow or canary.
    candidate: Option<ServiceConfig>,
}

/// The services of a server with how each was made, and the means to make others.
pub struct Host {
    pub(crate) app: Arc<App>,
    loader: Arc<dyn Loader>,
    audit: Audit,
    /// The configuration as it was read last.
    pub(crate) file: Mutex<Config>,
    made: Mutex<BTreeMap<String, Made>>,
    /// How many rollouts that ended by themselves were written down: by service, the time of the last.
    seen: Mutex<BTreeMap<String, u64>>,
    /// The configuration that the process was started with.
    started: Config,
}

impl Host {
    /// A host of the services of `config`, all of which are starting until [`Host::load_all`] has loaded them.
    pub fn new(app: Arc<App>, loader: Arc<dyn Loader>, audit: Audit, config: Config) -> Arc<Self> {
        for (name, wanted) in &config.service {
            app.metrics.add(name);
            app.services.expect(Entry::starting(name, wanted.task, model_name(wanted)));
        }
        let (made, seen) = (Mutex::default(), Mutex::default());
        let host = Arc::new(Self { app, loader, audit, started: config.clone(), file: Mutex::new(config), made, seen });
        host.load_what_is_wanted();
        host
    }

    /// The application whose services it changes.
    pub fn app(&self) -> &Arc<App> {
        &self.app
    }

    pub(crate) fn made(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Made>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a configuration asks for, for the service `name`, which shows how far it is.
    fn loaded(&self, name: &str, wanted: &ServiceConfig) -> Result<Loaded, HostError> {
        let entry = self.app.services.entry(name);
        let told: OnProgress = Arc::new(move |progress| {
            if let Some(entry) = &entry {
                entry.told(progress);
            }
        });
        self.loader.load(wanted, told).map_err(HostError::Load)
    }

    pub(crate) fn load(&self, name: &str, wanted: &ServiceConfig) -> Result<Arc<Served>, HostError> {
        let loaded = self.loaded(name, wanted)?;
        let service = self.service(name, wanted, loaded.deployment, loaded.workers)?;
        self.made().insert(name.to_owned(), Made { now: wanted.clone(), candidate: None });
        Ok(served(name, wanted, loaded.model, service))
    }

    fn service(
        &self,
        name: &str,
        wanted: &ServiceConfig,
        deployment: Arc<Deployment>,
        workers: usize,
    ) -> std::io::Result<Arc<Service>> {
        self.app.metrics.add(name);
        let config = EngineConfig {
            name: name.to_owned(),
            batch_tokens: wanted.limits.batch_tokens,
            queue_tokens: wanted.limits.queue_tokens,
            workers,
            ..EngineConfig::default()
        };
        let observers: Vec<Arc<dyn Observer>> = vec![Arc::clone(&self.app.metrics) as Arc<dyn Observer>];
        Service::start(config, deployment, observers).map(Arc::new)
    }

    /// Unloads what has been idle for its time, and writes down rollouts that ended by themselves. To be called now and then.
    pub fn tend(&self) {
        for entry in self.app.services.entries() {
            let Some(served) = entry.live() else { continue };
            self.note_return(&served);
            let Some(Made { now: wanted, .. }) = self.made().get(&entry.name).cloned() else { continue };
            let Some(warm) = wanted.keep_warm_s.map(Duration::from_secs) else { continue };
            let Ok(_changing) = entry.changing.try_lock() else { continue };
            let is_free = served.service.load().tokens == 0 && served.service.rollout().phase == Phase::Steady;
            if entry.unused() >= warm && is_free {
                entry.rest(None);
                self.note(&entry.name, "unload", (&describe(&wanted), ""), "done", None);
            }
        }
    }

    fn note_return(&self, served: &Served) {
        let Some(last) = served.service.rollout().last else { return };
        let Outcome::Returned(reason) = &last.outcome else { return };
        let noted = self.seen.lock().unwrap_or_else(PoisonError::into_inner).insert(served.name.clone(), last.at);
        if noted == Some(last.at) {
            return;
        }
        self.app.metrics.rollout(&served.name, "canary", "returned");
        let from = self.made().get(&served.name).map(|made| describe(&made.now)).unwrap_or_default();
        let figures = json!({"comparison": last.figures, "canary": last.canary});
        self.audit.write(&Record {
            who: "server",
            service: &served.name,
            what: "return",
            from: &last.candidate,
            to: &from,
            outcome: "done",
            reason: Some(reason),
            figures,
        });
    }

    /// Does what is asked. Blocks until it is done. What was found and done, as JSON.
    pub fn act(&self, who: &str, name: &str, action: &Action) -> Result<Value, HostError> {
        let entry = self.app.services.entry(name).ok_or_else(|| HostError::Unknown(name.to_owned()))?;
        let Ok(_changing) = entry.changing.try_lock() else { return Err(HostError::Busy(name.to_owned())) };
        if entry.claim() {
            self.wake(&entry);
        }
        let served = entry.live().ok_or_else(|| match entry.state() {
            State::Starting => HostError::Starting(name.to_owned()),
            _ => HostError::Busy(name.to_owned()),
        })?;
        let current = self.made().get(name).map(|made| made.now.clone()).unwrap_or_else(ServiceConfig::embedded);
        let from = describe(&current);
        let (to, result) = self.acted(&entry, &served, &current, action);
        let (outcome, reason) = match &result {
            Ok(_) if matches!(action, Action::Shadow { .. } | Action::Canary { .. }) => ("started", None),
            Ok(_) => ("done", None),
            Err(HostError::Rollout(RolloutError::Refused(_))) => ("refused", result.as_ref().err()),
            Err(error) => ("failed", Some(error)),
        };
        let reason = reason.map(ToString::to_string);
        let figures = match &result {
            Ok(figures) => figures.clone(),
            Err(HostError::Rollout(RolloutError::Refused(lanes))) => json!({"lanes": lanes}),
            Err(_) => Value::Null,
        };
        self.app.metrics.rollout(name, action.name(), outcome);
        let what = action.name();
        let reason = reason.as_deref();
        self.audit.write(&Record { who, service: name, what, from: &from, to: &to, outcome, reason, figures });
        result.map(|figures| json!({"service": name, "action": what, "from": from, "to": to, "result": figures}))
    }

    /// What was to serve, and what came of it.
    fn acted(
        &self,
        entry: &Entry,
        served: &Arc<Served>,
        current: &ServiceConfig,
        action: &Action,
    ) -> (String, Result<Value, HostError>) {
        let service = &served.service;
        let staged = || self.made().get(&entry.name).and_then(|made| made.candidate.clone());
        match action {
            Action::Swap { change, bounds, force } => {
                let wanted = change.of(current, served.model.task());
                (describe(&wanted), self.swap(entry, served, &wanted, bounds, *force))
            }
            Action::Shadow { change, share } => {
                let wanted = change.of(current, served.model.task());
                let plan = ShadowPlan { share: *share, queue_tokens: MIRROR_TOKENS };
                let result = self.stage(served, &wanted, |candidate| service.shadow(candidate, &plan));
                (describe(&wanted), result)
            }
            Action::Canary { change, share, bounds } => {
                let wanted = change.of(current, served.model.task());
                let plan = CanaryPlan { share: *share, bounds: *bounds, queue_tokens: MIRROR_TOKENS };
                let result = self.stage(served, &wanted, |candidate| service.canary(candidate, &plan));
                (describe(&wanted), result)
            }
            Action::Promote => {
                let wanted = staged().unwrap_or_else(|| current.clone());
                let result = service.promote(self.app.limits().drain).map(|report| {
                    self.take_over(entry, served, &wanted);
                    json!(report)
                });
                (describe(&wanted), result.map_err(HostError::from))
            }
            Action::Abort => {
                let result = service
                    .abort(self.app.limits().drain)
                    .map(|(ended, report)| json!({"ended": ended, "unloaded": report}));
                (describe(current), result.map_err(HostError::from))
            }
        }
    }

    fn swap(
        &self,
        entry: &Entry,
        served: &Arc<Served>,
        wanted: &ServiceConfig,
        bounds: &Bounds,
        force: bool,
    ) -> Result<Value, HostError> {
        let phase = served.service.rollout().phase;
        if phase != Phase::Steady {
            return Err(RolloutError::Busy(phase).into());
        }
        let loaded = self.loaded(&served.name, wanted)?;
        let candidate = Candidate { deployment: loaded.deployment, description: describe(wanted) };
        let probes = match wanted.probes.as_slice() {
            [] => default_probes(served.model.task()),
            texts => texts.iter().map(|text| Input::from(text.as_str())).collect(),
        };
        let plan = SwapPlan { probes, bounds: *bounds, force, drain: self.app.limits().drain };
        let report = served.service.swap(candidate, &plan)?;
        self.take_over(entry, served, wanted);
        Ok(json!(report))
    }

    fn stage(
        &self,
        served: &Arc<Served>,
        wanted: &ServiceConfig,
        begin: impl FnOnce(Candidate) -> Result<(), RolloutError>,
    ) -> Result<Value, HostError> {
        let phase = served.service.rollout().phase;
        if phase != Phase::Steady {
            return Err(RolloutError::Busy(phase).into());
        }
        let loaded = self.loaded(&served.name, wanted)?;
        begin(Candidate { deployment: loaded.deployment, description: describe(wanted) })?;
        if let Some(made) = self.made().get_mut(&served.name) {
            made.candidate = Some(wanted.clone());
        }
        Ok(json!(served.service.rollout()))
    }

    /// The service answers with another deployment: its model is the one that requests are read for.
    fn take_over(&self, entry: &Entry, old: &Served, wanted: &ServiceConfig) {
        let model = old.service.deployment().model.clone().unwrap_or_else(|| Arc::clone(&old.model));
        entry.put(served(&entry.name, wanted, model, Arc::clone(&old.service)));
        self.made().insert(entry.name.clone(), Made { now: wanted.clone(), candidate: None });
    }

    /// What the server did by itself.
    pub(crate) fn note(
        &self,
        service: &str,
        what: &str,
        (from, to): (&str, &str),
        outcome: &str,
        reason: Option<&str>,
    ) {
        self.audit.write(&Record { who: "server", service, what, from, to, outcome, reason, figures: Value::Null });
    }
}

fn served(name: &str, wanted: &ServiceConfig, model: Arc<Model>, service: Arc<Service>) -> Arc<Served> {
    let deadline = wanted.limits.deadline_ms.map(Duration::from_millis);
    Arc::new(Served { name: name.to_owned(), model, service, deadline })
}

/// Model, backends and precision in a line.
pub(crate) fn describe(wanted: &ServiceConfig) -> String {
    let model = model_name(wanted);
    let mut text = format!("{model} on {} in {}", wanted.backends.join(","), wanted.precision);
    if wanted.attention != Attention::Auto {
        text.push_str(&format!(" with {} attention", wanted.attention));
    }
    if wanted.buckets != BucketSource::Auto {
        text.push_str(&format!(" in buckets {}", wanted.buckets));
    }
    text
}

/// The model as the configuration names it.
fn model_name(wanted: &ServiceConfig) -> String {
    wanted.model.as_ref().map_or_else(|| "the embedded model".to_owned(), |model| model.display().to_string())
}
