//! text-embeddings-inference. The answers have its shapes, statuses and order.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use ehun_engine::{Answer, Input, ItemOptions, Truncation};
use ehun_models::{Side, Task, TextInput, tasks};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::app::{App, Served};
use crate::body::parse;
use crate::call::{self, Cost};
use crate::fault::{Fault, Kind, Style};
use crate::wire::{cohere, with_cost};

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/", post(root))
        .route("/invocations", post(root))
        .route("/embed", post(embed))
        .route("/embed_all", post(embed_all))
        .route("/embed_sparse", post(embed_sparse))
        .route("/predict", post(predict))
        .route("/rerank", post(rerank))
        .route("/similarity", post(similarity))
        .route("/tokenize", post(tokenize))
        .route("/decode", post(decode))
        .route("/info", get(info))
        .route("/health", get(health))
        .route("/ping", get(health))
        .route("/metrics", get(metrics))
}

/// A body of the answer with what it cost, or a fault in TEI's words.
fn answer<T: Serialize>(result: Result<(T, Cost), Fault>) -> Response {
    match result {
        Ok((body, cost)) => with_cost(Json(body).into_response(), &cost),
        Err(fault) => fault.response(Style::Tei),
    }
}

/// The route of what is served here: how Hugging Face's endpoints and SageMaker ask.
async fn root(state: State<Arc<App>>, body: Bytes) -> Response {
    match state.find(None, &[Task::Embed, Task::Rerank, Task::Classify, Task::Sparse]).map(|s| s.model.task()) {
        Ok(Task::Rerank) => rerank(state, body).await,
        Ok(Task::Classify) => predict(state, body).await,
        Ok(Task::Sparse) => embed_sparse(state, body).await,
        Ok(_) => embed(state, body).await,
        Err(fault) => fault.response(Style::Tei),
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum One {
    Text(String),
    Ids(Vec<u32>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Inputs {
    One(One),
    Many(Vec<One>),
}

impl From<One> for Input {
    fn from(one: One) -> Self {
        match one {
            One::Text(text) => text.into(),
            One::Ids(ids) => Self::Tokens(ids.into()),
        }
    }
}

impl Inputs {
    fn into_items(self, app: &App) -> Result<Vec<Input>, Fault> {
        let items: Vec<Input> = match self {
            // `[]` reads as no ids as well as no texts.
            Self::One(One::Ids(ids)) if ids.is_empty() => Vec::new(),
            Self::One(one) => vec![one.into()],
            Self::Many(many) => many.into_iter().map(Input::from).collect(),
        };
        check(&items, app)?;
        Ok(items)
    }
}

fn check(items: &[Input], app: &App) -> Result<(), Fault> {
    if items.is_empty() {
        return Err(Fault::new(Kind::Empty, "`inputs` cannot be empty"));
    }
    if items.len() > app.limits().items {
        return Err(Fault::invalid(format!(
            "batch size {} > maximum allowed batch size {}",
            items.len(),
            app.limits().items
        )));
    }
    if items.iter().any(|item| item.num_bytes() == 0) {
        return Err(Fault::invalid("`inputs` cannot be empty"));
    }
    Ok(())
}

#[derive(Deserialize, Default, Clone, Copy)]
enum Direction {
    #[serde(alias = "left")]
    Left,
    #[default]
    #[serde(alias = "right")]
    Right,
}

/// The fields that the routes share. `null` and absent are the same: cut, on the right.
#[derive(Deserialize, Default)]
struct Cut {
    truncate: Option<bool>,
    truncation_direction: Option<Direction>,
    prompt_name: Option<String>,
}

impl Cut {
    fn options(self) -> ItemOptions {
        let truncation = match (self.truncate.unwrap_or(true), self.truncation_direction.unwrap_or_default()) {
            (false, _) => Truncation::Refuse,
            (true, Direction::Left) => Truncation::Left,
            (true, Direction::Right) => Truncation::Right,
        };
        ItemOptions { truncation, prompt: self.prompt_name.map(Into::into) }
    }
}

#[derive(Deserialize)]
struct EmbedRequest {
    inputs: Inputs,
    normalize: Option<bool>,
    dimensions: Option<usize>,
    #[serde(flatten)]
    cut: Cut,
}

async fn embed(State(app): State<Arc<App>>, body: Bytes) -> Response {
    answer(embed_value(&app, &body).await)
}

async fn embed_value(app: &App, body: &Bytes) -> Result<(Vec<Vec<f32>>, Cost), Fault> {
    let request: EmbedRequest = parse(body)?;
    let served = app.find(None, &[Task::Embed, Task::Sparse])?;
    let normalize = request.normalize.unwrap_or(true);
    if served.model.task() == Task::Sparse {
        return Err(Fault::invalid("`normalize` and dense vectors are not for SPLADE models: use /embed_sparse"));
    }
    if !normalize && served.model.is_normalized() {
        return Err(Fault::invalid(
            "this model's last module normalises its vectors: `normalize: false` cannot be done",
        ));
    }
    let items = request.inputs.into_items(app)?;
    let (answers, cost) = call::all(&served, items, request.cut.options()).await?;
    let mut vectors = Vec::with_capacity(answers.len());
    for answer in answers {
        let is_normalized = call::model(&served, &answer).is_normalized();
        let mut vector = call::row(answer)?;
        match request.dimensions {
            Some(dimensions) if normalize => tasks::embed::truncate(&mut vector, dimensions)?,
            Some(dimensions) if dimensions == 0 || dimensions > vector.len() => {
                return Err(Fault::invalid(format!("`dimensions` must be from 1 to {}", vector.len())));
            }
            Some(dimensions) => vector.truncate(dimensions),
            None if normalize && !is_normalized => tasks::embed::normalize(&mut vector),
            None => {}
        }
        vectors.push(vector);
    }
    Ok((vectors, cost))
}

#[derive(Deserialize)]
struct PlainRequest {
    inputs: Inputs,
    #[serde(flatten)]
    cut: Cut,
}

async fn embed_all(State(app): State<Arc<App>>, body: Bytes) -> Response {
    answer(embed_all_value(&app, &body).await)
}

async fn embed_all_value(app: &App, body: &Bytes) -> Result<(Vec<Vec<Vec<f32>>>, Cost), Fault> {
    let request: PlainRequest = parse(body)?;
    let served = app.find(None, &[Task::Tokens])?;
    let items = request.inputs.into_items(app)?;
    let (answers, cost) = call::all(&served, items, request.cut.options()).await?;
    let rows = |answer: Answer| -> Vec<Vec<f32>> {
        let value = answer.output.values.into_iter().next();
        value.map_or_else(Vec::new, |value| value.data.chunks(value.width.max(1)).map(<[f32]>::to_vec).collect())
    };
    Ok((answers.into_iter().map(rows).collect(), cost))
}

async fn embed_sparse(State(app): State<Arc<App>>, body: Bytes) -> Response {
    answer(embed_sparse_value(&app, &body).await)
}

async fn embed_sparse_value(app: &App, body: &Bytes) -> Result<(Value, Cost), Fault> {
    let request: PlainRequest = parse(body)?;
    let served = app.find(None, &[Task::Sparse])?;
    let items = request.inputs.into_items(app)?;
    let (answers, cost) = call::all(&served, items, request.cut.options()).await?;
    let mut all = Vec::with_capacity(answers.len());
    for answer in answers {
        let terms: Vec<Value> = call::row(answer)?
            .iter()
            .enumerate()
            .filter(|(_, weight)| **weight > 0.0)
            .map(|(index, value)| json!({"index": index, "value": value}))
            .collect();
        all.push(terms);
    }
    Ok((json!(all), cost))
}

/// `"a"` is one text, `["a", "b"]` is ONE pair, `[["a"], ["a", "b"]]` is a batch.
#[derive(Deserialize)]
#[serde(untagged)]
enum PredictInputs {
    Text(String),
    Pair(Vec<String>),
    Batch(Vec<Vec<String>>),
}

#[derive(Deserialize)]
struct PredictRequest {
    inputs: PredictInputs,
    #[serde(default)]
    raw_scores: bool,
    #[serde(flatten)]
    cut: Cut,
}

fn text_or_pair(parts: Vec<String>) -> Result<Input, Fault> {
    let mut parts = parts.into_iter();
    match (parts.next(), parts.next(), parts.next()) {
        (Some(text), None, _) => Ok(text.into()),
        (Some(first), Some(second), None) => Ok(Input::Pair(first.into(), second.into())),
        _ => Err(Fault::invalid("`inputs` must have one text or a pair of them")),
    }
}

async fn predict(State(app): State<Arc<App>>, body: Bytes) -> Response {
    answer(predict_value(&app, &body).await)
}

async fn predict_value(app: &App, body: &Bytes) -> Result<(Value, Cost), Fault> {
    let request: PredictRequest = parse(body)?;
    let served = app.find(None, &[Task::Classify, Task::Rerank])?;
    let (items, one) = match request.inputs {
        PredictInputs::Text(text) => (vec![text.into()], true),
        PredictInputs::Pair(parts) => (vec![text_or_pair(parts)?], true),
        PredictInputs::Batch(batch) => (batch.into_iter().map(text_or_pair).collect::<Result<_, _>>()?, false),
    };
    check(&items, app)?;
    let (answers, cost) = call::all(&served, items, request.cut.options()).await?;
    let mut all = Vec::with_capacity(answers.len());
    for answer in answers {
        let model = Arc::clone(call::model(&served, &answer));
        all.push(json!(model.label_scores(&call::row(answer)?, request.raw_scores, None)?));
    }
    let body = if one { all.pop().unwrap_or_default() } else { json!(all) };
    Ok((body, cost))
}

#[derive(Deserialize)]
struct RerankRequest {
    query: String,
    texts: Vec<String>,
    #[serde(default)]
    raw_scores: bool,
    #[serde(default)]
    return_text: bool,
    #[serde(flatten)]
    cut: Cut,
}

/// `/rerank` is TEI's and Cohere's: the body says whose.
async fn rerank(State(app): State<Arc<App>>, body: Bytes) -> Response {
    let of_cohere = parse::<BTreeMap<String, Value>>(&body).is_ok_and(|keys| keys.contains_key("documents"));
    if of_cohere {
        return cohere::rerank(State(app), body).await;
    }
    answer(rerank_value(&app, &body).await)
}

async fn rerank_value(app: &App, body: &Bytes) -> Result<(Value, Cost), Fault> {
    let request: RerankRequest = parse(body)?;
    let served = app.find(None, &[Task::Rerank])?;
    if request.texts.is_empty() {
        return Err(Fault::new(Kind::Empty, "`texts` cannot be empty"));
    }
    if request.texts.len() > app.limits().items {
        return Err(Fault::invalid(format!(
            "{} texts, at most {} are allowed",
            request.texts.len(),
            app.limits().items
        )));
    }
    let (ranked, cost) =
        ranking(&served, &request.query, &request.texts, request.raw_scores, request.cut.options()).await?;
    let rows: Vec<Value> = ranked
        .into_iter()
        .map(|(index, score)| match request.return_text {
            true => json!({"index": index, "text": request.texts[index], "score": score}),
            false => json!({"index": index, "score": score}),
        })
        .collect();
    Ok((json!(rows), cost))
}

/// Scores of `texts` for `query`, the best first; equal scores in the order of the texts.
pub async fn ranking(
    served: &Served,
    query: &str,
    texts: &[String],
    raw: bool,
    options: ItemOptions,
) -> Result<(Vec<(usize, f32)>, Cost), Fault> {
    let query: Arc<str> = query.into();
    let items = texts.iter().map(|text| Input::Pair(Arc::clone(&query), text.as_str().into())).collect();
    let (answers, cost) = call::all(served, items, options).await?;
    let mut ranked = Vec::with_capacity(answers.len());
    for (index, answer) in answers.into_iter().enumerate() {
        let model = Arc::clone(call::model(served, &answer));
        ranked.push((index, model.rerank_score(&call::row(answer)?, raw)?));
    }
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    Ok((ranked, cost))
}

#[derive(Deserialize)]
struct SimilarityInputs {
    source_sentence: String,
    sentences: Vec<String>,
}

#[derive(Deserialize)]
struct SimilarityRequest {
    inputs: SimilarityInputs,
    #[serde(default)]
    parameters: Cut,
}

async fn similarity(State(app): State<Arc<App>>, body: Bytes) -> Response {
    answer(similarity_value(&app, &body).await)
}

async fn similarity_value(app: &App, body: &Bytes) -> Result<(Value, Cost), Fault> {
    let request: SimilarityRequest = parse(body)?;
    let served = app.find(None, &[Task::Embed])?;
    if request.inputs.sentences.is_empty() {
        return Err(Fault::new(Kind::Empty, "`inputs.sentences` cannot be empty"));
    }
    let all = std::iter::once(request.inputs.source_sentence).chain(request.inputs.sentences);
    let items: Vec<Input> = all.map(Input::from).collect();
    check(&items, app)?;
    let (answers, cost) = call::all(&served, items, request.parameters.options()).await?;
    let vectors = answers.into_iter().map(call::row).collect::<Result<Vec<_>, _>>()?;
    let (source, rest) = vectors.split_first().unwrap_or((const { &Vec::new() }, &[]));
    let cosines: Vec<f32> = rest.iter().map(|vector| tasks::embed::Similarity::Cosine.of(source, vector)).collect();
    Ok((json!(cosines), cost))
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Texts {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
struct TokenizeRequest {
    inputs: Texts,
    #[serde(default = "yes")]
    add_special_tokens: bool,
}

fn yes() -> bool {
    true
}

async fn tokenize(State(app): State<Arc<App>>, body: Bytes) -> Response {
    answer(tokenize_value(&app, &body).map(|value| (value, Cost::default())))
}

/// The first service, whatever it does.
fn first(app: &App) -> Result<Arc<Served>, Fault> {
    let entry = app.services.entries().into_iter().next();
    let entry = entry.ok_or_else(|| Fault::new(Kind::NotFound, "this server has no service"))?;
    app.find(Some(&entry.name), entry.task().as_slice())
}

fn tokenize_value(app: &App, body: &Bytes) -> Result<Value, Fault> {
    let request: TokenizeRequest = parse(body)?;
    let served = first(app)?;
    let tokenizer = served.model.tokenizer();
    let texts = match request.inputs {
        Texts::One(text) => vec![text],
        Texts::Many(texts) => texts,
    };
    let mut all = Vec::with_capacity(texts.len());
    for text in texts {
        let encoded = tokenizer.encode(TextInput::from(text.as_str()), None, Side::Right)?;
        let tokens: Vec<Value> = encoded
            .ids
            .iter()
            .zip(&encoded.offsets)
            .filter(|(id, _)| request.add_special_tokens || !tokenizer.is_special(**id))
            .map(|(&id, offsets)| {
                let special = tokenizer.is_special(id);
                // TEI counts characters; the tokenizer's offsets are bytes.
                let at = |byte: usize| text.get(..byte).map_or(byte, |before| before.chars().count());
                let (start, stop) =
                    if special { (None, None) } else { (Some(at(offsets.start)), Some(at(offsets.end))) };
                json!({"id": id, "text": tokenizer.token(id), "special": special, "start": start, "stop": stop})
            })
            .collect();
        all.push(tokens);
    }
    Ok(json!(all))
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Ids {
    One(Vec<u32>),
    Many(Vec<Vec<u32>>),
}

#[derive(Deserialize)]
struct DecodeRequest {
    ids: Ids,
    #[serde(default = "yes")]
    skip_special_tokens: bool,
}

async fn decode(State(app): State<Arc<App>>, body: Bytes) -> Response {
    answer(decode_value(&app, &body).map(|value| (value, Cost::default())))
}

fn decode_value(app: &App, body: &Bytes) -> Result<Value, Fault> {
    let request: DecodeRequest = parse(body)?;
    let served = first(app)?;
    let tokenizer = served.model.tokenizer();
    let all = match request.ids {
        Ids::One(ids) => vec![ids],
        Ids::Many(many) => many,
    };
    let texts =
        all.iter().map(|ids| tokenizer.decode(ids, request.skip_special_tokens)).collect::<Result<Vec<_>, _>>()?;
    Ok(json!(texts))
}

async fn info(State(app): State<Arc<App>>) -> Response {
    let served = match first(&app) {
        Ok(served) => served,
        Err(fault) => return fault.response(Style::Tei),
    };
    let model = &served.model;
    let labels: BTreeMap<String, usize> =
        model.labels().iter().enumerate().map(|(i, label)| (label.clone(), i)).collect();
    let by_id: BTreeMap<usize, &String> = model.labels().iter().enumerate().collect();
    let kind = match model.task() {
        Task::Embed | Task::Tokens => json!({"embedding": {"pooling": "model"}}),
        Task::Sparse => json!({"embedding": {"pooling": "splade"}}),
        Task::Rerank => json!({"reranker": {"id2label": by_id, "label2id": labels}}),
        Task::Classify | Task::Tag => json!({"classifier": {"id2label": by_id, "label2id": labels}}),
    };
    Json(json!({
        "model_id": model.name(),
        "model_sha": model.revision(),
        "model_dtype": "float32",
        "model_type": kind,
        "max_input_length": model.max_tokens(),
        "max_batch_tokens": null,
        "max_client_batch_size": app.limits().items,
        "auto_truncate": true,
        "version": env!("CARGO_PKG_VERSION"),
    }))
    .into_response()
}

async fn health(State(app): State<Arc<App>>) -> Response {
    match app.readiness() {
        Ok(()) => StatusCode::OK.into_response(),
        Err(fault) => fault.response(Style::Tei),
    }
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], app.metrics.text(&app)).into_response()
}
