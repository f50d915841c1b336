//! What is told of each request: a line in the log and spans for a collector of traces (OpenTelemetry).

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::{HeaderMap, HeaderName};

use crate::call::Cost;
use crate::otlp::Exporter;

/// The header that carries a request's id, in and out.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// How requests are logged, one line on standard error for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Not at all.
    #[default]
    Off,
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl std::str::FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(format!("`{other}` is none of off, text, json")),
        }
    }
}

/// W3C trace context: the trace that a request is a part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// The trace.
    pub trace: u128,
    /// The caller's span; `None` where the trace begins here.
    pub parent: Option<u64>,
    /// Whether the caller wants it recorded.
    pub sampled: bool,
}

impl Context {
    /// The context of `traceparent`, or a new one where it is absent or broken.
    pub fn of(headers: &HeaderMap) -> Self {
        let given = headers.get(TRACEPARENT).and_then(|value| parse(value.to_str().ok()?));
        given.unwrap_or_else(|| Self { trace: random(), parent: None, sampled: true })
    }
}

/// `version-trace-parent-flags` in hexadecimal digits; later versions may add fields at the end.
fn parse(text: &str) -> Option<Context> {
    let mut parts = text.trim().split('-');
    let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let hex = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    if !hex(version, 2) || version == "ff" || !hex(trace, 32) || !hex(parent, 16) || !hex(flags, 2) {
        return None;
    }
    if version == "00" && parts.next().is_some() {
        return None;
    }
    let (trace, parent) = (u128::from_str_radix(trace, 16).ok()?, u64::from_str_radix(parent, 16).ok()?);
    let flags = u8::from_str_radix(flags, 16).ok()?;
    (trace != 0 && parent != 0).then_some(Context { trace, parent: Some(parent), sampled: flags & 1 == 1 })
}

/// A number for a trace; ids must be unique and need not be secret.
fn random() -> u128 {
    let half = || {
        use std::hash::{BuildHasher, Hasher};
        std::collections::hash_map::RandomState::new().build_hasher().finish()
    };
    (u128::from(half()) << 64 | u128::from(half())).max(1)
}

/// A new span's number.
pub(crate) fn span_id() -> u64 {
    (random() as u64).max(1)
}

/// The id that the client gave, if it is one that can stand in a log.
pub fn request_id(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(REQUEST_ID)?.to_str().ok()?;
    let fits = (1..=128).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
    fits.then(|| text.to_owned())
}

/// A request that has been answered.
#[derive(Debug, Clone)]
pub struct Answered {
    /// Its id.
    pub id: String,
    /// The trace that it is a part of.
    pub context: Context,
    /// GET, POST.
    pub method: String,
    /// The route's pattern.
    pub route: String,
    /// The answer's status.
    pub status: u16,
    /// When it came.
    pub start: SystemTime,
    /// How long it took.
    pub elapsed: Duration,
    /// What it cost, where a model was asked.
    pub cost: Option<Cost>,
}

/// Who is told of requests.
#[derive(Clone, Default)]
pub struct Telling {
    /// Lines on standard error.
    pub log: LogFormat,
    /// Spans to a collector.
    pub exporter: Option<Arc<Exporter>>,
}

impl Telling {
    /// Tells of one request.
    pub fn tell(&self, answered: Answered) {
        match self.log {
            LogFormat::Off => {}
            LogFormat::Text => eprintln!("{}", text(&answered)),
            LogFormat::Json => eprintln!("{}", json(&answered)),
        }
        if let Some(exporter) = self.exporter.as_ref().filter(|_| answered.context.sampled) {
            exporter.send(answered);
        }
    }
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

fn text(answered: &Answered) -> String {
    let Answered { id, context, method, route, status, start, elapsed, cost } = answered;
    let time = seconds(*start);
    let ms = elapsed.as_secs_f64() * 1e3;
    let mut line = format!("{time:.3} {status} {method} {route} {ms:.3} ms id={id} trace={:032x}", context.trace);
    if let Some(cost) = cost {
        line += &format!(" backend={} tokens={}", cost.backend, cost.tokens);
    }
    line
}

fn json(answered: &Answered) -> serde_json::Value {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let mut line = serde_json::json!({
        "time": seconds(answered.start),
        "level": if answered.status < 500 { "info" } else { "error" },
        "request_id": answered.id,
        "trace_id": format!("{:032x}", answered.context.trace),
        "method": answered.method,
        "route": answered.route,
        "status": answered.status,
        "elapsed_ms": ms(answered.elapsed),
    });
    if let Some(cost) = &answered.cost {
        line["backend"] = serde_json::json!(cost.backend);
        line["attention"] = serde_json::json!(cost.attention);
        line["tokens"] = serde_json::json!(cost.tokens);
        line["tokenize_ms"] = serde_json::json!(ms(cost.tokenize));
        line["queue_ms"] = serde_json::json!(ms(cost.queue));
        line["run_ms"] = serde_json::json!(ms(cost.run));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traceparent() {
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(TRACEPARENT, text.parse().unwrap());
            Context::of(&headers)
        };
        let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        let want = Context {
            trace: 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736,
            parent: Some(0x00f0_67aa_0ba9_02b7),
            sampled: true,
        };
        assert_eq!(of(&format!("00-{trace}-{parent}-01")), want);
        assert_eq!(of(&format!("01-{trace}-{parent}-00-more")), Context { sampled: false, ..want });
        for wrong in [
            "".to_owned(),
            format!("00-{trace}-{parent}"),
            format!("00-{trace}-{parent}-01-more"),
            format!("ff-{trace}-{parent}-01"),
            format!("00-{}-{parent}-01", "0".repeat(32)),
            format!("00-{trace}-{}-01", "0".repeat(16)),
            format!("00-{}-{parent}-01", trace.to_uppercase()),
        ] {
            let new = of(&wrong);
            assert!(new.parent.is_none() && new.trace != want.trace && new.sampled, "{wrong}");
        }
    }

    #[test]
    fn lines() {
        let context = Context { trace: 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736, parent: Some(7), sampled: true };
        let ms = Duration::from_millis;
        let cost = Cost {
            tokens: 12,
            tokenize: ms(1),
            queue: ms(2),
            run: ms(4),
            backend: "xla:cpu".into(),
            attention: "flash".into(),
            ..Cost::default()
        };
        let of = |status, id: &str, cost| Answered {
            id: id.into(),
            context,
            method: "POST".into(),
            route: "/v1/embeddings".into(),
            status,
            start: UNIX_EPOCH + ms(1_500),
            elapsed: Duration::from_micros(8_250),
            cost,
        };
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        for (answered, line, object) in [
            (
                of(200, "mine-7", Some(cost)),
                format!("1.500 200 POST /v1/embeddings 8.250 ms id=mine-7 trace={trace} backend=xla:cpu tokens=12"),
                serde_json::json!({
                    "time": 1.5, "level": "info", "request_id": "mine-7", "trace_id": trace, "method": "POST",
                    "route": "/v1/embeddings", "status": 200, "elapsed_ms": 8.25, "backend": "xla:cpu",
                    "attention": "flash", "tokens": 12, "tokenize_ms": 1.0, "queue_ms": 2.0, "run_ms": 4.0,
                }),
            ),
            (
                of(502, "ehun-3", None),
                format!("1.500 502 POST /v1/embeddings 8.250 ms id=ehun-3 trace={trace}"),
                serde_json::json!({
                    "time": 1.5, "level": "error", "request_id": "ehun-3", "trace_id": trace, "method": "POST",
                    "route": "/v1/embeddings", "status": 502, "elapsed_ms": 8.25,
                }),
            ),
        ] {
            assert_eq!(text(&answered), line);
            assert_eq!(json(&answered), object);
            assert!(!json(&answered).to_string().contains('\n'), "one line");
        }
    }

    #[test]
    fn ids_that_cannot_stand_in_a_log_are_not_taken() {
        for (given, taken) in [("a-1_B", true), ("", false), ("a b", false), (&"x".repeat(129), false)] {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, given.parse().unwrap());
            assert_eq!(request_id(&headers).is_some(), taken, "{given}");
        }
    }
}
