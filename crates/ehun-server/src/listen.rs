//! Sockets: routes of all wire formats behind one listener, and an end that loses nothing.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::HeaderValue;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::serve::{Listener, ListenerExt};

use crate::accept;
use crate::app::App;
use crate::auth::{self, Scope};
use crate::call::Cost;
use crate::fault::{Fault, Kind, Starting, Style};
use crate::trace::{self, Answered, Context, REQUEST_ID};
use crate::wire;

/// An error in starting or running the server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; is another server running there?")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// Everyone could change services.
    #[error(
        "the administration may not listen on {address} without keys: anyone could change services; add a [[key]] with scope = \"admin\", or use a loopback address"
    )]
    OpenAdmin {
        /// The address.
        address: SocketAddr,
    },
    /// The runtime could not be started, or accepting failed.
    #[error("the server stopped: {0}")]
    Io(#[from] std::io::Error),
}

/// All routes.
pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .merge(wire::openai::routes())
        .merge(wire::tei::routes())
        .merge(wire::cohere::routes())
        .merge(wire::oip::routes())
        .merge(wire::grpc::routes())
        .merge(wire::native::routes())
        .merge(wire::documents::routes())
        .fallback(async |request: Request| {
            Fault::new(Kind::NotFound, format!("there is no {}", request.uri().path())).response(Style::OpenAi)
        })
        .method_not_allowed_fallback(async |request: Request| {
            let message = format!("{} does not take {}", request.uri().path(), request.method());
            Fault::new(Kind::Method, message).response(Style::OpenAi)
        })
        // `guard` has read the body under the limit of that moment.
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn_with_state(Arc::clone(&app), guard))
        .with_state(app)
}

/// What every request passes: the key, the count of its answer, and who is told of it.
async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let (start, begun) = (SystemTime::now(), Instant::now());
    let id = trace::request_id(request.headers()).unwrap_or_else(|| app.metrics.request_id());
    let context = Context::of(request.headers());
    let method = request.method().to_string();
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let open = matches!(route.as_str(), "/health" | "/ping" | "/metrics" | "/v2/health/live" | "/v2/health/ready");
    let style = wire::style_of(&route);
    let limits = app.limits();
    let too_large = request
        .headers()
        .get(axum::http::header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<usize>().ok())
        .is_some_and(|length| length > limits.body_bytes);
    let mut response = match auth::check(&app.keys, request.headers(), Scope::Infer) {
        Err(fault) if !open => fault.response(style),
        _ if too_large => {
            let message = format!("the body is larger than the limit of {} bytes", limits.body_bytes);
            Fault::new(Kind::TooLarge, message).response(style)
        }
        _ => answered(&app, request, next, style).await,
    };
    let status = response.status().as_u16();
    app.metrics.request(&route, status);
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let cost = response.extensions_mut().remove::<Cost>();
    app.telling().tell(Answered { id, context, method, route, status, start, elapsed: begun.elapsed(), cost });
    response
}

/// The answer, once the body is here. Where the service that is asked for was idle, it is loaded and asked again.
async fn answered(app: &App, request: Request, next: Next, style: Style) -> Response {
    let limits = app.limits();
    let (parts, body) = request.into_parts();
    let read = tokio::time::timeout(limits.slow, axum::body::to_bytes(body, limits.body_bytes)).await;
    let body = match read {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => {
            let message = format!("the body is larger than the limit of {} bytes, or was cut off", limits.body_bytes);
            return Fault::new(Kind::TooLarge, message).response(style);
        }
        Err(_) => {
            let message = format!("the body did not come within {} ms", limits.slow.as_millis());
            return Fault::new(Kind::Slow, message).response(style);
        }
    };
    let again = || Request::from_parts(parts.clone(), Body::from(body.clone()));
    let response = next.clone().run(again()).await;
    if response.extensions().get::<Starting>().is_none() {
        return response;
    }
    match tokio::time::timeout(LOADING, app.services.settled()).await {
        Ok(()) => next.clone().run(again()).await,
        Err(_) => response,
    }
}

/// How long a request waits for a service that was idle, before it is told to come again.
const LOADING: Duration = Duration::from_secs(20);

/// Calls `reload` whenever the process is told to read its configuration again (SIGHUP).
pub async fn hangups(reload: impl Fn() + Send + 'static) {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let Ok(mut hangup) = signal(SignalKind::hangup()) else { return };
        while hangup.recv().await.is_some() {
            reload();
        }
    }
    #[cfg(not(unix))]
    drop(reload);
}

/// Listens on `address` until `stop` is ready, then says that it is not ready, waits up to the limit `drain` for what is in flight,
/// and returns. `listening` is called with the address once connections are taken.
pub async fn serve(
    app: Arc<App>,
    address: SocketAddr,
    listening: impl FnOnce(SocketAddr),
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServerError> {
    let listener =
        tokio::net::TcpListener::bind(address).await.map_err(|source| ServerError::Listen { address, source })?;
    listening(listener.local_addr()?);
    match app.tls.clone() {
        Some(tls) => run(app, tls.listen(listener)?, stop).await,
        // Small answers must not wait for company.
        None => run(app, listener.tap_io(|stream| drop(stream.set_nodelay(true))), stop).await,
    }
}

async fn run<L>(app: Arc<App>, listener: L, stop: impl Future<Output = ()> + Send + 'static) -> Result<(), ServerError>
where
    L: Listener,
    L::Addr: std::fmt::Debug,
{
    let (stopped, stopping) = tokio::sync::oneshot::channel();
    let closing = Arc::clone(&app);
    let of_connections = Arc::clone(&app);
    let slow = move || of_connections.limits().slow;
    let of_end = Arc::clone(&app);
    let server = accept::serve(listener, router(app), slow, async move {
        stop.await;
        closing.close();
        let _ = stopped.send(());
    });
    // A connection that never ends must not keep the server: after the time to drain it is cut.
    let bound = async move {
        match stopping.await {
            Ok(()) => tokio::time::sleep(of_end.limits().drain).await,
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        result = server => Ok(result?),
        () = bound => Ok(()),
    }
}

/// Ready when the process is told to end: SIGTERM or Ctrl-C.
pub async fn terminated() {
    let interrupt = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => {
                tokio::select! {
                    _ = interrupt => {}
                    _ = terminate.recv() => {}
                }
            }
            Err(_) => drop(interrupt.await),
        }
    }
    #[cfg(not(unix))]
    drop(interrupt.await);
}
