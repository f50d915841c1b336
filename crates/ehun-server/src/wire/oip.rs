//! Open Inference Protocol v2 over HTTP: what KServe and Triton speak.
//!
//! Inputs: a BYTES tensor `text` (and `text_pair`), one element for an item; or an integer tensor `input_ids`
//! `[items, length]` with `attention_mask` telling padding. Outputs: `embedding` FP32 `[items, width]`, `score` FP32 `[items]`, or
//! `scores` FP32 `[items, labels]`.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use ehun_engine::{Input, ItemOptions};
use ehun_models::Task;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::{App, Served};
use crate::body::parse;
use crate::call::{self, Cost};
use crate::fault::{Fault, Kind, Style};
use crate::wire::with_cost;

/// Tasks whose answers are rectangular.
const TASKS: [Task; 3] = [Task::Embed, Task::Rerank, Task::Classify];

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v2", get(server))
        .route("/v2/health/live", get(async || Json(json!({"live": true}))))
        .route("/v2/health/ready", get(ready))
        .route("/v2/models/{name}", get(model))
        .route("/v2/models/{name}/versions/{version}", get(model_version))
        .route("/v2/models/{name}/ready", get(model_ready))
        .route("/v2/models/{name}/infer", post(infer))
        .route("/v2/models/{name}/versions/{version}/infer", post(infer_version))
}

async fn server() -> Response {
    Json(json!({"name": "ehun", "version": env!("CARGO_PKG_VERSION"), "extensions": []})).into_response()
}

async fn ready(State(app): State<Arc<App>>) -> Response {
    let status = if app.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(json!({"ready": app.is_ready()}))).into_response()
}

async fn model_ready(State(app): State<Arc<App>>, Path(name): Path<String>) -> Response {
    match app.find(Some(&name), &TASKS) {
        Ok(_) => ready(State(app)).await,
        Err(fault) => fault.response(Style::Oip),
    }
}

async fn model_version(state: State<Arc<App>>, Path((name, _)): Path<(String, String)>) -> Response {
    model(state, Path(name)).await
}

async fn model(State(app): State<Arc<App>>, Path(name): Path<String>) -> Response {
    match app.find(Some(&name), &TASKS) {
        Ok(served) => {
            let mut inputs = vec![json!({"name": "text", "datatype": "BYTES", "shape": [-1]})];
            if served.model.task() != Task::Embed {
                inputs.push(json!({"name": "text_pair", "datatype": "BYTES", "shape": [-1]}));
            }
            let (output, shape) = match served.model.task() {
                Task::Embed => ("embedding", json!([-1, served.model.dimension()])),
                Task::Rerank => ("score", json!([-1])),
                _ => ("scores", json!([-1, served.model.dimension()])),
            };
            Json(json!({
                "name": served.name,
                "versions": ["1"],
                "platform": "ehun",
                "inputs": inputs,
                "outputs": [{"name": output, "datatype": "FP32", "shape": shape}],
            }))
            .into_response()
        }
        Err(fault) => fault.response(Style::Oip),
    }
}

#[derive(Deserialize)]
struct Tensor {
    name: String,
    shape: Vec<i64>,
    datatype: String,
    data: Value,
}

#[derive(Deserialize)]
struct InferRequest {
    id: Option<String>,
    inputs: Vec<Tensor>,
}

async fn infer_version(state: State<Arc<App>>, Path((name, _)): Path<(String, String)>, body: Bytes) -> Response {
    infer(state, Path(name), body).await
}

async fn infer(State(app): State<Arc<App>>, Path(name): Path<String>, body: Bytes) -> Response {
    match infer_value(&app, &name, &body).await {
        Ok((body, cost)) => with_cost(Json(body).into_response(), &cost),
        Err(fault) => fault.response(Style::Oip),
    }
}

async fn infer_value(app: &App, name: &str, body: &Bytes) -> Result<(Value, Cost), Fault> {
    let request: InferRequest = parse(body)?;
    let served = app.find(Some(name), &TASKS)?;
    let items = items(&request.inputs)?;
    if items.len() > app.limits.items {
        return Err(Fault::invalid(format!("{} items, at most {} are allowed", items.len(), app.limits.items)));
    }
    let count = items.len();
    let (answers, cost) = call::all(served, items, ItemOptions::default()).await?;
    let rows = answers.into_iter().map(call::row).collect::<Result<Vec<_>, _>>()?;
    let output = output(served, &rows, count)?;
    let mut body = json!({"model_name": served.name, "model_version": "1", "outputs": [output]});
    if let Some(id) = request.id {
        body["id"] = json!(id);
    }
    Ok((body, cost))
}

fn output(served: &Served, rows: &[Vec<f32>], count: usize) -> Result<Value, Fault> {
    let width = served.model.dimension();
    Ok(match served.model.task() {
        Task::Rerank => {
            let scores = rows.iter().map(|row| served.model.rerank_score(row, false)).collect::<Result<Vec<_>, _>>()?;
            json!({"name": "score", "datatype": "FP32", "shape": [count], "data": scores})
        }
        Task::Classify => {
            let scores: Vec<f32> = rows.iter().flat_map(|row| served.model.probabilities(row)).collect();
            json!({"name": "scores", "datatype": "FP32", "shape": [count, width], "data": scores})
        }
        _ => json!({"name": "embedding", "datatype": "FP32", "shape": [count, width], "data": rows.concat()}),
    })
}

fn items(tensors: &[Tensor]) -> Result<Vec<Input>, Fault> {
    let find = |name: &str| tensors.iter().find(|tensor| tensor.name == name);
    let known = ["text", "text_pair", "input_ids", "attention_mask", "token_type_ids"];
    if let Some(other) = tensors.iter().find(|tensor| !known.contains(&tensor.name.as_str())) {
        return Err(Fault::invalid(format!("there is no input `{}`; inputs are {}", other.name, known.join(", "))));
    }
    let items = match (find("text"), find("text_pair"), find("input_ids")) {
        (Some(text), None, None) => strings(text)?.into_iter().map(Input::from).collect(),
        (Some(text), Some(pair), None) => {
            let (first, second) = (strings(text)?, strings(pair)?);
            if first.len() != second.len() {
                return Err(Fault::invalid(format!("{} texts and {} pairs", first.len(), second.len())));
            }
            first.into_iter().zip(second).map(|(a, b)| Input::Pair(a.into(), b.into())).collect()
        }
        (None, None, Some(ids)) => ids_of(ids, find("attention_mask"))?,
        _ => return Err(Fault::invalid("`inputs` must have a BYTES tensor `text`, or an integer tensor `input_ids`")),
    };
    if items.is_empty() { Err(Fault::new(Kind::Empty, "`inputs` has no items")) } else { Ok(items) }
}

/// The elements of a tensor, row-major, nested or flat; their number must be that of the shape.
fn flat(tensor: &Tensor) -> Result<Vec<&Value>, Fault> {
    fn collect<'a>(value: &'a Value, into: &mut Vec<&'a Value>) {
        match value {
            Value::Array(all) => all.iter().for_each(|value| collect(value, into)),
            one => into.push(one),
        }
    }
    let mut all = Vec::new();
    collect(&tensor.data, &mut all);
    let wanted = tensor
        .shape
        .iter()
        .try_fold(1usize, |product, &n| usize::try_from(n).ok().and_then(|n| product.checked_mul(n)));
    if wanted != Some(all.len()) {
        return Err(Fault::invalid(format!(
            "tensor `{}` has shape {:?} and {} elements",
            tensor.name,
            tensor.shape,
            all.len()
        )));
    }
    Ok(all)
}

fn strings(tensor: &Tensor) -> Result<Vec<String>, Fault> {
    if tensor.datatype != "BYTES" {
        return Err(Fault::invalid(format!("tensor `{}` has datatype {}, not BYTES", tensor.name, tensor.datatype)));
    }
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let all: Option<Vec<String>> = flat(tensor)?.into_iter().map(text).collect();
    all.ok_or_else(|| Fault::invalid(format!("tensor `{}` must have strings", tensor.name)))
}

fn integers(tensor: &Tensor) -> Result<Vec<u32>, Fault> {
    if !["INT64", "INT32", "UINT64", "UINT32"].contains(&tensor.datatype.as_str()) {
        return Err(Fault::invalid(format!("tensor `{}` has datatype {}, not INT64", tensor.name, tensor.datatype)));
    }
    let number = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
    let all: Option<Vec<u32>> = flat(tensor)?.into_iter().map(number).collect();
    all.ok_or_else(|| Fault::invalid(format!("tensor `{}` must have whole numbers from 0", tensor.name)))
}

fn ids_of(ids: &Tensor, mask: Option<&Tensor>) -> Result<Vec<Input>, Fault> {
    let values = integers(ids)?;
    let mask = match mask {
        Some(tensor) if tensor.shape == ids.shape => integers(tensor)?,
        Some(_) => return Err(Fault::invalid("`attention_mask` has another shape than `input_ids`")),
        None => vec![1; values.len()],
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
