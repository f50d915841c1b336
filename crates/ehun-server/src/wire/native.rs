//! Ehun's own routes: what the other wire formats have no words for.
//!
//! | route | in | out |
//! | --- | --- | --- |
//! | `POST /v1/classify` | `{model?, inputs, top_k?, raw_scores?}` | `{results: [[{label, score}]]}` |
//! | `POST /v1/tag` | `{model?, inputs, aggregation?}` | `{results: [[{entity_group, score, word, start, end}]]}` |
//! | `POST /v1/sparse` | `{model?, inputs}` | `{results: [[{index, token, value}]]}` |
//! | `GET /v1/services` | | what serves what, and how it is |

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use ehun_engine::{Answer, EngineError, Input, ItemOptions};
use ehun_models::{Model, Task, tasks};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::app::App;
use crate::body::parse;
use crate::call::{self, Cost};
use crate::fault::{Fault, Kind, Style};
use crate::services::{Entry, Served, State as Is};
use crate::wire::with_cost;

pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/classify", post(classify))
        .route("/v1/tag", post(tag))
        .route("/v1/sparse", post(sparse))
        .route("/v1/services", get(services))
        .route("/openapi.json", get(openapi))
        .route("/api-doc/openapi.json", get(openapi))
        .route("/docs", get(docs))
}

pub(super) fn answer(result: Result<(impl Serialize, Cost), Fault>) -> Response {
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
        if self.inputs.len() > app.limits().items {
            let message = format!("{} items, at most {} are allowed", self.inputs.len(), app.limits().items);
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
    each: impl Fn(&Served, Answer, &Input) -> Result<Value, Fault>,
) -> Result<(Value, Cost), Fault> {
    let served = app.find(request.model.as_deref(), &[task])?;
    let items = request.items(app)?;
    let (answers, cost) = call::each(&served, items.clone(), ItemOptions::default()).await?;
    if let Some(fault) = call::none_answered(&answers) {
        return Err(fault);
    }
    let one = |(answer, item): (Result<Answer, EngineError>, &Input)| {
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

/// Most times that a text is asked again because a model with another tokeniser took over while it waited.
const ROUNDS: usize = 8;

async fn tag_value(app: &App, body: &Bytes) -> Result<(Value, Cost), Fault> {
    let mut request: ItemsRequest = parse(body)?;
    let served = app.find(request.model.as_deref(), &[Task::Tag])?;
    let aggregation = request.aggregation.unwrap_or_default();
    let mut texts = Vec::new();
    for item in request.items(app)? {
        let Input::Text(text) = item else { return Err(Fault::invalid("tagging takes texts, not pairs").at("inputs")) };
        texts.push(text);
    }
    let (all, cost) = tag_texts(&served, &texts, aggregation).await?;
    Ok((json!({"model": served.name, "results": all, "usage": {"total_tokens": cost.tokens}}), cost))
}

/// The entities of each text. Long texts go in as several windows; a text that cannot be tagged has its error in its place.
pub(super) async fn tag_texts(
    served: &Served,
    texts: &[Arc<str>],
    aggregation: tasks::tag::Aggregation,
) -> Result<(Vec<Value>, Cost), Fault> {
    let mut all: Vec<Option<Value>> = vec![None; texts.len()];
    let mut open: Vec<(usize, Arc<Model>)> = (0..texts.len()).map(|i| (i, Arc::clone(&served.model))).collect();
    let mut cost = Cost { characters: texts.iter().map(|text| text.chars().count()).sum(), ..Cost::default() };
    for _ in 0..ROUNDS {
        let mut windows = Vec::new();
        let mut inputs = Vec::new();
        for (place, model) in std::mem::take(&mut open) {
            match model.tag_windows(&texts[place]) {
                Ok(of_text) => {
                    inputs.extend(of_text.inputs.iter().map(|input| Input::Tokens(input.token_ids.as_slice().into())));
                    windows.push((place, model, of_text));
                }
                Err(error) => all[place] = Some(json!({"error": Fault::from(error).message})),
            }
        }
        let (answers, of_round) = call::each(served, inputs, ItemOptions::default()).await?;
        if let Some(fault) = call::none_answered(&answers) {
            return Err(fault);
        }
        cost.add(of_round);
        let mut answers = answers.into_iter();
        for (place, cutter, of_text) in windows {
            let answers = answers.by_ref().take(of_text.inputs.len()).collect();
            match tagged(served, &texts[place], (&cutter, &of_text), answers, aggregation) {
                Ok(Tagged::Entities(entities)) => {
                    all[place] = Some(json!(entities.iter().map(|e| entity(e, aggregation)).collect::<Vec<_>>()));
                }
                Ok(Tagged::Otherwise(model)) => open.push((place, model)),
                Err(fault) => all[place] = Some(json!({"error": fault.message})),
            }
        }
        if open.is_empty() {
            break;
        }
    }
    let changed = || json!({"error": "the service's model changed again and again while this text was in; try again"});
    Ok((all.into_iter().map(|value| value.unwrap_or_else(changed)).collect(), cost))
}

/// What came of a text.
enum Tagged {
    Entities(Vec<tasks::tag::Entity>),
    /// Another model than the one that cut the text into windows took over, and it cuts otherwise.
    Otherwise(Arc<Model>),
}

/// The entities under the labels of the model that answered, which need not be the `cutter` of the text into windows.
fn tagged(
    served: &Served,
    text: &str,
    (cutter, windows): (&Arc<Model>, &tasks::tag::Windows),
    answers: Vec<Result<Answer, EngineError>>,
    aggregation: tasks::tag::Aggregation,
) -> Result<Tagged, Fault> {
    let answers = answers.into_iter().collect::<Result<Vec<Answer>, _>>()?;
    let model = answers.last().map_or(cutter, |answer| call::model(served, answer));
    let alike = answers.iter().all(|answer| Arc::ptr_eq(call::model(served, answer), model));
    if !alike || !Arc::ptr_eq(model, cutter) && model.tag_windows(text)? != *windows {
        return Ok(Tagged::Otherwise(Arc::clone(model)));
    }
    let rows: Vec<&[f32]> = answers
        .iter()
        .map(|answer| answer.output.values.first().map_or(&[][..], |value| value.data.as_slice()))
        .collect();
    Ok(Tagged::Entities(model.entities(text, windows, &rows, aggregation)?))
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
