//! Attention functions from StableHLO files: read, checked against what the model asks for, and put into the module.
//!
//! A file is a module in text form with one public function `main`, as `jax.export` writes it: queries
//! `[batch, heads, length, head_dim]`, keys and values `[batch, kv_heads, length, width]`, lengths `[batch]` as int32, then
//! the tables of the bias if there is one; the result is `[batch, heads, length, value_dim]`. Padding rows of the values
//! are zeros when the function is called; keys from `lengths[b]` on must not be seen.
//!
//! Types do not say which keys a row sees, nor the scale: a comment line `// attention: ...` in front of the module does
//! ([`rule`]). A file without one is full attention with scale `1 / sqrt(head_dim)`, no cap and no bias. Sizes are numbers,
//! or expressions of `batch` and `length` ([`super::sizes`]).

use std::path::{Path, PathBuf};

use ehun_backend::{Bucket, Precision};
use ehun_graph::{AttentionSpec, Bias, Graph, Rows};

use super::emit::{Elem, type_text};
use super::sizes;

/// Functions that were read and of which one fits each attention operation of the graph.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Imported {
    /// Attribute aliases, which stand before a module.
    pub aliases: String,
    /// The functions, renamed so that those of several files do not meet.
    pub functions: String,
    /// By signature: the function's name in the module.
    names: Vec<(Signature, String)>,
}

impl Imported {
    /// The name of the function of this signature.
    pub fn function(&self, signature: &Signature) -> Option<&str> {
        self.names.iter().find(|(known, _)| known == signature).map(|(_, name)| name.as_str())
    }
}

/// What a function takes and gives, and what it computes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// `(tensor<..>, ..) -> tensor<..>`
    pub types: String,
    /// What the types do not say, as [`rule`] writes it.
    pub rule: String,
}

impl std::fmt::Display for Signature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; {}", self.types, self.rule)
    }
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
    /// No function is made for what the model asks for.
    #[error("{path} is made for {found}; the model asks for {expected}")]
    Signature {
        /// The file, or the folder of several.
        path: PathBuf,
        /// The functions' signatures.
        found: String,
        /// The signature that is needed.
        expected: String,
    },
}

/// What the types of a function do not say: scale, visible keys, soft cap, kind and rule of the bias. A file says it in a
/// line `// attention: RULE`.
pub fn rule(spec: &AttentionSpec) -> String {
    let side = |positions: Option<u32>| positions.map_or_else(|| "all".to_owned(), |n| n.to_string());
    let bias = match &spec.bias {
        Bias::None => "none".to_owned(),
        Bias::Alibi { slopes } => {
            let slopes: Vec<String> = slopes.iter().map(f32::to_string).collect();
            format!("alibi({})", slopes.join(" "))
        }
        Bias::Bucketed { rule, .. } => format!(
            "bucketed({} to {}{})",
            rule.num_buckets,
            rule.max_distance,
            if rule.bidirectional { ", both directions" } else { "" }
        ),
        Bias::Disentangled { key_positions, query_positions, rule } => format!(
            "disentangled({}{}span {}, {} buckets to {})",
            if key_positions.is_some() { "c2p, " } else { "" },
            if query_positions.is_some() { "p2c, " } else { "" },
            rule.span,
            rule.buckets,
            rule.max_position
        ),
    };
    format!(
        "scale {}, sees {} before and {} after, cap {}, bias {bias}",
        spec.scale,
        side(spec.band.left),
        side(spec.band.right),
        spec.soft_cap.map_or_else(|| "none".to_owned(), |cap| cap.to_string())
    )
}

/// The signature that a function must have for `spec` in `bucket`.
pub fn signature(graph: &Graph, spec: &AttentionSpec, bucket: Bucket, precision: Precision) -> Signature {
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
    let types = format!("({}) -> {}", operands.join(", "), tensor(spec.num_heads, spec.value_dim));
    Signature { types, rule: rule(spec) }
}

/// The files for `bucket`: `path` itself, or where it is a folder those called `BATCHxLENGTH.mlir`,
/// `BATCHxLENGTH.NAME.mlir`, `any.mlir` and `any.NAME.mlir` in it, in this order.
pub fn files_for(path: &Path, bucket: Bucket) -> Result<Vec<PathBuf>, ImportError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = std::fs::read_dir(path)
        .map_err(|error| ImportError::Unreadable { path: path.to_owned(), reason: error.to_string() })?;
    let shape = bucket.to_string();
    let place = |path: &PathBuf| {
        let name = path.file_name()?.to_str()?.strip_suffix(".mlir")?;
        let of = |start: &str| name.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        if of(&shape) { Some(0) } else { of("any").then_some(1) }
    };
    let mut files: Vec<(i32, PathBuf)> =
        entries.flatten().filter_map(|entry| Some((place(&entry.path())?, entry.path()))).collect();
    files.sort_unstable();
    if files.is_empty() {
        let reason = format!("there is neither {shape}.mlir nor any.mlir in this folder");
        return Err(ImportError::Unreadable { path: path.to_owned(), reason });
    }
    Ok(files.into_iter().map(|(_, path)| path).collect())
}

/// Reads the functions for `bucket` and finds one for every attention operation of `graph`.
pub fn read(path: &Path, graph: &Graph, bucket: Bucket, precision: Precision) -> Result<Imported, ImportError> {
    let mut needed: Vec<Signature> = Vec::new();
    for (_, spec) in graph.attentions() {
        let signature = signature(graph, spec, bucket, precision);
        if !needed.contains(&signature) {
            needed.push(signature);
        }
    }
    let mut imported = Imported::default();
    let mut found: Vec<Signature> = Vec::new();
    for (number, file) in files_for(path, bucket)?.into_iter().enumerate() {
        let text = std::fs::read_to_string(&file)
            .map_err(|error| ImportError::Unreadable { path: file.clone(), reason: error.to_string() })?;
        let module =
            Module::parse(&text, bucket).map_err(|reason| ImportError::NotAModule { path: file.clone(), reason })?;
        let wanted = needed.contains(&module.signature) && imported.function(&module.signature).is_none();
        if wanted {
            let module = module.renamed(&format!("imported{number}."));
            imported.aliases.push_str(&module.aliases);
            imported.functions.push_str(&module.functions);
            imported.names.push((module.signature.clone(), format!("imported{number}.main")));
        }
        found.push(module.signature);
    }
    for expected in needed {
        if imported.function(&expected).is_none() {
            let found: Vec<String> = found.iter().map(Signature::to_string).collect();
            let (found, expected) = (found.join(" | and for "), expected.to_string());
            return Err(ImportError::Signature { path: path.to_owned(), found, expected });
        }
    }
    Ok(imported)
}

/// A file taken apart.
struct Module {
    aliases: String,
    functions: String,
    signature: Signature,
}

impl Module {
    fn parse(text: &str, bucket: Bucket) -> Result<Self, String> {
        let text = sizes::filled(text, bucket)?;
        let (aliases, functions) = split(&text).ok_or("there is no `module ... { ... }` in it")?;
        let types = main_types(functions).ok_or("it has no function `main`")?;
        if types.contains('?') {
            return Err(format!(
                "sizes are left open in {types}; write ${{batch}} and ${{length}} in their place, or one file for each shape"
            ));
        }
        let stated = aliases.lines().find_map(|line| line.trim().strip_prefix("// attention:"));
        let rule = match stated {
            Some(stated) => stated.trim().to_owned(),
            None => default_rule(&types).ok_or("its first operand is no tensor [batch, heads, length, width]")?,
        };
        let aliases = aliases.lines().filter(|line| line.starts_with('#')).map(|line| format!("{line}\n")).collect();
        Ok(Self { aliases, functions: functions.to_owned(), signature: Signature { types, rule } })
    }

    /// With `prefix` in front of the names of functions and aliases, and `main` private.
    fn renamed(&self, prefix: &str) -> Self {
        let starts = self.functions.split("func.func ").skip(1);
        let functions: Vec<String> =
            starts.filter_map(|rest| Some(identifier(rest.split_once('@')?.1).to_owned())).collect();
        let aliases: Vec<String> =
            self.aliases.lines().filter_map(|line| Some(identifier(line.strip_prefix('#')?).to_owned())).collect();
        let body = rename(&rename(&self.functions, '@', &functions, prefix), '#', &aliases, prefix);
        let main = format!("@{prefix}main(");
        let body = body.replace(&format!("func.func public {main}"), &format!("func.func private {main}"));
        let body = body.replace(&format!("func.func {main}"), &format!("func.func private {main}"));
        Self {
            aliases: rename(&self.aliases, '#', &aliases, prefix),
            functions: body,
            signature: self.signature.clone(),
        }
    }
}

/// The identifier that `text` begins with.
fn identifier(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && !"_$.".contains(c)).unwrap_or(text.len());
    &text[..end]
}

/// Puts `prefix` in front of those of `names` that follow `mark` outside of texts in quotes.
fn rename(text: &str, mark: char, names: &[String], prefix: &str) -> String {
    let mut result = String::with_capacity(text.len() + 64);
    let (mut quoted, mut escaped) = (false, false);
    for (at, c) in text.char_indices() {
        result.push(c);
        if c == '"' && !escaped {
            quoted = !quoted;
        }
        escaped = c == '\\' && !escaped;
        if c == mark && !quoted && names.iter().any(|name| name == identifier(&text[at + 1..])) {
            result.push_str(prefix);
        }
    }
    result
}

/// What stands before the module and after it, and what stands in it.
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
fn main_types(functions: &str) -> Option<String> {
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

/// The rule of a file that states none: full attention for heads as wide as those of the first operand.
fn default_rule(types: &str) -> Option<String> {
    let (sizes, _) = types.strip_prefix("(tensor<")?.split_once('>')?;
    let sizes: Vec<&str> = sizes.split('x').collect();
    let [_, heads, _, width, _] = sizes[..] else { return None };
    let (heads, width) = (heads.parse().ok()?, width.parse().ok()?);
    Some(rule(&AttentionSpec::full(heads, width)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUCKET: Bucket = Bucket { batch: 2, length: 8 };

    #[test]
    fn a_module_as_jax_writes_it_is_taken_apart() {
        let text = "#a = #stablehlo.x\n// attention: sees nothing\nmodule @jit_f attributes {mhlo.num_replicas = 1 : i32} \
                    {\n  func.func public @main(%arg0: tensor<2x3x8x16xf32> {jax.arg = \"q\"}, %arg1: tensor<2xi32>) -> \
                    (tensor<2x3xf32> {jax.result = \"\"}) {\n    %0 = call @f(%arg0) {x = #a, y = \"@f #a \\\" @f\"} : \
                    @fg\n    return %arg0 : tensor<2x3xf32>\n  }\n  func.func private @f(%arg0: i32) {\n  }\n} \
                    loc(#a)\n#b = loc(#a)\n";
        let module = Module::parse(text, BUCKET).unwrap();
        assert_eq!(module.signature.types, "(tensor<2x3x8x16xf32>, tensor<2xi32>) -> tensor<2x3xf32>");
        assert_eq!(module.signature.rule, "sees nothing");
        let renamed = module.renamed("p.");
        assert_eq!(renamed.aliases, "#p.a = #stablehlo.x\n#p.b = loc(#p.a)\n");
        assert!(renamed.functions.contains("func.func private @p.main("), "{}", renamed.functions);
        assert!(renamed.functions.contains("call @p.f(%arg0) {x = #p.a, y = \"@f #a \\\" @f\"} : @fg"));
        assert!(renamed.functions.contains("func.func private @p.f("));
        assert!(Module::parse("no module here", BUCKET).is_err());
    }

    #[test]
    fn a_file_without_a_rule_is_full_attention() {
        let text = |width: &str, size: &str| {
            format!(
                "module @m {{\n  func.func @main(%q: tensor<{size}x3x8x{width}f32>) -> tensor<1xf32> {{\n  }}\n}}\n"
            )
        };
        let module = Module::parse(&text("16x", "${batch}"), BUCKET).unwrap();
        assert_eq!(module.signature.types, "(tensor<2x3x8x16xf32>) -> tensor<1xf32>");
        assert_eq!(module.signature.rule, "scale 0.25, sees all before and all after, cap none, bias none");
        assert!(Module::parse(&text("", "2"), BUCKET).is_err());
        let open = Module::parse(&text("16x", "?"), BUCKET).err().unwrap();
        assert!(open.contains("${batch}"), "{open}");
    }
}
