//! OpenTelemetry by OTLP/HTTP in JSON: spans of requests, sent in batches by a thread of their own.
//!
//! A request is one span; tokenising, waiting and running are spans below it. A collector that is slow or gone costs spans,
//! never a request: what does not fit the bound is dropped and counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::trace::{Answered, span_id};

/// Requests that wait to be sent.
const WAITING: usize = 4096;

/// Requests in one message to the collector.
const BATCH: usize = 256;

/// The longest that a span waits for company.
const EVERY: Duration = Duration::from_secs(1);

/// The longest that the collector may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Sends spans to a collector.
pub struct Exporter {
    sender: SyncSender<Answered>,
    dropped: AtomicU64,
}

impl Exporter {
    /// Sends to the collector at `endpoint` (`http://host:4318`; `/v1/traces` is added) from now on.
    pub fn start(endpoint: &str) -> std::io::Result<Self> {
        let (sender, receiver) = sync_channel(WAITING);
        let url = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
        std::thread::Builder::new().name("otlp".into()).spawn(move || export(&url, &receiver))?;
        Ok(Self { sender, dropped: AtomicU64::new(0) })
    }

    pub(crate) fn send(&self, answered: Answered) {
        if self.sender.try_send(answered).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Requests that the collector was too slow for.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

fn export(url: &str, receiver: &Receiver<Answered>) {
    let config = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).proxy(None).build();
    let agent = ureq::Agent::new_with_config(config);
    let mut is_known_bad = false;
    let mut batch = Vec::new();
    loop {
        let ended = match receiver.recv_timeout(EVERY) {
            Ok(answered) => {
                batch.push(answered);
                if batch.len() < BATCH {
                    continue;
                }
                false
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        };
        if !batch.is_empty() {
            let body = message(&std::mem::take(&mut batch)).to_string();
            let sent = agent.post(url).header("content-type", "application/json").send(&body);
            // Said once, and again after it has worked.
            if let Err(error) = &sent
                && !is_known_bad
            {
                eprintln!("ehun: traces cannot be sent to {url}: {error}");
            }
            is_known_bad = sent.is_err();
        }
        if ended {
            return;
        }
    }
}

/// An ExportTraceServiceRequest.
fn message(batch: &[Answered]) -> Value {
    let spans: Vec<Value> = batch.iter().flat_map(spans).collect();
    json!({"resourceSpans": [{
        "resource": {"attributes": [text("service.name", "ehun"), text("service.version", env!("CARGO_PKG_VERSION"))]},
        "scopeSpans": [{"scope": {"name": "ehun"}, "spans": spans}],
    }]})
}

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

/// 64-bit integers are strings in the JSON of protobuf.
fn number(key: &str, value: u64) -> Value {
    json!({"key": key, "value": {"intValue": value.to_string()}})
}

fn spans(answered: &Answered) -> Vec<Value> {
    let trace = format!("{:032x}", answered.context.trace);
    let nanos = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos()).to_string();
    let id = format!("{:016x}", span_id());
    let mut attributes = vec![
        text("http.request.method", &answered.method),
        text("http.route", &answered.route),
        number("http.response.status_code", u64::from(answered.status)),
        text("ehun.request_id", &answered.id),
    ];
    if let Some(cost) = &answered.cost {
        attributes.push(text("ehun.backend", &cost.backend));
        attributes.push(text("ehun.attention", &cost.attention));
        attributes.push(number("ehun.tokens", cost.tokens as u64));
    }
    let mut request = json!({
        "traceId": trace,
        "spanId": id,
        "name": format!("{} {}", answered.method, answered.route),
        "kind": 2,
        "startTimeUnixNano": nanos(answered.start),
        "endTimeUnixNano": nanos(answered.start + answered.elapsed),
        "attributes": attributes,
        "status": if answered.status < 500 { json!({}) } else { json!({"code": 2}) },
    });
    if let Some(parent) = answered.context.parent {
        request["parentSpanId"] = json!(format!("{parent:016x}"));
    }
    let mut all = vec![request];
    if let Some(cost) = &answered.cost {
        // Of several items the longest of each step is known: the steps are drawn one after the other.
        let mut start = answered.start;
        for (name, time) in [("tokenize", cost.tokenize), ("queue", cost.queue), ("run", cost.run)] {
            all.push(json!({
                "traceId": trace,
                "spanId": format!("{:016x}", span_id()),
                "parentSpanId": id,
                "name": name,
                "kind": 1,
                "startTimeUnixNano": nanos(start),
                "endTimeUnixNano": nanos(start + time),
            }));
            start += time;
        }
    }
    all
}
