//! Runs the job both ways and puts together what was found.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use ehun_backend::Refusal;
use ehun_documents::WorkerPool;
use ehun_engine::{Request, tasks};
use ehun_graph::AttentionSpec;
use ehun_models::{Model, Task};
use ehun_pipeline::{ChunkVector, Producer};
use serde::{Deserialize, Serialize};

use crate::classify;
use crate::drift::{Drift, Queries, cosine, cosines, flips, ndcg, spearman};
use crate::error::CompareError;
use crate::job::{self, Engine, JobRun, Work};
use crate::paper::{self, AttentionTime};
use crate::report::{Comparison, LengthResult, SideReport};
use crate::side::{Cost, Side, resident};
use crate::stats::{Gain, Round, gain};
use crate::verdict::{Advice, Limits, Verdict, finding, verdict};

/// A query with what is relevant to it: a line of a queries file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Query {
    /// Its text.
    pub query: String,
    /// Grades of documents, named by the end of their path. Empty where it is not known.
    #[serde(default)]
    pub relevant: BTreeMap<String, f64>,
}

/// What is run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Files and folders.
    pub inputs: Vec<PathBuf>,
    /// Most tokens of a chunk, one job for each.
    pub chunk_tokens: Vec<usize>,
    /// Lengths at which attention is measured alone.
    pub paper_lengths: Vec<usize>,
    /// Rounds, four jobs each: two of the baseline and two of the candidate.
    pub rounds: usize,
    /// Most tokens of a batch.
    pub batch_tokens: usize,
    /// Queries for the drift of search.
    pub queries: Vec<Query>,
    /// What the verdict goes by.
    pub limits: Limits,
}

/// What a comparison works with.
pub struct Tools<'a> {
    /// The model that both sides run.
    pub model: &'a Arc<Model>,
    /// What its vectors come from.
    pub producer: &'a Producer,
    /// Parses documents.
    pub pool: &'a WorkerPool,
    /// Hears how far it is.
    pub progress: &'a dyn Fn(&str),
}

/// Compares `candidate` with `baseline`.
///
/// # Errors
/// Where a job fails on either side: then there is nothing to compare.
pub fn compare(tools: &Tools<'_>, plan: &Plan, baseline: &Side, candidate: &Side) -> Result<Comparison, CompareError> {
    let mut found = empty(tools, plan, [baseline, candidate].map(side_report));
    let sides = [baseline, candidate];
    if let Some(spec) = usual(tools.model) {
        (tools.progress)("attention alone");
        found.paper = paper::measure(spec, sides, &plan.paper_lengths, plan.rounds)?;
    }
    let engines =
        [Engine::start(baseline, plan.batch_tokens, false)?, Engine::start(candidate, plan.batch_tokens, false)?];
    let profiled =
        [Engine::start(baseline, plan.batch_tokens, true)?, Engine::start(candidate, plan.batch_tokens, true)?];
    let mut lengths = plan.chunk_tokens.clone();
    lengths.sort_unstable();
    lengths.dedup();
    let mut pairs = Vec::new();
    for chunk_tokens in lengths {
        let job = Job { tools, plan, chunk_tokens };
        // The first run warms up and gives the answers.
        let mut answers = Vec::new();
        for (engine, cost) in engines.iter().zip([&mut found.baseline.cost, &mut found.candidate.cost]) {
            (tools.progress)(&format!("chunks of {chunk_tokens}: warming up {}", engine.side.name));
            let before = resident();
            answers.push(job.run(engine, true)?.1);
            cost.memory_growth += resident() - before;
        }
        if answers[0].is_empty() {
            return Err(CompareError::Nothing);
        }
        let of_candidate = answers.pop().unwrap_or_default();
        pairs.extend(answers.pop().unwrap_or_default().into_iter().zip(of_candidate));
        found.pipeline.push(job.measure(&engines, &profiled, &found.paper)?);
    }
    found.drift = drift(tools.model, &pairs, &plan.queries, &engines)?;
    let gains: Vec<(usize, Gain)> = found.pipeline.iter().map(|at| (at.chunk_tokens, at.gain)).collect();
    found.verdict = verdict(&gains, &found.drift, &plan.limits);
    Ok(found)
}

/// The comparison with a candidate that refuses the model: nothing is run, and the reasons are the result.
pub fn refused(tools: &Tools<'_>, plan: &Plan, baseline: &Side, candidate: &str, refusals: &[Refusal]) -> Comparison {
    let refusals: Vec<String> = refusals.iter().map(Refusal::to_string).collect();
    let sentence = format!("leave: the candidate refuses the model ({})", refusals.join("; "));
    let cost = Cost { refusals, ..Cost::default() };
    let candidate = SideReport { name: candidate.to_owned(), runs_on: String::new(), cost };
    let mut found = empty(tools, plan, [side_report(baseline), candidate]);
    found.verdict = Verdict { advice: Advice::Leave, sentence };
    found
}

fn side_report(side: &Side) -> SideReport {
    let runs_on = match &side.local {
        Some(local) => {
            let info = local.backend.info();
            format!("{} on {}, {}", info.name, info.device, local.options.precision)
        }
        None => side.deployment.lanes.first().map_or_else(String::new, |lane| lane.runner().name().to_owned()),
    };
    SideReport { name: side.name.clone(), runs_on, cost: side.cost.clone() }
}

fn empty(tools: &Tools<'_>, plan: &Plan, [baseline, candidate]: [SideReport; 2]) -> Comparison {
    Comparison {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        model: tools.model.name().to_owned(),
        attention_operations: tools.model.graph().attentions().count(),
        machine: machine(),
        baseline,
        candidate,
        paper: Vec::new(),
        pipeline: Vec::new(),
        drift: Drift::default(),
        limits: plan.limits,
        verdict: Verdict { advice: Advice::Leave, sentence: String::new() },
    }
}

fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        info.lines().find_map(|line| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim().to_owned()));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{}, {cores} cores", model.unwrap_or_else(|| std::env::consts::ARCH.to_owned()))
}

/// The specification that most attention operations of the model have.
fn usual(model: &Model) -> Option<&AttentionSpec> {
    let specs: Vec<&AttentionSpec> = model.graph().attentions().map(|(_, spec)| spec).collect();
    specs.iter().copied().max_by_key(|spec| specs.iter().filter(|other| other == &spec).count())
}

/// The job with chunks of one size.
struct Job<'a> {
    tools: &'a Tools<'a>,
    plan: &'a Plan,
    chunk_tokens: usize,
}

impl Job<'_> {
    fn run(&self, engine: &Engine<'_>, wanted: bool) -> Result<(JobRun, Vec<ChunkVector>), CompareError> {
        let work = Work {
            model: self.tools.model,
            producer: self.tools.producer,
            pool: self.tools.pool,
            inputs: &self.plan.inputs,
            chunk_tokens: self.chunk_tokens,
        };
        if self.tools.model.task() == Task::Embed {
            job::run(engine, &work, wanted)
        } else {
            classify::run(engine, &work)
        }
    }

    /// One round, on copies of the two sides of its own where that is quick; the candidate's is made first in every other round.
    fn round(&self, engines: &[Engine<'_>; 2], number: usize) -> Result<[JobRun; 4], CompareError> {
        let again = |engine: &Engine<'_>| engine.side.again(self.tools.model);
        let copies = if number.is_multiple_of(2) {
            let candidate = again(&engines[1])?;
            [again(&engines[0])?, candidate]
        } else {
            [again(&engines[0])?, again(&engines[1])?]
        };
        let start = |side| Engine::start(side, self.plan.batch_tokens, false);
        let fresh = match &copies {
            [Some(a), Some(b)] => Some([start(a)?, start(b)?]),
            _ => None,
        };
        let [a, b] = fresh.as_ref().unwrap_or(engines);
        let (first, second) = (self.run(a, false)?.0, self.run(b, false)?.0);
        let (third, fourth) = (self.run(b, false)?.0, self.run(a, false)?.0);
        Ok([first, second, third, fourth])
    }

    fn measure(
        &self,
        engines: &[Engine<'_>; 2],
        profiled: &[Engine<'_>; 2],
        paper: &[AttentionTime],
    ) -> Result<LengthResult, CompareError> {
        let (mut rounds, mut of_a, mut of_b) = (Vec::new(), Vec::new(), Vec::new());
        for round in 1..=self.plan.rounds.max(2) {
            (self.tools.progress)(&format!("chunks of {}: round {round}", self.chunk_tokens));
            let [first, second, third, fourth] = self.round(engines, round)?;
            rounds
                .push(Round { baseline: [first.seconds, fourth.seconds], candidate: [second.seconds, third.seconds] });
            of_a.extend([first, fourth]);
            of_b.extend([second, third]);
        }
        let gain = gain(&rounds).ok_or(CompareError::Nothing)?;
        let (baseline, candidate) = (middle(of_a), middle(of_b));
        let (with_times_a, with_times_b) = (self.run(&profiled[0], false)?.0, self.run(&profiled[1], false)?.0);
        let mean_tokens = baseline.tokens as f64 / baseline.chunks.max(1) as f64;
        let operations = self.tools.model.graph().attentions().count();
        let known = with_times_a.stages.attention.zip(with_times_b.stages.attention);
        let attention = known.or_else(|| at_length(paper, mean_tokens, operations as f64 * baseline.chunks as f64));
        // The profiled job is the one whose time the attention in it is a share of.
        let whole = if known.is_some() { with_times_a.seconds } else { baseline.seconds };
        let share = attention.map(|(a, _)| (a / whole).min(1.0));
        let faster = attention.filter(|&(_, b)| b > 0.0).map(|(a, b)| a / b);
        Ok(LengthResult {
            chunk_tokens: self.chunk_tokens,
            mean_tokens,
            attention_share: share,
            attention_gain: faster,
            estimated: known.is_none(),
            allowed_gain: share.zip(faster).map(|(share, faster)| 1.0 / (1.0 - share + share / faster)),
            most_gain: share.map(|share| 1.0 / (1.0 - share).max(f64::MIN_POSITIVE)),
            finding: finding(&gain, &self.plan.limits),
            baseline: JobRun { stages: with(&baseline, &with_times_a), ..baseline },
            candidate: JobRun { stages: with(&candidate, &with_times_b), ..candidate },
            rounds,
            gain,
        })
    }
}

/// The stages of a run, with attention as the profiled run has it.
fn with(run: &JobRun, profiled: &JobRun) -> job::StageSeconds {
    job::StageSeconds { attention: profiled.stages.attention, ..run.stages }
}

/// The run of median time.
fn middle(mut runs: Vec<JobRun>) -> JobRun {
    runs.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let middle = runs.len() / 2;
    if middle < runs.len() { runs.swap_remove(middle) } else { JobRun::default() }
}

/// Seconds of `count` operations at a length, on both sides, by attention alone at the lengths around it.
fn at_length(paper: &[AttentionTime], length: f64, count: f64) -> Option<(f64, f64)> {
    let known: Vec<&AttentionTime> = paper.iter().filter(|time| time.gain.is_some()).collect();
    let above = known.iter().position(|time| time.length as f64 >= length).unwrap_or(known.len().checked_sub(1)?);
    let (low, high) = (known[above.saturating_sub(1)], known[above]);
    let width = (high.length - low.length) as f64;
    let part = if width > 0.0 { ((length - low.length as f64) / width).clamp(0.0, 1.0) } else { 1.0 };
    let between = |a: f64, b: f64| (a + (b - a) * part) * 1e-6 * count;
    Some((between(low.baseline_us, high.baseline_us), between(low.candidate_us, high.candidate_us)))
}

fn drift(
    model: &Model,
    pairs: &[(ChunkVector, ChunkVector)],
    queries: &[Query],
    engines: &[Engine<'_>; 2],
) -> Result<Drift, CompareError> {
    let missing = pairs.iter().filter(|(a, b)| a.vector.is_empty() != b.vector.is_empty()).count();
    let both: Vec<&(ChunkVector, ChunkVector)> =
        pairs.iter().filter(|(a, b)| !a.vector.is_empty() && !b.vector.is_empty()).collect();
    let vectors = || both.iter().map(|(a, b)| (a.vector.as_slice(), b.vector.as_slice()));
    if model.task() != Task::Embed {
        return Ok(Drift { missing, flips: Some(flips(vectors())), ..Drift::default() });
    }
    let queries = if queries.is_empty() { None } else { Some(search(&both, queries, engines)?) };
    Ok(Drift { missing, cosines: cosines(vectors()), queries, flips: None })
}

/// Ranks the documents, each by its best chunk, for every query on both sides.
fn search(
    pairs: &[&(ChunkVector, ChunkVector)],
    queries: &[Query],
    engines: &[Engine<'_>; 2],
) -> Result<Queries, CompareError> {
    let mut asked = Vec::new();
    for engine in engines {
        let failed = CompareError::engine(&engine.side.name);
        let inputs = queries.iter().map(|query| query.query.as_str().into()).collect();
        let items = engine.service.request_when_room(Request::new(inputs)).map_err(&failed)?.wait().items;
        let vectors: Result<Vec<Vec<f32>>, _> = items.into_iter().map(|item| item.and_then(tasks::row)).collect();
        asked.push(vectors.map_err(&failed)?);
    }
    let (mut correlations, mut ndcgs) = (Vec::new(), [Vec::new(), Vec::new()]);
    for (number, query) in queries.iter().enumerate() {
        let mut scores = [BTreeMap::new(), BTreeMap::new()];
        for (a, b) in pairs {
            for (side, chunk) in [a, b].into_iter().enumerate() {
                let score = cosine(&asked[side][number], &chunk.vector);
                let best = scores[side].entry(chunk.path.as_str()).or_insert(f64::NEG_INFINITY);
                *best = score.max(*best);
            }
        }
        let values = |side: usize| scores[side].values().copied().collect::<Vec<f64>>();
        correlations.push(spearman(&values(0), &values(1)));
        let grades = grades(query, scores[0].keys().copied());
        if grades.values().any(|&grade| grade > 0.0) {
            (0..2).for_each(|side| ndcgs[side].push(ndcg(&scores[side], &grades)));
        }
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let known = |values: &[f64]| (!values.is_empty()).then(|| mean(values));
    Ok(Queries {
        count: queries.len(),
        rank_correlation: mean(&correlations),
        worst_rank_correlation: correlations.iter().copied().fold(1.0, f64::min),
        baseline_ndcg: known(&ndcgs[0]),
        candidate_ndcg: known(&ndcgs[1]),
    })
}

/// The grades of documents that end as the query's file names them.
fn grades<'a>(query: &Query, documents: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, f64> {
    if query.relevant.is_empty() {
        return BTreeMap::new();
    }
    documents
        .filter_map(|path| {
            let name = path.rsplit('/').next().unwrap_or(path);
            let grade = query.relevant.get(name).or_else(|| query.relevant.get(path))?;
            Some((path, *grade))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_between_two_lengths_is_between_their_times() {
        let time = |length, baseline_us| AttentionTime {
            length,
            batch: 1,
            baseline_us,
            candidate_us: baseline_us / 2.0,
            gain: Some(Gain { estimate: 2.0, low: 2.0, high: 2.0 }),
            refused: None,
        };
        let paper = [time(64, 10.0), time(128, 30.0)];
        for (length, want) in [(96.0, 20.0), (128.0, 30.0), (32.0, 10.0), (500.0, 30.0)] {
            let (a, b) = at_length(&paper, length, 1e6).unwrap();
            assert!((a - want).abs() < 1e-9 && (b - want / 2.0).abs() < 1e-9, "{length}: {a} {b}");
        }
        assert_eq!(at_length(&[], 64.0, 1.0), None);
    }

    #[test]
    fn documents_are_named_by_the_end_of_their_path() {
        let relevant = BTreeMap::from([("a.txt".to_owned(), 2.0), ("x/b.txt".to_owned(), 1.0)]);
        let query = Query { query: "q".into(), relevant };
        let found = grades(&query, ["in/a.txt", "x/b.txt", "in/c.txt"].into_iter());
        assert_eq!(found, BTreeMap::from([("in/a.txt", 2.0), ("x/b.txt", 1.0)]));
    }
}
