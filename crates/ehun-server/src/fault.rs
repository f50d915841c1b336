//! What can go wrong with a request, and how each wire format says it.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use ehun_engine::EngineError;
use serde_json::json;

/// The kind of a fault: decides the status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing was sent.
    Empty,
    /// The request is not what the format asks for.
    Malformed,
    /// The request is well formed and its content cannot be done.
    Invalid,
    /// The body is larger than the limit.
    TooLarge,
    /// No key, or a wrong one.
    Unauthorized,
    /// The key does not allow this.
    Forbidden,
    /// No such route or model.
    NotFound,
    /// The route does not take this method.
    Method,
    /// The queue is full.
    Overloaded,
    /// The deadline passed.
    Deadline,
    /// No backend answered.
    Backend,
    /// The service is ending or not ready yet.
    Unavailable,
    /// The service is being loaded: since the server started, or because it was idle.
    Starting,
    /// A body or a header that does not come.
    Slow,
    /// Something else is under way, or the change was checked and refused.
    Conflict,
}

/// A fault with a message for the person who reads the client's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What kind.
    pub kind: Kind,
    /// What was wrong and what to do.
    pub message: String,
    /// The field that is wrong, where it is one.
    pub param: Option<&'static str>,
    /// When to come again, where that is known better than by the kind.
    pub retry_after: Option<Duration>,
    /// Whether the request may wait until its service is loaded, instead of this answer.
    pub waits: bool,
}

/// How a wire format words its errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// `{"error": {"message", "type", "param", "code"}}`
    OpenAi,
    /// `{"error", "error_type"}`
    Tei,
    /// `{"message"}`
    Cohere,
    /// `{"error"}`
    Oip,
    /// A status and a message in the headers of an answer without content.
    Grpc,
}

impl Fault {
    /// A fault of `kind`.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), param: None, retry_after: None, waits: false }
    }

    /// A request whose content cannot be done.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    /// The same, naming the field.
    pub fn at(mut self, param: &'static str) -> Self {
        self.param = Some(param);
        self
    }

    fn status(&self, style: Style) -> StatusCode {
        match self.kind {
            Kind::Empty | Kind::Malformed => StatusCode::BAD_REQUEST,
            // TEI answers 422 where the others answer 400.
            Kind::Invalid if style == Style::Tei => StatusCode::UNPROCESSABLE_ENTITY,
            Kind::Invalid => StatusCode::BAD_REQUEST,
            Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Kind::Unauthorized => StatusCode::UNAUTHORIZED,
            Kind::Forbidden => StatusCode::FORBIDDEN,
            Kind::NotFound => StatusCode::NOT_FOUND,
            Kind::Method => StatusCode::METHOD_NOT_ALLOWED,
            Kind::Overloaded => StatusCode::TOO_MANY_REQUESTS,
            Kind::Deadline => StatusCode::GATEWAY_TIMEOUT,
            Kind::Backend if style == Style::Tei => StatusCode::FAILED_DEPENDENCY,
            Kind::Backend => StatusCode::BAD_GATEWAY,
            Kind::Unavailable | Kind::Starting => StatusCode::SERVICE_UNAVAILABLE,
            Kind::Slow => StatusCode::REQUEST_TIMEOUT,
            Kind::Conflict => StatusCode::CONFLICT,
        }
    }

    /// The answer in the words of `style`.
    pub fn response(&self, style: Style) -> Response {
        let status = self.status(style);
        let body = match style {
            Style::Grpc => return self.grpc_response(),
            Style::OpenAi => {
                let kind = match self.kind {
                    Kind::Unauthorized => "authentication_error",
                    Kind::Forbidden => "permission_error",
                    Kind::Overloaded => "rate_limit_error",
                    Kind::Backend | Kind::Unavailable | Kind::Starting | Kind::Deadline => "server_error",
                    _ => "invalid_request_error",
                };
                let code = match self.kind {
                    Kind::NotFound => Some("model_not_found"),
                    Kind::Unauthorized => Some("invalid_api_key"),
                    Kind::Overloaded => Some("rate_limit_exceeded"),
                    Kind::Starting => Some("starting"),
                    _ => None,
                };
                json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": code}})
            }
            Style::Tei => {
                let kind = match self.kind {
                    Kind::Empty => "Empty",
                    Kind::Overloaded => "Overloaded",
                    Kind::Backend | Kind::Deadline => "Backend",
                    Kind::Unavailable | Kind::Starting => "Unhealthy",
                    _ => "Validation",
                };
                json!({"error": self.message, "error_type": kind})
            }
            Style::Cohere => json!({"message": self.message}),
            Style::Oip => json!({"error": self.message}),
        };
        let mut response = (status, Json(body)).into_response();
        self.mark(&mut response);
        response
    }
}

impl Fault {
    /// Says when to come again, and that the request may wait.
    fn mark(&self, response: &mut Response) {
        if self.waits {
            response.extensions_mut().insert(Starting);
        }
        if matches!(self.kind, Kind::Overloaded | Kind::Starting) {
            let seconds = self.retry_after.unwrap_or(RETRY_AFTER).as_secs_f64().ceil();
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds as u64));
        }
    }

    /// gRPC's errors are answers with the HTTP status 200.
    fn grpc_response(&self) -> Response {
        let code: u8 = match self.kind {
            Kind::Empty | Kind::Malformed | Kind::Invalid | Kind::TooLarge => 3,
            Kind::Deadline | Kind::Slow => 4,
            Kind::NotFound => 5,
            Kind::Forbidden => 7,
            Kind::Overloaded => 8,
            Kind::Method => 12,
            Kind::Backend => 13,
            Kind::Conflict => 9,
            Kind::Unavailable | Kind::Starting => 14,
            Kind::Unauthorized => 16,
        };
        let mut response = StatusCode::OK.into_response();
        self.mark(&mut response);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", HeaderValue::from(u16::from(code)));
        if let Ok(message) = HeaderValue::from_str(&percent_encoded(&self.message)) {
            headers.insert("grpc-message", message);
        }
        response
    }
}

/// Printable ASCII as it is, everything else and `%` as `%XX`, as gRPC has its messages.
fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'%' => out.push_str("%25"),
            b' '..=b'~' => out.push(char::from(byte)),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}
/// Marks an answer that would be another one if the request waited until its service is loaded.
#[derive(Debug, Clone, Copy)]
pub struct Starting;

/// What a client that was turned away is told to wait: about what a full queue takes to empty.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);

impl From<&EngineError> for Fault {
    fn from(error: &EngineError) -> Self {
        let kind = match error {
            EngineError::Invalid(_) => Kind::Invalid,
            EngineError::QueueFull { .. } => Kind::Overloaded,
            EngineError::Deadline => Kind::Deadline,
            EngineError::Unavailable(_) | EngineError::NotFinite { .. } | EngineError::Answer(_) => Kind::Backend,
            EngineError::ShuttingDown | EngineError::Cancelled => Kind::Unavailable,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<EngineError> for Fault {
    fn from(error: EngineError) -> Self {
        Self::from(&error)
    }
}

impl From<ehun_models::ModelError> for Fault {
    fn from(error: ehun_models::ModelError) -> Self {
        Self::invalid(error.to_string())
    }
}
