//! The compiler's process of this crate's own tests and tools, and the table of attention forms in docs/tpu.md.
//!
//! ```sh
//! ehun-xla forms --topology v5e:1x1 --lengths 64,128,256 --tokens 4096 [--forms native,blocked,flash] [--imported FOLDER] [--json FILE]
//! ```
//!
//! compiles one attention operation (12 heads of 64, bf16) in every form for a TPU that need not be here, or with `--platform
//! cuda --topology h100_sxm` for a GPU.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use ehun_backend::{Attention, Bucket, Precision};
use ehun_backend_xla::aot::{self, AotConfig, attention_alone};
use ehun_backend_xla::pjrt::CompiledFigures;
use ehun_backend_xla::{AotTarget, CompileIn, WORKER_ARGUMENT, compile_worker_main};
use ehun_graph::{AttentionSpec, Graph, GraphBuilder, GraphError, Index, WeightRef};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some(WORKER_ARGUMENT) => compile_worker_main(),
        Some("forms") => match forms(&arguments[1..]) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        },
        _ => {
            eprintln!(
                "ehun-xla forms --topology v5e:1x1 --lengths 64,128 --tokens 4096 [--forms native,blocked,flash] [--imported FOLDER] [--json FILE]"
            );
            ExitCode::from(2)
        }
    }
}

fn forms(arguments: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name);
        at.and_then(|at| arguments.get(at + 1)).cloned()
    };
    let platform = value("--platform").unwrap_or_else(|| "tpu".to_owned());
    let topology = value("--topology").unwrap_or_else(|| "v5e:1x1".to_owned());
    aot::without_device(&platform, &BTreeMap::new())?;
    let target = AotTarget::of(&platform, &topology)?;
    let lengths = value("--lengths").unwrap_or_else(|| "64,128,256,512,1024,2048,4096,8192,16384".to_owned());
    let tokens: usize = value("--tokens").unwrap_or_else(|| "4096".to_owned()).parse()?;
    let lengths = lengths.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>()?;
    let graph = one_attention(12, 64)?;
    let child = CompileIn::Child { program: std::env::current_exe()?, time_limit: Duration::from_secs(300) };
    let config = AotConfig { compile_in: child, ..AotConfig::new()? };
    let forms = value("--forms").unwrap_or_else(|| "native,blocked,flash".to_owned());
    let mut asked: Vec<Attention> =
        forms.split(',').filter(|name| !name.is_empty()).map(|name| Attention::Named(name.to_owned())).collect();
    if let Some(folder) = value("--imported") {
        asked.push(Attention::File(PathBuf::from(folder)));
    }
    println!("| TPU | batch x length | form | between MiB | GFLOP | MiB moved | estimated us | outcome |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    let mut table = Vec::new();
    for &length in &lengths {
        let bucket = Bucket { batch: (tokens / length).max(1), length };
        for attention in &asked {
            let outcome = attention_alone(&target, &graph, bucket, Precision::Bf16, attention, &config)?;
            println!("| {topology} | {} x {length} | {attention} | {}", bucket.batch, cells(&target, &outcome));
            table.push((topology.clone(), bucket, attention.to_string(), outcome));
        }
    }
    if let Some(file) = value("--json") {
        std::fs::write(file, serde_json::to_string_pretty(&table)?)?;
    }
    Ok(())
}

fn cells(target: &AotTarget, outcome: &Result<CompiledFigures, String>) -> String {
    match outcome {
        Ok(figures) => {
            let shown =
                |value: Option<f64>, unit: f64| value.map_or("-".to_owned(), |value| format!("{:.1}", value / unit));
            let mib = f64::from(1 << 20);
            let fits = target.memory().is_none_or(|limit| figures.total_bytes() <= limit);
            format!(
                "{:.1} | {} | {} | {}{} | {} |",
                figures.temp_bytes as f64 / mib,
                shown(figures.flops, 1e9),
                shown(figures.bytes_accessed, mib),
                shown(figures.optimal_seconds, 1e-6),
                if figures.uncosted > 0 { format!(" + {} not costed", figures.uncosted) } else { String::new() },
                if fits { "compiles" } else { "compiles, does not fit" }
            )
        }
        Err(words) => {
            let words: String = words.replace(['\n', '|'], " ").chars().take(200).collect();
            format!("| | | | {words} |")
        }
    }
}

/// One attention operation over rows that are looked up, so that the graph is whole; only the operation is compiled.
fn one_attention(heads: usize, width: usize) -> Result<Graph, GraphError> {
    let mut builder = GraphBuilder::new();
    let row = heads * width;
    let [q, k, v] =
        ["q", "k", "v"].map(|name| builder.embedding(name, WeightRef::whole(name, &[2, row]), Index::TokenId));
    let out = builder.attention("attention", q?, k?, v?, AttentionSpec::full(heads, width))?;
    builder.output("out", out);
    builder.finish()
}
