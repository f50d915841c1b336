//! One file for each wire format.

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;

use crate::call::Cost;
use crate::fault::Style;

pub mod cohere;
pub mod documents;
pub mod grpc;
pub mod native;
pub mod oip;
pub mod oip_core;
pub mod openai;
pub mod tei;

/// How the wire format of a route words its errors.
pub fn style_of(route: &str) -> Style {
    match route {
        _ if route.starts_with(grpc::PREFIX) => Style::Grpc,
        "/v2/embed" | "/v2/rerank" | "/v1/rerank" => Style::Cohere,
        _ if route.starts_with("/v2") => Style::Oip,
        _ if route.starts_with("/v1") || route == "/embeddings" || route == "none" => Style::OpenAi,
        _ => Style::Tei,
    }
}

/// The headers that say what ran and what it cost. The `x-compute-*` and `*-time` ones are TEI's, in milliseconds.
pub fn with_cost(mut response: Response, cost: &Cost) -> Response {
    let milliseconds = |time: std::time::Duration| time.as_millis().to_string();
    for (name, value) in [
        ("x-ehun-backend", cost.backend.clone()),
        ("x-ehun-attention", cost.attention.clone()),
        ("x-compute-type", cost.backend.clone()),
        ("x-compute-time", milliseconds(cost.total)),
        ("x-compute-characters", cost.characters.to_string()),
        ("x-compute-tokens", cost.tokens.to_string()),
        ("x-total-time", milliseconds(cost.total)),
        ("x-tokenization-time", milliseconds(cost.tokenize)),
        ("x-queue-time", milliseconds(cost.queue)),
        ("x-inference-time", milliseconds(cost.run)),
    ] {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    response.extensions_mut().insert(cost.clone());
    response
}
