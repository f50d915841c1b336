//! Open Inference Protocol v2 over HTTP, with Triton's extension for binary tensors.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::body::parse;
use crate::call::Cost;
use crate::fault::{Fault, Style};
use crate::wire::oip_core::{self, Elements, Output, Tensor};
use crate::wire::with_cost;

/// Length of the JSON at the beginning of a body that binary tensors follow.
const HEADER_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v2", get(server))
        .route("/v2/health/live", get(async || Json(json!({"live": true}))))
        .route("/v2/health/ready", get(ready))
        .route("/v2/models/{name}", get(model))
        .route("/v2/models/{name}/versions/{version}", get(model_version))
        .route("/v2/models/{name}/ready", get(model_ready))
        .route("/v2/models/{name}/versions/{version}/ready", get(model_version_ready))
        .route("/v2/models/{name}/infer", post(infer))
        .route("/v2/models/{name}/versions/{version}/infer", post(infer_version))
}

async fn server() -> Response {
    let extensions = ["binary_tensor_data"];
    Json(json!({"name": "ehun", "version": env!("CARGO_PKG_VERSION"), "extensions": extensions})).into_response()
}

async fn ready(State(app): State<Arc<App>>) -> Response {
    let status = if app.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(json!({"ready": app.is_ready()}))).into_response()
}

async fn model_ready(state: State<Arc<App>>, Path(name): Path<String>) -> Response {
    model_version_ready(state, Path((name, String::new()))).await
}

async fn model_version_ready(State(app): State<Arc<App>>, Path((name, version)): Path<(String, String)>) -> Response {
    match oip_core::find(&app, &name, &version) {
        Ok(served) => {
            let status = if app.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            (status, Json(json!({"name": served.name, "ready": app.is_ready()}))).into_response()
        }
        Err(fault) => fault.response(Style::Oip),
    }
}

async fn model(state: State<Arc<App>>, Path(name): Path<String>) -> Response {
    model_version(state, Path((name, String::new()))).await
}

async fn model_version(State(app): State<Arc<App>>, Path((name, version)): Path<(String, String)>) -> Response {
    match oip_core::find(&app, &name, &version) {
        Ok(served) => {
            let tensors = |all: Vec<oip_core::Description>| -> Vec<Value> {
                let one = |(name, datatype, shape)| json!({"name": name, "datatype": datatype, "shape": shape});
                all.into_iter().map(one).collect()
            };
            let (inputs, outputs) = oip_core::describe(&served);
            Json(json!({
                "name": served.name,
                "versions": [oip_core::VERSION],
                "platform": "ehun",
                "inputs": tensors(inputs),
                "outputs": tensors(outputs),
            }))
            .into_response()
        }
        Err(fault) => fault.response(Style::Oip),
    }
}

#[derive(Deserialize, Default)]
struct Parameters {
    /// Bytes of an input that follow the JSON.
    binary_data_size: Option<usize>,
    /// Whether an output is wanted in binary.
    #[serde(default)]
    binary_data: bool,
    /// Whether all outputs are.
    #[serde(default)]
    binary_data_output: bool,
}

#[derive(Deserialize)]
struct InputTensor {
    name: String,
    shape: Vec<i64>,
    datatype: String,
    data: Option<Value>,
    #[serde(default)]
    parameters: Parameters,
}

#[derive(Deserialize)]
struct RequestedOutput {
    name: String,
    #[serde(default)]
    parameters: Parameters,
}

#[derive(Deserialize)]
struct InferRequest {
    id: Option<String>,
    inputs: Vec<InputTensor>,
    #[serde(default)]
    outputs: Vec<RequestedOutput>,
    #[serde(default)]
    parameters: Parameters,
}

async fn infer(state: State<Arc<App>>, Path(name): Path<String>, headers: HeaderMap, body: Bytes) -> Response {
    infer_version(state, Path((name, String::new())), headers, body).await
}

async fn infer_version(
    State(app): State<Arc<App>>,
    Path((name, version)): Path<(String, String)>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    match infer_response(&app, (&name, &version), &headers, &body).await {
        Ok((response, cost)) => with_cost(response, &cost),
        Err(fault) => fault.response(Style::Oip),
    }
}

async fn infer_response(
    app: &App,
    (name, version): (&str, &str),
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<(Response, Cost), Fault> {
    let (json, mut binary) = split(headers, body)?;
    let request: InferRequest = parse(&json)?;
    let served = oip_core::find(app, name, version)?;
    let tensors = request.inputs.iter().map(|tensor| of_input(tensor, &mut binary)).collect::<Result<Vec<_>, _>>()?;
    if !binary.is_empty() {
        return Err(Fault::invalid(format!("{} bytes are left after the last binary tensor", binary.len())));
    }
    let wanted: Vec<String> = request.outputs.iter().map(|output| output.name.clone()).collect();
    let (outputs, cost) = oip_core::infer(app, &served, &tensors, &wanted).await?;
    let as_binary = |output: &Output| match request.outputs.iter().find(|wanted| wanted.name == output.name) {
        Some(wanted) => wanted.parameters.binary_data,
        None => request.parameters.binary_data_output,
    };
    let mut raw = Vec::new();
    let mut described = Vec::with_capacity(outputs.len());
    for output in &outputs {
        let mut entry = json!({"name": output.name, "datatype": "FP32", "shape": output.shape});
        if as_binary(output) {
            entry["parameters"] = json!({"binary_data_size": output.data.len() * 4});
            raw.extend(output.data.iter().flat_map(|x| x.to_le_bytes()));
        } else {
            entry["data"] = json!(output.data);
        }
        described.push(entry);
    }
    let mut body = json!({"model_name": served.name, "model_version": oip_core::VERSION, "outputs": described});
    if let Some(id) = request.id {
        body["id"] = json!(id);
    }
    if raw.is_empty() {
        return Ok((Json(body).into_response(), cost));
    }
    let json = body.to_string().into_bytes();
    let length = HeaderValue::from(json.len());
    let headers = [(HEADER_LENGTH, length), (header::CONTENT_TYPE, HeaderValue::from_static(BINARY))];
    Ok(((headers, [json, raw].concat()).into_response(), cost))
}

const BINARY: &str = "application/octet-stream";

/// The JSON of a body and the binary tensors after it.
fn split(headers: &HeaderMap, body: &Bytes) -> Result<(Bytes, Bytes), Fault> {
    let Some(length) = headers.get(HEADER_LENGTH) else { return Ok((body.clone(), Bytes::new())) };
    let length = length.to_str().ok().and_then(|text| text.trim().parse::<usize>().ok());
    match length {
        Some(length) if length <= body.len() => Ok((body.slice(..length), body.slice(length..))),
        _ => Err(Fault::invalid(format!("`{HEADER_LENGTH}` must be a number up to the body's {} bytes", body.len()))),
    }
}

/// A tensor of the request; binary contents are taken from the beginning of `binary`.
fn of_input(tensor: &InputTensor, binary: &mut Bytes) -> Result<Tensor, Fault> {
    let name = &tensor.name;
    let is_text = tensor.datatype == "BYTES";
    if !is_text && !oip_core::INTEGERS.contains(&tensor.datatype.as_str()) {
        let message = format!("tensor `{name}` has datatype {}, neither BYTES nor INT64", tensor.datatype);
        return Err(Fault::invalid(message));
    }
    let elements = match (&tensor.data, tensor.parameters.binary_data_size) {
        (Some(data), None) => of_json(name, is_text, data)?,
        (None, Some(size)) if size <= binary.len() => {
            let raw = binary.split_to(size);
            if is_text {
                Elements::Texts(oip_core::texts_of_raw(name, &raw)?)
            } else {
                Elements::Integers(oip_core::integers_of_raw(name, &tensor.datatype, &raw)?)
            }
        }
        (None, Some(size)) => {
            return Err(Fault::invalid(format!("tensor `{name}` has {size} bytes, {} are there", binary.len())));
        }
        _ => return Err(Fault::invalid(format!("tensor `{name}` needs `data` or `binary_data_size`, one of them"))),
    };
    Ok(Tensor { name: name.clone(), shape: tensor.shape.clone(), elements })
}

/// The elements of a JSON value, nested or flat.
fn of_json(name: &str, is_text: bool, data: &Value) -> Result<Elements, Fault> {
    fn collect<'a>(value: &'a Value, into: &mut Vec<&'a Value>) {
        match value {
            Value::Array(all) => all.iter().for_each(|value| collect(value, into)),
            one => into.push(one),
        }
    }
    let mut all = Vec::new();
    collect(data, &mut all);
    if is_text {
        let texts: Option<Vec<String>> = all.into_iter().map(|value| value.as_str().map(str::to_owned)).collect();
        let fault = || Fault::invalid(format!("tensor `{name}` must have strings"));
        return texts.map(Elements::Texts).ok_or_else(fault);
    }
    let number = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
    let numbers: Option<Vec<u32>> = all.into_iter().map(number).collect();
    numbers.map(Elements::Integers).ok_or_else(|| oip_core::not_whole(name))
}
