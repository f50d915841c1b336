//! The job of a classifier: parse, cut, classify each chunk. Nothing is written.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Instant;

use ehun_documents::{ParseOptions, chunk};
use ehun_engine::{Input, Pending, Request, tasks};
use ehun_pipeline::{ChunkVector, ModelCounter};

use crate::error::CompareError;
use crate::job::{Engine, JobRun, Work, chunk_options};

/// Documents whose chunks may wait for the engine.
const AHEAD: usize = 32;

/// Classifies every chunk; the vectors are the model's scores.
pub(crate) fn run(engine: &Engine<'_>, work: &Work<'_>) -> Result<(JobRun, Vec<ChunkVector>), CompareError> {
    let start = Instant::now();
    let counter = ModelCounter::new(std::sync::Arc::clone(work.model), None)?;
    let (mut run, mut all) = (JobRun::default(), Vec::new());
    let mut waiting: VecDeque<(String, Vec<u32>, Pending)> = VecDeque::new();
    let failed = CompareError::engine(&engine.side.name);
    let mut parse = 0.0;
    for file in files(work.inputs)? {
        let parsing = Instant::now();
        let document = work.pool.parse_path(&file, &ParseOptions::default())?;
        let chunks = chunk(&document, &chunk_options(work.chunk_tokens), &counter)?;
        parse += parsing.elapsed().as_secs_f64();
        let tokens = chunks.iter().map(|chunk| chunk.token_count as u32).collect();
        let inputs = chunks.into_iter().map(|chunk| Input::from(chunk.text.as_str())).collect();
        let pending = engine.service.request_when_room(Request::new(inputs)).map_err(&failed)?;
        waiting.push_back((file.display().to_string(), tokens, pending));
        run.documents += 1;
        if waiting.len() > AHEAD {
            collect(waiting.pop_front(), &mut all);
        }
    }
    while !waiting.is_empty() {
        collect(waiting.pop_front(), &mut all);
    }
    run.seconds = start.elapsed().as_secs_f64();
    run.chunks = all.len() as u64;
    run.tokens = all.iter().map(|chunk: &ChunkVector| u64::from(chunk.tokens)).sum();
    engine.read_meter(&mut run);
    run.stages.parse = parse;
    Ok((run, all))
}

fn collect(waiting: Option<(String, Vec<u32>, Pending)>, all: &mut Vec<ChunkVector>) {
    let Some((path, tokens, pending)) = waiting else { return };
    for (number, (tokens, item)) in tokens.into_iter().zip(pending.wait().items).enumerate() {
        // What has no answer has no vector, and counts as missing.
        let vector = item.and_then(tasks::row).unwrap_or_default();
        all.push(ChunkVector { path: path.clone(), chunk: number as u32, tokens, vector });
    }
}

/// The files of the inputs, those in folders in the order of their names.
fn files(inputs: &[PathBuf]) -> Result<Vec<PathBuf>, CompareError> {
    let mut files = Vec::new();
    let mut open: Vec<PathBuf> = inputs.iter().rev().cloned().collect();
    while let Some(path) = open.pop() {
        if !path.is_dir() {
            files.push(path);
            continue;
        }
        let entries = std::fs::read_dir(&path).map_err(CompareError::io(path.display().to_string()))?;
        let mut inside: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        inside.sort_by(|a, b| b.cmp(a));
        open.extend(inside);
    }
    Ok(files)
}
