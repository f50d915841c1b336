//! Something that answers batches: a compiled model in this process, or a service elsewhere.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ehun_backend::{BackendError, Executable, OutputRows, RunOptions, RunReport, ShapePolicy};
use ehun_graph::{RaggedBatch, Rows};

use crate::item::Prepared;
use crate::shape::{Shape, split};

/// One result of one item: a sequence row, or its token rows.
#[derive(Debug, Clone, PartialEq)]
pub struct ItemRows {
    /// Name in the graph: `embedding`, `logits`.
    pub name: Arc<str>,
    /// Number of rows: 1, or the item's tokens.
    pub rows: usize,
    /// Columns.
    pub width: usize,
    /// `[rows, width]`, row-major.
    pub data: Vec<f32>,
}

impl ItemRows {
    /// Whether every value is a finite number.
    pub fn is_finite(&self) -> bool {
        self.data.iter().all(|x| x.is_finite())
    }
}

/// What a runner gives for one item.
#[derive(Debug, Clone, PartialEq)]
pub struct ItemOutput {
    /// Results, in the order of the graph's outputs.
    pub values: Vec<ItemRows>,
    /// The run that made them, shared by the items of the run.
    pub report: Arc<RunReport>,
    /// The attention kernel that computed this item; empty where it is not known.
    pub attention: Arc<str>,
}

/// Something that answers batches. Implementations: [`LocalRunner`], and clients of services elsewhere.
///
/// `run` may be called from several threads at once, and it may be given up on: if it does not come back in time, its
/// thread is left behind and its answer is thrown away.
pub trait Runner: Send + Sync {
    /// The name under which it is reported: `cpu`, `oip+grpc://host:8001/model`.
    fn name(&self) -> &str;

    /// Which batches it takes at once.
    fn shape(&self) -> Shape;

    /// Answers `items`, one output for each and in their order. Any number of items is legal: a runner splits what is
    /// too much for it at once.
    fn run(&self, items: &[Arc<Prepared>], options: &RunOptions) -> Result<Vec<ItemOutput>, BackendError>;
}

/// A compiled model in this process.
pub struct LocalRunner {
    name: String,
    executable: Box<dyn Executable>,
    shape: Shape,
    /// The attention kernel by length, where a batch had several: a ragged backend chooses by a sequence's own length.
    kernels: Mutex<HashMap<usize, Arc<str>>>,
}

impl LocalRunner {
    /// `executable`, reported as `name`.
    pub fn new(name: impl Into<String>, executable: Box<dyn Executable>) -> Self {
        let shape = match executable.shape_policy() {
            ShapePolicy::Ragged { max_tokens } => Shape::Tokens { max_tokens, max_items: usize::MAX },
            ShapePolicy::Buckets(buckets) => Shape::Buckets(buckets),
        };
        Self { name: name.into(), executable, shape, kernels: Mutex::default() }
    }

    fn kernel(&self, report: &RunReport, item: &Prepared) -> Arc<str> {
        if report.attention.len() < 2 {
            return report.attention.keys().next().map_or("", String::as_str).into();
        }
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = kernels.entry(item.num_tokens());
        Arc::clone(entry.or_insert_with(|| {
            let alone = RaggedBatch::pack([&item.tokens.sequence]).ok();
            let plan = alone.and_then(|batch| self.executable.plan(&batch).ok());
            plan.and_then(|plan| plan.attention.keys().next().cloned()).unwrap_or_default().into()
        }))
    }
}

impl Runner for LocalRunner {
    fn name(&self) -> &str {
        &self.name
    }

    fn shape(&self) -> Shape {
        self.shape.clone()
    }

    fn run(&self, items: &[Arc<Prepared>], options: &RunOptions) -> Result<Vec<ItemOutput>, BackendError> {
        let lengths: Vec<usize> = items.iter().map(|item| item.num_tokens()).collect();
        let mut outputs: Vec<Option<ItemOutput>> = items.iter().map(|_| None).collect();
        for part in split(&self.shape, &lengths) {
            // An error names a sequence of the part; the caller knows it by its place among all items.
            let place = |error| at_item(error, &part);
            let batch = RaggedBatch::pack(part.iter().map(|&i| &items[i].tokens.sequence))
                .map_err(|error| place(error.into()))?;
            let answer = ehun_backend::run(self.executable.as_ref(), &batch, options).map_err(place)?;
            let report = Arc::new(answer.report);
            let names: Vec<Arc<str>> = answer.values.iter().map(|value| value.name.as_str().into()).collect();
            for (row, &i) in part.iter().enumerate() {
                let values =
                    answer.values.iter().zip(&names).map(|(value, name)| item_rows(value, name, &batch, row)).collect();
                let attention = self.kernel(&report, &items[i]);
                outputs[i] = Some(ItemOutput { values, report: Arc::clone(&report), attention });
            }
        }
        let all: Option<Vec<ItemOutput>> = outputs.into_iter().collect();
        all.ok_or_else(|| BackendError::Failed("an item was left out when the batch was split".into()))
    }
}

fn item_rows(value: &OutputRows, name: &Arc<str>, batch: &RaggedBatch, sequence: usize) -> ItemRows {
    let rows = match value.rows {
        Rows::Tokens => batch.rows(sequence),
        Rows::Sequences => sequence..sequence + 1,
        Rows::Constant(count) => 0..count,
    };
    let data = value.data[rows.start * value.width..rows.end * value.width].to_vec();
    ItemRows { name: Arc::clone(name), rows: rows.len(), width: value.width, data }
}

fn at_item(error: BackendError, part: &[usize]) -> BackendError {
    match error {
        BackendError::InvalidInput(ehun_graph::GraphError::Batch { sequence, message }) => {
            let sequence = part.get(sequence).copied().unwrap_or(sequence);
            BackendError::InvalidInput(ehun_graph::GraphError::Batch { sequence, message })
        }
        other => other,
    }
}

/// Whether `deadline` has passed.
pub(crate) fn passed(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}
