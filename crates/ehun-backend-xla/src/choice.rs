//! Which attention form a bucket gets: tried in turn, judged by the compiled programs' own figures.

use ehun_backend::{Attention, Bucket, Precision};
use ehun_graph::Graph;
use serde::{Deserialize, Serialize};

use crate::lower::attention::{BLOCK, Form};
use crate::lower::imported::{self, Imported};
use crate::lower::{self, Program, Target};
use crate::pjrt::CompiledFigures;

/// Scores up to this size are not worth a second compilation: whatever form holds them, it holds little.
const SMALL_SCORES: u64 = 64 << 20;

/// One form that was compiled for a bucket, or that the compiler refused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// The form.
    pub form: Form,
    /// The compiler's figures, or its words.
    pub outcome: Result<CompiledFigures, String>,
    /// Steps of each loop of the form: 1 where there is none.
    pub loop_steps: usize,
    /// Time that the compilation took, in seconds.
    pub compile_seconds: f64,
}

/// What a bucket runs, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BucketReport {
    /// The shape.
    pub bucket: Bucket,
    /// The form that was chosen; `None` where no form compiles and fits.
    pub form: Option<Form>,
    /// Why this one, or why none.
    pub reason: String,
    /// Every form that was tried.
    pub attempts: Vec<Attempt>,
    /// Whether the program came from the cache.
    pub from_cache: bool,
    /// What went wrong without stopping anything: a cache that could not be written.
    pub notes: Vec<String>,
}

impl BucketReport {
    /// The figures of the chosen form.
    pub fn figures(&self) -> Option<&CompiledFigures> {
        let chosen = self.attempts.iter().find(|attempt| Some(attempt.form) == self.form)?;
        chosen.outcome.as_ref().ok()
    }
}

/// Everything that a bucket's programs are made from.
pub struct Recipe<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// The shape.
    pub bucket: Bucket,
    /// Type of the products.
    pub precision: Precision,
    /// What was asked for.
    pub attention: &'a Attention,
    /// Rows of the shared rotary tables.
    pub table_length: usize,
    /// Device memory in bytes, where it is known.
    pub memory_limit: Option<u64>,
}

/// The figures of a program whose loops have `steps` steps, from those that count a step once: `once` of the program and
/// `twice` of its probe, which does two blocks in a step. Without a probe there are no such figures.
pub fn whole_loops(once: CompiledFigures, steps: usize, twice: Option<&CompiledFigures>) -> CompiledFigures {
    if steps == 1 {
        return once;
    }
    let all = |once: Option<f64>, twice: Option<f64>| {
        let (once, twice) = (once?, twice?);
        Some(once + (steps - 1) as f64 * (twice - once).max(0.0))
    };
    CompiledFigures {
        flops: all(once.flops, twice.and_then(|f| f.flops)),
        bytes_accessed: all(once.bytes_accessed, twice.and_then(|f| f.bytes_accessed)),
        optimal_seconds: all(once.optimal_seconds, twice.and_then(|f| f.optimal_seconds)),
        ..once
    }
}

/// A form with its program, ready to be compiled; or why there is none.
pub struct Candidate {
    /// The form.
    pub form: Form,
    /// The program, or the reason.
    pub program: Result<Program, String>,
}

impl Recipe<'_> {
    /// Bytes of all scores of one attention operation in float32.
    pub fn score_bytes(&self) -> u64 {
        let heads = self.graph.attentions().map(|(_, spec)| spec.num_heads).max().unwrap_or(0);
        let Bucket { batch, length } = self.bucket;
        4 * (batch * heads * length * length) as u64
    }

    /// The program in one form; with `probe`, the one that is only compiled for its figures.
    pub fn program(&self, form: Form, imported: Option<&Imported>, probe: bool) -> Program {
        let target = Target {
            bucket: self.bucket,
            precision: self.precision,
            form,
            table_length: self.table_length,
            imported,
            probe,
        };
        lower::lower(self.graph, target)
    }

    /// The forms to compile, the one that was asked for first. Fallbacks of a form that was named are none: a backend does
    /// not quietly do something else. A file falls back to the native forms, with its refusal on record, as the file is a
    /// wish about speed and gives the same answers.
    pub fn candidates(&self) -> Vec<Candidate> {
        let own = |form| Candidate { form, program: Ok(self.program(form, None, false)) };
        match self.attention {
            Attention::Named(name) => Form::from_name(name).into_iter().map(own).collect(),
            Attention::File(path) => {
                let program = imported::read(path, self.graph, self.bucket, self.precision)
                    .map(|function| self.program(Form::Imported, Some(&function), false))
                    .map_err(|error| error.to_string());
                vec![Candidate { form: Form::Imported, program }, own(Form::Native), own(Form::Blocked)]
            }
            Attention::Auto => vec![own(Form::Native), own(Form::Blocked)],
        }
    }

    /// Whether the form after `attempts` is to be compiled too.
    pub fn wants_another(&self, attempts: &[Attempt]) -> bool {
        let Some(last) = attempts.last() else { return true };
        let Ok(figures) = &last.outcome else { return true };
        let fits = self.memory_limit.is_none_or(|limit| figures.total_bytes() <= limit);
        match last.form {
            Form::Imported => !fits,
            Form::Native => !fits || (self.bucket.length > BLOCK && self.score_bytes() > SMALL_SCORES),
            Form::Blocked | Form::Flash => !fits,
        }
    }

    /// The best of what was compiled: what fits, then the least estimated time where every form has one, else the least
    /// memory between arguments and results.
    pub fn choose(&self, attempts: &[Attempt]) -> (Option<Form>, String) {
        let compiled: Vec<(&Attempt, &CompiledFigures)> =
            attempts.iter().filter_map(|attempt| Some((attempt, attempt.outcome.as_ref().ok()?))).collect();
        let fits = |figures: &CompiledFigures| self.memory_limit.is_none_or(|limit| figures.total_bytes() <= limit);
        let fitting: Vec<_> = compiled.iter().filter(|(_, figures)| fits(figures)).copied().collect();
        let refused: Vec<String> = attempts
            .iter()
            .filter_map(|attempt| Some(format!("{} refused: {}", attempt.form, attempt.outcome.as_ref().err()?)))
            .collect();
        let after = if refused.is_empty() { String::new() } else { format!("; {}", refused.join("; ")) };
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        if fitting.is_empty() {
            let needed: Vec<String> = compiled
                .iter()
                .map(|(attempt, figures)| {
                    let limit = self.memory_limit.unwrap_or(0);
                    let total = figures.total_bytes();
                    format!("{} needs {:.0} MiB of {:.0}", attempt.form, mib(total), mib(limit))
                })
                .collect();
            return (None, format!("no form fits: {}{after}", needed.join(", ")));
        }
        let first = fitting[0];
        if first.0.form == Form::Imported {
            return (Some(Form::Imported), format!("asked for, and compiles{after}"));
        }
        if fitting.len() == 1 {
            let why = match self.attention {
                Attention::Named(_) => "asked for".to_owned(),
                _ if compiled.len() > 1 => "the only form that fits".to_owned(),
                _ if !refused.is_empty() => "the first form that compiles".to_owned(),
                _ => format!(
                    "all scores of an operation are {:.0} MiB, no other form was compiled",
                    mib(self.score_bytes())
                ),
            };
            return (Some(first.0.form), why + &after);
        }
        let timed: Vec<_> = fitting
            .iter()
            .filter_map(|(a, f)| Some((*a, f.optimal_seconds.filter(|&s| s > 0.0 && f.uncosted == 0)?)))
            .collect();
        if timed.len() == fitting.len() {
            let best = timed.iter().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(&timed[0]);
            return (Some(best.0.form), format!("least estimated time, {:.3} ms{after}", best.1 * 1e3));
        }
        let best = fitting.iter().min_by_key(|(_, figures)| figures.temp_bytes).unwrap_or(&first);
        let figures: Vec<String> =
            fitting.iter().map(|(a, f)| format!("{} {:.0} MiB", a.form, mib(f.temp_bytes))).collect();
        (Some(best.0.form), format!("least memory between arguments and results ({}){after}", figures.join(", ")))
    }
}
