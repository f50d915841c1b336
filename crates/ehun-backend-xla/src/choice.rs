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

    /// The best of what was compiled: what fits, then the least estimated time where every form has a complete estimate, else
    /// the fewest bytes moved where the platform counts them, else the least memory between arguments and results.
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
        let moved: Vec<_> =
            fitting.iter().filter_map(|(a, f)| Some((*a, f.bytes_accessed.filter(|&b| b > 0.0)?))).collect();
        if moved.len() == fitting.len() && counts_are_whole(&fitting) {
            let best = moved.iter().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(&moved[0]);
            let figures: Vec<String> =
                moved.iter().map(|(a, b)| format!("{} {:.0} MiB", a.form, mib(*b as u64))).collect();
            let why = format!("fewest bytes moved ({}), as not every operation has a time", figures.join(", "));
            return (Some(best.0.form), why + &after);
        }
        let best = fitting.iter().min_by_key(|(_, figures)| figures.temp_bytes).unwrap_or(&first);
        let figures: Vec<String> =
            fitting.iter().map(|(a, f)| format!("{} {:.0} MiB", a.form, mib(f.temp_bytes))).collect();
        (Some(best.0.form), format!("least memory between arguments and results ({}){after}", figures.join(", ")))
    }
}

/// Whether the operations of all forms were counted. The native form multiplies at least what the others do, so where it has
/// fewer operations than another, the cost model had no figures for some, and the bytes that these move are missing too.
fn counts_are_whole(fitting: &[(&Attempt, &CompiledFigures)]) -> bool {
    let flops = |native: bool| {
        let of_kind = fitting.iter().filter(move |(attempt, _)| (attempt.form == Form::Native) == native);
        of_kind.filter_map(|(_, figures)| figures.flops)
    };
    let most = flops(false).fold(0.0, f64::max);
    flops(true).all(|native| native >= NEARLY * most)
}

/// The rest is what forms differ in beside their products: maxima, sums, masks.
const NEARLY: f64 = 0.9;

#[cfg(test)]
mod tests {
    use super::*;
    use ehun_graph::{AttentionSpec, GraphBuilder, Index, WeightRef};

    fn graph() -> Graph {
        let mut b = GraphBuilder::new();
        let x = b.embedding("words", WeightRef::whole("words", &[5, 64]), Index::TokenId).unwrap();
        let out = b.attention("attention", x, x, x, AttentionSpec::full(4, 16)).unwrap();
        b.output("out", out);
        b.finish().unwrap()
    }

    /// The same with so many operations counted.
    fn with_flops(mut attempt: Attempt, flops: f64) -> Attempt {
        if let Ok(figures) = &mut attempt.outcome {
            figures.flops = Some(flops);
        }
        attempt
    }

    /// A form with memory between in MiB, bytes moved in MiB, time in us with operations that have none.
    fn attempt(form: Form, temp: u64, moved: Option<u64>, time: Option<(f64, u32)>) -> Attempt {
        let figures = CompiledFigures {
            temp_bytes: temp << 20,
            bytes_accessed: moved.map(|mib| (mib << 20) as f64),
            optimal_seconds: time.map(|(us, _)| us * 1e-6),
            uncosted: time.map_or(0, |(_, uncosted)| uncosted),
            ..CompiledFigures::default()
        };
        Attempt { form, outcome: Ok(figures), loop_steps: 1, compile_seconds: 0.0 }
    }

    fn refused(form: Form) -> Attempt {
        Attempt { form, outcome: Err("the compiler says no".to_owned()), loop_steps: 1, compile_seconds: 0.0 }
    }

    #[test]
    fn the_figures_decide() {
        use Form::{Blocked, Imported, Native};
        let graph = graph();
        let cases: [(&str, Vec<Attempt>, Option<Form>, &str); 10] = [
            (
                "times are complete",
                vec![attempt(Native, 9, Some(5), Some((7.0, 0))), attempt(Blocked, 1, Some(4), Some((8.0, 0)))],
                Some(Native),
                "least estimated time, 0.007 ms",
            ),
            (
                "a time is not complete",
                vec![attempt(Native, 1, Some(5), Some((7.0, 0))), attempt(Blocked, 9, Some(4), Some((8.0, 1)))],
                Some(Blocked),
                "fewest bytes moved (native 5 MiB, blocked 4 MiB)",
            ),
            (
                "no cost figures",
                vec![attempt(Native, 9, None, None), attempt(Blocked, 1, None, None)],
                Some(Blocked),
                "least memory",
            ),
            (
                "operations are missing, and with them bytes",
                vec![
                    with_flops(attempt(Native, 9, Some(1), Some((1.0, 44))), 0.9e12),
                    with_flops(attempt(Blocked, 1, Some(9), Some((9.0, 0))), 1.4e12),
                ],
                Some(Blocked),
                "least memory between",
            ),
            (
                "one does not fit",
                vec![attempt(Native, 101, Some(1), Some((1.0, 0))), attempt(Blocked, 1, Some(9), Some((9.0, 0)))],
                Some(Blocked),
                "the only form that fits",
            ),
            (
                "none fits",
                vec![attempt(Native, 300, None, None), attempt(Blocked, 200, None, None)],
                None,
                "native needs 300 MiB of 100, blocked needs 200 MiB of 100",
            ),
            ("one is enough", vec![attempt(Native, 1, None, None)], Some(Native), "no other form was compiled"),
            (
                "the first is refused",
                vec![refused(Native), attempt(Blocked, 1, None, None)],
                Some(Blocked),
                "the first form that compiles; native refused: the compiler says no",
            ),
            (
                "a file that compiles is kept",
                vec![attempt(Imported, 50, Some(9), Some((9.0, 3)))],
                Some(Imported),
                "asked for, and compiles",
            ),
            (
                "a file that is refused falls back",
                vec![refused(Imported), attempt(Native, 1, None, None)],
                Some(Native),
                "imported refused: the compiler says no",
            ),
        ];
        for (name, attempts, form, words) in cases {
            let recipe = Recipe {
                graph: &graph,
                bucket: Bucket { batch: 1, length: 256 },
                precision: Precision::F32,
                attention: &Attention::Auto,
                table_length: 256,
                memory_limit: Some(100 << 20),
            };
            let (chosen, reason) = recipe.choose(&attempts);
            assert_eq!(chosen, form, "{name}: {reason}");
            assert!(reason.contains(words), "{name}: {reason}");
        }
    }

    /// A bucket whose scores are few gets one compilation, a larger one or one that does not fit a second.
    #[test]
    fn a_second_form_is_compiled_where_it_may_matter() {
        let graph = graph();
        for (length, temp, wanted) in [(128, 1, false), (1024, 1, false), (2048, 1, true), (128, 200, true)] {
            let recipe = Recipe {
                graph: &graph,
                bucket: Bucket { batch: 2, length },
                precision: Precision::F32,
                attention: &Attention::Auto,
                table_length: length,
                memory_limit: Some(100 << 20),
            };
            assert_eq!(recipe.wants_another(&[attempt(Form::Native, temp, None, None)]), wanted, "{length} {temp}");
        }
    }

    #[test]
    fn a_loop_counts_as_often_as_it_runs() {
        let figures = |flops: f64| CompiledFigures { flops: Some(flops), ..CompiledFigures::default() };
        // 10 outside the loop, 4 in a step: the probe has two blocks in a step.
        assert_eq!(whole_loops(figures(14.0), 8, Some(&figures(18.0))).flops, Some(10.0 + 8.0 * 4.0));
        assert_eq!(whole_loops(figures(14.0), 1, None).flops, Some(14.0));
        assert_eq!(whole_loops(figures(14.0), 8, None).flops, None);
    }
}
