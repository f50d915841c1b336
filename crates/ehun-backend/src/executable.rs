//! A compiled model: plan a batch, run it, report what ran.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use ehun_graph::{RaggedBatch, Rows};
use serde::{Deserialize, Serialize};

use crate::error::BackendError;
use crate::options::Precision;

/// A static shape: this many sequences of this many tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Bucket {
    /// Sequences.
    pub batch: usize,
    /// Tokens of each.
    pub length: usize,
}

impl std::fmt::Display for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x{}", self.batch, self.length)
    }
}

/// Which batches an executable takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShapePolicy {
    /// Any batch of up to so many tokens, without padding.
    Ragged {
        /// Most tokens in a batch.
        max_tokens: usize,
    },
    /// Batches that fit one of these, padded to it. Never empty.
    Buckets(Vec<Bucket>),
}

impl ShapePolicy {
    /// The longest sequence that is taken.
    pub fn max_sequence(&self) -> usize {
        match self {
            Self::Ragged { max_tokens } => *max_tokens,
            Self::Buckets(buckets) => buckets.iter().map(|bucket| bucket.length).max().unwrap_or(0),
        }
    }
}

/// What will be done with a batch. Made by [`Executable::plan`] for one batch and given back to [`Executable::run`] with
/// the same one.
pub struct Plan {
    /// The static shape, where there is one.
    pub bucket: Option<Bucket>,
    /// Token rows that will be computed and thrown away.
    pub padding_tokens: usize,
    /// How many sequences each attention kernel gets.
    pub attention: BTreeMap<String, usize>,
    /// Memory of the run beside the weights, in bytes, as far as known.
    pub memory_bytes: u64,
    /// What the backend wants to remember.
    pub detail: Box<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan")
            .field("bucket", &self.bucket)
            .field("padding_tokens", &self.padding_tokens)
            .field("attention", &self.attention)
            .field("memory_bytes", &self.memory_bytes)
            .finish_non_exhaustive()
    }
}

/// How a batch is to be run.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunOptions {
    /// When the answer is of no more use. A backend looks at it between operations where it can.
    pub deadline: Option<Instant>,
    /// Whether time is to be taken for each operation ([`RunReport::operations`]).
    pub profile: bool,
}

/// Time spent in one kind of operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpTime {
    /// Name of the operation, or of what several were fused into: `linear+gelu`.
    pub operation: String,
    /// How often it ran.
    pub count: usize,
    /// Time in seconds, all runs together.
    pub seconds: f64,
    /// Floating-point operations, a multiplication and an addition counted as two; 0 where not counted.
    pub flops: u64,
}

/// What did run. Goes into metrics, response headers and the columns of the output.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    /// The backend's name.
    pub backend: String,
    /// The device.
    pub device: String,
    /// The precision of the products.
    pub precision: Precision,
    /// How many sequences each attention kernel computed.
    pub attention: BTreeMap<String, usize>,
    /// The static shape, where there was one.
    pub bucket: Option<Bucket>,
    /// Sequences of the batch.
    pub sequences: usize,
    /// Tokens of the batch.
    pub tokens: usize,
    /// Token rows computed and thrown away.
    pub padding_tokens: usize,
    /// Time of the run.
    pub elapsed: Duration,
    /// Time by operation, where it was asked for.
    pub operations: Vec<OpTime>,
}

/// One named result.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputRows {
    /// The name in the graph.
    pub name: String,
    /// What the rows are; token rows are packed as the batch is.
    pub rows: Rows,
    /// Columns.
    pub width: usize,
    /// `[rows, width]`, row-major, no padding.
    pub data: Vec<f32>,
}

impl OutputRows {
    /// Row `i`.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.data[i * self.width..(i + 1) * self.width]
    }
}

/// The results of a batch, in the order of the graph's outputs, and what ran.
#[derive(Debug, Clone, PartialEq)]
pub struct Outputs {
    /// The results.
    pub values: Vec<OutputRows>,
    /// What ran.
    pub report: RunReport,
}

impl Outputs {
    /// The result `name`.
    pub fn get(&self, name: &str) -> Option<&OutputRows> {
        self.values.iter().find(|value| value.name == name)
    }
}

/// Where the operations of a compiled model run, for backends that hand them to several providers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The provider, as the runtime names it.
    pub provider: String,
    /// How many operations of each kind it has.
    pub operators: BTreeMap<String, usize>,
}

/// A compiled model. See the crate's page for what an implementation promises.
pub trait Executable: Send + Sync {
    /// Which batches it takes.
    fn shape_policy(&self) -> ShapePolicy;

    /// Decides what will be done with `batch`. Fails with `Refused` where no shape takes it, and with `InvalidInput` where
    /// it does not fit the model.
    fn plan(&self, batch: &RaggedBatch) -> Result<Plan, BackendError>;

    /// Which operations run where. Empty where all run on the backend's one device.
    fn placement(&self) -> Vec<Placement> {
        Vec::new()
    }

    /// Computes `batch` as `plan`, made for it, says.
    fn run(&self, plan: &Plan, batch: &RaggedBatch, options: &RunOptions) -> Result<Outputs, BackendError>;
}

/// Plans and runs a batch; a panic of the backend becomes an error of this batch. Callers use this and not the two methods.
pub fn run(executable: &dyn Executable, batch: &RaggedBatch, options: &RunOptions) -> Result<Outputs, BackendError> {
    if options.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
        return Err(BackendError::Deadline);
    }
    let work = AssertUnwindSafe(|| {
        let plan = executable.plan(batch)?;
        executable.run(&plan, batch, options)
    });
    catch_unwind(work).unwrap_or_else(|panic| {
        let message = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "no message".to_owned());
        Err(BackendError::Panicked(message))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Panics;

    impl Executable for Panics {
        fn shape_policy(&self) -> ShapePolicy {
            ShapePolicy::Ragged { max_tokens: 1 }
        }
        fn plan(&self, _: &RaggedBatch) -> Result<Plan, BackendError> {
            Ok(Plan {
                bucket: None,
                padding_tokens: 0,
                attention: BTreeMap::new(),
                memory_bytes: 0,
                detail: Box::new(()),
            })
        }
        fn run(&self, _: &Plan, _: &RaggedBatch, _: &RunOptions) -> Result<Outputs, BackendError> {
            panic!("planted")
        }
    }

    #[test]
    fn a_panic_is_an_error_of_the_batch() {
        let batch = RaggedBatch::from_ids::<Vec<u32>>(&[]);
        let error = run(&Panics, &batch, &RunOptions::default()).unwrap_err();
        assert_eq!(error, BackendError::Panicked("planted".into()));
    }

    #[test]
    fn a_passed_deadline_does_not_run() {
        let batch = RaggedBatch::from_ids::<Vec<u32>>(&[]);
        let options = RunOptions { deadline: Some(Instant::now()), profile: false };
        assert_eq!(run(&Panics, &batch, &options).unwrap_err(), BackendError::Deadline);
    }
}
