//! `ehun compare`: paper against pipeline.

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use ehun_backend::{Attention, Options, Precision};
use ehun_compare::verdict::Limits;
use ehun_compare::{Local, Plan, Query, Side, Tools, compare, page, refused, table};
use ehun_documents::{PoolOptions, WorkerPool};
use ehun_models::{LoadOptions, Model};

use crate::conformance::passed;
use crate::error::{CommandError, CommandResult, Outcome};
use crate::output::{json_line, line};
use crate::session::{at_least_one, checkpoint, producer, program_cache, registry, workers};

/// Flags of `ehun compare`.
#[derive(Debug, Args)]
pub struct Compare {
    /// Files and folders
    #[arg(required = true, value_name = "INPUT")]
    inputs: Vec<PathBuf>,
    /// What is in use: `BACKEND[/ATTENTION][/PRECISION]`, as cpu/naive or xla:cpu/blocked; an attention plug-in file; or the address
    /// of a service elsewhere that serves the same model, as openai+http://host/v1#model
    #[arg(long, value_name = "SIDE")]
    baseline: Spec,
    /// What might be used instead, written in the same way
    #[arg(long, value_name = "SIDE")]
    candidate: Spec,
    /// Directory of a model, or ORG/NAME of one that was pulled [default: the embedded all-MiniLM-L6-v2]
    #[arg(long, value_name = "DIR|ORG/NAME")]
    model: Option<PathBuf>,
    /// Most tokens of a chunk; several, and the whole job is run with each [default: what the model takes, at most 256]
    #[arg(long, value_name = "N[,N...]", value_delimiter = ',', value_parser = at_least_one)]
    chunk_tokens: Vec<usize>,
    /// Lengths at which attention is measured alone [default: powers of two from 32 to what the model takes, at most 2048]
    #[arg(long, value_name = "N[,N...]", value_delimiter = ',', value_parser = at_least_one)]
    lengths: Vec<usize>,
    /// Rounds of four jobs, two on each side
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = at_least_one)]
    rounds: usize,
    /// Queries for the drift of search: JSON Lines of {"query": ..., "relevant": {"file name": grade}}
    #[arg(long, value_name = "FILE")]
    queries: Option<PathBuf>,
    /// A gain or loss below so many per cent is none
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0)]
    margin: f64,
    /// Make every run of the candidate so many per cent longer, to see whether the comparison finds it
    #[arg(long, value_name = "PERCENT")]
    handicap: Option<f64>,
    /// Threads of a backend on the CPU [default: one for each core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Most tokens of a batch
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = at_least_one)]
    batch_tokens: usize,
    /// Also write the comparison as an HTML page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The comparison as one JSON object
    #[arg(long)]
    json: bool,
}

/// One side as it is written on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Spec {
    name: String,
    backend: String,
    attention: Attention,
    precision: Precision,
}

impl std::str::FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = text.to_owned();
        if ehun_remote::is_remote(text) {
            let (attention, precision) = (Attention::default(), Precision::default());
            return Ok(Self { backend: name.clone(), name, attention, precision });
        }
        let is_file = text.starts_with(['.', '/']) || text.ends_with(".so") || text.ends_with(".dylib");
        let begins_with_backend = text.split('/').next().is_some_and(|first| !first.is_empty() && !first.contains('.'));
        if is_file && !(begins_with_backend && text.contains('/') && is_backend(text)) {
            let (backend, attention) = (ehun_backend_cpu::NAME.to_owned(), Attention::File(text.into()));
            return Ok(Self { name, backend, attention, precision: Precision::default() });
        }
        let (backend, rest) = text.split_once('/').unwrap_or((text, ""));
        let (attention, precision) = match rest.rsplit_once('/') {
            Some((before, last)) if last.parse::<Precision>().is_ok() => (before, last.parse().ok()),
            _ => match rest.parse::<Precision>() {
                Ok(precision) => ("", Some(precision)),
                Err(_) => (rest, None),
            },
        };
        let attention = if attention.is_empty() { "auto" } else { attention };
        let attention = attention.parse().map_err(|_| format!("no attention `{attention}`"))?;
        Ok(Self { name, backend: backend.to_owned(), attention, precision: precision.unwrap_or_default() })
    }
}

/// Whether what is before the first slash is the name of a backend.
fn is_backend(text: &str) -> bool {
    text.split_once('/').is_some_and(|(first, _)| registry().names().iter().any(|name| name == first))
}

impl Compare {
    /// Compares.
    pub fn run(self) -> CommandResult {
        let load = |max_tokens| -> Result<Arc<Model>, CommandError> {
            let options = LoadOptions { max_tokens, ..LoadOptions::default() };
            Ok(Arc::new(Model::load(&checkpoint(self.model.as_deref())?, &options)?))
        };
        let mut model = load(None)?;
        let plan = self.plan(&model)?;
        let longest = plan.chunk_tokens.iter().copied().max().unwrap_or_default();
        // No chunk is longer, so nothing is compiled for more.
        if longest < model.max_tokens() {
            model = load(Some(longest))?;
        }
        let pool = WorkerPool::new(PoolOptions::default())?;
        let producer = producer(&model);
        let progress = |text: &str| {
            if !self.json {
                eprintln!("{text}");
            }
        };
        let tools = Tools { model: &model, producer: &producer, pool: &pool, progress: &progress };
        let baseline = self.side(&self.baseline, &model, longest)?;
        let baseline = baseline.map_err(|refusals| {
            let reasons: Vec<String> = refusals.iter().map(ToString::to_string).collect();
            CommandError::Usage(format!(
                "the baseline {} refuses the model: {}",
                self.baseline.name,
                reasons.join("; ")
            ))
        })?;
        let found = match self.side(&self.candidate, &model, longest)? {
            Ok(mut candidate) => {
                if let Some(percent) = self.handicap {
                    candidate = candidate.handicapped(percent / 100.0);
                }
                compare(&tools, &plan, &baseline, &candidate)?
            }
            Err(refusals) => refused(&tools, &plan, &baseline, &self.candidate.name, &refusals),
        };
        if let Some(path) = &self.html {
            std::fs::write(path, page(&found)).map_err(CommandError::io(path.display().to_string()))?;
        }
        if self.json {
            json_line(&found)?;
        } else {
            line(&table(&found))?;
        }
        Ok(Outcome::Done)
    }

    fn plan(&self, model: &Model) -> Result<Plan, CommandError> {
        let most = model.max_tokens();
        let chunk_tokens = if self.chunk_tokens.is_empty() { vec![most.min(256)] } else { self.chunk_tokens.clone() };
        if let Some(tokens) = chunk_tokens.iter().find(|&&tokens| tokens > most) {
            let message = format!("--chunk-tokens {tokens}: the model takes {most} tokens; give at most that");
            return Err(CommandError::Usage(message));
        }
        let powers = (5..12).map(|power| 1 << power).filter(|&length| length <= most);
        let lengths = if self.lengths.is_empty() { powers.collect() } else { self.lengths.clone() };
        let is_share = |percent: f64| percent.is_finite() && percent >= 0.0;
        if !is_share(self.margin) || !self.handicap.is_none_or(is_share) {
            return Err(CommandError::Usage("--margin and --handicap are per cents from 0".into()));
        }
        Ok(Plan {
            inputs: self.inputs.clone(),
            chunk_tokens,
            paper_lengths: lengths,
            rounds: self.rounds,
            batch_tokens: self.batch_tokens,
            queries: self.queries.as_deref().map_or(Ok(Vec::new()), read_queries)?,
            limits: Limits { margin: self.margin / 100.0, ..Limits::default() },
        })
    }

    /// Opens one side; the inner error is what its backend refuses.
    fn side(
        &self,
        spec: &Spec,
        model: &Arc<Model>,
        longest: usize,
    ) -> Result<Result<Side, Vec<ehun_backend::Refusal>>, CommandError> {
        if ehun_remote::is_remote(&spec.backend) {
            let runner = ehun_remote::open(&spec.backend, Arc::clone(model), None)?;
            let mut side = Side::remote(&spec.name, runner, workers(&[&spec.backend]), model);
            side.cost.start_seconds = self.start_seconds(spec);
            return Ok(Ok(side));
        }
        let libraries = ehun_compare::loaded();
        let backend = registry().open(&spec.backend)?;
        let options = Options {
            precision: spec.precision,
            attention: spec.attention.clone(),
            threads: self.threads,
            max_sequence: longest,
            max_batch_tokens: self.batch_tokens.max(longest),
            cache: program_cache(),
            ..Options::default()
        };
        let mut side = match Side::local(&spec.name, Local { backend, options }, model) {
            Ok(side) => side,
            Err(refusals) => return Ok(Err(refusals)),
        };
        // What opening the backend loaded is part of the cost too.
        side.cost.libraries = ehun_compare::loaded().difference(&libraries).cloned().collect();
        side.cost.start_seconds = self.start_seconds(spec);
        if let Attention::File(file) = &spec.attention {
            side.cost.notes.push(match passed::found(&spec.backend, file)? {
                Some(record) if record.passed => "passed `ehun conform` on this machine".to_owned(),
                Some(_) => "failed `ehun conform` on this machine".to_owned(),
                None => "not yet run through `ehun conform` on this machine".to_owned(),
            });
        }
        Ok(Ok(side))
    }

    /// Seconds from the start of this program to the answer of one short text, the median of three.
    fn start_seconds(&self, spec: &Spec) -> Option<f64> {
        let program = std::env::current_exe().ok()?;
        let model: Vec<&Path> =
            self.model.as_deref().into_iter().flat_map(|model| [Path::new("--model"), model]).collect();
        let mut times = Vec::new();
        for _ in 0..3 {
            let start = Instant::now();
            let status = Command::new(&program)
                .args(["embed", "hello world", "--backend", &spec.backend, "--precision", spec.precision.name()])
                .args(["--attention", &spec.attention.to_string()])
                .args(&model)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            // A model for another task has no vectors to give.
            if !status.ok()?.success() {
                return None;
            }
            times.push(start.elapsed().as_secs_f64());
        }
        Some(ehun_compare::stats::median(&times))
    }
}

fn read_queries(path: &Path) -> Result<Vec<Query>, CommandError> {
    let name = path.display().to_string();
    let file = std::fs::File::open(path).map_err(CommandError::io(&name))?;
    let mut queries = Vec::new();
    for (number, text) in std::io::BufReader::new(file).lines().enumerate() {
        let text = text.map_err(CommandError::io(&name))?;
        if text.trim().is_empty() {
            continue;
        }
        let query = serde_json::from_str(&text).map_err(|error| {
            let form = r#"{"query": "...", "relevant": {"file name": grade}}"#;
            CommandError::Usage(format!("{name}: line {}: {error}; a line is {form}", number + 1))
        })?;
        queries.push(query);
    }
    Ok(queries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_are_read_as_they_are_written() {
        let file = |path: &str| Attention::File(path.into());
        let named = |name: &str| Attention::Named(name.into());
        for (text, backend, attention, precision) in [
            ("cpu", "cpu", Attention::Auto, Precision::F32),
            ("cpu/naive", "cpu", named("naive"), Precision::F32),
            ("cpu/flash/int8", "cpu", named("flash"), Precision::Int8),
            ("cpu/int8", "cpu", Attention::Auto, Precision::Int8),
            ("xla:cpu/blocked", "xla:cpu", named("blocked"), Precision::F32),
            ("./a/b.so", "cpu", file("./a/b.so"), Precision::F32),
            ("b.so", "cpu", file("b.so"), Precision::F32),
            ("/x/b.so", "cpu", file("/x/b.so"), Precision::F32),
            ("cpu/./a/b.so", "cpu", file("./a/b.so"), Precision::F32),
            ("cpu/./a/b.so/int8", "cpu", file("./a/b.so"), Precision::Int8),
            ("tei+http://h:1/x", "tei+http://h:1/x", Attention::Auto, Precision::F32),
        ] {
            let want = Spec { name: text.into(), backend: backend.into(), attention, precision };
            assert_eq!(text.parse::<Spec>(), Ok(want));
        }
    }
}
