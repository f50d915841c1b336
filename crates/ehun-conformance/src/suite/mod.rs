//! The suite: runs everything, keeps going after a failure, and says what it found.

mod attention;
mod data;
mod honesty;
mod laws;
mod models;
mod operations;
mod runner;
mod spec;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ehun_backend::{Attention, Backend, BucketChoice, Options, Precision, Refusal};
use ehun_graph::{Graph, WeightStore};
use serde::{Deserialize, Serialize};

use crate::judge::Numerics;
use crate::report::{Check, Group, Outcome, Report, Tally};
pub use data::Pattern;
use runner::{NoRunner, Runner, Watch};

/// How much is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// Every kind of thing once; lengths up to 129, and 1000 once. For tests.
    Quick,
    /// Everything.
    #[default]
    Full,
}

/// What is to be tried, and how the backend is to compute it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ConformOptions {
    /// In what products are computed.
    pub precision: Precision,
    /// Which attention implementation.
    pub attention: Attention,
    /// Threads of a backend that runs on the CPU.
    pub threads: Option<usize>,
    /// How much is tried.
    pub profile: Profile,
    /// Where compiled programs are kept.
    pub cache: Option<PathBuf>,
    /// Run only checks of these groups; empty is all.
    pub groups: Vec<Group>,
    /// Run only checks whose name contains this.
    pub only: Option<String>,
    /// Stop after the first failure.
    pub fail_fast: bool,
}

/// What a run of the suite says while it runs.
#[derive(Debug, Clone, Copy)]
pub enum Progress<'a> {
    /// A check of this group and name begins: what was running, should the program end or hang now.
    Begun(Group, &'a str),
    /// A check is done.
    Done(&'a Check),
}

/// The version of the suite: it changes with every check, case or bound that is added or changed, so that a kernel that
/// passed an earlier one is tried again.
pub const SUITE_VERSION: u32 = 2;

/// Runs the suite on `backend`.
pub fn conform(backend: &dyn Backend, options: &ConformOptions) -> Report {
    conform_with(backend, options, &mut |_| {})
}

/// Runs the suite on `backend` and says to `progress` what begins and what is done.
pub fn conform_with(backend: &dyn Backend, options: &ConformOptions, progress: &mut dyn FnMut(Progress<'_>)) -> Report {
    let start = Instant::now();
    let mut suite =
        Suite { backend, options, watch: Arc::new(Mutex::new(Watch::default())), checks: Vec::new(), progress };
    let steps: [(Group, Step); 5] = [
        (Group::Honesty, honesty::run),
        (Group::Operations, operations::run),
        (Group::Attention, attention::run),
        (Group::Models, models::run),
        (Group::Laws, laws::run),
    ];
    for (group, step) in steps {
        let wanted = options.groups.is_empty() || options.groups.contains(&group);
        if wanted && !suite.stopped() {
            step(&mut suite);
        }
    }
    honesty::reports(&mut suite);
    let watch = suite.watch.lock().unwrap_or_else(PoisonError::into_inner);
    let info = backend.info();
    Report {
        backend: info.name,
        device: info.device,
        version: info.version,
        precision: options.precision,
        attention: options.attention.to_string(),
        threads: options.threads,
        profile: options.profile,
        kernels: watch.kernels.clone(),
        checks: suite.checks,
        seconds: start.elapsed().as_secs_f64(),
    }
}

type Step = fn(&mut Suite<'_>);

/// A run of the suite.
struct Suite<'a> {
    backend: &'a dyn Backend,
    options: &'a ConformOptions,
    watch: Arc<Mutex<Watch>>,
    checks: Vec<Check>,
    progress: &'a mut dyn FnMut(Progress<'_>),
}

impl Suite<'_> {
    fn numerics(&self) -> Numerics {
        Numerics { precision: self.options.precision }
    }

    fn full(&self) -> bool {
        self.options.profile == Profile::Full
    }

    fn stopped(&self) -> bool {
        self.options.fail_fast && self.checks.iter().any(|check| check.outcome == Outcome::Failed)
    }

    /// Whether a check of this name is to be run.
    fn wants(&self, name: &str) -> bool {
        self.options.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }

    fn add(&mut self, check: Check) {
        if self.wants(&check.name) {
            (self.progress)(Progress::Done(&check));
            self.checks.push(check);
        }
    }

    /// What is asked of the backend for sequences of up to `longest` tokens. Backends with static shapes get the same
    /// batch size for every length, so that a sequence runs in the same shape alone and with others.
    fn backend_options(&self, longest: usize) -> Options {
        let lengths: &[(usize, usize)] = &[(4, 16), (4, 64), (4, 160), (2, 1024), (1, 4096)];
        let enough = lengths.iter().position(|&(_, length)| length >= longest).unwrap_or(lengths.len() - 1);
        Options {
            precision: self.options.precision,
            attention: self.options.attention.clone(),
            threads: self.options.threads,
            max_sequence: longest.max(1),
            max_batch_tokens: 16_384,
            buckets: BucketChoice::List(lengths[..=enough].to_vec()),
            cache: self.options.cache.clone(),
        }
    }

    /// Compiles a graph for a check. Where that gives nothing to run, the check ends here: refused or failed.
    fn compile(
        &mut self,
        tally: Tally,
        graph: &Graph,
        weights: &WeightStore,
        longest: usize,
    ) -> Option<(Runner, Tally)> {
        let options = self.backend_options(longest);
        self.compile_with(tally, graph, weights, &options)
    }

    fn compile_with(
        &mut self,
        mut tally: Tally,
        graph: &Graph,
        weights: &WeightStore,
        options: &Options,
    ) -> Option<(Runner, Tally)> {
        if !self.wants(tally.name()) {
            return None;
        }
        (self.progress)(Progress::Begun(tally.group(), tally.name()));
        match Runner::compile(self.backend, graph, weights, options, self.watch.clone()) {
            Ok(runner) => Some((runner, tally)),
            Err(NoRunner::Refused(refusals)) => {
                self.add(tally.refused(refusals.iter().map(Refusal::to_string).collect()));
                None
            }
            Err(NoRunner::Broken(message)) => {
                tally.fail(message);
                self.add(tally.done());
                None
            }
        }
    }

    /// A check that could not even be set up: a fault of the suite, and never silent.
    fn broken(&mut self, group: Group, name: &str, message: impl std::fmt::Display) {
        let mut tally = Tally::new(group, name);
        tally.fail(format!("the case itself is wrong: {message}"));
        self.add(tally.done());
    }
}
