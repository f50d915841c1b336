//! Runs sequences on a compiled graph, in as many batches as its shapes need, and watches what the backend reports.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use ehun_backend::{
    Attention, Backend, BackendError, BackendInfo, Bucket, Executable, Options, Outputs, Precision, Refusal,
    RunOptions, ShapePolicy,
};
use ehun_graph::{Graph, RaggedBatch, Rows, SequenceInput, WeightStore};

/// The results of one sequence.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SequenceRows {
    /// For each output of the graph, the rows of the sequence.
    pub outputs: Vec<Vec<f32>>,
    /// The static shape that it ran in.
    pub bucket: Option<Bucket>,
}

/// What reports said that cannot be, and the kernels that they named.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    pub lies: BTreeSet<String>,
    pub kernels: BTreeMap<String, usize>,
    pub runs: u64,
}

/// A compiled graph under watch.
pub(crate) struct Runner {
    executable: Box<dyn Executable>,
    policy: ShapePolicy,
    info: BackendInfo,
    precision: Precision,
    attention: Attention,
    num_attentions: usize,
    watch: Arc<Mutex<Watch>>,
}

/// Why there is no runner.
pub(crate) enum NoRunner {
    /// The backend said that it cannot.
    Refused(Vec<Refusal>),
    /// It broke the contract.
    Broken(String),
}

impl Runner {
    /// Asks for the capabilities, compiles, and checks that the two agree.
    pub fn compile(
        backend: &dyn Backend,
        graph: &Graph,
        weights: &WeightStore,
        options: &Options,
        watch: Arc<Mutex<Watch>>,
    ) -> Result<Self, NoRunner> {
        let capabilities = backend.capabilities(graph, options);
        let compiled = backend.compile(Arc::new(graph.clone()), weights, options);
        match compiled {
            Ok(executable) if capabilities.refusals.is_empty() => {
                let policy = executable.shape_policy();
                Ok(Self {
                    executable,
                    policy,
                    info: backend.info(),
                    precision: options.precision,
                    attention: options.attention.clone(),
                    num_attentions: graph.attentions().count(),
                    watch,
                })
            }
            Ok(_) => Err(NoRunner::Broken(format!(
                "capabilities refuse ({}), and yet it compiles",
                capabilities.refusals.iter().map(Refusal::to_string).collect::<Vec<_>>().join("; ")
            ))),
            Err(BackendError::Refused(refusals)) if !capabilities.refusals.is_empty() => {
                let empty = refusals.iter().any(|r| r.reason.trim().is_empty() || r.operation.trim().is_empty());
                if refusals.is_empty() || empty {
                    return Err(NoRunner::Broken("refused without a reason or an operation".to_owned()));
                }
                Err(NoRunner::Refused(refusals))
            }
            Err(error) => Err(NoRunner::Broken(format!("capabilities accept, and compiling says: {error}"))),
        }
    }

    /// Whether results may depend on a static shape.
    pub fn has_buckets(&self) -> bool {
        matches!(self.policy, ShapePolicy::Buckets(_))
    }

    /// Whether `count` sequences of at most `longest` and together `tokens` tokens fit one batch.
    pub fn fits(&self, count: usize, longest: usize, tokens: usize) -> bool {
        match &self.policy {
            ShapePolicy::Ragged { max_tokens } => tokens <= *max_tokens,
            ShapePolicy::Buckets(buckets) => {
                buckets.iter().any(|bucket| bucket.batch >= count && bucket.length >= longest)
            }
        }
    }

    /// Runs `sequences` in their order, in as few batches as the shapes allow.
    pub fn run(&self, sequences: &[&SequenceInput]) -> Result<Vec<SequenceRows>, String> {
        let mut results = Vec::new();
        let mut start = 0;
        while start < sequences.len() {
            let mut end = start;
            let (mut longest, mut tokens) = (0, 0);
            while end < sequences.len() {
                let len = sequences[end].token_ids.len();
                if end > start && !self.fits(end - start + 1, longest.max(len), tokens + len) {
                    break;
                }
                (longest, tokens) = (longest.max(len), tokens + len);
                end += 1;
            }
            results.extend(self.run_batch(&sequences[start..end])?);
            start = end;
        }
        Ok(results)
    }

    fn run_batch(&self, sequences: &[&SequenceInput]) -> Result<Vec<SequenceRows>, String> {
        let batch = RaggedBatch::pack(sequences.iter().copied()).map_err(|e| e.to_string())?;
        let outputs =
            self.raw(&batch).map_err(|e| format!("{e} (lengths {:?})", batch.lengths().collect::<Vec<_>>()))?;
        let mut results: Vec<SequenceRows> =
            sequences.iter().map(|_| SequenceRows { outputs: Vec::new(), bucket: outputs.report.bucket }).collect();
        for value in &outputs.values {
            let rows = match value.rows {
                Rows::Tokens => batch.num_tokens(),
                Rows::Sequences => batch.num_sequences(),
                Rows::Constant(count) => count,
            };
            if value.data.len() != rows * value.width {
                return Err(format!(
                    "output `{}` has {} numbers for {rows} rows of {}",
                    value.name,
                    value.data.len(),
                    value.width
                ));
            }
            for (i, result) in results.iter_mut().enumerate() {
                let range = match value.rows {
                    Rows::Tokens => batch.rows(i),
                    Rows::Sequences => i..i + 1,
                    Rows::Constant(count) => 0..count,
                };
                result.outputs.push(value.data[range.start * value.width..range.end * value.width].to_vec());
            }
        }
        Ok(results)
    }

    /// Runs a batch as it is.
    pub fn raw(&self, batch: &RaggedBatch) -> Result<Outputs, BackendError> {
        let outputs = ehun_backend::run(self.executable.as_ref(), batch, &RunOptions::default())?;
        self.look(batch, &outputs);
        Ok(outputs)
    }

    /// The executable itself.
    pub fn executable(&self) -> &dyn Executable {
        self.executable.as_ref()
    }

    fn look(&self, batch: &RaggedBatch, outputs: &Outputs) {
        let report = &outputs.report;
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        watch.runs += 1;
        let mut expect = |holds: bool, lie: String| {
            if !holds {
                watch.lies.insert(lie);
            }
        };
        expect(report.backend == self.info.name, format!("the report names the backend `{}`", report.backend));
        expect(
            report.precision == self.precision,
            format!("{} was asked for, the report says {}", self.precision, report.precision),
        );
        expect(
            report.tokens == batch.num_tokens() && report.sequences == batch.num_sequences(),
            "the report's tokens or sequences are not the batch's".to_owned(),
        );
        if let ShapePolicy::Buckets(buckets) = &self.policy {
            let known = report.bucket.is_some_and(|bucket| buckets.contains(&bucket));
            expect(known || batch.num_sequences() == 0, "the report names no bucket of the shape policy".to_owned());
            if let Some(bucket) = report.bucket {
                let padding = (bucket.batch * bucket.length).saturating_sub(batch.num_tokens());
                expect(
                    report.padding_tokens == padding,
                    format!("padding is {}, the bucket {bucket} has {padding}", report.padding_tokens),
                );
            }
        }
        if self.num_attentions > 0 && batch.num_tokens() > 0 {
            expect(!report.attention.is_empty(), "the report names no attention kernel".to_owned());
        }
        for name in report.attention.keys() {
            let right = match &self.attention {
                Attention::Auto | Attention::File(_) => true,
                Attention::Named(wanted) => wanted == name,
            };
            expect(right, format!("attention {} was asked for, `{name}` ran", self.attention));
            let known = self.info.attention_kernels.contains(name) || matches!(self.attention, Attention::File(_));
            expect(known, format!("`{name}` ran and is not among the backend's kernels"));
        }
        for (name, count) in &report.attention {
            *watch.kernels.entry(name.clone()).or_default() += count;
        }
    }
}
