//! Open Inference Protocol v2: which tensors a model takes is asked first, then texts or token ids are sent accordingly.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use ehun_engine::{Input, Prepared, Truncation};
use ehun_models::{Model, Task};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::address::Address;
use crate::error::{Failure, RemoteError};
use crate::grpc;
use crate::http::Client;
use crate::runner::{Trouble, Wire};
use crate::text::{goes_as_ids, ids_of, refused, text_of};

/// Elements of a tensor that is sent.
pub(crate) enum Data {
    /// BYTES.
    Texts(Vec<String>),
    /// INT32 or INT64.
    Integers { datatype: &'static str, values: Vec<i64> },
}

/// A tensor that is sent.
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) shape: [usize; 2],
    pub(crate) data: Data,
}

impl Tensor {
    /// Texts have one dimension, ids two.
    pub(crate) fn dimensions(&self) -> &[usize] {
        if matches!(self.data, Data::Texts(_)) { &self.shape[..1] } else { &self.shape }
    }
}

/// What a service says of its model.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Metadata {
    #[serde(default)]
    pub(crate) platform: String,
    #[serde(default)]
    pub(crate) inputs: Vec<TensorMetadata>,
    #[serde(default)]
    pub(crate) outputs: Vec<TensorMetadata>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct TensorMetadata {
    pub(crate) name: String,
    pub(crate) datatype: String,
}

/// FP32 numbers, row-major.
pub(crate) struct Floats {
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<f32>,
}

/// The two ways of the protocol.
pub(crate) trait Transport: Send + Sync {
    fn metadata(&self, until: Instant) -> Result<Metadata, Failure>;

    /// The output `wanted` for `tensors`.
    fn infer(&self, tensors: &[Tensor], wanted: &str, until: Instant) -> Result<Floats, Failure>;
}

pub(crate) struct Oip {
    transport: Box<dyn Transport>,
    model: Arc<Model>,
    contract: OnceLock<Contract>,
}

/// What is sent and asked for.
#[derive(Debug, Clone, PartialEq)]
struct Contract {
    inputs: Inputs,
    output: String,
}

#[derive(Debug, Clone, PartialEq)]
enum Inputs {
    /// BYTES tensors for a text and for the second one of a pair. `ids`: token ids are taken too.
    Texts { text: String, pair: Option<String>, ids: bool },
    /// `input_ids` with what else of them is listed.
    Ids { datatype: &'static str, mask: bool, types: bool },
}

impl Oip {
    pub(crate) fn over_http(address: &Address, model: Arc<Model>) -> Result<Self, RemoteError> {
        let name = address.model.clone().unwrap_or_default();
        let transport =
            Http { client: Client::new(address)?, path: format!("{}/v2/models/{}", address.path, escaped(&name)) };
        Ok(Self { transport: Box::new(transport), model, contract: OnceLock::new() })
    }

    pub(crate) fn over_grpc(address: &Address, model: Arc<Model>) -> Result<Self, RemoteError> {
        Ok(Self { transport: Box::new(grpc::Client::new(address)?), model, contract: OnceLock::new() })
    }

    fn contract(&self, until: Instant) -> Result<&Contract, Trouble> {
        if let Some(contract) = self.contract.get() {
            return Ok(contract);
        }
        let metadata = self.transport.metadata(until)?;
        let contract = contract(&metadata, self.model.task()).map_err(|m| Trouble::Call(Failure::Answer(m)))?;
        Ok(self.contract.get_or_init(|| contract))
    }

    fn tensors(&self, items: &[&Prepared], inputs: &Inputs) -> Result<Vec<Tensor>, Trouble> {
        let of_ids = items.iter().all(|item| goes_as_ids(item));
        match inputs {
            Inputs::Texts { ids: false, .. } if of_ids => {
                Err(refused("the service takes texts alone: neither token ids nor a text that is cut here").into())
            }
            Inputs::Texts { .. } if of_ids => ids(items, "INT64", true, false),
            Inputs::Texts { text, pair, .. } => self.texts(items, text, pair.as_deref()),
            Inputs::Ids { datatype, mask, types } => ids(items, datatype, *mask, *types),
        }
    }

    fn texts(&self, items: &[&Prepared], text: &str, pair: Option<&str>) -> Result<Vec<Tensor>, Trouble> {
        let (mut first, mut second) = (Vec::with_capacity(items.len()), Vec::new());
        for item in items {
            match &item.input {
                Input::Pair(_, _) if item.tokens.truncated && item.options.truncation == Truncation::Left => {
                    return Err(refused("a pair that is cut at the left cannot be sent as texts").into());
                }
                Input::Pair(a, b) => {
                    first.push(a.to_string());
                    second.push(b.to_string());
                }
                _ => first.push(text_of(&self.model, item)?),
            }
        }
        let shape = [items.len(), 1];
        let mut tensors = vec![Tensor { name: text.to_owned(), shape, data: Data::Texts(first) }];
        match pair {
            _ if second.is_empty() => {}
            Some(pair) => tensors.push(Tensor { name: pair.to_owned(), shape, data: Data::Texts(second) }),
            None => return Err(refused("the service takes no second text").into()),
        }
        Ok(tensors)
    }
}

impl Wire for Oip {
    fn key(&self, item: &Prepared) -> String {
        match item.input {
            _ if goes_as_ids(item) => "ids",
            Input::Pair(..) => "pair",
            _ => "text",
        }
        .to_owned()
    }

    fn ask(&self, items: &[&Prepared], until: Instant) -> Result<Vec<Vec<f32>>, Trouble> {
        let contract = self.contract(until)?;
        let tensors = self.tensors(items, &contract.inputs)?;
        let Floats { shape, data } = self.transport.infer(&tensors, &contract.output, until)?;
        let width = match shape.as_slice() {
            [count] if *count == items.len() => 1,
            [count, width] if *count == items.len() && *width > 0 => *width,
            _ => {
                let message = format!("output `{}` has shape {shape:?} for {} items", contract.output, items.len());
                return Err(Trouble::Call(Failure::Answer(message)));
            }
        };
        if data.len() != width * items.len() {
            let message = format!("output `{}` has shape {shape:?} and {} numbers", contract.output, data.len());
            return Err(Trouble::Call(Failure::Answer(message)));
        }
        Ok(data.chunks(width).map(<[f32]>::to_vec).collect())
    }
}

/// Chooses tensors from what the service lists.
fn contract(metadata: &Metadata, task: Task) -> Result<Contract, String> {
    let find = |name: &str| metadata.inputs.iter().find(|tensor| tensor.name == name);
    let is_text = |tensor: &&TensorMetadata| tensor.datatype == "BYTES";
    let texts: Vec<&str> = metadata.inputs.iter().filter(is_text).map(|tensor| tensor.name.as_str()).collect();
    let inputs = if let Some(&first) = texts.iter().find(|name| **name == "text").or(texts.first()) {
        let pair = texts.iter().find(|name| **name == "text_pair").or(texts.iter().find(|name| **name != first));
        Inputs::Texts {
            text: first.to_owned(),
            pair: pair.map(|name| (*name).to_owned()),
            ids: metadata.platform == "ehun" || find("input_ids").is_some(),
        }
    } else if let Some(ids) = find("input_ids") {
        let datatype = if ids.datatype == "INT32" { "INT32" } else { "INT64" };
        let (mask, types) = (find("attention_mask").is_some(), find("token_type_ids").is_some());
        Inputs::Ids { datatype, mask, types }
    } else {
        let listed: Vec<&str> = metadata.inputs.iter().map(|tensor| tensor.name.as_str()).collect();
        return Err(format!("the model takes {}, neither a text nor `input_ids`", listed.join(", ")));
    };
    let names: &[&str] = match task {
        Task::Embed => &["embedding", "sentence_embedding", "embeddings"],
        _ => &["logits"],
    };
    let listed = || metadata.outputs.iter().map(|tensor| tensor.name.as_str());
    let named = names.iter().find_map(|name| listed().find(|listed| listed == name));
    let only = || match &metadata.outputs[..] {
        [only] if task == Task::Embed => Some(only.name.as_str()),
        _ => None,
    };
    // Scores after an activation are not what the graph here gives: they are not taken for logits.
    let output = named.or_else(only).ok_or_else(|| {
        format!("the model gives {}; {} is needed", listed().collect::<Vec<_>>().join(", "), names.join(" or "))
    })?;
    Ok(Contract { inputs, output: output.to_owned() })
}

/// Padded token ids with what else the service wants of them.
fn ids(items: &[&Prepared], datatype: &'static str, mask: bool, types: bool) -> Result<Vec<Tensor>, Trouble> {
    let length = items.iter().map(|item| item.num_tokens()).max().unwrap_or(0);
    let (mut all, mut of_mask, mut of_types) = (Vec::new(), Vec::new(), Vec::new());
    for item in items {
        let sequence = &item.tokens.sequence;
        let token_ids = ids_of(item)?;
        let used = token_ids.len();
        if !mask && used < length {
            return Err(refused("the service takes no attention mask: items of several lengths cannot be sent").into());
        }
        if !types && sequence.token_types.iter().any(|&kind| kind != 0) {
            return Err(refused("the service takes no token types, which this pair has").into());
        }
        let padded = |values: &[u32]| -> Vec<i64> {
            let padding = std::iter::repeat_n(0, length.saturating_sub(values.len()));
            values.iter().map(|&value| i64::from(value)).chain(padding).collect()
        };
        all.extend(padded(token_ids));
        of_mask.extend(padded(&vec![1; used]));
        of_types.extend(padded(&sequence.token_types));
    }
    let tensor = |name: &str, values| Tensor {
        name: name.to_owned(),
        shape: [items.len(), length],
        data: Data::Integers { datatype, values },
    };
    let mut tensors = vec![tensor("input_ids", all)];
    if mask {
        tensors.push(tensor("attention_mask", of_mask));
    }
    if types {
        tensors.push(tensor("token_type_ids", of_types));
    }
    Ok(tensors)
}

struct Http {
    client: Client,
    path: String,
}

#[derive(Deserialize)]
struct Answer {
    outputs: Vec<Output>,
}

#[derive(Deserialize)]
struct Output {
    name: String,
    shape: Vec<usize>,
    data: Numbers,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Numbers {
    Flat(Vec<f32>),
    Nested(Vec<Vec<f32>>),
}

impl Transport for Http {
    fn metadata(&self, until: Instant) -> Result<Metadata, Failure> {
        self.client.get(&self.path, until)
    }

    fn infer(&self, tensors: &[Tensor], wanted: &str, until: Instant) -> Result<Floats, Failure> {
        let input = |tensor: &Tensor| -> Value {
            let (datatype, data) = match &tensor.data {
                Data::Texts(texts) => ("BYTES", json!(texts)),
                Data::Integers { datatype, values } => (*datatype, json!(values)),
            };
            json!({"name": tensor.name, "shape": tensor.dimensions(), "datatype": datatype, "data": data})
        };
        let inputs: Vec<Value> = tensors.iter().map(input).collect();
        let body = json!({"inputs": inputs, "outputs": [{"name": wanted}]});
        let answer: Answer = self.client.post(&format!("{}/infer", self.path), &body, until)?;
        let output = answer.outputs.into_iter().find(|output| output.name == wanted);
        let output = output.ok_or_else(|| Failure::Answer(format!("there is no output `{wanted}`")))?;
        let data = match output.data {
            Numbers::Flat(data) => data,
            Numbers::Nested(rows) => rows.concat(),
        };
        Ok(Floats { shape: output.shape, data })
    }
}

/// A name as one part of a path.
fn escaped(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(platform: &str, inputs: &[(&str, &str)], outputs: &[&str]) -> Metadata {
        let tensor = |name: &str, datatype: &str| TensorMetadata { name: name.into(), datatype: datatype.into() };
        Metadata {
            platform: platform.into(),
            inputs: inputs.iter().map(|(name, datatype)| tensor(name, datatype)).collect(),
            outputs: outputs.iter().map(|name| tensor(name, "FP32")).collect(),
        }
    }

    #[test]
    fn tensors_are_chosen_from_what_is_listed() {
        let text = |text: &str, pair: Option<&str>, ids| Inputs::Texts {
            text: text.into(),
            pair: pair.map(str::to_owned),
            ids,
        };
        for (metadata, task, want) in [
            (
                metadata("ehun", &[("text", "BYTES")], &["embedding"]),
                Task::Embed,
                Some((text("text", None, true), "embedding")),
            ),
            (
                metadata("ehun", &[("text", "BYTES"), ("text_pair", "BYTES")], &["score", "logits"]),
                Task::Rerank,
                Some((text("text", Some("text_pair"), true), "logits")),
            ),
            (
                metadata("python", &[("QUERY", "BYTES"), ("PASSAGE", "BYTES")], &["logits"]),
                Task::Rerank,
                Some((text("QUERY", Some("PASSAGE"), false), "logits")),
            ),
            (
                metadata(
                    "onnxruntime_onnx",
                    &[("input_ids", "INT32"), ("attention_mask", "INT32")],
                    &["token_embeddings", "sentence_embedding"],
                ),
                Task::Embed,
                Some((Inputs::Ids { datatype: "INT32", mask: true, types: false }, "sentence_embedding")),
            ),
            (metadata("", &[("text", "BYTES")], &["vector"]), Task::Embed, Some((text("text", None, false), "vector"))),
            (metadata("", &[("text", "BYTES")], &["score"]), Task::Rerank, None),
            (metadata("", &[("image", "UINT8")], &["embedding"]), Task::Embed, None),
        ] {
            let want = want.map(|(inputs, output)| Contract { inputs, output: output.into() });
            assert_eq!(contract(&metadata, task).ok(), want, "{metadata:?}");
        }
    }
}
