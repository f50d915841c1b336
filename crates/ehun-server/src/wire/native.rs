//! Ehun's own routes: what the other wire formats have no words for.
//!
//! | route | in | out |
//! | --- | --- | --- |
//! | `POST /v1/classify` | `{model?, inputs, top_k?, raw_scores?}` | `{results: [[{label, score}]]}` |
//! | `POST /v1/tag` | `{model?, inputs, aggregation?}` | `{results: [[{entity_group, score, word, start, end}]]}` |
//! | `POST /v1/sparse` | `{model?, inputs}` | `{results: [[{index, token, value}]]}` |
//! | `POST /v1/documents?name=FILE` | the file | `{document, chunks}` |
//! | `GET /v1/services` | | what serves what, and how it is |

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{RawQuery, State};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use ehun_documents::{ChunkOptions, ParseOptions};
use ehun_engine::{Input, ItemOptions};
use ehun_models::{Task, tasks};
use ehun_pipeline::ModelCounter;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::body::parse;
use crate::call::{self, Cost};
use crate::fault::{Fault, Kind, Style};
use crate::services::{Entry, State as Is};
use crate::wire::with_cost;

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/classify", post(classify))
        .route("/v1/tag", post(tag))
        .route("/v1/sparse", post(sparse))
        .route("/v1/documents", post(documents))
        .route("/v1/services", get(services))
        .route("/openapi.json", get(openapi))
        .route("/api-doc/openapi.json", get(openapi))
        .route("/docs", get(docs))
}

fn answer(result: Result<(Value, Cost), Fault>) -> Response {
    match result {
        Ok((body, cost)) => with_cost(Json(body).into_response(), &cost),
        Err(fault) => fault.response(Style::OpenAi),
    }
}

/// A text, or two that are read together.
#[derive(Deserialize)]
#[serde(untagged)]
enum One {
    Text(String),
    Pair([String; 2]),
}

impl From<One> for Input {
    fn from(one: One) -> Self {
        match one {
            One::Text(text) => text.into(),
            One::Pair([first, second]) => Self::Pair(first.into(), second.into()),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ItemsRequest {
    model: Option<String>,
    inputs: Vec<One>,
    top_k: Option<usize>,
    #[serde(default)]
    raw_scores: bool,
    aggregation: Option<tasks::tag::Aggregation>,
}

impl ItemsRequest {
    fn items(&mut self, app: &App) -> Result<Vec<Input>, Fault> {
        if self.inputs.is_empty() {
            return Err(Fault::new(Kind::Empty, "`inputs` has no items").at("inputs"));
        }
        if self.inputs.len() > app.limits.items {
            let message = format!("{} items, at most {} are allowed", self.inputs.len(), app.limits.items);
            return Err(Fault::invalid(message).at("inputs"));
        }
        Ok(std::mem::take(&mut self.inputs).into_iter().map(Input::from).collect())
    }
}

/// One list of results for each item; an item that failed has `{"error": ...}` in its place and fails no other.
async fn results(
    app: &App,
    request: &mut ItemsRequest,
    task: Task,
    each: impl Fn(&crate::services::Served, ehun_engine::Answer, &Input) -> Result<Value, Fault>,
) -> Result<(Value, Cost), Fault> {
    let served = app.find(request.model.as_deref(), &[task])?;
    let items = request.items(app)?;
    let (answers, cost) = call::each(&served, items.clone(), ItemOptions::default()).await?;
    let one = |(answer, item): (Result<ehun_engine::Answer, ehun_engine::EngineError>, &Input)| {
        let value = answer.map_err(Fault::from).and_then(|answer| each(&served, answer, item));
        value.unwrap_or_else(|fault| json!({"error": fault.message}))
    };
    let all: Vec<Value> = answers.into_iter().zip(&items).map(one).collect();
    Ok((json!({"model": served.name, "results": all, "usage": {"total_tokens": cost.tokens}}), cost))
}

async fn classify(State(app): State<Arc<App>>, body: Bytes) -> Response {
    let run = async {
        let mut request: ItemsRequest = parse(&body)?;
        let (raw, top_k) = (request.raw_scores, request.top_k);
        results(&app, &mut request, Task::Classify, |served, answer, _| {
            let model = Arc::clone(call::model(served, &answer));
            Ok(json!(model.label_scores(&call::row(answer)?, raw, top_k)?))
        })
        .await
    };
    answer(run.await)
}

async fn sparse(State(app): State<Arc<App>>, body: Bytes) -> Response {
    let run = async {
        let mut request: ItemsRequest = parse(&body)?;
        results(&app, &mut request, Task::Sparse, |served, answer, _| {
            let model = Arc::clone(call::model(served, &answer));
            Ok(json!(model.sparse_terms(&call::row(answer)?)))
        })
        .await
    };
    answer(run.await)
}

async fn tag(State(app): State<Arc<App>>, body: Bytes) -> Response {
    answer(tag_value(&app, &body).await)
}

/// Long texts go in as several windows; an item that cannot be tagged has its error in its place.
async fn tag_value(app: &App, body: &Bytes) -> Result<(Value, Cost), Fault> {
    let mut request: ItemsRequest = parse(body)?;
    let served = app.find(request.model.as_deref(), &[Task::Tag])?;
    let aggregation = request.aggregation.unwrap_or_default();
    let mut windows = Vec::new();
    let mut inputs = Vec::new();
    for item in request.items(app)? {
        let Input::Text(text) = item else { return Err(Fault::invalid("tagging takes texts, not pairs").at("inputs")) };
        let of_text = served.model.tag_windows(&text)?;
        inputs.extend(of_text.inputs.iter().map(|input| Input::Tokens(input.token_ids.as_slice().into())));
        windows.push((text, of_text));
    }
    let (answers, cost) = call::each(&served, inputs, ItemOptions::default()).await?;
    let mut answers = answers.into_iter();
    let mut all = Vec::with_capacity(windows.len());
    for (text, of_text) in &windows {
        let part: Result<Vec<Vec<f32>>, Fault> = answers
            .by_ref()
            .take(of_text.inputs.len())
            .map(|answer| {
                let value = answer?.output.values.into_iter().next();
                Ok(value.map(|value| value.data).unwrap_or_default())
            })
            .collect();
        let entities = part.and_then(|rows| {
            let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
            Ok(served.model.entities(text, of_text, &rows, aggregation)?)
        });
        all.push(match entities {
            Ok(entities) => json!(entities.iter().map(|e| entity(e, aggregation)).collect::<Vec<_>>()),
            Err(fault) => json!({"error": fault.message}),
        });
    }
    Ok((json!({"model": served.name, "results": all, "usage": {"total_tokens": cost.tokens}}), cost))
}

/// An entity under the names of the Hugging Face pipeline.
fn entity(entity: &tasks::tag::Entity, aggregation: tasks::tag::Aggregation) -> Value {
    let name = if aggregation == tasks::tag::Aggregation::None { "entity" } else { "entity_group" };
    json!({
        name: entity.label,
        "score": entity.score,
        "word": entity.word,
        "start": entity.start,
        "end": entity.end,
    })
}

/// The value of `name` in a query string, with `%XX` and `+` undone.
fn query_value(query: &str, name: &str) -> Option<String> {
    let (_, value) = query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name)?;
    let mut bytes = Vec::new();
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

async fn documents(State(app): State<Arc<App>>, RawQuery(query): RawQuery, body: Bytes) -> Response {
    let name = query.as_deref().and_then(|query| query_value(query, "name"));
    answer(documents_value(&app, name, body).await)
}

/// Parses a file in an isolated worker, cuts it into chunks for the embedding service and embeds them.
async fn documents_value(app: &Arc<App>, name: Option<String>, body: Bytes) -> Result<(Value, Cost), Fault> {
    let served = app.find(None, &[Task::Embed])?;
    let Some(pool) = app.parsers.clone() else {
        return Err(Fault::new(Kind::NotFound, "this server was started without document parsers"));
    };
    if body.is_empty() {
        return Err(Fault::new(Kind::Empty, "the body must be the file"));
    }
    let id = blake3::hash(&body).to_hex().to_string();
    let model = Arc::clone(&served.model);
    let work = tokio::task::spawn_blocking(move || {
        let options = ParseOptions { file_name: name, ..ParseOptions::default() };
        let document = pool.parse(&body, &options).map_err(|error| Fault::invalid(error.to_string()))?;
        let counter = ModelCounter::new(Arc::clone(&model), None)?;
        let options = ChunkOptions { max_tokens: model.max_tokens(), ..ChunkOptions::default() };
        let chunks =
            ehun_documents::chunk(&document, &options, &counter).map_err(|error| Fault::invalid(error.to_string()))?;
        Ok::<_, Fault>((document, chunks))
    });
    let (document, chunks) =
        work.await.map_err(|_| Fault::new(Kind::Backend, "the parser of this request ended unexpectedly"))??;
    let inputs: Vec<Input> = chunks.iter().map(|chunk| Input::from(chunk.text.as_str())).collect();
    let (answers, cost) = call::all(&served, inputs, ItemOptions::default()).await?;
    let mut rows = Vec::with_capacity(chunks.len());
    for (chunk, answer) in chunks.iter().zip(answers) {
        rows.push(json!({
            "number": chunk.number,
            "text": chunk.text,
            "heading_path": chunk.heading_path,
            "page": chunk.page,
            "ranges": chunk.ranges,
            "token_count": chunk.token_count,
            "embedding": call::row(answer)?,
        }));
    }
    let mut document = json!(document);
    // Attachments are documents of their own: their bytes are not sent back.
    if let Some(fields) = document.as_object_mut() {
        fields.remove("children");
    }
    let body = json!({"id": id, "model": served.name, "document": document, "chunks": rows});
    Ok((body, cost))
}

async fn services(State(app): State<Arc<App>>) -> Response {
    Json(status(&app)).into_response()
}

/// What serves what, how it is, and what is under way.
pub fn status(app: &App) -> Value {
    let all: Vec<Value> = app.services.entries().iter().map(|entry| of_entry(entry)).collect();
    json!({"services": all})
}

fn of_entry(entry: &Entry) -> Value {
    let state = entry.state();
    let Is::Live(served) = &state else {
        let (task, model, warm_up) = (entry.task(), entry.model(), warm_up(entry));
        return json!({"name": entry.name, "state": state.name(), "task": task, "model": model, "warm_up": warm_up});
    };
    let deployment = served.service.deployment();
    let backends: Vec<Value> =
        deployment.lanes.iter().map(|lane| json!({"name": lane.name(), "health": lane.health()})).collect();
    json!({
        "name": served.name,
        "state": state.name(),
        "task": served.model.task(),
        "model": deployment.label,
        "weights": served.model.weight_hash(),
        "max_tokens": served.model.max_tokens(),
        "backends": backends,
        "left_out": deployment.left_out,
        "warm_up": warm_up(entry),
        "load": served.service.load(),
        "rollout": served.service.rollout(),
    })
}

/// How far the backends are that compile programs before they are ready; null where none did.
fn warm_up(entry: &Entry) -> Value {
    let Some(progress) = entry.progress() else { return Value::Null };
    let seconds_left = if progress.next.is_some() { progress.left().map(|left| left.as_secs_f64()) } else { Some(0.0) };
    json!({
        "programs_ready": progress.done,
        "programs": progress.total,
        "next": progress.next.map(|bucket| bucket.to_string()),
        "seconds": progress.elapsed.as_secs_f64(),
        "seconds_left": seconds_left,
    })
}

async fn openapi() -> Response {
    ([(axum::http::header::CONTENT_TYPE, "application/json")], include_str!("openapi.json")).into_response()
}

async fn docs() -> Html<&'static str> {
    Html(include_str!("docs.html"))
}
