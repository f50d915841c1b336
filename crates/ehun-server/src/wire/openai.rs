//! OpenAI: `POST /v1/embeddings`, `GET /v1/models`.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine as _;
use ehun_engine::{Input, ItemOptions};
use ehun_models::{Task, tasks};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::app::App;
use crate::body::parse;
use crate::call::{self, Cost};
use crate::fault::{Fault, Kind, Style};
use crate::wire::with_cost;

/// Most items of a request, as OpenAI has it.
const MOST_ITEMS: usize = 2048;

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/embeddings", post(embeddings))
        .route("/embeddings", post(embeddings))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Inputs {
    Text(String),
    Texts(Vec<String>),
    Ids(Vec<u32>),
    ManyIds(Vec<Vec<u32>>),
}

#[derive(Deserialize, Default, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Format {
    #[default]
    Float,
    Base64,
}

#[derive(Deserialize)]
struct EmbeddingsRequest {
    input: Inputs,
    #[serde(default)]
    model: String,
    #[serde(default)]
    encoding_format: Format,
    dimensions: Option<usize>,
}

/// Written as they are: through a general JSON value every float32 would become a float64 with twice the digits.
#[derive(Serialize)]
struct EmbeddingsAnswer {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: Usage,
}

#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Float(Vec<f32>),
    Base64(String),
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

async fn embeddings(State(app): State<Arc<App>>, body: Bytes) -> Response {
    match embed(&app, &body).await {
        Ok((body, cost)) => with_cost(Json(body).into_response(), &cost),
        Err(fault) => fault.response(Style::OpenAi),
    }
}

async fn embed(app: &App, body: &Bytes) -> Result<(EmbeddingsAnswer, Cost), Fault> {
    let request: EmbeddingsRequest = parse(body)?;
    let served = app.find(Some(&request.model), &[Task::Embed])?;
    let inputs: Vec<Input> = match request.input {
        Inputs::Text(text) => vec![text.into()],
        Inputs::Texts(texts) => texts.into_iter().map(Input::from).collect(),
        Inputs::Ids(ids) if ids.is_empty() => Vec::new(),
        Inputs::Ids(ids) => vec![Input::Tokens(ids.into())],
        Inputs::ManyIds(many) => many.into_iter().map(|ids| Input::Tokens(ids.into())).collect(),
    };
    if inputs.is_empty() {
        return Err(Fault::new(Kind::Empty, "`input` has no items").at("input"));
    }
    if inputs.len() > MOST_ITEMS {
        return Err(
            Fault::invalid(format!("`input` has {} items, at most {MOST_ITEMS} are allowed", inputs.len())).at("input")
        );
    }
    if let Some(empty) = inputs.iter().position(|input| input.num_bytes() == 0) {
        return Err(Fault::invalid(format!("item {empty} of `input` is empty")).at("input"));
    }
    // OpenAI refuses what is too long; cutting it would be silent.
    let options = ItemOptions { truncation: ehun_engine::Truncation::Refuse, prompt: None };
    let (answers, cost) = call::all(&served, inputs, options).await?;
    let mut data = Vec::with_capacity(answers.len());
    for (index, answer) in answers.into_iter().enumerate() {
        let mut vector = call::row(answer)?;
        if let Some(dimensions) = request.dimensions {
            tasks::embed::truncate(&mut vector, dimensions).map_err(|e| Fault::from(e).at("dimensions"))?;
        }
        let embedding = match request.encoding_format {
            Format::Float => Vector::Float(vector),
            Format::Base64 => Vector::Base64(base64_of(&vector)),
        };
        data.push(Embedding { object: "embedding", index, embedding });
    }
    let usage = Usage { prompt_tokens: cost.tokens, total_tokens: cost.tokens };
    let model = if request.model.is_empty() { served.name.clone() } else { request.model };
    Ok((EmbeddingsAnswer { object: "list", data, model, usage }, cost))
}

/// Little-endian float32 in base64, which the Python client asks for.
pub fn base64_of(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn entry(app: &App, name: &str, model: &str) -> Value {
    json!({"id": name, "object": "model", "created": app.started(), "owned_by": model})
}

async fn models(State(app): State<Arc<App>>) -> Response {
    let data: Vec<Value> = app.services.entries().iter().map(|of| entry(&app, &of.name, &of.model())).collect();
    Json(json!({"object": "list", "data": data})).into_response()
}

async fn model(State(app): State<Arc<App>>, Path(name): Path<String>) -> Response {
    let all = [Task::Embed, Task::Rerank, Task::Classify, Task::Tag, Task::Sparse, Task::Tokens];
    match app.find(Some(&name), &all) {
        Ok(served) => Json(entry(&app, &served.name, served.model.name())).into_response(),
        Err(fault) => fault.response(Style::OpenAi),
    }
}
