//! Metrics in the OpenMetrics text format. Every series is there from the start, and the label sets are bounded: they are
//! the services of the configuration and what their backends report.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ehun_engine::rollout::Phase;
use ehun_engine::{BatchEvent, EngineError, HealthState, Observer};

use crate::app::App;

/// Upper bounds of the time histograms, in seconds.
const BOUNDS: [f64; 12] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 10.0];

/// What an item can come to, as a label.
const OUTCOMES: [&str; 9] =
    ["ok", "invalid", "queue_full", "deadline", "cancelled", "unavailable", "not_finite", "answer", "shutting_down"];

/// What can be asked of a service, and how it can end.
const ROLLOUTS: [(&str, &str); 14] = [
    ("swap", "done"),
    ("swap", "refused"),
    ("swap", "failed"),
    ("shadow", "started"),
    ("shadow", "refused"),
    ("shadow", "failed"),
    ("canary", "started"),
    ("canary", "refused"),
    ("canary", "failed"),
    ("canary", "returned"),
    ("promote", "done"),
    ("promote", "failed"),
    ("abort", "done"),
    ("abort", "failed"),
];

#[derive(Debug, Clone, Default)]
struct Histogram {
    buckets: [u64; BOUNDS.len()],
    count: u64,
    sum: f64,
}

impl Histogram {
    fn add(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        for (bucket, bound) in self.buckets.iter_mut().zip(BOUNDS) {
            *bucket += u64::from(seconds <= bound);
        }
        self.count += 1;
        self.sum += seconds;
    }
}

#[derive(Debug, Clone, Default)]
struct OfService {
    outcomes: BTreeMap<&'static str, u64>,
    tokens: u64,
    padding: u64,
    tokenize: Histogram,
    queue: Histogram,
    run: Histogram,
    failures: BTreeMap<String, u64>,
    /// Batches and sequences by (backend, device, precision, attention kernel).
    ran: BTreeMap<(String, String, &'static str, String), u64>,
}

/// Counters of all services. One lock: it is taken once for a batch.
#[derive(Debug, Default)]
pub struct Metrics {
    services: Mutex<BTreeMap<String, OfService>>,
    requests: Mutex<BTreeMap<(String, u16), u64>>,
    /// Changes by service, what was asked, and how it ended.
    rollouts: Mutex<BTreeMap<(String, String, String), u64>>,
    next_id: std::sync::atomic::AtomicU64,
}

impl Metrics {
    /// Metrics with every series of `services` at 0.
    pub fn new<'a>(services: impl IntoIterator<Item = &'a str>) -> Self {
        let metrics = Self::default();
        services.into_iter().for_each(|name| metrics.add(name));
        metrics
    }

    /// Adds a service, with every series of it at 0. One that is there keeps its counts.
    pub fn add(&self, service: &str) {
        let empty =
            || OfService { outcomes: OUTCOMES.iter().map(|outcome| (*outcome, 0)).collect(), ..OfService::default() };
        let mut services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        services.entry(service.to_owned()).or_insert_with(empty);
        let mut rollouts = self.rollouts.lock().unwrap_or_else(PoisonError::into_inner);
        for (action, outcome) in ROLLOUTS {
            rollouts.entry((service.to_owned(), action.to_owned(), outcome.to_owned())).or_default();
        }
    }

    /// Counts a change of a service: what was asked and how it ended.
    pub fn rollout(&self, service: &str, action: &str, outcome: &str) {
        let key = (service.to_owned(), action.to_owned(), outcome.to_owned());
        *self.rollouts.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default() += 1;
    }

    /// A number that no other request of this process has, for formats that want an id.
    pub fn request_id(&self) -> String {
        format!("ehun-{}", self.next_id.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
    }

    /// Counts an answered HTTP request; `route` is a route's pattern and not a path that a client made up.
    pub fn request(&self, route: &str, status: u16) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry((route.to_owned(), status)).or_default() += 1;
    }

    fn with(&self, service: &str, change: impl FnOnce(&mut OfService)) {
        let mut services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of) = services.get_mut(service) {
            change(of);
        }
    }

    /// The text of `GET /metrics`.
    pub fn text(&self, app: &App) -> String {
        let mut out = Text::default();
        let services = self.services.lock().unwrap_or_else(PoisonError::into_inner).clone();
        out.family("ehun_http_requests", "counter", "HTTP requests by route and status");
        for ((route, status), count) in self.requests.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            out.line("ehun_http_requests_total", &[("route", route), ("status", &status.to_string())], count);
        }
        out.family("ehun_items", "counter", "Items by what they came to");
        for (name, of) in &services {
            for (outcome, count) in &of.outcomes {
                out.line("ehun_items_total", &[("service", name), ("outcome", outcome)], count);
            }
        }
        out.family("ehun_tokens", "counter", "Tokens run, special tokens included");
        for (name, of) in &services {
            out.line("ehun_tokens_total", &[("service", name)], &of.tokens);
        }
        out.family("ehun_padding_tokens", "counter", "Token rows computed and thrown away");
        for (name, of) in &services {
            out.line("ehun_padding_tokens_total", &[("service", name)], &of.padding);
        }
        out.family("ehun_sequences", "counter", "Sequences by what ran them");
        for (name, of) in &services {
            for ((backend, device, precision, attention), count) in &of.ran {
                let labels = [
                    ("service", name.as_str()),
                    ("backend", backend),
                    ("device", device),
                    ("precision", precision),
                    ("attention", attention),
                ];
                out.line("ehun_sequences_total", &labels, count);
            }
        }
        out.family("ehun_backend_failures", "counter", "Batches that a backend failed");
        let live = app.services();
        for (name, of) in &services {
            let lanes = live.iter().filter(|served| served.name == *name).map(|served| served.service.deployment());
            // A backend that has not failed yet is there with 0, so that its first failure is a rise.
            let mut failures: BTreeMap<String, u64> = lanes
                .flat_map(|of| of.lanes.iter().map(|lane| (lane.name().to_owned(), 0)).collect::<Vec<_>>())
                .collect();
            failures.extend(of.failures.clone());
            for (backend, count) in &failures {
                out.line("ehun_backend_failures_total", &[("service", name), ("backend", backend)], count);
            }
        }
        for (family, help, pick) in [
            ("ehun_tokenize_seconds", "Time to tokenise an item", pick_tokenize as fn(&OfService) -> &Histogram),
            ("ehun_queue_seconds", "Time that an item waited for its batch", pick_queue),
            ("ehun_run_seconds", "Time of the batch that an item was in", pick_run),
        ] {
            out.family(family, "histogram", help);
            for (name, of) in &services {
                out.histogram(family, name, pick(of));
            }
        }
        out.family("ehun_queue_tokens", "gauge", "Tokens in the service, from arrival to answer");
        for served in app.services() {
            out.line("ehun_queue_tokens", &[("service", &served.name)], &served.service.load().tokens);
        }
        out.family("ehun_queue_items", "gauge", "Items that wait for a batch");
        for served in app.services() {
            out.line("ehun_queue_items", &[("service", &served.name)], &served.service.load().waiting_items);
        }
        out.family("ehun_queue_age_seconds", "gauge", "How long the oldest item has waited");
        for served in app.services() {
            let age = served.service.load().oldest_wait.as_secs_f64();
            out.line("ehun_queue_age_seconds", &[("service", &served.name)], &age);
        }
        out.family("ehun_backend_up", "gauge", "1 where the backend takes batches, 0 where it rests or was left out");
        for served in app.services() {
            for lane in &served.service.deployment().lanes {
                let up = i32::from(lane.health().state != HealthState::Open);
                out.line("ehun_backend_up", &[("service", &served.name), ("backend", lane.name())], &up);
            }
            for left_out in &served.service.deployment().left_out {
                out.line("ehun_backend_up", &[("service", &served.name), ("backend", &left_out.backend)], &0);
            }
        }
        out.family("ehun_spans_dropped", "counter", "Requests whose spans the collector of traces was too slow for");
        let dropped = app.telling().exporter.as_ref().map_or(0, |exporter| exporter.dropped());
        let _ = writeln!(out.0, "ehun_spans_dropped_total {dropped}");
        self.rollouts_text(app, &mut out);
        out.0.push_str("# EOF\n");
        out.0
    }

    fn rollouts_text(&self, app: &App, out: &mut Text) {
        out.family("ehun_service_loaded", "gauge", "1 where the service is loaded, 0 where it is idle");
        for entry in app.services.entries() {
            out.line("ehun_service_loaded", &[("service", &entry.name)], &i32::from(entry.live().is_some()));
        }
        out.family("ehun_warm_up_programs", "gauge", "Programs of the service's backends, ready and in all");
        for entry in app.services.entries() {
            let (ready, all) = entry.progress().map_or((0, 0), |progress| (progress.done, progress.total));
            out.line("ehun_warm_up_programs", &[("service", &entry.name), ("state", "ready")], &ready);
            out.line("ehun_warm_up_programs", &[("service", &entry.name), ("state", "all")], &all);
        }
        out.family("ehun_rollouts", "counter", "Changes by what was asked and how it ended");
        for ((service, action, outcome), count) in self.rollouts.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let labels = [("service", service.as_str()), ("action", action), ("outcome", outcome)];
            out.line("ehun_rollouts_total", &labels, count);
        }
        let live = app.services();
        let reports: Vec<_> = live.iter().map(|served| (served.name.as_str(), served.service.rollout())).collect();
        out.family("ehun_rollout_phase", "gauge", "1 for what is under way in the service");
        for (service, report) in &reports {
            for phase in Phase::ALL {
                let labels = [("service", *service), ("phase", phase.name())];
                out.line("ehun_rollout_phase", &labels, &i32::from(report.phase == phase));
            }
        }
        out.family("ehun_rollout_share_percent", "gauge", "Share of the requests that the candidate gets");
        for (service, report) in &reports {
            out.line("ehun_rollout_share_percent", &[("service", service)], &report.percent.unwrap_or(0.0));
        }
        out.family("ehun_rollout_items", "gauge", "Items of the comparison that is under way");
        for (service, report) in &reports {
            let of = report.figures.clone().unwrap_or_default();
            for (result, count) in [
                ("mirrored", of.mirrored),
                ("dropped", of.dropped),
                ("compared", of.compared),
                ("refused", of.refused),
                ("incomparable", of.incomparable),
                ("label_flips", of.label_flips),
            ] {
                out.line("ehun_rollout_items", &[("service", service), ("result", result)], &count);
            }
        }
        let figures = || reports.iter().filter_map(|(service, report)| Some((*service, report.figures.as_ref()?)));
        out.family("ehun_rollout_cosine_drift", "gauge", "1 - cosine of the candidate's answers to the baseline's");
        for (service, drift) in figures().filter_map(|(service, of)| Some((service, of.cosine_drift?))) {
            for (statistic, value) in [("median", drift.median), ("p99", drift.p99), ("worst", drift.worst)] {
                out.line("ehun_rollout_cosine_drift", &[("service", service), ("statistic", statistic)], &value);
            }
        }
        out.family("ehun_rollout_rank_correlation", "gauge", "Mean of Kendall's tau-b of the candidate's ranking");
        for (service, tau) in figures().filter_map(|(service, of)| Some((service, of.rank_correlation?))) {
            out.line("ehun_rollout_rank_correlation", &[("service", service)], &tau);
        }
        out.family("ehun_rollout_latency_ratio", "gauge", "Time by token, candidate to baseline");
        for (service, ratio) in figures().filter_map(|(service, of)| Some((service, of.latency_ratio?))) {
            out.line("ehun_rollout_latency_ratio", &[("service", service)], &ratio);
        }
    }
}

fn pick_tokenize(of: &OfService) -> &Histogram {
    &of.tokenize
}

fn pick_queue(of: &OfService) -> &Histogram {
    &of.queue
}

fn pick_run(of: &OfService) -> &Histogram {
    &of.run
}

impl Observer for Metrics {
    fn batch(&self, event: &BatchEvent<'_>) {
        self.with(event.service, |of| {
            // The items of a batch share the reports of its runs; padding is counted once for each run.
            let mut seen: Vec<*const ehun_backend::RunReport> = Vec::new();
            for result in event.results {
                let outcome = result.as_ref().map_or_else(|error| error.code(), |_| "ok");
                *of.outcomes.entry(outcome).or_default() += 1;
                let Ok(answer) = result else { continue };
                of.tokens += answer.tokens as u64;
                of.tokenize.add(answer.timing.tokenize);
                of.queue.add(answer.timing.queue);
                of.run.add(answer.timing.run);
                let report = &answer.output.report;
                let address = std::sync::Arc::as_ptr(report);
                if seen.contains(&address) {
                    continue;
                }
                seen.push(address);
                of.padding += report.padding_tokens as u64;
                for (kernel, sequences) in &report.attention {
                    let key = (report.backend.clone(), report.device.clone(), report.precision.name(), kernel.clone());
                    *of.ran.entry(key).or_default() += *sequences as u64;
                }
            }
        });
    }

    fn failure(&self, service: &str, backend: &str, _: &str) {
        self.with(service, |of| *of.failures.entry(backend.to_owned()).or_default() += 1);
    }

    fn turned_away(&self, service: &str, error: &EngineError) {
        self.with(service, |of| *of.outcomes.entry(error.code()).or_default() += 1);
    }
}

#[derive(Default)]
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# TYPE {name} {kind}\n# HELP {name} {help}.");
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: &dyn std::fmt::Display) {
        let escape = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escape(value))).collect();
        let _ = writeln!(self.0, "{name}{{{}}} {value}", labels.join(","));
    }

    fn histogram(&mut self, family: &str, service: &str, histogram: &Histogram) {
        let bucket = format!("{family}_bucket");
        for (bound, count) in BOUNDS.iter().zip(histogram.buckets) {
            self.line(&bucket, &[("service", service), ("le", &bound.to_string())], &count);
        }
        self.line(&bucket, &[("service", service), ("le", "+Inf")], &histogram.count);
        self.line(&format!("{family}_sum"), &[("service", service)], &histogram.sum);
        self.line(&format!("{family}_count"), &[("service", service)], &histogram.count);
    }
}
