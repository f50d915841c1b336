//! `POST /v1/documents?name=FILE`: a file in; its chunks with embeddings out, and with labels and entities where there are
//! services for them.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use axum::routing::post;
use ehun_documents::{ChunkOptions, ParseOptions};
use ehun_engine::{Answer, EngineError, Input, ItemOptions};
use ehun_models::{Task, tasks};
use ehun_pipeline::ModelCounter;
use serde::Serialize;
use serde_json::{Value, json};

use crate::app::{App, Served};
use crate::call::{self, Cost};
use crate::fault::{Fault, Kind};
use crate::wire::native::{answer, tag_texts};

pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/documents", post(documents))
}

/// Written as it is: through a general JSON value every float32 would become a float64 with twice the digits.
#[derive(Serialize)]
struct Answered {
    id: String,
    model: String,
    document: Value,
    chunks: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    chunk: Value,
    embedding: Vec<f32>,
    /// As `/v1/classify` has them; absent without a service for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<Value>,
    /// As `/v1/tag` has them; absent without a service for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    entities: Option<Value>,
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

/// Parses a file in an isolated worker, cuts it into chunks for the embedding service, and runs them through each service that
/// there is for them.
async fn documents_value(app: &Arc<App>, name: Option<String>, body: Bytes) -> Result<(Answered, Cost), Fault> {
    let served = app.find(None, &[Task::Embed])?;
    let (labels, entities) = (optional(app, Task::Classify)?, optional(app, Task::Tag)?);
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
    let (answers, mut cost) = call::all(&served, inputs.clone(), ItemOptions::default()).await?;
    let labels: Vec<Option<Value>> = match labels {
        Some(served) => labels_of(&served, inputs, &mut cost).await?.into_iter().map(Some).collect(),
        None => vec![None; chunks.len()],
    };
    let entities: Vec<Option<Value>> = match entities {
        Some(served) => {
            let texts: Vec<Arc<str>> = chunks.iter().map(|chunk| chunk.text.as_str().into()).collect();
            let (all, more) = tag_texts(&served, &texts, tasks::tag::Aggregation::default()).await?;
            cost.add(more);
            all.into_iter().map(Some).collect()
        }
        None => vec![None; chunks.len()],
    };
    let mut rows = Vec::with_capacity(chunks.len());
    for (((chunk, answer), labels), entities) in chunks.iter().zip(answers).zip(labels).zip(entities) {
        let chunk = json!({
            "number": chunk.number,
            "text": chunk.text,
            "heading_path": chunk.heading_path,
            "page": chunk.page,
            "ranges": chunk.ranges,
            "token_count": chunk.token_count,
        });
        rows.push(Row { chunk, embedding: call::row(answer)?, labels, entities });
    }
    let mut document = json!(document);
    // Attachments are documents of their own: their bytes are not sent back.
    if let Some(fields) = document.as_object_mut() {
        fields.remove("children");
    }
    Ok((Answered { id, model: served.name.clone(), document, chunks: rows }, cost))
}

/// The first service with the task, where there is one.
fn optional(app: &App, task: Task) -> Result<Option<Arc<Served>>, Fault> {
    match app.find(None, &[task]) {
        Ok(served) => Ok(Some(served)),
        Err(fault) if fault.kind == Kind::NotFound => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// The labels of each text; one that failed has its error in its place.
async fn labels_of(served: &Served, inputs: Vec<Input>, cost: &mut Cost) -> Result<Vec<Value>, Fault> {
    let (answers, more) = call::each(served, inputs, ItemOptions::default()).await?;
    cost.add(more);
    let one = |answer: Result<Answer, EngineError>| {
        let answer = answer?;
        let model = Arc::clone(call::model(served, &answer));
        Ok::<_, Fault>(json!(model.label_scores(&call::row(answer)?, false, None)?))
    };
    Ok(answers.into_iter().map(|answer| one(answer).unwrap_or_else(|fault| json!({"error": fault.message}))).collect())
}
