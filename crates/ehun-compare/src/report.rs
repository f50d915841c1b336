//! What a comparison found.

use serde::{Deserialize, Serialize};

use crate::drift::Drift;
use crate::job::JobRun;
use crate::paper::AttentionTime;
use crate::side::Cost;
use crate::stats::{Gain, Round};
use crate::verdict::{Finding, Limits, Verdict};

/// One side, as it turned out to be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SideReport {
    /// As it was asked for.
    pub name: String,
    /// The backend and the device; empty where it refused.
    pub runs_on: String,
    /// What it costs to have.
    pub cost: Cost,
}

/// The job with chunks of one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LengthResult {
    /// Most tokens of a chunk.
    pub chunk_tokens: usize,
    /// Their mean.
    pub mean_tokens: f64,
    /// The baseline's job: the run of median time.
    pub baseline: JobRun,
    /// The candidate's.
    pub candidate: JobRun,
    /// Seconds of each round.
    pub rounds: Vec<Round>,
    /// Attention's share of the baseline's job, as time on the clock.
    pub attention_share: Option<f64>,
    /// How much faster attention is on the candidate, over the chunks of this job.
    pub attention_gain: Option<f64>,
    /// Whether the two figures above are estimated from attention alone at the mean length, because a backend does not take
    /// the time of operations.
    pub estimated: bool,
    /// What the whole job would gain if nothing but attention changed: Amdahl's law, 1 / (1 - share + share / gain).
    pub allowed_gain: Option<f64>,
    /// What it would gain if attention took no time: 1 / (1 - share).
    pub most_gain: Option<f64>,
    /// What it gained.
    pub gain: Gain,
    /// What that is under the limits.
    pub finding: Finding,
}

/// What a comparison found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Version of the program.
    pub version: String,
    /// The model.
    pub model: String,
    /// Its attention operations.
    pub attention_operations: usize,
    /// The processor of this machine and the cores that the program may use.
    pub machine: String,
    /// Where one comes from.
    pub baseline: SideReport,
    /// Where one might go.
    pub candidate: SideReport,
    /// Attention alone, by length.
    pub paper: Vec<AttentionTime>,
    /// The whole job, by the size of chunks, smallest first; empty where the candidate refused the model.
    pub pipeline: Vec<LengthResult>,
    /// How far the answers are from each other.
    pub drift: Drift,
    /// What the verdict goes by.
    pub limits: Limits,
    /// The verdict.
    pub verdict: Verdict,
}

impl JobRun {
    /// Documents a second.
    pub fn documents_per_second(&self) -> f64 {
        self.documents as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// Tokens a second.
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// The kernels that ran.
    pub fn kernels(&self) -> String {
        let named = self.kernels.iter().filter(|(name, _)| !name.is_empty());
        named.map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
    }
}
