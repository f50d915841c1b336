//! An attention function from a StableHLO file: read, checked against what the model asks for, and put into the module.
//!
//! The file is a module in text form with one public function `main` of static shapes, as `jax.export` writes it:
//! queries `[batch, heads, length, head_dim]`, keys and values `[batch, kv_heads, length, width]`, lengths `[batch]` as
//! int32, then the tables of the bias if there is one; the result is `[batch, heads, length, value_dim]`. Padding rows of
//! the values are zeros when the function is called; keys from `lengths[b]` on must not be seen.

use std::path::{Path, PathBuf};

use ehun_backend::{Bucket, Precision};
use ehun_graph::{AttentionSpec, Graph, Rows};

use super::attention::IMPORTED_FUNCTION;
use super::emit::{Elem, type_text};

/// A function that was read and fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// Attribute aliases, which stand before a module.
    pub aliases: String,
    /// The functions, `main` renamed.
    pub functions: String,
}

/// Why a file is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// The file cannot be read.
    #[error("{path}: {reason}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The file is no StableHLO text with a function `main`.
    #[error("{path} is no StableHLO module in text form: {reason}")]
    NotAModule {
        /// The file.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// The function is made for something else.
    #[error("{path} is made for {found}, the model asks for {expected}")]
    Signature {
        /// The file.
        path: PathBuf,
        /// The function's signature.
        found: String,
        /// The signature that is needed.
        expected: String,
    },
}

/// The signature that a function must have for `spec` in `bucket`.
pub fn signature(graph: &Graph, spec: &AttentionSpec, bucket: Bucket, precision: Precision) -> String {
    let elem = if precision == Precision::Bf16 { Elem::Bf16 } else { Elem::F32 };
    let Bucket { batch, length } = bucket;
    let tensor = |heads: usize, width: usize| type_text(&[batch, heads, length, width], elem);
    let mut operands = vec![
        tensor(spec.num_heads, spec.head_dim),
        tensor(spec.num_kv_heads, spec.head_dim),
        tensor(spec.num_kv_heads, spec.value_dim),
        type_text(&[batch], Elem::I32),
    ];
    for table in spec.bias_values() {
        let node = graph.node(table);
        if let Rows::Constant(rows) = node.rows {
            operands.push(type_text(&[rows, node.width], Elem::F32));
        }
    }
    format!("({}) -> {}", operands.join(", "), tensor(spec.num_heads, spec.value_dim))
}

/// The file for `bucket`: `path` itself, or `BATCHxLENGTH.mlir` in it where it is a folder.
pub fn file_for(path: &Path, bucket: Bucket) -> PathBuf {
    if path.is_dir() { path.join(format!("{bucket}.mlir")) } else { path.to_owned() }
}

/// Reads the function for `bucket` and checks it against every attention operation of `graph`.
pub fn read(path: &Path, graph: &Graph, bucket: Bucket, precision: Precision) -> Result<Imported, ImportError> {
    let path = file_for(path, bucket);
    let text = std::fs::read_to_string(&path)
        .map_err(|error| ImportError::Unreadable { path: path.clone(), reason: error.to_string() })?;
    let not_a_module = |reason: &str| ImportError::NotAModule { path: path.clone(), reason: reason.to_owned() };
    let (aliases, functions) = split(&text).ok_or_else(|| not_a_module("there is no `module ... { ... }` in it"))?;
    let found = main_signature(functions).ok_or_else(|| not_a_module("it has no function `main`"))?;
    for (_, spec) in graph.attentions() {
        let expected = signature(graph, spec, bucket, precision);
        if found != expected {
            return Err(ImportError::Signature { path, found, expected });
        }
    }
    let functions = functions
        .replace("func.func public @main(", &format!("func.func private @{IMPORTED_FUNCTION}("))
        .replace("func.func @main(", &format!("func.func private @{IMPORTED_FUNCTION}("));
    Ok(Imported { aliases, functions })
}

/// The aliases, which stand before the module and after it, and what stands in it.
fn split(text: &str) -> Option<(String, &str)> {
    let module = if text.starts_with("module") { 0 } else { text.find("\nmodule")? + 1 };
    let line_end = module + text[module..].find('\n')?;
    let open = text[module..line_end].rfind('{')? + module;
    let close = text.rfind("\n}").filter(|&close| close > open)? + 1;
    // The closing line may end in a location.
    let after = text[close..].find('\n').map_or("", |end| &text[close + end + 1..]);
    Some((format!("{}{after}", &text[..module]), &text[open + 1..close]))
}

/// The types of `main`, attributes left out: `(tensor<..>, ..) -> tensor<..>`.
fn main_signature(functions: &str) -> Option<String> {
    let start = functions.find("@main(")? + "@main".len();
    let line = functions[start..].lines().next()?;
    let (operands, results) = line.split_once("->")?;
    let types = |text: &str| -> Vec<String> {
        let mut found = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find("tensor<") {
            let Some(end) = rest[at..].find('>') else { break };
            found.push(rest[at..=at + end].to_owned());
            rest = &rest[at + end..];
        }
        found
    };
    Some(format!("({}) -> {}", types(operands).join(", "), types(results).join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_as_jax_writes_it_is_taken_apart() {
        let text = "#a = #stablehlo.x\nmodule @jit_f attributes {mhlo.num_replicas = 1 : i32} {\n  func.func public \
                    @main(%arg0: tensor<2x3xf32> {jax.arg = \"q\"}, %arg1: tensor<2xi32>) -> (tensor<2x3xf32> \
                    {jax.result = \"\"}) {\n    return %arg0 : tensor<2x3xf32>\n  }\n} loc(#a)\n#b = loc(#a)\n";
        let (aliases, functions) = split(text).unwrap();
        assert_eq!(aliases, "#a = #stablehlo.x\n#b = loc(#a)\n");
        assert_eq!(main_signature(functions).unwrap(), "(tensor<2x3xf32>, tensor<2xi32>) -> tensor<2x3xf32>");
        assert!(split("no module here").is_none());
    }
}
