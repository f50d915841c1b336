//! The services by name: which are loaded, which are idle, and who is told when an idle one is wanted.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use ehun_backend::Progress;
use ehun_engine::Service;
use ehun_models::{Model, Task};
use tokio::sync::watch;

use crate::fault::{self, Fault, Kind};

/// A service with what its answers mean, as it is at this moment: a swap puts another in its place.
pub struct Served {
    /// Name in the configuration; clients name it as the model.
    pub name: String,
    /// The model: task, labels, prompts, limits.
    pub model: Arc<Model>,
    /// The engine's service.
    pub service: Arc<Service>,
    /// How long a request may take.
    pub deadline: Option<Duration>,
}

/// Whether a service can answer.
#[derive(Clone)]
pub enum State {
    /// It is loaded for the first time, since the server started.
    Starting,
    /// It can.
    Live(Arc<Served>),
    /// It was unloaded after a time without requests, and comes back when it is wanted.
    Idle,
    /// It is coming back.
    Loading,
}

impl State {
    /// The name in reports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Live(_) => "live",
            Self::Idle => "idle",
            Self::Loading => "loading",
        }
    }
}

/// A place in the list of services.
pub struct Entry {
    /// Name in the configuration.
    pub name: String,
    /// What it was loaded as the last time, so that it is found while it is idle. The task of a service that is starting is
    /// known where the configuration names it.
    about: RwLock<(Option<Task>, String)>,
    state: watch::Sender<State>,
    used: Mutex<Instant>,
    /// What its last loading failed with.
    error: Mutex<Option<String>>,
    /// How far its backends are that compile programs before they are ready.
    progress: Mutex<Option<Progress>>,
    /// Held by whoever changes it.
    pub(crate) changing: Mutex<()>,
}

impl Entry {
    /// A place for `served`.
    pub fn new(served: Arc<Served>) -> Arc<Self> {
        let about = (Some(served.model.task()), served.model.name().to_owned());
        Self::with(served.name.clone(), about, State::Live(served))
    }

    /// A place for a service that will be loaded: its name, its task where that is known, and what its model is called.
    pub fn starting(name: &str, task: Option<Task>, model: String) -> Arc<Self> {
        Self::with(name.to_owned(), (task, model), State::Starting)
    }

    fn with(name: String, about: (Option<Task>, String), state: State) -> Arc<Self> {
        Arc::new(Self {
            name,
            about: RwLock::new(about),
            state: watch::Sender::new(state),
            used: Mutex::new(Instant::now()),
            error: Mutex::default(),
            progress: Mutex::default(),
            changing: Mutex::default(),
        })
    }

    /// Whether it can answer.
    pub fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// The service, where it is loaded.
    pub fn live(&self) -> Option<Arc<Served>> {
        match self.state() {
            State::Live(served) => Some(served),
            State::Starting | State::Idle | State::Loading => None,
        }
    }

    /// Its task; `None` while it is starting and only its model can tell.
    pub fn task(&self) -> Option<Task> {
        self.about.read().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Its model's name.
    pub fn model(&self) -> String {
        self.about.read().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// Puts `served` in place. Requests that hold the one before end on it.
    pub fn put(&self, served: Arc<Served>) {
        let about = (Some(served.model.task()), served.model.name().to_owned());
        *self.about.write().unwrap_or_else(PoisonError::into_inner) = about;
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.touch();
        self.state.send_replace(State::Live(served));
    }

    /// Lets the service go. Requests that hold it end on it.
    pub(crate) fn rest(&self, error: Option<String>) {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = error;
        self.state.send_replace(State::Idle);
    }

    /// Whether whoever calls is to load it: it was idle, and is loading from now on.
    pub(crate) fn claim(&self) -> bool {
        self.state.send_if_modified(|state| {
            let idle = matches!(state, State::Idle);
            if idle {
                *state = State::Loading;
            }
            idle
        })
    }

    /// How far its backends are, where they compile programs.
    pub fn progress(&self) -> Option<Progress> {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes down how far they are.
    pub(crate) fn told(&self, progress: Progress) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
    }

    fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// How long nobody has asked for it.
    pub(crate) fn unused(&self) -> Duration {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// What a request is told that comes before it is loaded.
    pub fn is_starting(&self) -> Fault {
        let progress = self.progress().filter(|progress| progress.next.is_some());
        let how_far = progress.map(|progress| format!(": {progress}")).unwrap_or_default();
        let fault =
            Fault::new(Kind::Starting, format!("the service `{}` is starting{how_far}; try again soon", self.name));
        let left = progress.and_then(|progress| progress.left());
        Fault { retry_after: left.map(|left| left.clamp(fault::RETRY_AFTER, LONGEST_RETRY)), ..fault }
    }

    fn is_called(&self, name: &str) -> bool {
        // Clients of other servers send the hub's name, with or without the organisation.
        let model = self.model();
        self.name == name || model == name || model.rsplit('/').next() == name.rsplit('/').next()
    }
}

/// Most that a client is told to wait for a service that is starting: the estimate may be wrong.
const LONGEST_RETRY: Duration = Duration::from_secs(60);

type Waker = Box<dyn Fn(Arc<Entry>) + Send + Sync>;

/// All services, in their order.
#[derive(Default)]
pub struct Services {
    entries: RwLock<Vec<Arc<Entry>>>,
    waker: OnceLock<Waker>,
}

impl Services {
    /// All places.
    pub fn entries(&self) -> Vec<Arc<Entry>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The place of this name.
    pub fn entry(&self, name: &str) -> Option<Arc<Entry>> {
        self.entries().into_iter().find(|entry| entry.name == name)
    }

    /// The services that are loaded.
    pub fn live(&self) -> Vec<Arc<Served>> {
        self.entries().iter().filter_map(|entry| entry.live()).collect()
    }

    /// Adds a service behind the others.
    pub fn add(&self, served: Arc<Served>) {
        self.entries.write().unwrap_or_else(PoisonError::into_inner).push(Entry::new(served));
    }

    /// Adds a place for a service that will be loaded.
    pub(crate) fn expect(&self, entry: Arc<Entry>) {
        self.entries.write().unwrap_or_else(PoisonError::into_inner).push(entry);
    }

    /// The first service that has not been loaded yet since the server started.
    pub fn starting(&self) -> Option<Arc<Entry>> {
        self.entries().into_iter().find(|entry| matches!(entry.state(), State::Starting))
    }

    /// Takes a service out. Requests that hold it end on it.
    pub fn remove(&self, name: &str) {
        self.entries.write().unwrap_or_else(PoisonError::into_inner).retain(|entry| entry.name != name);
    }

    /// Has `waker` called with each service that is wanted while it is idle; it is marked as loading already.
    pub fn on_wanted(&self, waker: impl Fn(Arc<Entry>) + Send + Sync + 'static) {
        // Set once, when the server starts.
        let _ = self.waker.set(Box::new(waker));
    }

    /// Waits until no service is loading.
    pub async fn settled(&self) {
        for entry in self.entries() {
            // The entry holds its sender, so that waiting ends with its state.
            let _ = entry.state.subscribe().wait_for(|state| !matches!(state, State::Loading)).await;
        }
    }

    /// The service that a request means: by name where it gives one, else the first with the first of `tasks` that any has.
    pub fn find(&self, name: Option<&str>, tasks: &[Task]) -> Result<Arc<Served>, Fault> {
        let entries = self.entries();
        let wanted: Vec<&str> = tasks.iter().map(|task| task.name()).collect();
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            // One whose task is not known yet may be the one that is meant: no later one answers in its place.
            let first = |task: &Task| entries.iter().find(|entry| entry.task().is_none_or(|of| of == *task));
            let found = tasks.iter().find_map(first).ok_or_else(|| {
                Fault::new(Kind::NotFound, format!("no service here has the task {}", wanted.join(" or ")))
            });
            return self.wanted(found?);
        };
        let Some(found) = entries.iter().find(|entry| entry.is_called(name)) else {
            let known: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
            let message = format!("there is no model `{name}`; this server has {}", known.join(", "));
            return Err(Fault::new(Kind::NotFound, message).at("model"));
        };
        let Some(task) = found.task().filter(|task| !tasks.contains(task)) else { return self.wanted(found) };
        Err(Fault::invalid(format!("`{name}` is a model for {task}, this route is for {}", wanted.join(" or ")))
            .at("model"))
    }

    fn wanted(&self, entry: &Arc<Entry>) -> Result<Arc<Served>, Fault> {
        entry.touch();
        if let Some(served) = entry.live() {
            return Ok(served);
        }
        if matches!(entry.state(), State::Starting) {
            return Err(entry.is_starting());
        }
        let error = entry.error.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if entry.claim() {
            match self.waker.get() {
                Some(wake) => wake(Arc::clone(entry)),
                None => entry.rest(None),
            }
        }
        let mut fault = entry.is_starting();
        if let Some(error) = error {
            fault.message.push_str(&format!("; the last time it failed: {error}"));
        }
        Err(Fault { waits: true, ..fault })
    }
}
