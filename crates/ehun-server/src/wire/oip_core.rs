//! Open Inference Protocol v2 without its two transports: which tensors a service takes and gives, and one inference.
//!
//! Inputs: a BYTES tensor `text` (and `text_pair`), one element for an item; or an integer tensor `input_ids`
//! `[items, length]` with `attention_mask` telling padding. Outputs, all FP32: `embedding` `[items, width]`; `score` `[items]`
//! and `logits` `[items, labels]`; or `scores` and `logits` `[items, labels]`. `logits` is given where it is asked for.

use std::sync::Arc;

use ehun_engine::{Answer, Input, ItemOptions};
use ehun_models::{Model, Task};

use crate::app::{App, Served};
use crate::call::{self, Cost};
use crate::fault::{Fault, Kind};

/// Tasks whose answers are rectangular and narrow.
pub const TASKS: [Task; 3] = [Task::Embed, Task::Rerank, Task::Classify];

/// The one version of every model.
pub const VERSION: &str = "1";

/// Elements of a tensor that came in, row-major.
pub enum Elements {
    /// Of a BYTES tensor.
    Texts(Vec<String>),
    /// Of an integer tensor.
    Integers(Vec<u32>),
}

impl Elements {
    fn len(&self) -> usize {
        match self {
            Self::Texts(texts) => texts.len(),
            Self::Integers(integers) => integers.len(),
        }
    }
}

/// A tensor that came in.
pub struct Tensor {
    /// The name.
    pub name: String,
    /// Dimensions.
    pub shape: Vec<i64>,
    /// Elements.
    pub elements: Elements,
}

/// A tensor that goes out, FP32.
pub struct Output {
    /// The name.
    pub name: &'static str,
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Elements, row-major.
    pub data: Vec<f32>,
}

/// Name, type and dimensions, -1 for any.
pub type Description = (&'static str, &'static str, Vec<i64>);

/// The integer types that token ids may have.
pub const INTEGERS: [&str; 4] = ["INT64", "INT32", "UINT64", "UINT32"];

/// The service `name`, in its version where one is given.
pub fn find(app: &App, name: &str, version: &str) -> Result<Arc<Served>, Fault> {
    let served = app.find(Some(name), &TASKS)?;
    if version.is_empty() || version == VERSION {
        return Ok(served);
    }
    Err(Fault::new(Kind::NotFound, format!("`{name}` has one version, {VERSION}, and not `{version}`")))
}

/// The tensors that a service takes and gives.
pub fn describe(served: &Served) -> (Vec<Description>, Vec<Description>) {
    let width = i64::try_from(served.model.dimension()).unwrap_or(i64::MAX);
    let mut inputs = vec![("text", "BYTES", vec![-1])];
    if served.model.task() != Task::Embed {
        inputs.push(("text_pair", "BYTES", vec![-1]));
    }
    let outputs = match served.model.task() {
        Task::Embed => vec![("embedding", "FP32", vec![-1, width])],
        Task::Rerank => vec![("score", "FP32", vec![-1]), ("logits", "FP32", vec![-1, width])],
        _ => vec![("scores", "FP32", vec![-1, width]), ("logits", "FP32", vec![-1, width])],
    };
    (inputs, outputs)
}

/// Runs the items of `tensors`. `wanted` names outputs; none is the first one of [`describe`].
pub async fn infer(
    app: &App,
    served: &Served,
    tensors: &[Tensor],
    wanted: &[String],
) -> Result<(Vec<Output>, Cost), Fault> {
    let (_, outputs) = describe(served);
    if let Some(other) = wanted.iter().find(|name| outputs.iter().all(|(known, ..)| known != name)) {
        let known: Vec<&str> = outputs.iter().map(|(name, ..)| *name).collect();
        return Err(Fault::invalid(format!("there is no output `{other}`; outputs are {}", known.join(", "))));
    }
    let items = items(tensors)?;
    if items.len() > app.limits().items {
        return Err(Fault::invalid(format!("{} items, at most {} are allowed", items.len(), app.limits().items)));
    }
    let (answers, cost) = call::all(served, items, ItemOptions::default()).await?;
    // Each row with the model that gave it: a swap may have come between the items.
    let row = |answer: Answer| Ok::<_, Fault>((Arc::clone(call::model(served, &answer)), call::row(answer)?));
    let rows = answers.into_iter().map(row).collect::<Result<Vec<_>, _>>()?;
    let width = rows.first().map_or(served.model.dimension(), |(_, row)| row.len());
    if rows.iter().any(|(_, row)| row.len() != width) {
        let message = "the service's model changed to one of another width while the request was in; try again";
        return Err(Fault::new(Kind::Unavailable, message));
    }
    let chosen = outputs
        .into_iter()
        .enumerate()
        .filter(|(i, (name, ..))| if wanted.is_empty() { *i == 0 } else { wanted.iter().any(|w| w == name) });
    let outputs = chosen.map(|(_, (name, ..))| output(name, width, &rows)).collect::<Result<_, _>>()?;
    Ok((outputs, cost))
}

fn output(name: &'static str, width: usize, rows: &[(Arc<Model>, Vec<f32>)]) -> Result<Output, Fault> {
    let (shape, data) = match name {
        "score" => {
            let scores = rows.iter().map(|(model, row)| model.rerank_score(row, false)).collect::<Result<_, _>>()?;
            (vec![rows.len()], scores)
        }
        "scores" => {
            let scores = rows.iter().flat_map(|(model, row)| model.probabilities(row)).collect();
            (vec![rows.len(), width], scores)
        }
        _ => (vec![rows.len(), width], rows.iter().flat_map(|(_, row)| row).copied().collect()),
    };
    Ok(Output { name, shape, data })
}

/// Checks that a tensor has as many elements as its shape says.
pub fn check_shape(name: &str, shape: &[i64], elements: usize) -> Result<(), Fault> {
    let count = |product: usize, &n: &i64| usize::try_from(n).ok().and_then(|n| product.checked_mul(n));
    if shape.iter().try_fold(1usize, count) == Some(elements) {
        return Ok(());
    }
    Err(Fault::invalid(format!("tensor `{name}` has shape {shape:?} and {elements} elements")))
}

/// BYTES elements as they stand in binary contents: each its length in four bytes, little-endian, and its bytes.
pub fn texts_of_raw(name: &str, mut raw: &[u8]) -> Result<Vec<String>, Fault> {
    let mut texts = Vec::new();
    while let Some((length, rest)) = raw.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length) as usize;
        let Some((bytes, rest)) = rest.split_at_checked(length) else {
            return Err(Fault::invalid(format!("tensor `{name}` ends within an element")));
        };
        texts.push(utf8(name, bytes)?);
        raw = rest;
    }
    if raw.is_empty() { Ok(texts) } else { Err(Fault::invalid(format!("tensor `{name}` ends within a length"))) }
}

/// The text of one BYTES element.
pub fn utf8(name: &str, bytes: &[u8]) -> Result<String, Fault> {
    let text = std::str::from_utf8(bytes);
    text.map(str::to_owned)
        .map_err(|error| Fault::invalid(format!("tensor `{name}` must have texts in UTF-8: {error}")))
}

/// Integer elements as they stand in binary contents, little-endian.
pub fn integers_of_raw(name: &str, datatype: &str, raw: &[u8]) -> Result<Vec<u32>, Fault> {
    let width = if datatype.ends_with("64") { 8 } else { 4 };
    if !raw.len().is_multiple_of(width) {
        return Err(Fault::invalid(format!("tensor `{name}` has {} bytes, elements have {width}", raw.len())));
    }
    let number = |bytes: &[u8]| {
        let mut all = [0; 8];
        all[..bytes.len()].copy_from_slice(bytes);
        u32::try_from(u64::from_le_bytes(all)).ok().filter(|&n| i32::try_from(n).is_ok())
    };
    let all: Option<Vec<u32>> = raw.chunks_exact(width).map(number).collect();
    all.ok_or_else(|| not_whole(name))
}

/// The fault of an integer tensor with something else in it.
pub fn not_whole(name: &str) -> Fault {
    Fault::invalid(format!("tensor `{name}` must have whole numbers from 0"))
}

fn items(tensors: &[Tensor]) -> Result<Vec<Input>, Fault> {
    let find = |name: &str| tensors.iter().find(|tensor| tensor.name == name);
    let known = ["text", "text_pair", "input_ids", "attention_mask", "token_type_ids"];
    if let Some(other) = tensors.iter().find(|tensor| !known.contains(&tensor.name.as_str())) {
        return Err(Fault::invalid(format!("there is no input `{}`; inputs are {}", other.name, known.join(", "))));
    }
    for tensor in tensors {
        check_shape(&tensor.name, &tensor.shape, tensor.elements.len())?;
    }
    if let Some(types) = find("token_type_ids")
        && integers(types)?.iter().any(|&kind| kind != 0)
    {
        return Err(Fault::invalid("`token_type_ids` other than 0 are not taken: send `text` and `text_pair`"));
    }
    let items = match (find("text"), find("text_pair"), find("input_ids")) {
        (Some(text), None, None) => texts(text)?.iter().map(|text| Input::from(text.as_str())).collect(),
        (Some(text), Some(pair), None) => {
            let (first, second) = (texts(text)?, texts(pair)?);
            if first.len() != second.len() {
                return Err(Fault::invalid(format!("{} texts and {} pairs", first.len(), second.len())));
            }
            first.iter().zip(second).map(|(a, b)| Input::Pair(a.as_str().into(), b.as_str().into())).collect()
        }
        (None, None, Some(ids)) => ids_of(ids, find("attention_mask"))?,
        _ => return Err(Fault::invalid("`inputs` must have a BYTES tensor `text`, or an integer tensor `input_ids`")),
    };
    if items.is_empty() { Err(Fault::new(Kind::Empty, "`inputs` has no items")) } else { Ok(items) }
}

fn texts(tensor: &Tensor) -> Result<&[String], Fault> {
    match &tensor.elements {
        Elements::Texts(texts) => Ok(texts),
        Elements::Integers(_) => Err(Fault::invalid(format!("tensor `{}` must have strings", tensor.name))),
    }
}

fn integers(tensor: &Tensor) -> Result<&[u32], Fault> {
    match &tensor.elements {
        Elements::Integers(integers) => Ok(integers),
        Elements::Texts(_) => Err(not_whole(&tensor.name)),
    }
}

fn ids_of(ids: &Tensor, mask: Option<&Tensor>) -> Result<Vec<Input>, Fault> {
    let values = integers(ids)?;
    let ones;
    let mask = match mask {
        Some(tensor) if tensor.shape == ids.shape => integers(tensor)?,
        Some(_) => return Err(Fault::invalid("`attention_mask` has another shape than `input_ids`")),
        None => {
            ones = vec![1; values.len()];
            &ones
        }
    };
    let length = match ids.shape.last() {
        Some(&length) if ids.shape.len() == 2 && length > 0 => length as usize,
        _ => return Err(Fault::invalid("`input_ids` must have the shape [items, length]")),
    };
    Ok(values
        .chunks(length)
        .zip(mask.chunks(length))
        .map(|(ids, mask)| {
            let kept: Vec<u32> = ids.iter().zip(mask).filter(|(_, mask)| **mask != 0).map(|(&id, _)| id).collect();
            Input::Tokens(kept.into())
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_contents() {
        assert_eq!(texts_of_raw("t", b"\x01\0\0\0a\x02\0\0\0\xc3\xa4").unwrap(), ["a", "ä"]);
        for wrong in [&b"\x02\0\0\0a"[..], b"\x01\0", b"\x01\0\0\0\xff", b"\xff\xff\xff\xffa"] {
            assert!(texts_of_raw("t", wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(integers_of_raw("i", "INT32", &[5, 0, 0, 0, 1, 1, 0, 0]).unwrap(), [5, 257]);
        assert_eq!(integers_of_raw("i", "INT64", &[7, 0, 0, 0, 0, 0, 0, 0]).unwrap(), [7]);
        for (datatype, wrong) in [("INT32", &[255u8; 4][..]), ("INT64", &[255; 8]), ("INT64", &[0; 4])] {
            assert!(integers_of_raw("i", datatype, wrong).is_err(), "{wrong:?}");
        }
    }
}
