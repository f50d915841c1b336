//! Parses every file below a folder in worker processes and prints what came of it, by format.
//!
//! ```text
//! cargo run --release -p ehun-documents --example survey -- FOLDER [--verbose]
//! cargo run --release -p ehun-documents --example survey -- --list FILE [--workers N]
//! ```
//! Given a file instead, it prints the file's blocks. `--list` names a file of paths, one a line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use ehun_documents::{BlockKind, ParseOptions, PoolOptions, WORKER_ARG, WorkerPool, worker_main};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|a| a == WORKER_ARG) {
        worker_main();
    }
    let after = |flag: &str| args.iter().position(|a| a == flag).and_then(|at| args.get(at + 1));
    let folder = args.first().ok_or("usage: survey FOLDER [--verbose], or survey --list FILE [--workers N]")?;
    let workers = match after("--workers") {
        Some(number) => number.parse()?,
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let verbose = args.iter().any(|a| a == "--verbose");
    if Path::new(folder).is_file() {
        let pool = WorkerPool::new(PoolOptions::default())?;
        let document = pool.parse_path(Path::new(folder), &ParseOptions::default())?;
        for block in &document.blocks {
            let kind = match block.kind {
                BlockKind::Table(_) => "Table".to_owned(),
                ref kind => format!("{kind:?}"),
            };
            println!("[{kind}, {:?}, page {:?}]\n{}", block.layer, block.page, document.block_text(block));
        }
        return Ok(());
    }
    let mut files = Vec::new();
    match after("--list") {
        Some(list) => files.extend(std::fs::read_to_string(list)?.lines().map(PathBuf::from)),
        None => {
            collect(Path::new(folder), &mut files)?;
            files.sort();
        }
    }

    let pool = WorkerPool::new(PoolOptions { workers, ..PoolOptions::default() })?;
    let options = ParseOptions::default();
    let next = AtomicUsize::new(0);
    let pages = AtomicUsize::new(0);
    let begun = std::time::Instant::now();
    let counts: Mutex<BTreeMap<String, BTreeMap<&'static str, u32>>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(path) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let start = std::time::Instant::now();
                    let (outcome, line) = match pool.parse_path(path, &options) {
                        Ok(document) => {
                            pages.fetch_add(document.pages.len(), Ordering::Relaxed);
                            let size = document.text.len();
                            let outcome = if size > 0 { "text" } else { "no text" };
                            let children = document.children.len();
                            (outcome, format!("{size} bytes, {} blocks, {children} children", document.blocks.len()))
                        }
                        Err(e) => (e.code(), e.to_string()),
                    };
                    if verbose {
                        println!("{:6.2} s  {}  {outcome}: {line}", start.elapsed().as_secs_f64(), path.display());
                    }
                    let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default();
                    let mut counts = counts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    *counts.entry(extension).or_default().entry(outcome).or_default() += 1;
                }
            });
        }
    });
    for (extension, outcomes) in counts.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        let outcomes: Vec<String> = outcomes.iter().map(|(outcome, n)| format!("{n} {outcome}")).collect();
        println!("{extension:8} {}", outcomes.join(", "));
    }
    let (pages, seconds) = (pages.into_inner(), begun.elapsed().as_secs_f64());
    println!("pages {pages} in {seconds:.3} s");
    let stats = pool.stats();
    println!("{stats:?}\nhand-over: {:.1} % of the time", stats.hand_over_share() * 100.0);
    Ok(())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}
