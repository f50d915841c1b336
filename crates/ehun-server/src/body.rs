//! Reading JSON bodies: every fault is answered in the words of the route's wire format.

use axum::body::Bytes;
use serde::de::DeserializeOwned;

use crate::fault::{Fault, Kind};

/// The body as `T`. The message says where the JSON is wrong.
pub fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, Fault> {
    serde_json::from_slice(body).map_err(|error| {
        let kind = if error.is_data() { Kind::Invalid } else { Kind::Malformed };
        Fault::new(kind, format!("the request body: {error}"))
    })
}
