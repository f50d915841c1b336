//! The administration, on its own listener: what changes a service is not where its clients are.
//!
//! | route | in | |
//! | --- | --- | --- |
//! | `GET /admin/v1/services` | | what serves what, how it is, what is under way |
//! | `POST /admin/v1/services/{name}/swap` | [`Change`], `bounds?`, `force?` | another deployment, after its probes |
//! | `POST /admin/v1/services/{name}/shadow` | [`Change`], `percent?` (100) | mirror a share of the requests |
//! | `POST /admin/v1/services/{name}/canary` | [`Change`], `percent?` (5), `bounds?` | answer a share of the requests |
//! | `POST /admin/v1/services/{name}/promote` | | the candidate takes over |
//! | `POST /admin/v1/services/{name}/abort` | | the candidate is taken out |
//!
//! Where the configuration has keys, one with the scope `admin` is needed.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use ehun_engine::rollout::{Bounds, CanaryBounds, RolloutError, Share};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::accept;
use crate::auth::{self, Scope};
use crate::fault::{Fault, Kind, Style};
use crate::host::{Action, Change, Host, HostError};
use crate::listen::ServerError;
use crate::wire::native;

/// Most bytes of a body here.
const BODY_BYTES: usize = 64 << 10;

#[derive(Deserialize, Default)]
#[serde(default)]
struct SwapBody {
    #[serde(flatten)]
    change: Value,
    bounds: Bounds,
    force: bool,
}

#[derive(Deserialize)]
struct ShadowBody {
    #[serde(flatten)]
    change: Value,
    #[serde(default = "all")]
    percent: Share,
}

#[derive(Deserialize)]
struct CanaryBody {
    #[serde(flatten)]
    change: Value,
    #[serde(default = "few")]
    percent: Share,
    #[serde(default)]
    bounds: CanaryBounds,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

fn all() -> Share {
    Share::ALL
}

fn few() -> Share {
    Share::percent(5.0).unwrap_or(Share::ALL)
}

fn invalid(error: &serde_json::Error) -> Fault {
    Fault::invalid(format!("the request body: {error}"))
}

/// The body as `T`; an empty one is `{}`.
fn body<T: serde::de::DeserializeOwned>(bytes: &Bytes) -> Result<T, Fault> {
    let bytes: &[u8] = if bytes.is_empty() { b"{}" } else { bytes };
    serde_json::from_slice(bytes).map_err(|error| invalid(&error))
}

/// What the named fields of a body leave over.
fn change(rest: Value) -> Result<Change, Fault> {
    serde_json::from_value(rest).map_err(|error| invalid(&error))
}

fn action(what: &str, bytes: &Bytes) -> Result<Action, Fault> {
    match what {
        "swap" => {
            let SwapBody { change: rest, bounds, force } = body(bytes)?;
            Ok(Action::Swap { change: change(rest)?, bounds, force })
        }
        "shadow" => {
            let ShadowBody { change: rest, percent } = body(bytes)?;
            Ok(Action::Shadow { change: change(rest)?, share: percent })
        }
        "canary" => {
            let CanaryBody { change: rest, percent, bounds } = body(bytes)?;
            Ok(Action::Canary { change: change(rest)?, share: percent, bounds })
        }
        "promote" => body::<Nothing>(bytes).map(|Nothing {}| Action::Promote),
        "abort" => body::<Nothing>(bytes).map(|Nothing {}| Action::Abort),
        other => Err(Fault::new(
            Kind::NotFound,
            format!("there is no `{other}`; there are swap, shadow, canary, promote and abort"),
        )),
    }
}

/// The routes.
pub fn router(host: Arc<Host>) -> Router {
    Router::new()
        .route("/admin/v1/services", get(services))
        .route("/admin/v1/services/{name}/{what}", post(act))
        .fallback(async |request: Request| {
            Fault::new(Kind::NotFound, format!("there is no {}", request.uri().path())).response(Style::OpenAi)
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES))
        .with_state(host)
}

async fn services(State(host): State<Arc<Host>>, headers: HeaderMap) -> Response {
    match auth::check(&host.app().keys, &headers, Scope::Admin) {
        Ok(()) => Json(native::status(host.app())).into_response(),
        Err(fault) => fault.response(Style::OpenAi),
    }
}

async fn act(
    State(host): State<Arc<Host>>,
    Path((name, what)): Path<(String, String)>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Response {
    let asked = auth::who(&host.app().keys, &headers, Scope::Admin).and_then(|who| Ok((who, action(&what, &bytes)?)));
    let (who, action) = match asked {
        Ok(asked) => asked,
        Err(fault) => return fault.response(Style::OpenAi),
    };
    // Loading and warming up take their time, and go on if the client hangs up.
    let done = tokio::task::spawn_blocking(move || host.act(who.as_deref().unwrap_or("local"), &name, &action)).await;
    match done {
        Ok(Ok(value)) => Json(value).into_response(),
        Ok(Err(HostError::Rollout(RolloutError::Refused(lanes)))) => {
            let message = RolloutError::Refused(lanes.clone()).to_string();
            let error = json!({"message": message, "type": "conflict", "param": null, "code": "refused"});
            (StatusCode::CONFLICT, Json(json!({"error": error, "lanes": lanes}))).into_response()
        }
        Ok(Err(error)) => {
            let kind = match &error {
                HostError::Unknown(_) => Kind::NotFound,
                HostError::Load(_) | HostError::Tls(_) => Kind::Invalid,
                HostError::Threads(_) => Kind::Unavailable,
                HostError::Starting(_) => Kind::Starting,
                HostError::Busy(_) | HostError::Rollout(_) | HostError::Reload(_) => Kind::Conflict,
            };
            Fault::new(kind, error.to_string()).response(Style::OpenAi)
        }
        Err(_) => Fault::new(Kind::Backend, "the change ended unexpectedly").response(Style::OpenAi),
    }
}

/// Listens on `address` until `stop` is ready, with the server's TLS except on a loopback address. Anything but a loopback address needs a key with the scope `admin`. `listening` is
/// called with the address once connections are taken.
pub async fn serve(
    host: Arc<Host>,
    address: SocketAddr,
    listening: impl FnOnce(SocketAddr),
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServerError> {
    if !address.ip().is_loopback() && !host.app().keys.has_admin() {
        return Err(ServerError::OpenAdmin { address });
    }
    let listener =
        tokio::net::TcpListener::bind(address).await.map_err(|source| ServerError::Listen { address, source })?;
    listening(listener.local_addr()?);
    let app = Arc::clone(host.app());
    let slow = move || app.limits().slow;
    match host.app().tls.clone().filter(|_| !address.ip().is_loopback()) {
        Some(tls) => accept::serve(tls.listen(listener)?, router(host), slow, stop).await?,
        None => accept::serve(listener, router(host), slow, stop).await?,
    }
    Ok(())
}
