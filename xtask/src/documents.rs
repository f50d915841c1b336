//! The main job over trees of hard files: what came of every file, and what the main process took.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use crate::command::{Outcome, program, root};
use crate::product::{build, ehun, target};

/// What the main process may take beside the model, bytes.
const MOST_MEMORY: u64 = 500 << 20;
const WIDTH: usize = 32;

/// Runs `ehun process` over folders and prints a table of what came of their files.
///
/// The model is all-MiniLM-L6-v2 with its own tokenizer and one layer of 32 numbers in place of six of 384: documents are
/// parsed and cut as for the real one, and its vectors, which nobody looks at, cost next to nothing.
pub fn soak(folders: &[String]) -> Outcome {
    if folders.is_empty() {
        return Err(
            "which folders? `cargo xtask soak documents DIR...`; docs/documents.md names trees to try".to_owned()
        );
    }
    build()?;
    let (work, model) = workplace("documents")?;
    let out = work.join("out");
    let at = |path: &Path| path.to_string_lossy().into_owned();
    let mut arguments = vec!["process".to_owned()];
    arguments.extend_from_slice(folders);
    arguments.extend(["--out", &at(&out), "--format", "jsonl", "--model", &at(&model), "--quiet"].map(str::to_owned));
    let begun = Instant::now();
    let mut command = program(ehun(), &arguments);
    let mut child = command.stderr(Stdio::null()).spawn().map_err(|e| format!("{command:?}: {e}"))?;
    let (code, peak) = watch(&mut child)?;
    let seconds = begun.elapsed().as_secs_f64();
    // 3: some documents failed, which is what such trees are for.
    if !matches!(code, Some(0 | 3)) {
        return Err(format!("{command:?} ended with {code:?}: the main process must end by itself"));
    }
    let counts = counts(&out.join("documents.jsonl"))?;
    print(&counts);
    println!("\n{seconds:.0} s");
    match peak {
        None => println!("peak memory of the main process: not measured (there is no /proc here)"),
        Some(peak) => {
            println!("peak memory of the main process (VmHWM): {} MiB, model included", peak >> 20);
            if peak > MOST_MEMORY {
                return Err(format!("that is more than {} MiB", MOST_MEMORY >> 20));
            }
        }
    }
    Ok(())
}

/// An empty folder for the soak `name`, and the small model in it.
pub fn workplace(name: &str) -> Result<(PathBuf, PathBuf), String> {
    let work = target().join("soak").join(name);
    if work.exists() {
        fs::remove_dir_all(&work).map_err(|e| format!("{}: {e}", work.display()))?;
    }
    let model = work.join("model");
    small_model(&model)?;
    Ok((work, model))
}

/// Waits for the end; the exit code and the largest resident size that was seen, bytes.
pub fn watch(child: &mut Child) -> Result<(Option<i32>, Option<u64>), String> {
    let status = PathBuf::from(format!("/proc/{}/status", child.id()));
    let mut peak = None;
    loop {
        if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
            return Ok((status.code(), peak));
        }
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        peak = peak.max(kib.map(|kib| kib << 10));
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Documents by type and outcome.
fn counts(table: &Path) -> Result<BTreeMap<String, BTreeMap<String, u64>>, String> {
    let error = |e: &dyn std::fmt::Display| format!("{}: {e}", table.display());
    let mut counts: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for line in BufReader::new(File::open(table).map_err(|e| error(&e))?).lines() {
        let row: Value = serde_json::from_str(&line.map_err(|e| error(&e))?).map_err(|e| error(&e))?;
        let outcome = match (row["status"].as_str(), row["error_code"].as_str()) {
            (Some("ok"), None) if row["chunks"].as_u64().is_some_and(|n| n > 0) => "text",
            (Some("ok"), None) => "no text",
            (Some("failed"), Some(code)) => code,
            _ => return Err(error(&format!("a row is neither text nor a typed error: {row}"))),
        };
        // What failed has no type that was told from its bytes.
        let name = row["path"].as_str().unwrap_or_default();
        let extension = || Path::new(name).extension().map(|e| e.to_string_lossy().to_lowercase());
        let kind = match row["media_type"].as_str() {
            Some(media_type) => short(media_type).to_owned(),
            None => extension().unwrap_or_else(|| "(none)".to_owned()),
        };
        *counts.entry(kind).or_default().entry(outcome.to_owned()).or_default() += 1;
    }
    Ok(counts)
}

/// Extensions for the long names.
fn short(media_type: &str) -> &str {
    match media_type {
        "application/msword" => "doc",
        "application/vnd.ms-excel" => "xls",
        "application/vnd.ms-powerpoint" => "ppt",
        "application/vnd.ms-outlook" => "msg",
        "application/epub+zip" => "epub",
        "message/rfc822" => "eml",
        "text/plain" => "txt",
        "text/markdown" => "md",
        _ if media_type.ends_with("wordprocessingml.document") => "docx",
        _ if media_type.ends_with("spreadsheetml.sheet") => "xlsx",
        _ if media_type.ends_with("presentationml.presentation") => "pptx",
        _ if media_type.ends_with("opendocument.text") => "odt",
        _ if media_type.ends_with("opendocument.spreadsheet") => "ods",
        _ if media_type.ends_with("opendocument.presentation") => "odp",
        _ => media_type.rsplit('/').next().unwrap_or(media_type),
    }
}

/// A Markdown table, the frequent types first; types of fewer than ten files together.
fn print(counts: &BTreeMap<String, BTreeMap<String, u64>>) {
    let all = |row: &BTreeMap<String, u64>| row.values().sum::<u64>();
    let mut rows: Vec<(String, BTreeMap<String, u64>)> = Vec::new();
    let mut rest = BTreeMap::new();
    for (kind, row) in counts {
        if all(row) >= 10 {
            rows.push((kind.clone(), row.clone()));
        } else {
            row.iter().for_each(|(outcome, n)| *rest.entry(outcome.clone()).or_default() += n);
        }
    }
    rows.sort_by_key(|(_, row)| std::cmp::Reverse(all(row)));
    rows.push(("others".to_owned(), rest));
    let mut total = BTreeMap::new();
    rows.iter().flat_map(|(_, row)| row).for_each(|(outcome, n)| *total.entry(outcome.clone()).or_default() += n);
    rows.push(("all".to_owned(), total));
    println!(
        "| Type | Documents | Text | No text or empty | Encrypted | Needs OCR | Not supported | Malformed | Others |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for (kind, mut row) in rows {
        let sum = all(&row);
        let mut take = |names: &[&str]| {
            let n: u64 = names.iter().filter_map(|name| row.remove(*name)).sum();
            if n > 0 { n.to_string() } else { String::new() }
        };
        let columns: [&[&str]; 6] =
            [&["text"], &["no text", "empty"], &["encrypted"], &["needs_ocr"], &["unsupported"], &["malformed"]];
        let columns = columns.map(&mut take).join(" | ");
        let others: Vec<String> = row.iter().map(|(outcome, n)| format!("{n} {outcome}")).collect();
        println!("| {kind} | {sum} | {columns} | {} |", others.join(", "));
    }
}

/// Writes the small model: see [`soak`].
pub fn small_model(folder: &Path) -> Outcome {
    let error = |path: &Path, e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let pooling = folder.join("1_Pooling");
    fs::create_dir_all(&pooling).map_err(|e| error(&pooling, &e))?;
    let source = root().join("assets/model");
    for file in ["modules.json", "sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(source.join(file), folder.join(file)).map_err(|e| error(&source.join(file), &e))?;
    }
    let narrowed = |file: &str, changes: Value| {
        let path = source.join(file);
        let text = fs::read_to_string(&path).map_err(|e| error(&path, &e))?;
        let mut value: Value = serde_json::from_str(&text).map_err(|e| error(&path, &e))?;
        if let (Some(value), Some(changes)) = (value.as_object_mut(), changes.as_object()) {
            value.extend(changes.clone());
        }
        fs::write(folder.join(file), value.to_string()).map_err(|e| error(folder, &e))
    };
    narrowed("1_Pooling/config.json", json!({"word_embedding_dimension": WIDTH}))?;
    narrowed(
        "config.json",
        json!({"hidden_size": WIDTH, "intermediate_size": WIDTH, "num_attention_heads": 2, "num_hidden_layers": 1}),
    )?;

    let mut shapes = vec![
        ("embeddings.word_embeddings.weight".to_owned(), vec![30_522, WIDTH]),
        ("embeddings.position_embeddings.weight".to_owned(), vec![512, WIDTH]),
        ("embeddings.token_type_embeddings.weight".to_owned(), vec![2, WIDTH]),
    ];
    let layer = "encoder.layer.0.";
    for name in ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"] {
        shapes.push((format!("{layer}{name}.weight"), vec![WIDTH, WIDTH]));
    }
    for name in ["intermediate.dense", "output.dense"] {
        shapes.push((format!("{layer}{name}.weight"), vec![WIDTH, WIDTH]));
    }
    shapes.push(("pooler.dense.weight".to_owned(), vec![WIDTH, WIDTH]));
    for norm in
        ["embeddings.LayerNorm", "encoder.layer.0.attention.output.LayerNorm", "encoder.layer.0.output.LayerNorm"]
    {
        shapes.push((format!("{norm}.weight"), vec![WIDTH]));
        shapes.push((format!("{norm}.bias"), vec![WIDTH]));
    }
    let products: Vec<String> = shapes.iter().map(|(name, _)| name.clone()).collect();
    for name in products.iter().filter(|name| !name.starts_with("embeddings") && !name.contains("LayerNorm")) {
        shapes.push((name.replace(".weight", ".bias"), vec![WIDTH]));
    }
    let mut state = 1u32;
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = shapes
        .into_iter()
        .map(|(name, shape)| {
            let bytes = (0..shape.iter().product::<usize>()).flat_map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let number = (state >> 8) as f32 / (1u32 << 24) as f32 - 0.5;
                if name.ends_with("LayerNorm.weight") { 1.0f32 } else { number }.to_le_bytes()
            });
            let bytes = bytes.collect();
            (name, shape, bytes)
        })
        .collect();
    let views = tensors
        .iter()
        .map(|(name, shape, bytes)| Ok((name, TensorView::new(Dtype::F32, shape.clone(), bytes)?)))
        .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()
        .map_err(|e| e.to_string())?;
    let bytes = safetensors::serialize(views, None).map_err(|e| e.to_string())?;
    let path = folder.join("model.safetensors");
    fs::write(&path, bytes).map_err(|e| error(&path, &e))
}
