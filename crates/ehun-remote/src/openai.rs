//! OpenAI embeddings, as many servers speak them.

use std::sync::Arc;
use std::time::Instant;

use base64::Engine as _;
use ehun_engine::Prepared;
use ehun_models::Model;
use serde::Deserialize;
use serde_json::json;

use crate::address::Address;
use crate::error::{Failure, RemoteError};
use crate::http::Client;
use crate::runner::{Trouble, Wire};
use crate::text::{goes_as_ids, ids_of, text_of};

pub(crate) struct OpenAi {
    client: Client,
    path: String,
    name: String,
    model: Arc<Model>,
}

#[derive(Deserialize)]
struct Answer {
    data: Vec<Embedding>,
}

#[derive(Deserialize)]
struct Embedding {
    index: usize,
    embedding: Vector,
}

/// Servers that do not know `encoding_format` send numbers.
#[derive(Deserialize)]
#[serde(untagged)]
enum Vector {
    Base64(String),
    Numbers(Vec<f32>),
}

impl OpenAi {
    pub(crate) fn new(address: &Address, model: Arc<Model>) -> Result<Self, RemoteError> {
        let name = address.model.clone().unwrap_or_else(|| model.name().to_owned());
        Ok(Self { client: Client::new(address)?, path: format!("{}/embeddings", address.path), name, model })
    }
}

impl Wire for OpenAi {
    fn key(&self, item: &Prepared) -> String {
        if goes_as_ids(item) { "ids" } else { "texts" }.to_owned()
    }

    fn ask(&self, items: &[&Prepared], until: Instant) -> Result<Vec<Vec<f32>>, Trouble> {
        let mut input = Vec::with_capacity(items.len());
        for item in items {
            input.push(if goes_as_ids(item) { json!(ids_of(item)?) } else { json!(text_of(&self.model, item)?) });
        }
        let body = json!({"model": self.name, "input": input, "encoding_format": "base64"});
        let answer: Answer = self.client.post(&self.path, &body, until)?;
        let mut rows: Vec<Option<Vec<f32>>> = items.iter().map(|_| None).collect();
        let wrong = |message: String| Trouble::Call(Failure::Answer(message));
        for entry in answer.data {
            match rows.get_mut(entry.index) {
                Some(row @ None) => *row = Some(vector(entry.embedding).map_err(wrong)?),
                Some(_) => return Err(wrong(format!("index {} is there twice", entry.index))),
                None => return Err(wrong(format!("index {} for {} items", entry.index, items.len()))),
            }
        }
        let all: Option<Vec<Vec<f32>>> = rows.into_iter().collect();
        all.ok_or_else(|| wrong(format!("fewer embeddings than the {} items", items.len())))
    }
}

fn vector(vector: Vector) -> Result<Vec<f32>, String> {
    match vector {
        Vector::Numbers(numbers) => Ok(numbers),
        Vector::Base64(text) => {
            let bytes = base64::engine::general_purpose::STANDARD.decode(text).map_err(|error| error.to_string())?;
            if !bytes.len().is_multiple_of(4) {
                return Err(format!("{} bytes are no float32", bytes.len()));
            }
            Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
        }
    }
}
