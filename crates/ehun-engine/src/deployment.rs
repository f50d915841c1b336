//! A model with the backends that serve it, in order; and how a batch goes from one to the next.

use std::sync::Arc;
use std::time::Instant;

use ehun_backend::{BackendError, RunOptions};
use ehun_graph::GraphError;
use ehun_models::Model;

use crate::error::EngineError;
use crate::fallback::LeftOut;
use crate::health::HealthState;
use crate::item::{Prepared, Tokenize};
use crate::lane::{Lane, LaneError};
use crate::observe::Observer;
use crate::runner::{ItemOutput, passed};
use crate::shape::Shape;

/// A model with the backends that serve it. A swap replaces a service's deployment by another, between two batches.
pub struct Deployment {
    /// The model's name and revision, as shown to people and written to outputs.
    pub label: String,
    /// The model, where it is known here and not only to a service elsewhere.
    pub model: Option<Arc<Model>>,
    /// Its tokeniser.
    pub tokenizer: Arc<dyn Tokenize>,
    /// The backends, the preferred first.
    pub lanes: Vec<Arc<Lane>>,
    /// Backends that were to be among them and could not be made ready.
    pub left_out: Vec<LeftOut>,
}

impl std::fmt::Debug for Deployment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lanes: Vec<&str> = self.lanes.iter().map(|lane| lane.name()).collect();
        f.debug_struct("Deployment").field("label", &self.label).field("lanes", &lanes).finish_non_exhaustive()
    }
}

/// What a batch is run under.
pub(crate) struct Run<'a> {
    pub(crate) service: &'a str,
    pub(crate) options: RunOptions,
    pub(crate) observers: &'a [Arc<dyn Observer>],
}

impl Deployment {
    /// What the backend that will be asked first takes at once.
    pub(crate) fn shape(&self) -> Shape {
        let lane = self.lanes.iter().find(|lane| lane.state() != HealthState::Open).or(self.lanes.first());
        lane.map_or(Shape::Tokens { max_tokens: usize::MAX, max_items: usize::MAX }, |lane| lane.runner().shape())
    }

    /// Runs a batch on the first backend that answers it. One result for each item.
    ///
    /// A batch that every backend fails is halved again and again, so that an item which breaks backends takes no other
    /// with it.
    pub(crate) fn run(&self, items: &[Arc<Prepared>], run: &Run<'_>) -> Vec<Result<ItemOutput, EngineError>> {
        let mut batch = Batch { items, results: vec![None; items.len()], not_finite: vec![None; items.len()] };
        let all: Vec<usize> = (0..items.len()).collect();
        let reasons = self.pass(&mut batch, &all, run, true);
        batch.fail_not_finite();
        let open = batch.open(&all);
        let mut patience = 4 + 2 * items.len().max(2).ilog2();
        match reasons {
            Reasons::Asked(reasons) if open.len() > 1 => {
                self.isolate(&mut batch, &open, run, &reasons, &mut patience);
            }
            Reasons::Asked(reasons) | Reasons::NoneAsked(reasons) => batch.fail(&open, &reasons),
        }
        let lost = || EngineError::Unavailable(Arc::from([]));
        batch.results.into_iter().map(|result| result.unwrap_or_else(|| Err(lost()))).collect()
    }

    /// Runs the two halves of a failed batch. After `patience` failures in a row the rest is given up: then it is the
    /// backend and not an item.
    fn isolate(&self, batch: &mut Batch<'_>, failed: &[usize], run: &Run<'_>, reasons: &[String], patience: &mut u32) {
        let full_patience = 4 + 2 * batch.items.len().max(2).ilog2();
        for half in [&failed[..failed.len() / 2], &failed[failed.len() / 2..]] {
            if *patience == 0 || passed(run.options.deadline) {
                batch.fail(half, reasons);
                continue;
            }
            let found = self.pass(batch, half, run, false);
            batch.fail_not_finite();
            let open = batch.open(half);
            match found {
                _ if open.is_empty() => *patience = full_patience,
                Reasons::Asked(reasons) if open.len() > 1 => {
                    *patience -= 1;
                    self.isolate(batch, &open, run, &reasons, patience);
                }
                Reasons::Asked(reasons) | Reasons::NoneAsked(reasons) => {
                    *patience = patience.saturating_sub(1);
                    batch.fail(&open, &reasons);
                }
            }
        }
    }

    /// Asks the backends in order until the items have answers. Why those that are still open have none.
    fn pass(&self, batch: &mut Batch<'_>, places: &[usize], run: &Run<'_>, judge: bool) -> Reasons {
        let mut reasons = Vec::new();
        let mut asked = false;
        for lane in &self.lanes {
            let before = lane.state();
            if !lane.admits() {
                let health = lane.health();
                reasons.push(format!("{}: resting after `{}`", lane.name(), health.last_error.unwrap_or_default()));
                continue;
            }
            asked = true;
            if let Some(reason) = batch.ask(lane, places, run, judge) {
                run.observers.iter().for_each(|observer| observer.failure(run.service, lane.name(), &reason));
                reasons.push(format!("{}: {reason}", lane.name()));
            }
            let after = lane.state();
            if before != after {
                run.observers.iter().for_each(|observer| observer.health(run.service, lane.name(), before, after));
            }
            if batch.open(places).is_empty() {
                break;
            }
        }
        if self.lanes.is_empty() {
            reasons.push("the service has no backend".to_owned());
        }
        if asked { Reasons::Asked(reasons) } else { Reasons::NoneAsked(reasons) }
    }
}

/// Why items are still open after a pass.
enum Reasons {
    /// At least one backend was asked: asking again with fewer items may help.
    Asked(Vec<String>),
    /// All are resting.
    NoneAsked(Vec<String>),
}

struct Batch<'a> {
    items: &'a [Arc<Prepared>],
    /// `None` is open.
    results: Vec<Option<Result<ItemOutput, EngineError>>>,
    /// The backend that last gave the item an answer that was not finite.
    not_finite: Vec<Option<Arc<str>>>,
}

impl Batch<'_> {
    fn is_open(&self, place: usize) -> bool {
        self.results[place].is_none()
    }

    fn open(&self, places: &[usize]) -> Vec<usize> {
        places.iter().copied().filter(|&place| self.is_open(place)).collect()
    }

    fn fail(&mut self, places: &[usize], reasons: &[String]) {
        let error = EngineError::Unavailable(reasons.into());
        for &place in places {
            self.results[place].get_or_insert_with(|| Err(error.clone()));
        }
    }

    /// Closes the items that no backend gave a finite answer: asking again with fewer items changes nothing, since an
    /// answer depends on its item alone.
    fn fail_not_finite(&mut self) {
        for (result, backend) in self.results.iter_mut().zip(&self.not_finite) {
            if let (None, Some(backend)) = (&result, backend) {
                *result = Some(Err(EngineError::NotFinite { backend: Arc::clone(backend) }));
            }
        }
    }

    /// Asks one backend for the open ones of `places`. `None` where it did its part, else what was wrong.
    fn ask(&mut self, lane: &Lane, places: &[usize], run: &Run<'_>, judge: bool) -> Option<String> {
        loop {
            let open = self.open(places);
            if open.is_empty() {
                lane.unjudged();
                return None;
            }
            let items: Vec<Arc<Prepared>> = open.iter().map(|&place| Arc::clone(&self.items[place])).collect();
            match lane.run(&items, &run.options) {
                Ok(outputs) => return self.accept(lane, &open, outputs, judge),
                Err(LaneError::Runner(BackendError::Deadline)) => {
                    lane.unjudged();
                    for place in open {
                        self.results[place] = Some(Err(EngineError::Deadline));
                    }
                    return None;
                }
                // The item is taken out and the rest asked again.
                Err(LaneError::Runner(BackendError::InvalidInput(GraphError::Batch { sequence, message })))
                    if sequence < open.len() =>
                {
                    self.results[open[sequence]] = Some(Err(EngineError::invalid(message)));
                }
                Err(LaneError::Runner(BackendError::InvalidInput(error))) if open.len() == 1 => {
                    lane.unjudged();
                    self.results[open[0]] = Some(Err(EngineError::invalid(error)));
                    return None;
                }
                Err(error) => {
                    let is_fatal = matches!(
                        error,
                        LaneError::Hung(_) | LaneError::Stuck(_) | LaneError::Runner(BackendError::DeviceLost(_))
                    );
                    let of_the_batch =
                        matches!(error, LaneError::Runner(BackendError::Refused(_) | BackendError::InvalidInput(_)));
                    let message = error.to_string();
                    if (judge && !of_the_batch) || is_fatal {
                        lane.failed(&message, is_fatal);
                    } else {
                        lane.unjudged();
                    }
                    return Some(message);
                }
            }
        }
    }

    /// Takes the finite answers. Those that are not finite stay open for the next backend.
    fn accept(&mut self, lane: &Lane, open: &[usize], outputs: Vec<ItemOutput>, judge: bool) -> Option<String> {
        let mut bad = 0;
        for (&place, output) in open.iter().zip(outputs) {
            if output.values.iter().all(|value| value.is_finite()) {
                self.results[place] = Some(Ok(output));
            } else {
                self.not_finite[place] = Some(lane.name().into());
                bad += 1;
            }
        }
        if bad == 0 {
            lane.succeeded();
            return None;
        }
        let message = format!("answers that are not finite numbers for {bad} of {} items", open.len());
        // One item may be out of the model's range; a backend that is broken spoils them all.
        if bad < open.len() {
            lane.succeeded();
        } else if judge {
            lane.failed(&message, false);
        } else {
            lane.unjudged();
        }
        Some(message)
    }
}

/// The latest of the deadlines; `None` where one has none.
pub(crate) fn latest(deadlines: impl Iterator<Item = Option<Instant>>) -> Option<Instant> {
    deadlines.collect::<Option<Vec<Instant>>>()?.into_iter().max()
}
