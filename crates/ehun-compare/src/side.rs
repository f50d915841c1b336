//! One of the two that are compared, and what it costs to have.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ehun_backend::{Backend, BackendError, Options, Refusal, RunOptions};
use ehun_engine::{Deployment, HealthPolicy, ItemOutput, Lane, Prepared, Runner, Shape};
use ehun_models::Model;
use serde::{Deserialize, Serialize};

use crate::error::CompareError;

/// What it costs to have a side, before the first document.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Seconds to compile the model, from mapped weights to an executable.
    pub compile_seconds: f64,
    /// Seconds from the start of a new process to the answer of one short text, the median of three; absent where it was not
    /// measured.
    pub start_seconds: Option<f64>,
    /// Bytes by which the memory of the process grew while compiling and running the first job.
    pub memory_growth: i64,
    /// Bytes of the weights, as the backend says.
    pub weight_bytes: u64,
    /// Bytes of the largest batch, as far as the backend knows.
    pub batch_bytes: Option<u64>,
    /// Shared libraries that were loaded for it and were not there before.
    pub libraries: Vec<String>,
    /// What it refuses, with reasons.
    pub refusals: Vec<String>,
    /// What else a reader should know: whether a plug-in has passed the conformance suite here.
    pub notes: Vec<String>,
}

/// A backend of this process, by which attention can also be run alone.
#[derive(Clone)]
pub struct Local {
    /// The backend.
    pub backend: Arc<dyn Backend>,
    /// What is asked of it.
    pub options: Options,
}

/// One of the two that are compared.
pub struct Side {
    /// As it was asked for: `cpu/flash/int8`.
    pub name: String,
    /// What serves the model.
    pub deployment: Arc<Deployment>,
    /// Where it runs, if that is this process.
    pub local: Option<Local>,
    /// Batches that are run at the same time: one where this machine's cores do the work, several where they only wait.
    pub workers: usize,
    /// What it costs to have.
    pub cost: Cost,
    /// By which share each run of its backends is made longer.
    handicap: Option<f64>,
}

/// Seconds of compiling up to which a side is compiled anew in each round.
const QUICK: f64 = 1.0;

impl Side {
    /// `model` compiled for a backend of this process. The outer error is the backend's refusals.
    ///
    /// # Errors
    /// What the backend refuses, each with its reason, or its failure to compile.
    pub fn local(name: impl Into<String>, local: Local, model: &Arc<Model>) -> Result<Self, Vec<Refusal>> {
        let said = local.backend.capabilities(model.graph(), &local.options);
        if !said.refusals.is_empty() {
            return Err(said.refusals);
        }
        let (libraries, memory, start) = (loaded(), resident(), Instant::now());
        let backends = [Arc::clone(&local.backend)];
        let deployment = Deployment::of_model(Arc::clone(model), &backends, &local.options, HealthPolicy::default())
            .map_err(|error| match *error.source {
                BackendError::Refused(refusals) => refusals,
                other => vec![Refusal::new("compiling", other.to_string())],
            })?;
        let mut cost = Cost {
            compile_seconds: start.elapsed().as_secs_f64(),
            weight_bytes: said.weight_bytes,
            batch_bytes: said.batch_bytes,
            ..Cost::default()
        };
        cost.memory_growth = resident() - memory;
        cost.libraries = loaded().difference(&libraries).cloned().collect();
        Ok(Self { name: name.into(), deployment, local: Some(local), workers: 1, cost, handicap: None })
    }

    /// `model` as a service elsewhere runs it: there is nothing to compile, and its weights, memory and attention are its own
    /// affair. `workers` of its batches are under way at the same time.
    pub fn remote(name: impl Into<String>, runner: Arc<dyn Runner>, workers: usize, model: &Arc<Model>) -> Self {
        let lane = Lane::new(runner, HealthPolicy::default());
        let deployment = Deployment::of_lanes(Arc::clone(model), vec![lane]);
        let notes = vec!["a service elsewhere: weights, memory and attention are not seen from here".to_owned()];
        let cost = Cost { notes, ..Cost::default() };
        Self { name: name.into(), deployment, local: None, workers, cost, handicap: None }
    }

    /// The same side compiled anew; nothing where that takes long or cannot be done from here. Where its memory happens to lie
    /// makes one copy of a model faster than another by some per cent for as long as both live: more rounds with the same two
    /// copies would only be surer of that.
    ///
    /// # Errors
    /// What the backend says, which has compiled the same before.
    pub(crate) fn again(&self, model: &Arc<Model>) -> Result<Option<Self>, CompareError> {
        let Some(local) = self.local.clone().filter(|_| self.cost.compile_seconds < QUICK) else { return Ok(None) };
        let side = Self::local(self.name.clone(), local, model).map_err(|refusals| {
            let why: Vec<String> = refusals.iter().map(ToString::to_string).collect();
            CompareError::Again { side: self.name.clone(), message: why.join("; ") }
        })?;
        let side = match self.handicap {
            Some(share) => side.slowed(share),
            None => side,
        };
        Ok(Some(side))
    }

    /// The side with every run of its backends made longer by `share` of its own time: a handicap of a known size, to see
    /// whether a comparison finds it.
    pub fn handicapped(self, share: f64) -> Self {
        let mut side = self.slowed(share);
        side.name += &format!(" + {:.0} %", 100.0 * share);
        side
    }

    fn slowed(mut self, share: f64) -> Self {
        let slow = |lane: &Arc<Lane>| {
            let runner = Slowed { inner: Arc::clone(lane.runner()), share };
            Lane::new(Arc::new(runner), HealthPolicy::default())
        };
        self.deployment = Arc::new(Deployment {
            label: self.deployment.label.clone(),
            model: self.deployment.model.clone(),
            tokenizer: Arc::clone(&self.deployment.tokenizer),
            lanes: self.deployment.lanes.iter().map(slow).collect(),
            left_out: self.deployment.left_out.clone(),
        });
        self.handicap = Some(share);
        self
    }
}

struct Slowed {
    inner: Arc<dyn Runner>,
    share: f64,
}

impl Runner for Slowed {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn shape(&self) -> Shape {
        self.inner.shape()
    }

    fn run(&self, items: &[Arc<Prepared>], options: &RunOptions) -> Result<Vec<ItemOutput>, BackendError> {
        let start = Instant::now();
        let outputs = self.inner.run(items, options);
        let until = start.elapsed() + Duration::from_secs_f64(start.elapsed().as_secs_f64() * self.share);
        // Busy, as a slower kernel would be.
        while start.elapsed() < until {
            std::hint::spin_loop();
        }
        outputs
    }
}

/// Bytes of memory that this process holds; 0 where the system does not say.
pub(crate) fn resident() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<i64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// File names of the shared libraries that this process has loaded; none where the system does not say.
pub fn loaded() -> BTreeSet<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let library = |line: &str| {
        let path = Path::new(line.split_whitespace().nth(5)?);
        let name = path.file_name()?.to_string_lossy().into_owned();
        (name.ends_with(".so") || name.contains(".so.")).then_some(name)
    };
    maps.lines().filter_map(library).collect()
}
