//! Warming a candidate up, and asking it and the baseline the same stored questions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ehun_backend::RunOptions;
use ehun_models::Task;
use serde::{Deserialize, Serialize};

use crate::deployment::{Deployment, Run};
use crate::error::EngineError;
use crate::item::{Input, ItemOptions, Prepared};
use crate::lane::Lane;
use crate::rollout::compare::{Bounds, Figures, Measure, Pair, Tally};
use crate::runner::ItemOutput;
use crate::shape::Shape;

/// How long a backend may take for its probes: the first run of some compiles.
const PATIENCE: Duration = Duration::from_secs(120);

/// Probes where a service has none of its own: several lengths, scripts and kinds of text.
const TEXTS: [&str; 8] = [
    "tide tables",
    "The harbour master kept the tide tables in a drawer beside the barometer.",
    "Before computers, tides were predicted by brass machines that added up the motions of the moon and the sun; one turn of \
     the crank was one day, and a year of high waters for one port took an afternoon of patient cranking and copying.",
    "Kündigungsfrist: drei Monate zum Quartalsende, schriftlich an die Geschäftsstelle.",
    "Les marées de vive-eau suivent la pleine lune d'un jour et demi.",
    "潮の満ち引きは月の引力によって起こる。",
    "Invoice 2041-7: 3 x 19.90 EUR, due 2026-12-31, VAT 19 %.",
    "fn main() { println!(\"{}\", 6 * 7); }",
];

/// The probes of a service that has none of its own. Reranking is asked about pairs, with one query.
pub fn default_probes(task: Task) -> Vec<Input> {
    match task {
        Task::Rerank => {
            TEXTS.iter().map(|text| Input::Pair("how are tides predicted".into(), (*text).into())).collect()
        }
        _ => TEXTS.iter().map(|text| Input::from(*text)).collect(),
    }
}

/// What one backend of a candidate did with the probes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LaneCheck {
    /// The backend.
    pub backend: String,
    /// Seconds that the warm-up took.
    pub warm_up_seconds: f64,
    /// Its answers beside the baseline's.
    pub figures: Figures,
    /// Why it cannot take over, if so.
    pub problem: Option<String>,
}

/// Items with the answers of the side that serves.
pub(crate) struct Answered {
    items: Vec<Arc<Prepared>>,
    outputs: Vec<ItemOutput>,
    seconds: f64,
}

/// The answers of `baseline` to `probes`.
pub(crate) fn ask_baseline(baseline: &Deployment, probes: &[Input]) -> Result<Answered, EngineError> {
    let items = prepare(baseline, probes)?;
    let start = Instant::now();
    let outputs = run(baseline, &items).into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(Answered { items, outputs, seconds: start.elapsed().as_secs_f64() })
}

/// Warms up every backend of `candidate` and compares its answers with the baseline's; without these it is only warmed up.
pub(crate) fn check(
    candidate: &Deployment,
    probes: &[Input],
    answered: Option<&Answered>,
    bounds: &Bounds,
) -> Result<Vec<LaneCheck>, EngineError> {
    let items = prepare(candidate, probes)?;
    let warm = candidate.lanes.iter().map(|lane| check_lane(candidate, lane, &items, answered, bounds));
    Ok(warm.collect())
}

fn check_lane(
    candidate: &Deployment,
    lane: &Arc<Lane>,
    items: &[Arc<Prepared>],
    answered: Option<&Answered>,
    bounds: &Bounds,
) -> LaneCheck {
    let alone = Deployment {
        label: candidate.label.clone(),
        model: candidate.model.clone(),
        tokenizer: Arc::clone(&candidate.tokenizer),
        lanes: vec![Arc::clone(lane)],
        left_out: Vec::new(),
    };
    let start = Instant::now();
    let warmed = warm_up(&alone, lane, items);
    let warm_up_seconds = start.elapsed().as_secs_f64();
    let mut tally = Tally::default();
    let mut problem = warmed.err().map(|error| error.to_string());
    if let (None, Some(answered)) = (&problem, answered) {
        let start = Instant::now();
        let outputs = run(&alone, items);
        tally.time(answered.seconds, start.elapsed().as_secs_f64());
        tally.mirrored = items.len() as u64;
        let mut pairs = Vec::new();
        for ((item, baseline), output) in answered.items.iter().zip(&answered.outputs).zip(&outputs) {
            match output {
                Ok(candidate) => pairs.push(Pair { item, request: 0, baseline, candidate }),
                Err(error) => tally.refuse(error),
            }
        }
        tally.add(Measure::of(candidate), &pairs);
        problem = found(&tally.figures(), bounds);
    }
    LaneCheck { backend: lane.name().to_owned(), warm_up_seconds, figures: tally.figures(), problem }
}

fn found(figures: &Figures, bounds: &Bounds) -> Option<String> {
    if let Some(refusal) = &figures.first_refusal {
        return Some(format!("{} of {} probes were not answered: {refusal}", figures.refused, figures.mirrored));
    }
    if figures.incomparable > 0 {
        return Some(
            "its answers have another form than the baseline's: vectors of another width, or other labels".into(),
        );
    }
    figures.breach(bounds, |spread| spread.worst)
}

fn prepare(deployment: &Deployment, probes: &[Input]) -> Result<Vec<Arc<Prepared>>, EngineError> {
    let one = |input: &Input| {
        Prepared::new(input.clone(), ItemOptions::default(), Arc::clone(&deployment.tokenizer)).map(Arc::new)
    };
    probes.iter().map(one).collect()
}

fn run(deployment: &Deployment, items: &[Arc<Prepared>]) -> Vec<Result<ItemOutput, EngineError>> {
    let options = RunOptions { deadline: Some(Instant::now() + PATIENCE), profile: false };
    deployment.run(items, &Run { service: "probes", options, observers: &[] })
}

/// Runs a sequence of each length that the backend has a shape for, so that the first request meets no first time.
fn warm_up(alone: &Deployment, lane: &Lane, items: &[Arc<Prepared>]) -> Result<(), EngineError> {
    let longest = alone.tokenizer.max_sequence();
    let mut lengths = match lane.runner().shape() {
        Shape::Tokens { max_tokens, .. } => vec![longest.min(max_tokens)],
        Shape::Buckets(buckets) => buckets.iter().map(|bucket| bucket.length.min(longest)).collect(),
    };
    lengths.sort_unstable();
    lengths.dedup();
    let sequences: Vec<Arc<Prepared>> = lengths.iter().filter_map(|&length| stretched(items, length)).collect();
    for result in run(alone, &sequences) {
        result?;
    }
    Ok(())
}

/// The longest probe, repeated to `length` tokens.
fn stretched(items: &[Arc<Prepared>], length: usize) -> Option<Arc<Prepared>> {
    let item = items.iter().max_by_key(|item| item.num_tokens())?;
    let mut tokens = item.tokens.clone();
    let ids = &item.tokens.sequence.token_ids;
    tokens.sequence = ehun_graph::SequenceInput {
        token_ids: ids.iter().cycle().take(if ids.is_empty() { 0 } else { length }).copied().collect(),
        ..Default::default()
    };
    let (input, options) = (item.input.clone(), item.options.clone());
    Some(Arc::new(Prepared { input, options, tokens, tokenizer: Arc::clone(&item.tokenizer) }))
}
