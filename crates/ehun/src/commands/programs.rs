//! The parts of `ehun explain` that are about backends with static shapes: what an imported attention function must be, and
//! what each compiled program is and why.

use std::sync::Arc;

use ehun_backend::{Bucket, Options, buckets};
use ehun_backend_xla::{Attempt, BucketReport, XlaConfig, XlaFactory, attention_signatures};
use ehun_models::Model;
use serde::Serialize;

use crate::error::{CommandError, CommandResult, Outcome};
use crate::output::{json_line, line};

/// What one bucket asks of an imported attention function.
#[derive(Debug, Serialize)]
struct Asked {
    bucket: Bucket,
    /// The attention operations that one function serves.
    operations: Vec<String>,
    /// `(tensor<..>, ..) -> tensor<..>`
    types: String,
    /// What stands in the file's line `// attention: ...`.
    rule: String,
}

/// Shows the signatures that imported functions must have for `model`. Needs no plugin.
pub fn signatures(model: &Model, options: &Options, json: bool) -> CommandResult {
    let graph = model.graph();
    let shapes = buckets::choose(&options.buckets, options.max_sequence, options.max_batch_tokens)
        .map_err(|refusal| CommandError::Usage(refusal.to_string()))?;
    let mut asked: Vec<Asked> = Vec::new();
    for bucket in shapes {
        let first = asked.len();
        for (operation, signature) in attention_signatures(graph, bucket, options.precision) {
            let same = |known: &&mut Asked| known.types == signature.types && known.rule == signature.rule;
            match asked[first..].iter_mut().find(same) {
                Some(known) => known.operations.push(operation),
                None => asked.push(Asked {
                    bucket,
                    operations: vec![operation],
                    types: signature.types,
                    rule: signature.rule,
                }),
            }
        }
    }
    if json {
        asked.iter().try_for_each(json_line)?;
        return Ok(Outcome::Done);
    }
    line(&format!("{}: functions that --attention FOLDER takes, products in {}", model.name(), options.precision))?;
    for Asked { bucket, operations, types, rule } in &asked {
        let first = operations.first().map_or("", String::as_str);
        let more = if operations.len() > 1 { format!(" and {} more", operations.len() - 1) } else { String::new() };
        line(&format!("{bucket}.mlir for {first}{more}"))?;
        line(&format!("  // attention: {rule}"))?;
        line(&format!("  func.func public @main{types}"))?;
    }
    Ok(Outcome::Done)
}

/// Compiles `model` on the XLA backend `name` and gives what each bucket runs, and why.
pub fn reports(name: &str, model: &Model, options: &Options) -> Result<Vec<BucketReport>, CommandError> {
    let config = XlaConfig { progress: Some(Arc::new(crate::session::told)), ..XlaConfig::default() };
    let backend = XlaFactory::new(config).open_xla(name)?;
    let executable = backend.compile_xla(model.graph().clone(), model.weights(), options)?;
    Ok(executable.reports().cloned().collect())
}

/// Shows the reports of one backend.
pub fn show(reports: &[BucketReport]) -> Result<(), CommandError> {
    for report in reports {
        let form = report.form.map_or("no program", |form| form.name());
        let cached = if report.from_cache { ", from the cache" } else { "" };
        line(&format!("  bucket {:>9}: {form}{cached}: {}", report.bucket.to_string(), report.reason))?;
        report.attempts.iter().try_for_each(|attempt| line(&format!("    {}", figures(attempt))))?;
        report.notes.iter().try_for_each(|note| line(&format!("    note: {note}")))?;
    }
    Ok(())
}

fn figures(attempt: &Attempt) -> String {
    let figures = match &attempt.outcome {
        Ok(figures) => figures,
        Err(words) => return format!("{} refused: {words}", attempt.form),
    };
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let mut text = format!(
        "{}: arguments {:.1} MiB, between {:.1}, results {:.1}, code {:.1}",
        attempt.form,
        mib(figures.argument_bytes),
        mib(figures.temp_bytes),
        mib(figures.output_bytes),
        mib(figures.code_bytes)
    );
    let cost = [
        (figures.flops, 1e9, "GFLOP"),
        (figures.bytes_accessed, f64::from(1 << 20), "MiB moved"),
        (figures.optimal_seconds, 1e-6, "us estimated"),
    ];
    for (value, unit, name) in cost {
        if let Some(value) = value {
            text.push_str(&format!(", {:.1} {name}", value / unit));
        }
    }
    text + &format!("; compiled in {:.1} s", attempt.compile_seconds)
}
