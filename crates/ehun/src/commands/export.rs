//! `ehun export`: the lowered model as a file for other runtimes.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ehun_backend::{Attention, Bucket, Precision};
use ehun_backend_onnx::export::ExportOptions;
use ehun_backend_onnx::{Form, export};
use ehun_backend_xla::Form as XlaForm;
use ehun_backend_xla::lower::{Input, Program, Target, constants, folded_values, lower};
use ehun_graph::Graph;
use ehun_models::{LoadOptions, Model};

use crate::error::{CommandError, CommandResult, Outcome};
use crate::output::line;
use crate::session::checkpoint;

/// Flags of `ehun export`.
#[derive(Debug, Args)]
pub struct Export {
    /// The file's format
    #[arg(long, default_value = "onnx")]
    format: Format,
    /// Directory of a model, or ORG/NAME of one that was pulled [default: the embedded all-MiniLM-L6-v2]
    #[arg(long, value_name = "DIR|ORG/NAME")]
    model: Option<PathBuf>,
    /// Where to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// How attention is written: native or fused (onnx); native, blocked or flash (stablehlo)
    #[arg(long, default_value = "native", value_name = "FORM")]
    attention: Attention,
    /// Most tokens of a text, below what the model allows
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    /// Give an ONNX model the input `pooling_starts`, the first position that pooling reads of each text: for
    /// checkpoints that leave a prompt out of it
    #[arg(long)]
    pooling_starts: bool,
    /// Write the weights of an ONNX model into a file of their own, FILE.data; those of more than 2 GB always are
    #[arg(long)]
    weights_beside: bool,
    /// The static shape of a StableHLO program; an ONNX model has any shape
    #[arg(long, default_value = "8x128", value_name = "BxL")]
    bucket: String,
    /// In what a StableHLO program computes products: f32 or bf16; an ONNX model has f32
    #[arg(long, default_value = "f32")]
    precision: Precision,
}

/// A format of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// With its weights; batch and length are free
    Onnx,
    /// The program as text, its weights named as parameters
    Stablehlo,
}

impl Export {
    /// Writes the file.
    pub fn run(self) -> CommandResult {
        let load = LoadOptions { max_tokens: self.max_tokens, ..LoadOptions::default() };
        let model = Model::load(&checkpoint(self.model.as_deref())?, &load)?;
        let Attention::Named(form) = &self.attention else {
            return Err(CommandError::Usage("--attention takes the name of a form here".into()));
        };
        match self.format {
            Format::Onnx => self.onnx(&model, form),
            Format::Stablehlo => self.stablehlo(&model, form),
        }
    }

    fn onnx(&self, model: &Model, form: &str) -> CommandResult {
        if self.precision != Precision::F32 {
            let words = format!("an ONNX model is written in f32, not in {}", self.precision);
            return Err(CommandError::Usage(words));
        }
        let form = Form::from_name(form)
            .ok_or_else(|| CommandError::Usage(format!("`{form}` is no form of ONNX; there are native and fused")))?;
        let options = ExportOptions {
            longest: model.max_tokens(),
            form,
            pooling_starts: self.pooling_starts,
            weights_beside: self.weights_beside,
        };
        let written = export(model.graph(), model.weights(), &options, &self.out)?;
        line(&format!("{}: {} operations", self.out.display(), written.nodes))?;
        line(&format!("inputs: {} (int64, padded at the end)", written.inputs.join(", ")))?;
        line(&format!("outputs: {}", written.outputs.join(", ")))?;
        if let Some(data) = written.data {
            line(&format!("weights: {}, which belongs beside it", data.display()))?;
        }
        Ok(Outcome::Done)
    }

    fn stablehlo(&self, model: &Model, form: &str) -> CommandResult {
        if !matches!(self.precision, Precision::F32 | Precision::Bf16) {
            let words = format!("a StableHLO program is written in f32 or bf16, not in {}", self.precision);
            return Err(CommandError::Usage(words));
        }
        let form = XlaForm::from_name(form).ok_or_else(|| {
            CommandError::Usage(format!("`{form}` is no form of StableHLO; there are native, blocked and flash"))
        })?;
        let shape = self.bucket.split_once('x').and_then(|(b, l)| Some((b.parse().ok()?, l.parse().ok()?)));
        let Some((batch, length)) = shape.filter(|&(batch, length): &(usize, usize)| batch > 0 && length > 0) else {
            return Err(CommandError::Usage("--bucket takes BATCHxLENGTH, for example 8x128".into()));
        };
        if length > model.max_tokens() {
            let words = format!("the model takes {} tokens, not {length}", model.max_tokens());
            return Err(CommandError::Usage(words));
        }
        let graph = model.graph();
        let bucket = Bucket { batch, length };
        let (precision, table_length) = (self.precision, length);
        let target = Target { bucket, precision, form, table_length, imported: None, probe: false };
        let program = lower(graph, target);
        let mut text = described(graph, &program, &format!("{} for batches of {bucket}", model.name()));
        if let Some(folding) = constants(graph) {
            // Constant rows are computed by a program of their own, once for all shapes.
            let beside = self.out.with_extension("constants.mlir");
            let names: Vec<&str> = folded_values(graph).iter().map(|&v| graph.node(v).label.as_str()).collect();
            let title = format!("constant rows of {}: {}", model.name(), names.join(", "));
            let folding = described(graph, &folding, &title);
            std::fs::write(&beside, folding).map_err(CommandError::io(beside.display().to_string()))?;
            text.insert_str(0, &format!("// constant rows come from {}\n", beside.display()));
        }
        std::fs::write(&self.out, text).map_err(CommandError::io(self.out.display().to_string()))?;
        line(&format!("{}: {} parameters, {bucket}", self.out.display(), program.inputs.len()))?;
        Ok(Outcome::Done)
    }
}

/// The program with a comment that says what its parameters are.
fn described(graph: &Graph, program: &Program, title: &str) -> String {
    let mut text = format!("// {title}\n");
    for (number, spec) in program.inputs.iter().enumerate() {
        let what = match spec.input {
            Input::TokenIds => "token ids, 0 in the padding".to_owned(),
            Input::TokenTypes => "token types, 0 in the padding".to_owned(),
            Input::Lengths => "tokens of each sequence".to_owned(),
            Input::PoolingStarts => "first position that pooling reads".to_owned(),
            Input::RotaryByLength { sine, .. } | Input::Rotary { sine, .. } => {
                format!("{} of the rotary embedding", if sine { "sine" } else { "cosine" })
            }
            Input::Weight(id) => {
                let weight = graph.weight(id);
                let rows = weight.rows.map_or_else(String::new, |(start, end)| format!(", rows {start} to {end}"));
                format!("tensor {}{rows}", weight.name)
            }
            Input::Folded(value) => format!("constant rows {}", graph.node(value).label),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "// %arg{number} {:?} {:?}: {what}", spec.element, spec.dims);
    }
    text.push_str(&program.text);
    text
}
