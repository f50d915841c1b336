//! Labels and entities of chunks, by models of their own beside the one that makes the vectors.
//!
//! A chunk is cut for the embedding model. Where it is longer than the window of another one, that reads it through overlapping
//! windows: labels get the mean of their windows' probabilities, entities are formed once, over the tokens of all windows.
//! Nothing of a chunk is left unread.

use std::ops::Range;
use std::sync::Arc;

use ehun_engine::{EngineError, Input, ItemOptions, ItemResult, Pending, Request, Service, Truncation, tasks};
use ehun_models::Model;
use ehun_models::tasks::scores::LabelScore;
use ehun_models::tasks::tag::{Aggregation, Windows};

use crate::error::JobError;
use crate::extra::EntityRow;
use crate::rows::ChunkRow;

/// Takes the rows of logits of a text's windows into the text's row.
type Take<'a> = dyn Fn(&mut ChunkRow, &Windows, &[&[f32]]) -> Result<(), String> + 'a;

/// Gives every chunk labels.
pub struct Classifier<'a> {
    /// Runs the model.
    pub service: &'a Service,
    /// A model for sequence classification.
    pub model: &'a Model,
    /// Only so many labels of each chunk, the best.
    pub top: Option<usize>,
}

/// Finds the entities of every chunk.
pub struct Tagger<'a> {
    /// Runs the model.
    pub service: &'a Service,
    /// A model for token classification.
    pub model: &'a Model,
    /// How tokens become entities.
    pub aggregation: Aggregation,
}

/// What a chunk failed with: a short stable name, and a message.
pub(crate) type ChunkError = (String, String);

/// Texts that a model is reading through windows.
pub(crate) struct Asked {
    /// Of each text.
    windows: Vec<Result<Windows, String>>,
    pending: Pending,
}

impl Asked {
    fn new(service: &Service, model: &Model, rows: &[ChunkRow]) -> Result<Self, EngineError> {
        let windows: Vec<_> =
            rows.iter().map(|row| model.tag_windows(&row.text).map_err(|error| error.to_string())).collect();
        let of_window = |ids: &Vec<u32>| Input::Tokens(ids.as_slice().into());
        let inputs = windows.iter().flatten().flat_map(|windows| &windows.inputs);
        let inputs = inputs.map(|input| of_window(&input.token_ids)).collect();
        let options = ItemOptions { truncation: Truncation::Refuse, ..ItemOptions::default() };
        let pending = service.request_when_room(Request { inputs, options, deadline: None })?;
        Ok(Self { windows, pending })
    }

    /// Gives the rows of logits of each text's windows to `take`, and returns the first error of a chunk; an error of the whole
    /// job where no backend answers.
    fn answer(self, what: &str, rows: &mut [ChunkRow], take: &Take) -> Result<Option<ChunkError>, JobError> {
        let mut items = self.pending.wait().items.into_iter();
        let mut first = None;
        for (row, windows) in rows.iter_mut().zip(self.windows) {
            let taken = match windows {
                Ok(windows) => {
                    let answers: Vec<ItemResult> = items.by_ref().take(windows.inputs.len()).collect();
                    let answers = answers.into_iter().collect::<Result<Vec<_>, _>>();
                    answers.and_then(|answers| {
                        let logits = answers.iter().map(|answer| Ok(tasks::rows(answer)?.data.as_slice()));
                        let logits = logits.collect::<Result<Vec<_>, EngineError>>()?;
                        take(row, &windows, &logits).map_err(|message| EngineError::Answer(message.into()))
                    })
                }
                Err(message) => Err(EngineError::invalid(message)),
            };
            match taken {
                Ok(()) => {}
                Err(error @ (EngineError::Unavailable(_) | EngineError::ShuttingDown)) => {
                    return Err(JobError::Engine(error));
                }
                Err(error) => {
                    let code = format!("{what}_{}", error.code());
                    first.get_or_insert((code, format!("chunk {}: {error}", row.chunk)));
                }
            }
        }
        Ok(first)
    }
}

impl Classifier<'_> {
    pub(crate) fn ask(&self, rows: &[ChunkRow]) -> Result<Asked, EngineError> {
        Asked::new(self.service, self.model, rows)
    }

    pub(crate) fn answer(&self, asked: Asked, rows: &mut [ChunkRow]) -> Result<Option<ChunkError>, JobError> {
        asked.answer("labels", rows, &|row, _, logits| {
            let windows: Vec<Vec<f32>> = logits.iter().map(|logits| self.model.probabilities(logits)).collect();
            let mut labels: Vec<LabelScore> = self
                .model
                .labels()
                .iter()
                .enumerate()
                .map(|(i, label)| LabelScore { label: label.clone(), score: mean(windows.iter().map(|one| one[i])) })
                .collect();
            labels.sort_by(|a, b| b.score.total_cmp(&a.score));
            labels.truncate(self.top.unwrap_or(usize::MAX));
            row.labels = Some(labels);
            Ok(())
        })
    }
}

impl Tagger<'_> {
    pub(crate) fn ask(&self, rows: &[ChunkRow]) -> Result<Asked, EngineError> {
        Asked::new(self.service, self.model, rows)
    }

    pub(crate) fn answer(&self, asked: Asked, rows: &mut [ChunkRow]) -> Result<Option<ChunkError>, JobError> {
        asked.answer("entities", rows, &|row, windows, logits| {
            let found = self.model.entities(&row.text, windows, logits, self.aggregation);
            let found = found.map_err(|error| error.to_string())?;
            let entity = |entity: ehun_models::tasks::tag::Entity| {
                let of_document = in_document(&row.stretches, entity.start as u64..entity.end as u64);
                EntityRow {
                    label: entity.label,
                    score: entity.score,
                    text: entity.word,
                    start: entity.start as u32,
                    end: entity.end as u32,
                    char_start: of_document.start,
                    char_end: of_document.end,
                }
            };
            row.entities = Some(found.into_iter().map(entity).collect());
            Ok(())
        })
    }
}

fn mean(values: impl ExactSizeIterator<Item = f32>) -> f32 {
    let count = values.len().max(1) as f64;
    (values.map(f64::from).sum::<f64>() / count) as f32
}

/// A stretch of a chunk's text that is a stretch of the document's text, both counted in characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) in_chunk: u64,
    pub(crate) in_document: Range<u64>,
}

impl Stretch {
    /// The stretches that a chunk's text is made of, in its order: `parts` of the document, with one character between them.
    pub(crate) fn all(parts: impl Iterator<Item = Range<u64>>) -> Arc<[Self]> {
        let mut in_chunk = 0;
        parts
            .map(|in_document| {
                let start = in_chunk;
                in_chunk += in_document.end - in_document.start + 1;
                Self { in_chunk: start, in_document }
            })
            .collect()
    }
}

/// Where characters of a chunk's text are in the document's text: from where the first of them is to behind where the last is.
fn in_document(stretches: &[Stretch], range: Range<u64>) -> Range<u64> {
    let place = |character: u64| {
        let found = stretches.iter().rev().find(|stretch| stretch.in_chunk <= character);
        // The line end between two stretches counts as the end of the first.
        found.map_or(0, |s| (s.in_document.start + character - s.in_chunk).min(s.in_document.end))
    };
    let start = place(range.start);
    start..if range.is_empty() { start } else { place(range.end - 1) + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_of_a_chunk_are_found_in_the_document() {
        // A table's header from 10, then rows from 40 and, after something hidden, from 60: "head\nrow one\nrow two".
        let stretches = Stretch::all([10..14, 40..47, 60..67].into_iter());
        for (range, want) in [
            (0..4, 10..14),
            (1..2, 11..12),
            (5..12, 40..47),
            (9..12, 44..47),
            (13..20, 60..67),
            (17..20, 64..67),
            (9..16, 44..63),
            (3..3, 13..13),
        ] {
            assert_eq!(in_document(&stretches, range.clone()), want, "{range:?}");
        }
    }
}
