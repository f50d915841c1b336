//! The main job over few and over many small documents: its memory must not tell them apart.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use crate::command::{Outcome, program};
use crate::documents::{watch, workplace};
use crate::product::{build, ehun};

/// Numbers of documents where none are given.
const COUNTS: [usize; 2] = [10_000, 100_000];
/// What the largest number may take beside the smallest, bytes: allocators keep more or less of what was given back, and the
/// footer of a Parquet file names every row group.
const MOST_GROWTH: u64 = 48 << 20;
/// Documents of a folder; half of all are in one folder.
const FOLDER: usize = 1000;

/// The runs of the job over one tree, with what is done to the tree before each.
const RUNS: [&str; 5] = ["first", "unchanged", "a tenth changed and gone, `--prune`", "`--retry-failed`", "`--dedup`"];

/// Runs the job over trees of small files and prints the largest memory of its main process.
pub fn soak(arguments: &[String]) -> Outcome {
    let counts: Result<Vec<usize>, _> = arguments.iter().map(|count| count.parse()).collect();
    let mut counts = counts.map_err(|e| format!("`cargo xtask soak memory [DOCUMENTS...]`: {e}"))?;
    if counts.is_empty() {
        counts = COUNTS.into();
    }
    build()?;
    let (work, model) = workplace("memory")?;
    let mut peaks: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    println!("| Documents | Run | Peak memory of the main process (VmHWM), MiB | Seconds |\n| --- | --- | --- | --- |");
    for count in counts {
        let work = work.join(count.to_string());
        let tree = work.join("documents");
        grow(&tree, count)?;
        for run in RUNS {
            let out = work.join(if run == "`--dedup`" { "dedup" } else { "out" });
            if run.contains("--prune") {
                change(&tree, count)?;
            }
            let flags: Vec<&str> = run.split('`').skip(1).step_by(2).collect();
            let (peak, seconds) = process(&tree, &out, &model, &flags)?;
            println!("| {count} | {run} | {} | {seconds:.0} |", peak >> 20);
            peaks.entry(run).or_default().push(peak);
        }
        // The next tree may need the space.
        fs::remove_dir_all(&work).map_err(|e| format!("{}: {e}", work.display()))?;
    }
    for (run, peaks) in peaks {
        let (Some(first), Some(most)) = (peaks.first(), peaks.iter().max()) else { continue };
        if most - first > MOST_GROWTH {
            return Err(format!("run {run}: {} MiB and then {} MiB: memory grew", first >> 20, most >> 20));
        }
    }
    Ok(())
}

fn process(tree: &Path, out: &Path, model: &Path, flags: &[&str]) -> Result<(u64, f64), String> {
    let at = |path: &Path| path.to_string_lossy().into_owned();
    let mut arguments = ["process", "--quiet"].map(str::to_owned).to_vec();
    arguments.extend([at(tree), "--out".to_owned(), at(out), "--model".to_owned(), at(model)]);
    arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
    let begun = Instant::now();
    let mut command = program(ehun(), &arguments);
    let mut child = command.stderr(Stdio::null()).spawn().map_err(|e| format!("{command:?}: {e}"))?;
    let (code, peak) = watch(&mut child)?;
    // 3: the empty ones failed.
    if code != Some(3) {
        return Err(format!("{command:?} ended with {code:?}"));
    }
    let peak = peak.ok_or("memory is not measured here: there is no /proc")?;
    Ok((peak, begun.elapsed().as_secs_f64()))
}

fn path(tree: &Path, number: usize) -> PathBuf {
    let folder = if number.is_multiple_of(2) { "one".to_owned() } else { format!("{:06}", number / 2 / FOLDER) };
    tree.join(folder).join(format!("{number:09}.txt"))
}

fn write(path: &Path, text: &str) -> Outcome {
    let folder = path.parent().unwrap_or(path);
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(path, text));
    written.map_err(|e| format!("{}: {e}", path.display()))
}

/// Every hundredth document is empty and fails; every fourth has a text that others have as well.
fn grow(tree: &Path, count: usize) -> Outcome {
    for number in 0..count {
        let text = match number {
            _ if number % 100 == 7 => String::new(),
            _ if number % 4 == 1 => format!("Thread {} was cut as the others were.\n", number % 500),
            _ => format!("Thread {number} runs over and under the warp.\n"),
        };
        write(&path(tree, number), &text)?;
    }
    Ok(())
}

fn change(tree: &Path, count: usize) -> Outcome {
    for number in (0..count).step_by(20) {
        write(&path(tree, number), &format!("Thread {number} was taken out and woven in anew.\n"))?;
        let gone = path(tree, number + 5);
        fs::remove_file(&gone).map_err(|e| format!("{}: {e}", gone.display()))?;
    }
    Ok(())
}
