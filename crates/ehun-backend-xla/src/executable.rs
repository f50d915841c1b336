//! A compiled model: a program for each bucket, and the weights that they share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ehun_backend::{
    BackendError, Bucket, Executable, OpTime, OutputRows, Outputs, Piece, Plan, Precision, Refusal, RunOptions,
    RunReport, ShapePolicy, buckets, run_pieces,
};
use ehun_graph::{Graph, RaggedBatch, RotarySpec};

use crate::choice::BucketReport;
use crate::lower::{Input, InputSpec, rotary_specs};
use crate::parameters::{f32_bytes, i32_bytes};
use crate::pjrt::{Buffer, Client, LoadedExecutable, PjrtError};

static COMPILATIONS: AtomicU64 = AtomicU64::new(0);

/// How often this process has asked a compiler for a program. Constant once a model is ready.
pub fn compilations() -> u64 {
    COMPILATIONS.load(Ordering::Relaxed)
}

pub(crate) fn count_compilation() {
    COMPILATIONS.fetch_add(1, Ordering::Relaxed);
}

/// A bucket that is ready to run.
pub(crate) struct BucketProgram {
    pub(crate) report: BucketReport,
    pub(crate) executable: LoadedExecutable,
    pub(crate) inputs: Vec<InputSpec>,
    pub(crate) outputs: Vec<Vec<usize>>,
    /// The buffer of each input that is the same for every batch.
    pub(crate) shared: Vec<Option<Arc<Buffer>>>,
}

/// A model compiled for its buckets.
pub struct XlaExecutable {
    backend: String,
    device: String,
    client: Client,
    graph: Arc<Graph>,
    precision: Precision,
    rotary: Vec<RotarySpec>,
    buckets: Vec<Bucket>,
    programs: Vec<BucketProgram>,
    without: Vec<BucketReport>,
}

impl XlaExecutable {
    pub(crate) fn new(
        backend: String,
        device: String,
        client: Client,
        graph: Arc<Graph>,
        precision: Precision,
        programs: Vec<BucketProgram>,
        without: Vec<BucketReport>,
    ) -> Self {
        let rotary = rotary_specs(&graph);
        let buckets = programs.iter().map(|program| program.report.bucket).collect();
        Self { backend, device, client, graph, precision, rotary, buckets, programs, without }
    }

    /// What each bucket runs and why, those that no form serves last.
    pub fn reports(&self) -> impl Iterator<Item = &BucketReport> {
        self.programs.iter().map(|program| &program.report).chain(&self.without)
    }

    /// An input of a piece, in the program's shape.
    fn upload(&self, spec: &InputSpec, piece: &Piece<'_>) -> Result<Buffer, PjrtError> {
        let Piece { batch, bucket, ref sequences } = *piece;
        let padded = |values: &[u32]| {
            let mut rows = vec![0i32; bucket.batch * bucket.length];
            for (row, sequence) in sequences.clone().enumerate() {
                let place = row * bucket.length;
                for (slot, &value) in rows[place..].iter_mut().zip(&values[batch.rows(sequence)]) {
                    *slot = value as i32;
                }
            }
            i32_bytes(&rows)
        };
        let each = |number: &dyn Fn(usize) -> usize| {
            let mut rows = vec![0i32; bucket.batch];
            for (slot, sequence) in rows.iter_mut().zip(sequences.clone()) {
                *slot = number(sequence) as i32;
            }
            i32_bytes(&rows)
        };
        let bytes = match spec.input {
            Input::TokenIds => padded(batch.token_ids()),
            Input::TokenTypes => padded(batch.token_types()),
            Input::Lengths => each(&|sequence| batch.len_of(sequence)),
            Input::PoolingStarts => each(&|sequence| batch.pooling_range(sequence).start),
            Input::RotaryByLength { spec: place, sine } => {
                let pairs = self.rotary[place].rotary_dim / 2;
                let mut rows = vec![0f32; bucket.batch * bucket.length * pairs];
                for (row, sequence) in sequences.clone().enumerate() {
                    let (cos, sin) = self.rotary[place].tables(batch.len_of(sequence));
                    let table = if sine { sin } else { cos };
                    rows[row * bucket.length * pairs..][..table.len()].copy_from_slice(&table);
                }
                f32_bytes(&rows)
            }
            Input::Rotary { .. } | Input::Weight(_) | Input::Folded(_) => Vec::new(),
        };
        self.client.upload(&bytes, spec.element, &spec.dims)
    }

    /// Runs one piece and appends its rows to `values`.
    fn piece(&self, program: &BucketProgram, piece: &Piece<'_>, values: &mut [OutputRows]) -> Result<(), PjrtError> {
        let mut own: Vec<Option<Buffer>> = Vec::with_capacity(program.inputs.len());
        for (spec, shared) in program.inputs.iter().zip(&program.shared) {
            let needs = shared.is_none();
            own.push(needs.then(|| self.upload(spec, piece)).transpose()?);
        }
        let inputs: Vec<&Buffer> =
            own.iter().zip(&program.shared).filter_map(|(own, shared)| own.as_ref().or(shared.as_deref())).collect();
        let results = program.executable.execute(&inputs)?;
        for ((value, result), dims) in values.iter_mut().zip(&results).zip(&program.outputs) {
            let rows = result.download_f32(dims)?;
            piece.append(value, &rows);
        }
        Ok(())
    }
}

impl Executable for XlaExecutable {
    fn shape_policy(&self) -> ShapePolicy {
        ShapePolicy::Buckets(self.buckets.clone())
    }

    fn plan(&self, batch: &RaggedBatch) -> Result<Plan, BackendError> {
        batch.check(&self.graph)?;
        let (sequences, longest) = (batch.num_sequences(), batch.max_len());
        let Some(place) = buckets::pick(&self.buckets, sequences, longest) else {
            let most = self.buckets.iter().map(|bucket| bucket.length).max().unwrap_or(0);
            let mut reason = format!("a sequence of {longest} tokens; the longest bucket has {most}");
            for report in self.without.iter().filter(|report| report.bucket.length >= longest) {
                reason.push_str(&format!("; bucket {} was left out: {}", report.bucket, report.reason));
            }
            return Err(BackendError::Refused(vec![Refusal::new("graph", reason)]));
        };
        let report = &self.programs[place].report;
        let bucket = report.bucket;
        let runs = sequences.div_ceil(bucket.batch);
        let form = report.form.map_or("", |form| form.name()).to_owned();
        let attends = self.graph.attentions().next().is_some() && sequences > 0;
        Ok(Plan {
            // A batch without sequences runs in no shape.
            bucket: (runs > 0).then_some(bucket),
            padding_tokens: runs * bucket.batch * bucket.length - batch.num_tokens(),
            attention: if attends { BTreeMap::from([(form, sequences)]) } else { BTreeMap::new() },
            memory_bytes: report.figures().map_or(0, |figures| figures.temp_bytes + figures.output_bytes),
            detail: Box::new(place),
        })
    }

    fn run(&self, plan: &Plan, batch: &RaggedBatch, options: &RunOptions) -> Result<Outputs, BackendError> {
        let start = Instant::now();
        let program = plan
            .detail
            .downcast_ref::<usize>()
            .and_then(|&place| self.programs.get(place))
            .ok_or_else(|| BackendError::Failed("the plan was made by another executable".to_owned()))?;
        let bucket = program.report.bucket;
        if batch.max_len() > bucket.length {
            return Err(BackendError::Failed("the plan was made for another batch".to_owned()));
        }
        let (values, pieces) = run_pieces(&self.graph, batch, bucket, options.deadline, |piece, values| {
            self.piece(program, piece, values).map_err(|error| error.on_device(&self.device))
        })?;
        let elapsed = start.elapsed();
        let mut operations = Vec::new();
        if options.profile {
            // The compiler fuses operations as it likes; only the whole program has a time.
            let flops = program.report.figures().and_then(|figures| figures.flops).unwrap_or(0.0);
            operations.push(OpTime {
                operation: format!("program {bucket}"),
                count: pieces,
                seconds: elapsed.as_secs_f64(),
                flops: flops as u64 * pieces as u64,
            });
        }
        let report = RunReport {
            backend: self.backend.clone(),
            device: self.device.clone(),
            precision: self.precision,
            attention: plan.attention.clone(),
            bucket: plan.bucket,
            sequences: batch.num_sequences(),
            tokens: batch.num_tokens(),
            padding_tokens: plan.padding_tokens,
            elapsed,
            operations,
        };
        Ok(Outputs { values, report })
    }
}
