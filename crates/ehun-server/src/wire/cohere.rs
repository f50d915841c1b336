//! Cohere and Jina: `/v1/rerank`, `/v2/rerank`, `/v2/embed`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use ehun_engine::{Input, ItemOptions, Truncation};
use ehun_models::{Task, tasks};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::body::parse;
use crate::call::{self, Cost};
use crate::fault::{Fault, Kind, Style};
use crate::wire::{openai, tei, with_cost};

pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/v1/rerank", post(rerank)).route("/v2/rerank", post(rerank)).route("/v2/embed", post(embed))
}

/// A document is a text, or an object with one.
#[derive(Deserialize)]
#[serde(untagged)]
enum Document {
    Text(String),
    Object { text: String },
}

#[derive(Deserialize)]
struct RerankRequest {
    model: Option<String>,
    query: String,
    documents: Vec<Document>,
    top_n: Option<usize>,
    #[serde(default)]
    return_documents: bool,
}

fn answer(result: Result<(Value, Cost), Fault>) -> Response {
    match result {
        Ok((body, cost)) => with_cost(Json(body).into_response(), &cost),
        Err(fault) => fault.response(Style::Cohere),
    }
}

pub async fn rerank(State(app): State<Arc<App>>, body: Bytes) -> Response {
    answer(rerank_value(&app, &body).await)
}

async fn rerank_value(app: &App, body: &Bytes) -> Result<(Value, Cost), Fault> {
    let request: RerankRequest = parse(body)?;
    let served = app.find(request.model.as_deref(), &[Task::Rerank])?;
    let texts: Vec<String> = request
        .documents
        .into_iter()
        .map(|document| match document {
            Document::Text(text) | Document::Object { text } => text,
        })
        .collect();
    if texts.is_empty() {
        return Err(Fault::new(Kind::Empty, "`documents` has no items").at("documents"));
    }
    if texts.len() > app.limits().items {
        return Err(Fault::invalid(format!("{} documents, at most {} are allowed", texts.len(), app.limits().items)));
    }
    let (ranked, cost) = tei::ranking(&served, &request.query, &texts, false, ItemOptions::default()).await?;
    let results: Vec<Value> = ranked
        .into_iter()
        .take(request.top_n.unwrap_or(usize::MAX))
        .map(|(index, score)| match request.return_documents {
            true => json!({"index": index, "relevance_score": score, "document": {"text": texts[index]}}),
            false => json!({"index": index, "relevance_score": score}),
        })
        .collect();
    let body = json!({
        "id": app.metrics.request_id(),
        "model": served.name,
        "results": results,
        "usage": {"total_tokens": cost.tokens, "prompt_tokens": cost.tokens},
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
    });
    Ok((body, cost))
}

#[derive(Deserialize)]
struct EmbedRequest {
    model: Option<String>,
    texts: Option<Vec<String>>,
    input_type: Option<String>,
    embedding_types: Option<Vec<String>>,
    output_dimension: Option<usize>,
    truncate: Option<String>,
    images: Option<Value>,
}

async fn embed(State(app): State<Arc<App>>, body: Bytes) -> Response {
    answer(embed_value(&app, &body).await)
}

async fn embed_value(app: &App, body: &Bytes) -> Result<(Value, Cost), Fault> {
    let request: EmbedRequest = parse(body)?;
    let served = app.find(request.model.as_deref(), &[Task::Embed])?;
    if request.images.is_some() {
        return Err(Fault::invalid("`images` cannot be embedded by a text model").at("images"));
    }
    let texts = request.texts.filter(|texts| !texts.is_empty());
    let texts = texts.ok_or_else(|| Fault::new(Kind::Empty, "`texts` has no items").at("texts"))?;
    if texts.len() > app.limits().items {
        return Err(Fault::invalid(format!("{} texts, at most {} are allowed", texts.len(), app.limits().items)));
    }
    let truncation = match request.truncate.as_deref().unwrap_or("END") {
        "NONE" => Truncation::Refuse,
        "START" => Truncation::Left,
        "END" => Truncation::Right,
        other => return Err(Fault::invalid(format!("`truncate` is NONE, START or END, not {other}")).at("truncate")),
    };
    // Cohere's input types are what other models call prompts; a model without such a prompt takes the text as it is.
    let wanted: &[&str] = match request.input_type.as_deref() {
        Some("search_query") => &["query", "search_query"],
        Some("search_document") => &["document", "passage", "search_document"],
        Some("classification") => &["classification"],
        Some("clustering") => &["clustering"],
        None => &[],
        Some(other) => return Err(Fault::invalid(format!("`input_type` {other} is not known")).at("input_type")),
    };
    let prompts = served.model.prompts();
    let prompt = wanted.iter().find(|name| prompts.iter().any(|(known, _)| known == *name));
    let options = ItemOptions { truncation, prompt: prompt.map(|name| (*name).into()) };
    let types = request.embedding_types.unwrap_or_else(|| vec!["float".to_owned()]);
    let items = texts.iter().map(|text| Input::from(text.as_str())).collect();
    let (answers, cost) = call::all(&served, items, options).await?;
    let mut by_type: BTreeMap<&str, Vec<Value>> = types.iter().map(|name| (name.as_str(), Vec::new())).collect();
    for answer in answers {
        let mut vector = call::row(answer)?;
        if let Some(dimensions) = request.output_dimension {
            tasks::embed::truncate(&mut vector, dimensions).map_err(|e| Fault::from(e).at("output_dimension"))?;
        }
        for (name, list) in &mut by_type {
            list.push(match *name {
                "base64" => json!(openai::base64_of(&vector)),
                name => {
                    let encoding = name.parse().map_err(|e| Fault::from(e).at("embedding_types"))?;
                    json!(tasks::embed::encode(&vector, encoding))
                }
            });
        }
    }
    let body = json!({
        "id": app.metrics.request_id(),
        "embeddings": by_type,
        "texts": texts,
        "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": cost.tokens}},
    });
    Ok((body, cost))
}
