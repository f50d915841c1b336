//! A service elsewhere behind the engine's [`Runner`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ehun_backend::{BackendError, Precision, RunOptions, RunReport};
use ehun_engine::{ItemOutput, ItemRows, Prepared, Runner, Shape};
use ehun_models::{Model, Task};

use crate::address::{Address, Protocol};
use crate::error::{Failure, RemoteError};
use crate::{oip, openai, tei};

/// Longest wait for an answer where neither the address nor the caller says one.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Why a call to a service gave nothing: the call failed, or it was never made.
pub(crate) enum Trouble {
    Call(Failure),
    Backend(BackendError),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Call(failure)
    }
}

impl From<BackendError> for Trouble {
    fn from(error: BackendError) -> Self {
        Self::Backend(error)
    }
}

/// One protocol, in its words.
pub(crate) trait Wire: Send + Sync {
    /// Items with the same key can be in one request.
    fn key(&self, item: &Prepared) -> String;

    /// The model's row for each item: its vector, or its logits.
    fn ask(&self, items: &[&Prepared], until: Instant) -> Result<Vec<Vec<f32>>, Trouble>;
}

struct Remote {
    name: String,
    device: String,
    items: usize,
    timeout: Duration,
    output: Arc<str>,
    width: usize,
    wire: Box<dyn Wire>,
}

/// The service at `address` as a backend for `model`, which it serves too. Nothing is asked yet: a service that is not there
/// now may be there later.
///
/// `timeout` is how long an answer may take where the address does not say; a service with a deadline and another backend
/// to fall back to gives less than its deadline.
pub fn open(address: &str, model: Arc<Model>, timeout: Option<Duration>) -> Result<Arc<dyn Runner>, RemoteError> {
    let address: Address = address.parse()?;
    let task = model.task();
    let (protocol, possible, can) = match address.protocol {
        Protocol::OpenAi => ("the OpenAI protocol", "embed", matches!(task, Task::Embed)),
        Protocol::Tei => (
            "text-embeddings-inference",
            "embed, rerank, classify, sparse",
            matches!(task, Task::Embed | Task::Rerank | Task::Classify | Task::Sparse),
        ),
        Protocol::OipHttp | Protocol::OipGrpc => (
            "the Open Inference Protocol",
            "embed, rerank, classify",
            matches!(task, Task::Embed | Task::Rerank | Task::Classify),
        ),
    };
    if !can {
        return Err(RemoteError::Task { protocol, task, possible });
    }
    let (output, width) = (task.output().into(), model.dimension());
    let wire: Box<dyn Wire> = match address.protocol {
        Protocol::OpenAi => Box::new(openai::OpenAi::new(&address, model)?),
        Protocol::Tei => Box::new(tei::Tei::new(&address, model)?),
        Protocol::OipHttp => Box::new(oip::Oip::over_http(&address, model)?),
        Protocol::OipGrpc => Box::new(oip::Oip::over_grpc(&address, model)?),
    };
    Ok(Arc::new(Remote {
        device: address.authority(),
        items: address.items,
        timeout: address.timeout.or(timeout).unwrap_or(TIMEOUT),
        name: address.name,
        output,
        width,
        wire,
    }))
}

impl Runner for Remote {
    fn name(&self) -> &str {
        &self.name
    }

    fn shape(&self) -> Shape {
        Shape::Tokens { max_tokens: usize::MAX, max_items: self.items }
    }

    fn run(&self, items: &[Arc<Prepared>], options: &RunOptions) -> Result<Vec<ItemOutput>, BackendError> {
        let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (i, item) in items.iter().enumerate() {
            groups.entry(self.wire.key(item)).or_default().push(i);
        }
        let mut outputs: Vec<Option<ItemOutput>> = items.iter().map(|_| None).collect();
        for part in groups.values().flat_map(|group| group.chunks(self.items)) {
            let of_part: Vec<&Prepared> = part.iter().map(|&i| items[i].as_ref()).collect();
            for (&i, output) in part.iter().zip(self.part(&of_part, options)?) {
                outputs[i] = Some(output);
            }
        }
        let all: Option<Vec<ItemOutput>> = outputs.into_iter().collect();
        all.ok_or_else(|| BackendError::Failed("an item was left out when the batch was split".into()))
    }
}

impl Remote {
    /// One request.
    fn part(&self, items: &[&Prepared], options: &RunOptions) -> Result<Vec<ItemOutput>, BackendError> {
        let start = Instant::now();
        let own = start + self.timeout;
        let until = options.deadline.map_or(own, |deadline| deadline.min(own));
        let rows = self.wire.ask(items, until).map_err(|trouble| match trouble {
            Trouble::Call(failure) => {
                let passed = options.deadline.is_some_and(|deadline| Instant::now() >= deadline);
                match failure {
                    Failure::Timeout(_) => Failure::Timeout(start.elapsed()).into_backend(passed),
                    other => other.into_backend(passed),
                }
            }
            Trouble::Backend(error) => error,
        })?;
        let wrong = |message: String| Failure::Answer(message).into_backend(false);
        if rows.len() != items.len() {
            return Err(wrong(format!("{} rows for {} items", rows.len(), items.len())));
        }
        if let Some(row) = rows.iter().find(|row| row.len() != self.width) {
            return Err(wrong(format!("a row of {} numbers; this model's have {}", row.len(), self.width)));
        }
        let report = Arc::new(RunReport {
            backend: self.name.clone(),
            device: self.device.clone(),
            precision: Precision::F32,
            attention: BTreeMap::from([(KERNEL.to_owned(), items.len())]),
            bucket: None,
            sequences: items.len(),
            tokens: items.iter().map(|item| item.num_tokens()).sum(),
            padding_tokens: 0,
            elapsed: start.elapsed(),
            operations: Vec::new(),
        });
        let attention: Arc<str> = KERNEL.into();
        let output = |data: Vec<f32>| ItemOutput {
            values: vec![ItemRows { name: Arc::clone(&self.output), rows: 1, width: self.width, data }],
            report: Arc::clone(&report),
            attention: Arc::clone(&attention),
        };
        Ok(rows.into_iter().map(output).collect())
    }
}

/// Stands where a backend here would name its attention kernel.
const KERNEL: &str = "remote";
