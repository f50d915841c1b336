//! A loaded model on the backends of this process.

use std::sync::Arc;

use ehun_backend::{Backend, BackendError, Options};
use ehun_models::{Model, ModelError, Side, Task, TextInput};

use crate::deployment::Deployment;
use crate::error::EngineError;
use crate::fallback::LeftOut;
use crate::health::HealthPolicy;
use crate::item::{Input, ItemOptions, Prompt, Tokenize, Tokenized, Truncation};
use crate::lane::Lane;
use crate::runner::LocalRunner;

/// Why a model cannot be deployed on a backend.
#[derive(Debug, thiserror::Error)]
#[error("{model} cannot run on {backend}: {source}")]
pub struct DeployError {
    /// The model.
    pub model: String,
    /// The backend.
    pub backend: String,
    /// What it said.
    pub source: Box<BackendError>,
}

impl Deployment {
    /// `model` on `backends`, the preferred first, each compiled with `options` for the model's longest sequence. Fails with
    /// the first backend that refuses.
    pub fn of_model(
        model: Arc<Model>,
        backends: &[Arc<dyn Backend>],
        options: &Options,
        health: HealthPolicy,
    ) -> Result<Arc<Self>, DeployError> {
        let compile = |backend| Lane::of_model(&model, backend, options, health);
        let lanes = backends.iter().map(compile).collect::<Result<_, _>>()?;
        Ok(Self::of_lanes(model, lanes))
    }

    /// `model` on lanes that are there already, the preferred first: compiled here ([`Lane::of_model`]) or services elsewhere
    /// that serve the same model.
    pub fn of_lanes(model: Arc<Model>, lanes: Vec<Arc<Lane>>) -> Arc<Self> {
        Self::of_lanes_without(model, lanes, Vec::new())
    }

    /// The same without the backends of `left_out`.
    pub(crate) fn of_lanes_without(model: Arc<Model>, lanes: Vec<Arc<Lane>>, left_out: Vec<LeftOut>) -> Arc<Self> {
        let label = match model.revision() {
            Some(revision) => format!("{}@{revision}", model.name()),
            None => model.name().to_owned(),
        };
        let tokenizer = Arc::clone(&model) as Arc<dyn Tokenize>;
        Arc::new(Self { label, tokenizer, model: Some(model), lanes, left_out })
    }
}

impl Lane {
    /// `model` compiled by `backend` with `options` for the model's longest sequence.
    pub fn of_model(
        model: &Model,
        backend: &Arc<dyn Backend>,
        options: &Options,
        health: HealthPolicy,
    ) -> Result<Arc<Self>, DeployError> {
        let options = Options { max_sequence: model.max_tokens(), ..options.clone() };
        let name = backend.info().name;
        let executable = backend.compile(Arc::clone(model.graph()), model.weights(), &options).map_err(|source| {
            DeployError { model: model.name().to_owned(), backend: name.clone(), source: Box::new(source) }
        })?;
        Ok(Self::new(Arc::new(LocalRunner::new(name, executable)), health))
    }
}

fn invalid(error: ModelError) -> EngineError {
    EngineError::invalid(error)
}

impl Tokenize for Model {
    fn tokenize(&self, input: &Input, options: &ItemOptions) -> Result<Tokenized, EngineError> {
        let side = match options.truncation {
            Truncation::Left => Side::Left,
            Truncation::Right | Truncation::Refuse => Side::Right,
        };
        let limit = self.max_tokens();
        let (tokens, pooling_start) = match input {
            Input::Text(text) if self.task() == Task::Embed => {
                let prompt = Prompt::words(options.prompt.as_ref(), self).map_err(invalid)?;
                self.embed_tokens(text, prompt, side).map_err(invalid)?
            }
            Input::Text(text) => {
                (self.tokenizer().encode(TextInput::Single(text), Some(limit), side).map_err(invalid)?, 0)
            }
            Input::Pair(first, second) => {
                let prompt = if self.task() == Task::Rerank {
                    Prompt::words(options.prompt.as_ref(), self).map_err(invalid)?
                } else {
                    None
                };
                let first = &*Self::prompted(first, prompt);
                (self.tokenizer().encode(TextInput::Pair(first, second), Some(limit), side).map_err(invalid)?, 0)
            }
            Input::Tokens(ids) => return of_ids(ids, limit, options.truncation),
        };
        let truncated = tokens.truncated();
        if truncated && options.truncation == Truncation::Refuse {
            return Err(too_long(tokens.total, limit));
        }
        Ok(Tokenized { sequence: tokens.into_input(pooling_start), truncated })
    }

    fn max_sequence(&self) -> usize {
        self.max_tokens()
    }
}

fn too_long(tokens: usize, limit: usize) -> EngineError {
    EngineError::invalid(format!(
        "{tokens} tokens, but the model takes {limit}; shorten the text or allow it to be truncated"
    ))
}

/// Token ids as they are; of too many, the ones at the end or at the beginning.
fn of_ids(ids: &[u32], limit: usize, truncation: Truncation) -> Result<Tokenized, EngineError> {
    let truncated = ids.len() > limit;
    let kept = match truncation {
        Truncation::Refuse if truncated => return Err(too_long(ids.len(), limit)),
        Truncation::Left => &ids[ids.len().saturating_sub(limit)..],
        Truncation::Right | Truncation::Refuse => &ids[..ids.len().min(limit)],
    };
    let sequence = ehun_graph::SequenceInput { token_ids: kept.to_vec(), ..Default::default() };
    Ok(Tokenized { sequence, truncated })
}
