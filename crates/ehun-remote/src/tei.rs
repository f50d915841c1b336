//! text-embeddings-inference: `/embed`, `/rerank`, `/predict`, `/embed_sparse`. The raw forms are asked for, so that what
//! comes is what the model's graph gives here.

use std::sync::Arc;
use std::time::Instant;

use ehun_engine::{Input, Prepared, Prompt, Truncation};
use ehun_models::{Model, Task};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::address::Address;
use crate::error::{Failure, RemoteError};
use crate::http::Client;
use crate::runner::{Trouble, Wire};
use crate::text::{refused, text_of};

pub(crate) struct Tei {
    client: Client,
    path: String,
    model: Arc<Model>,
}

#[derive(Deserialize)]
struct Ranked {
    index: usize,
    score: f32,
}

#[derive(Deserialize)]
struct Labelled {
    label: String,
    score: f32,
}

#[derive(Deserialize)]
struct Term {
    index: usize,
    value: f32,
}

impl Tei {
    pub(crate) fn new(address: &Address, model: Arc<Model>) -> Result<Self, RemoteError> {
        if model.task() == Task::Rerank && model.dimension() != 1 {
            return Err(RemoteError::Setup(format!(
                "{}: text-embeddings-inference ranks with one score, {} has {}",
                address.name,
                model.name(),
                model.dimension()
            )));
        }
        Ok(Self { client: Client::new(address)?, path: address.path.clone(), model })
    }

    fn url(&self, route: &str) -> String {
        format!("{}{route}", self.path)
    }

    /// `/rerank` of the texts that share the query of `items[0]`.
    fn rerank(&self, items: &[&Prepared], cut: Value, until: Instant) -> Result<Vec<Vec<f32>>, Trouble> {
        let mut query: Option<&str> = None;
        let mut texts: Vec<&str> = Vec::with_capacity(items.len());
        for item in items {
            let Input::Pair(first, second) = &item.input else {
                return Err(refused("ranking takes pairs of texts").into());
            };
            query.get_or_insert(first.as_ref());
            texts.push(second.as_ref());
        }
        let body = with(json!({"query": query, "texts": texts, "raw_scores": true}), cut);
        let answer: Vec<Ranked> = self.client.post(&self.url("/rerank"), &body, until)?;
        let mut rows: Vec<Vec<f32>> = vec![Vec::new(); items.len()];
        for ranked in answer {
            match rows.get_mut(ranked.index) {
                Some(row) => row.push(ranked.score),
                None => return Err(wrong(format!("index {} for {} texts", ranked.index, items.len()))),
            }
        }
        Ok(rows)
    }

    fn predict(&self, items: &[&Prepared], cut: Value, until: Instant) -> Result<Vec<Vec<f32>>, Trouble> {
        let mut inputs = Vec::with_capacity(items.len());
        for item in items {
            inputs.push(match &item.input {
                Input::Text(text) => json!([text.as_ref()]),
                Input::Pair(first, second) => json!([first.as_ref(), second.as_ref()]),
                Input::Tokens(_) => return Err(refused("/predict takes texts and not token ids").into()),
            });
        }
        let body = with(json!({"inputs": inputs, "raw_scores": true}), cut);
        let answer: Vec<Vec<Labelled>> = self.client.post(&self.url("/predict"), &body, until)?;
        answer.into_iter().map(|labelled| self.logits(labelled)).collect()
    }

    /// Scores by label, in the order of the model's labels.
    fn logits(&self, labelled: Vec<Labelled>) -> Result<Vec<f32>, Trouble> {
        let labels = self.model.labels();
        let mut row = vec![f32::NAN; self.model.dimension()];
        for Labelled { label, score } in labelled {
            let place = labels.iter().position(|known| *known == label);
            match place.and_then(|place| row.get_mut(place)) {
                Some(slot) => *slot = score,
                None => return Err(wrong(format!("the label `{label}` is not one of {}", labels.join(", ")))),
            }
        }
        Ok(row)
    }

    fn sparse(&self, items: &[&Prepared], cut: Value, until: Instant) -> Result<Vec<Vec<f32>>, Trouble> {
        let body = with(json!({"inputs": inputs(items)?}), cut);
        let answer: Vec<Vec<Term>> = self.client.post(&self.url("/embed_sparse"), &body, until)?;
        let mut rows = Vec::with_capacity(answer.len());
        for terms in answer {
            let mut row = vec![0.0; self.model.dimension()];
            for Term { index, value } in terms {
                match row.get_mut(index) {
                    Some(slot) => *slot = value,
                    None => return Err(wrong(format!("term {index} of a vocabulary of {}", row.len()))),
                }
            }
            rows.push(row);
        }
        Ok(rows)
    }
}

impl Wire for Tei {
    fn key(&self, item: &Prepared) -> String {
        let kind = match &item.input {
            Input::Text(_) => "text",
            Input::Tokens(_) => "ids",
            Input::Pair(query, _) if self.model.task() == Task::Rerank => query,
            Input::Pair(..) => "text",
        };
        format!("{:?}\0{:?}\0{kind}", item.options.truncation, item.options.prompt)
    }

    fn ask(&self, items: &[&Prepared], until: Instant) -> Result<Vec<Vec<f32>>, Trouble> {
        let Some(first) = items.first() else { return Ok(Vec::new()) };
        // What may not be cut was refused before it came here.
        let direction = if first.options.truncation == Truncation::Left { "Left" } else { "Right" };
        let mut cut = json!({"truncate": true, "truncation_direction": direction});
        match self.model.task() {
            Task::Rerank => self.rerank(items, cut, until),
            Task::Classify => self.predict(items, cut, until),
            Task::Sparse => self.sparse(items, cut, until),
            _ => {
                let texts = match &first.options.prompt {
                    None => inputs(items)?,
                    Some(Prompt::Named(name)) => {
                        cut["prompt_name"] = json!(name.as_ref());
                        inputs(items)?
                    }
                    Some(Prompt::Text(_)) => {
                        let text = |item: &&Prepared| text_of(&self.model, item).map(Value::from);
                        items.iter().map(text).collect::<Result<_, _>>()?
                    }
                };
                let body = with(json!({"inputs": texts, "normalize": self.model.is_normalized()}), cut);
                Ok(self.client.post(&self.url("/embed"), &body, until)?)
            }
        }
    }
}

fn inputs(items: &[&Prepared]) -> Result<Vec<Value>, Trouble> {
    let one = |item: &&Prepared| match &item.input {
        Input::Text(text) => Ok(json!(text.as_ref())),
        Input::Tokens(_) => Ok(json!(item.tokens.sequence.token_ids)),
        Input::Pair(..) => Err(refused("this route takes single texts and not pairs").into()),
    };
    items.iter().map(one).collect()
}

/// The fields of both objects.
fn with(mut body: Value, more: Value) -> Value {
    if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
        body.extend(more);
    }
    body
}

fn wrong(message: String) -> Trouble {
    Trouble::Call(Failure::Answer(message))
}
