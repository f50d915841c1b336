//! A compiled model: one session for every shape.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use ehun_backend::{
    BackendError, Bucket, Executable, OpTime, OutputRows, Outputs, Piece, Placement, Plan, Precision, Refusal,
    RunOptions, RunReport, ShapePolicy, buckets, run_pieces,
};
use ehun_graph::{Graph, RaggedBatch};

use crate::lower::attention::Form;
use crate::lower::scene::{ATTENTION_MASK, INPUT_IDS, POOLING_STARTS, TOKEN_TYPE_IDS};
use crate::runtime::{OrtError, Session};

/// A model that is loaded in a session.
#[derive(Debug)]
pub struct OnnxExecutable {
    pub(crate) backend: String,
    pub(crate) placement: Vec<Placement>,
    pub(crate) graph: Arc<Graph>,
    pub(crate) session: Session,
    pub(crate) buckets: Vec<Bucket>,
    /// Names of the model's inputs.
    pub(crate) inputs: Vec<String>,
    /// The forms of the attention operations, each once.
    pub(crate) kernels: Vec<Form>,
}

impl OnnxExecutable {
    /// What ran where, for the report: `CPUExecutionProvider (146 nodes)`.
    fn device(&self) -> String {
        let one = |placement: &Placement| {
            format!("{} ({} nodes)", placement.provider, placement.operators.values().sum::<usize>())
        };
        self.placement.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    /// Runs one piece and appends its rows to `values`.
    fn piece(&self, piece: &Piece<'_>, values: &mut [OutputRows]) -> Result<(), OrtError> {
        let Piece { batch, bucket, ref sequences } = *piece;
        let padded = |fill: &dyn Fn(usize, &mut [i64])| {
            let mut rows = vec![0i64; bucket.batch * bucket.length];
            for (row, sequence) in rows.chunks_exact_mut(bucket.length).zip(sequences.clone()) {
                fill(sequence, &mut row[..batch.len_of(sequence)]);
            }
            rows
        };
        let copy = |from: &[u32], to: &mut [i64]| to.iter_mut().zip(from).for_each(|(to, &from)| *to = i64::from(from));
        let mut inputs: Vec<(&str, Vec<i64>)> = Vec::new();
        for name in &self.inputs {
            let elements = match name.as_str() {
                ATTENTION_MASK => padded(&|_, row| row.fill(1)),
                INPUT_IDS => padded(&|sequence, row| copy(&batch.token_ids()[batch.rows(sequence)], row)),
                TOKEN_TYPE_IDS => padded(&|sequence, row| copy(&batch.token_types()[batch.rows(sequence)], row)),
                POOLING_STARTS => {
                    let mut starts = vec![0i64; bucket.batch];
                    for (start, sequence) in starts.iter_mut().zip(sequences.clone()) {
                        *start = batch.pooling_range(sequence).start as i64;
                    }
                    starts
                }
                _ => continue,
            };
            inputs.push((name, elements));
        }
        let (rows, length) = (bucket.batch as i64, bucket.length as i64);
        let shaped: Vec<(&str, &[i64], Vec<i64>)> = inputs
            .iter()
            .map(|(name, elements)| {
                let shape = if *name == POOLING_STARTS { vec![rows] } else { vec![rows, length] };
                (*name, elements.as_slice(), shape)
            })
            .collect();
        let names: Vec<String> = values.iter().map(|value| value.name.clone()).collect();
        self.session.run(&shaped, &names, &mut |place, rows| {
            piece.append(&mut values[place], rows);
        })
    }
}

impl Executable for OnnxExecutable {
    fn shape_policy(&self) -> ShapePolicy {
        ShapePolicy::Buckets(self.buckets.clone())
    }

    fn plan(&self, batch: &RaggedBatch) -> Result<Plan, BackendError> {
        batch.check(&self.graph)?;
        let (sequences, longest) = (batch.num_sequences(), batch.max_len());
        let Some(place) = buckets::pick(&self.buckets, sequences, longest) else {
            let most = self.buckets.iter().map(|bucket| bucket.length).max().unwrap_or(0);
            let reason = format!("a sequence of {longest} tokens; the longest bucket has {most}");
            return Err(BackendError::Refused(vec![Refusal::new("graph", reason)]));
        };
        let bucket = self.buckets[place];
        let runs = sequences.div_ceil(bucket.batch);
        let mut attention = BTreeMap::new();
        if sequences > 0 {
            attention.extend(self.kernels.iter().map(|form| (form.name().to_owned(), sequences)));
        }
        let row = self.graph.nodes().iter().map(|node| node.width).max().unwrap_or(0);
        Ok(Plan {
            // A batch without sequences runs in no shape.
            bucket: (runs > 0).then_some(bucket),
            padding_tokens: runs * bucket.batch * bucket.length - batch.num_tokens(),
            attention,
            // The widest value; how many live at once is the runtime's to decide.
            memory_bytes: (4 * bucket.batch * bucket.length * row) as u64,
            detail: Box::new(bucket),
        })
    }

    fn placement(&self) -> Vec<Placement> {
        self.placement.clone()
    }

    fn run(&self, plan: &Plan, batch: &RaggedBatch, options: &RunOptions) -> Result<Outputs, BackendError> {
        let start = Instant::now();
        let bucket = plan
            .detail
            .downcast_ref::<Bucket>()
            .copied()
            .filter(|bucket| bucket.length >= batch.max_len())
            .ok_or_else(|| BackendError::Failed("the plan was made for another batch".to_owned()))?;
        let (values, pieces) = run_pieces(&self.graph, batch, bucket, options.deadline, |piece, values| {
            self.piece(piece, values).map_err(|error| error.on_device(&self.device()))
        })?;
        let elapsed = start.elapsed();
        let mut operations = Vec::new();
        if options.profile {
            // The runtime fuses operations as it likes; only the whole model has a time.
            let operation = format!("model {bucket}");
            operations.push(OpTime { operation, count: pieces, seconds: elapsed.as_secs_f64(), flops: 0 });
        }
        let report = RunReport {
            backend: self.backend.clone(),
            device: self.device(),
            precision: Precision::F32,
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
