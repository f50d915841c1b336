//! `ehun explain`: the plan for a model, and with `--profile` where the time goes.

use std::collections::BTreeMap;
use std::sync::Arc;

use clap::Args;
use ehun_backend::{Capabilities, OpTime, Placement};
use ehun_backend_xla::BucketReport;
use ehun_engine::{Input, Request};
use serde::Serialize;

use crate::buckets;
use crate::commands::programs;
use crate::error::{CommandError, CommandResult, Outcome};
use crate::output::{json_line, line};
use crate::session::ModelArgs;

/// Flags of `ehun explain`.
#[derive(Debug, Args)]
pub struct Explain {
    /// Run a batch and show the time of each operation
    #[arg(long)]
    profile: bool,
    /// Load the model and show which operations run on which provider
    #[arg(long)]
    placement: bool,
    /// Tokens of each text of that batch [default: what the model takes, at most 128]
    #[arg(long, value_name = "N", requires = "profile")]
    tokens: Option<usize>,
    /// Texts of that batch
    #[arg(long, value_name = "N", default_value_t = 16)]
    texts: usize,
    /// Show what an imported attention function must be for the model and each static shape, and nothing else
    #[arg(long, conflicts_with = "profile")]
    attention_signature: bool,
    /// Compile on backends with static shapes, and show for each shape which attention form it got, its figures and why
    #[arg(long)]
    programs: bool,
    /// One JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
}

#[derive(Serialize)]
struct Plan {
    model: String,
    revision: Option<String>,
    family: String,
    task: String,
    dimension: usize,
    max_tokens: usize,
    operations: usize,
    weight_bytes: usize,
    backends: Vec<Capabilities>,
    /// By backend: its programs, where they were asked for.
    programs: BTreeMap<String, Vec<BucketReport>>,
    profile: Option<Vec<OpTime>>,
    placement: Vec<Placement>,
}

impl Explain {
    /// Explains.
    pub fn run(self) -> CommandResult {
        let model = self.model.load(None)?;
        let options = self.model.options(&model)?;
        if self.attention_signature {
            return programs::signatures(&model, &options, self.json);
        }
        let backends = self.model.backends()?;
        let shapes = backends.iter().map(|backend| backend.info()).map(|info| (info.name, info.static_shapes));
        buckets::heeded(&options.buckets, &shapes.collect::<Vec<_>>())?;
        let capabilities: Vec<Capabilities> =
            backends.iter().map(|backend| backend.capabilities(model.graph(), &options)).collect();
        let refused = capabilities.iter().any(|capability| !capability.refusals.is_empty());
        let profile = if self.profile && !refused { Some(self.measure(&model)?) } else { None };
        let mut placement = Vec::new();
        for backend in backends.iter().filter(|_| self.placement && !refused) {
            let failed = |source| ehun_engine::DeployError {
                model: model.name().to_owned(),
                backend: backend.info().name,
                source: Box::new(source),
            };
            let executable = backend.compile(model.graph().clone(), model.weights(), &options).map_err(failed)?;
            placement.extend(executable.placement());
        }
        let mut compiled = BTreeMap::new();
        if self.programs && !refused {
            for name in self.model.backend.iter().filter(|name| name.starts_with("xla:")) {
                compiled.insert(name.clone(), programs::reports(name, &model, &options)?);
            }
            if compiled.is_empty() {
                let reason = "--programs is for backends with static shapes, for example --backend xla:cpu";
                return Err(CommandError::Usage(reason.into()));
            }
        }
        let plan = Plan {
            model: model.name().to_owned(),
            revision: model.revision().map(str::to_owned),
            family: model.family().to_owned(),
            task: model.task().to_string(),
            dimension: model.dimension(),
            max_tokens: model.max_tokens(),
            operations: model.graph().nodes().len(),
            weight_bytes: model.weights().num_bytes(),
            backends: capabilities,
            programs: compiled,
            profile,
            placement,
        };
        if self.json {
            json_line(&plan)?
        } else {
            show(&plan)?
        }
        Ok(if refused { Outcome::SomeFailed } else { Outcome::Done })
    }

    /// Times of the operations in a batch of equal texts, the second of two runs.
    fn measure(&self, model: &Arc<ehun_models::Model>) -> Result<Vec<OpTime>, CommandError> {
        let service = self.model.serve(model, true)?;
        let tokens = self.tokens.unwrap_or(model.max_tokens().min(128)).clamp(1, model.max_tokens());
        let inputs = || (0..self.texts.max(1)).map(|_| Input::Tokens(vec![1; tokens].into())).collect();
        let mut times = Vec::new();
        for _ in 0..2 {
            let mut items = service.request_when_room(Request::new(inputs()))?.wait().items;
            times =
                items.pop().unwrap_or(Err(ehun_engine::EngineError::ShuttingDown))?.output.report.operations.clone();
        }
        Ok(times)
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

fn show(plan: &Plan) -> Result<(), CommandError> {
    let revision = plan.revision.as_ref().map_or_else(String::new, |revision| format!(" at {revision}"));
    line(&format!("{}{revision}: family {}, task {}", plan.model, plan.family, plan.task))?;
    line(&format!(
        "  {} operations, rows of {}, at most {} tokens, weights {}",
        plan.operations,
        plan.dimension,
        plan.max_tokens,
        megabytes(plan.weight_bytes as u64)
    ))?;
    for backend in &plan.backends {
        let batch = backend.batch_bytes.map_or_else(|| "not known before compiling".to_owned(), megabytes);
        line(&format!("{} on {}, products in {}", backend.backend, backend.device, backend.precision))?;
        line(&format!("  memory: weights {}, largest batch {batch}", megabytes(backend.weight_bytes)))?;
        let mut last: Option<(&str, &str)> = None;
        for choice in &backend.attention {
            let this = (choice.kernel.as_str(), choice.reason.as_str());
            let same = if last == Some(this) { "as above".to_owned() } else { format!("{} ({})", this.0, this.1) };
            line(&format!("  {}: {same}", choice.operation))?;
            last = Some(this);
        }
        for refusal in &backend.refusals {
            line(&format!("  refused: {refusal}"))?;
        }
        if let Some(reports) = plan.programs.get(&backend.backend) {
            programs::show(reports)?;
        }
    }
    for placement in &plan.placement {
        let list: Vec<String> =
            placement.operators.iter().map(|(operator, count)| format!("{count} {operator}")).collect();
        let all: usize = placement.operators.values().sum();
        line(&format!("on {}: {all} operations: {}", placement.provider, list.join(", ")))?;
    }
    let Some(times) = &plan.profile else { return Ok(()) };
    let total: f64 = times.iter().map(|time| time.seconds).sum();
    line(&format!("time of one batch: {:.2} ms", total * 1e3))?;
    for time in times {
        let rate = if time.flops > 0 {
            format!("{:8.1} GFLOP/s", time.flops as f64 / time.seconds / 1e9)
        } else {
            String::new()
        };
        line(&format!(
            "  {:30} {:4} x {:9.3} ms {:5.1} % {rate}",
            time.operation,
            time.count,
            time.seconds * 1e3,
            100.0 * time.seconds / total
        ))?;
    }
    Ok(())
}
