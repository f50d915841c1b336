//! `ehun ctl`: asks a running server what it serves, and to serve it another way.

use std::time::Duration;

use clap::{Args, Subcommand};
use ehun_backend::Precision;
use serde_json::{Map, Value, json};

use crate::error::{CommandError, CommandResult, Outcome};
use crate::output::{json_line, line};

/// Flags of `ehun ctl`.
#[derive(Debug, Args)]
pub struct Ctl {
    #[command(subcommand)]
    action: Action,
    /// The administration's address
    #[arg(long, global = true, value_name = "URL", default_value = "http://127.0.0.1:8081")]
    server: String,
    /// An API key with the scope `admin` [default: the variable EHUN_KEY]
    #[arg(long, global = true, value_name = "KEY")]
    key: Option<String>,
    /// The answer as one line of JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// What serves what, how it is, and what is under way
    Status,
    /// Load another deployment beside the one that serves, compare their answers to probes, and put it in place
    Swap {
        #[command(flatten)]
        change: Change,
        /// Swap whatever the probes find
        #[arg(long)]
        force: bool,
        /// Most cosine drift of a probe
        #[arg(long, value_name = "DRIFT")]
        max_drift: Option<f64>,
    },
    /// Mirror a share of the requests to a candidate, after they were answered, and report the drift
    Shadow {
        #[command(flatten)]
        change: Change,
        /// Share of the requests
        #[arg(long, value_name = "P", default_value_t = 100.0)]
        percent: f64,
    },
    /// Let a candidate answer a share of the requests; past its bounds it goes back by itself
    Canary {
        #[command(flatten)]
        change: Change,
        /// Share of the requests
        #[arg(long, value_name = "P", default_value_t = 5.0)]
        percent: f64,
        /// Most cosine drift, 99th percentile
        #[arg(long, value_name = "DRIFT")]
        max_drift: Option<f64>,
    },
    /// The candidate of the shadow or canary takes over
    Promote {
        /// The service
        service: String,
    },
    /// The candidate of the shadow or canary is taken out
    Abort {
        /// The service
        service: String,
    },
}

/// What is to be another way; what is absent stays.
#[derive(Debug, Args)]
struct Change {
    /// The service
    service: String,
    /// Where it runs, the preferred first
    #[arg(long, value_name = "NAME[,NAME...]", value_delimiter = ',')]
    backend: Vec<String>,
    /// Directory of a model on the server, or ORG/NAME of one that was pulled there
    #[arg(long, value_name = "DIR|ORG/NAME")]
    model: Option<String>,
    /// A revision of the model that --model names
    #[arg(long, requires = "model")]
    revision: Option<String>,
    /// In what the products are computed: f32, bf16, f16, int8
    #[arg(long)]
    precision: Option<Precision>,
    /// Attention kernel by name, or a plug-in file on the server
    #[arg(long, value_name = "NAME|FILE")]
    attention: Option<String>,
    /// Threads of a backend on the CPU
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Static shapes of a backend that has them: auto, or a list of batch x length
    #[arg(long, value_name = "auto|BxL[,BxL...]")]
    buckets: Option<String>,
}

impl Change {
    fn fields(&self) -> Map<String, Value> {
        let model = self.model.as_ref().map(|model| match &self.revision {
            Some(revision) => format!("{model}@{revision}"),
            None => model.clone(),
        });
        let backends = (!self.backend.is_empty()).then_some(&self.backend);
        let fields = [
            ("backends", backends.map(|names| json!(names))),
            ("model", model.map(Value::from)),
            ("precision", self.precision.map(|precision| json!(precision))),
            ("attention", self.attention.clone().map(Value::from)),
            ("threads", self.threads.map(Value::from)),
            ("buckets", self.buckets.clone().map(Value::from)),
        ];
        fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

impl Ctl {
    /// Asks, and says what came back.
    pub fn run(self) -> CommandResult {
        let with = |change: &Change, rest: Value| {
            let mut fields = change.fields();
            fields.extend(rest.as_object().cloned().unwrap_or_default());
            Value::Object(fields)
        };
        let answer = match &self.action {
            Action::Status => self.ask("services", None)?,
            Action::Swap { change, force, max_drift } => {
                let bounds = max_drift.map_or_else(|| json!({}), |drift| json!({"cosine_drift": drift}));
                self.change(&change.service, "swap", with(change, json!({"force": force, "bounds": bounds})))?
            }
            Action::Shadow { change, percent } => {
                self.change(&change.service, "shadow", with(change, json!({"percent": percent})))?
            }
            Action::Canary { change, percent, max_drift } => {
                let answers = max_drift.map_or_else(|| json!({}), |drift| json!({"cosine_drift": drift}));
                let rest = json!({"percent": percent, "bounds": {"answers": answers}});
                self.change(&change.service, "canary", with(change, rest))?
            }
            Action::Promote { service } => self.change(service, "promote", json!({}))?,
            Action::Abort { service } => self.change(service, "abort", json!({}))?,
        };
        if self.json {
            json_line(&answer)?;
        } else if matches!(self.action, Action::Status) {
            for service in answer["services"].as_array().into_iter().flatten() {
                status(service)?;
            }
        } else {
            changed(&answer)?;
        }
        Ok(Outcome::Done)
    }

    fn change(&self, service: &str, what: &str, body: Value) -> Result<Value, CommandError> {
        self.ask(&format!("services/{service}/{what}"), Some(body))
    }

    fn ask(&self, path: &str, body: Option<Value>) -> Result<Value, CommandError> {
        let url = format!("{}/admin/v1/{path}", self.server.trim_end_matches('/'));
        let failed =
            |error: ureq::Error| CommandError::Refused(format!("{url}: {error}; is `ehun serve` running there?"));
        // Loading a model may take minutes; the server says when it is done.
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .timeout_connect(Some(Duration::from_secs(10)))
            .build();
        let agent = ureq::Agent::new_with_config(config);
        let key = self.key.clone().or_else(|| std::env::var("EHUN_KEY").ok());
        let bearer = key.map(|key| format!("Bearer {key}"));
        let mut response = match body {
            None => {
                let mut request = agent.get(&url);
                if let Some(bearer) = &bearer {
                    request = request.header("authorization", bearer);
                }
                request.call().map_err(failed)?
            }
            Some(body) => {
                let mut request = agent.post(&url).header("content-type", "application/json");
                if let Some(bearer) = &bearer {
                    request = request.header("authorization", bearer);
                }
                request.send(body.to_string()).map_err(failed)?
            }
        };
        let text = response.body_mut().read_to_string().map_err(failed)?;
        let value: Value = serde_json::from_str(&text)
            .map_err(|error| CommandError::Refused(format!("{url}: the answer is no JSON: {error}")))?;
        if response.status().is_success() {
            return Ok(value);
        }
        let message = value["error"]["message"].as_str().unwrap_or(&text);
        Err(CommandError::Refused(message.to_owned()))
    }
}

fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// One service in a few lines.
fn status(service: &Value) -> Result<(), CommandError> {
    line(&format!(
        "{}  {}  {}  {}",
        word(&service["name"]),
        word(&service["state"]),
        word(&service["task"]),
        word(&service["model"])
    ))?;
    for backend in service["backends"].as_array().into_iter().flatten() {
        let health = &backend["health"];
        let mut text = format!("  {}  {}", word(&backend["name"]), word(&health["state"]));
        if health["failures"].as_u64() > Some(0) {
            text.push_str(&format!("  {} failures, the last: {}", health["failures"], word(&health["last_error"])));
        }
        line(&text)?;
    }
    for left_out in service["left_out"].as_array().into_iter().flatten() {
        line(&format!("  {}  left out: {}", word(&left_out["backend"]), word(&left_out["reason"])))?;
    }
    let rollout = &service["rollout"];
    if rollout["candidate"].is_string() {
        let percent = rollout["percent"].as_f64().map_or_else(String::new, |percent| format!(" {percent} %"));
        line(&format!("  {}{percent}: {}", word(&rollout["phase"]), word(&rollout["candidate"])))?;
        figures(rollout)?;
    }
    if let Some(last) = rollout["last"].as_object() {
        let reason = last.get("reason").filter(|reason| !reason.is_null()).map(|reason| format!(": {}", word(reason)));
        line(&format!(
            "  last {}: {}, {}{}",
            word(&last["phase"]),
            word(&last["candidate"]),
            word(&last["outcome"]),
            reason.unwrap_or_default()
        ))?;
    }
    Ok(())
}

/// What a comparison found, and what a canary did.
fn figures(of: &Value) -> Result<(), CommandError> {
    let found = &of["figures"];
    if found.is_object() {
        let counts = ["compared", "refused", "dropped"].map(|name| format!("{} {name}", found[name]));
        line(&format!("    {}", counts.join(", ")))?;
        if let Some(drift) = found["cosine_drift"].as_object() {
            let figure = |name: &str| drift.get(name).and_then(Value::as_f64).unwrap_or(0.0);
            line(&format!(
                "    cosine drift: median {:.2e}, p99 {:.2e}, worst {:.2e}",
                figure("median"),
                figure("p99"),
                figure("worst")
            ))?;
        }
        if found["labels"].as_u64() > Some(0) {
            line(&format!("    label flips: {} of {}", found["label_flips"], found["labels"]))?;
        }
        if let Some(tau) = found["rank_correlation"].as_f64() {
            line(&format!("    rank correlation: {tau:.4} over {} lists", found["ranked_lists"]))?;
        }
        if let Some(ratio) = found["latency_ratio"].as_f64() {
            line(&format!("    time by token: {ratio:.2} times the baseline's"))?;
        }
    }
    if let Some(canary) = of["canary"].as_object() {
        line(&format!("    answered {}, failed {}", canary["answered"], canary["failed"]))?;
    }
    Ok(())
}

/// What a change did.
fn changed(answer: &Value) -> Result<(), CommandError> {
    line(&format!(
        "{} {}: {} -> {}",
        word(&answer["action"]),
        word(&answer["service"]),
        word(&answer["from"]),
        word(&answer["to"])
    ))?;
    let result = &answer["result"];
    for lane in result["lanes"].as_array().into_iter().flatten() {
        let warm = lane["warm_up_seconds"].as_f64().unwrap_or(0.0);
        line(&format!("  {}: warm after {warm:.3} s", word(&lane["backend"])))?;
        figures(lane)?;
    }
    figures(&result["ended"])?;
    let unloaded = if result["unloaded"].is_object() { &result["unloaded"] } else { result };
    if let Some(released) = unloaded["released"].as_bool() {
        let seconds = unloaded["drain_seconds"].as_f64().unwrap_or(0.0);
        let what = if released { "unloaded" } else { "still held by a request" };
        line(&format!("  the one before: {what} after {seconds:.3} s"))?;
    }
    Ok(())
}
