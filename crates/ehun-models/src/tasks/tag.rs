//! Entities: token labels become spans of the text, as the token-classification pipeline of transformers makes them.
//!
//! A text that is longer than the model's window is read through overlapping windows of the same tokens. Every token takes its
//! scores from the window in which it stands farthest from an edge, and entities are formed once, over all tokens: so none is
//! lost at a seam and none is found twice.

use std::ops::Range;

use ehun_graph::SequenceInput;
use serde::{Deserialize, Serialize};

use crate::error::{ModelError, Result};
use crate::model::Model;
use crate::tasks::scores::softmax;
use crate::tokenizer::{Side, TextInput};

/// How token labels become entities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Aggregation {
    /// Every labelled token by itself.
    None,
    /// Neighbouring tokens of the same kind together, by their `B-` and `I-`.
    #[default]
    Simple,
    /// A word has the label of its first token; then as simple.
    First,
    /// A word has the label with the highest mean score; then as simple.
    Average,
    /// A word has the label of its most certain token; then as simple.
    Max,
}

impl std::str::FromStr for Aggregation {
    type Err = ModelError;

    fn from_str(name: &str) -> Result<Self> {
        Ok(match name {
            "none" => Self::None,
            "simple" => Self::Simple,
            "first" => Self::First,
            "average" => Self::Average,
            "max" => Self::Max,
            _ => {
                let known = "none, simple, first, average and max";
                return Err(ModelError::Request(format!("`{name}` is no aggregation; there are {known}")));
            }
        })
    }
}

/// A labelled span of a text.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entity {
    /// The label, without `B-` or `I-` where tokens were put together.
    pub label: String,
    /// Probability: of the token, or the mean over the tokens (words) put together.
    pub score: f32,
    /// The text of the span.
    pub word: String,
    /// First character of the span in the text.
    pub start: usize,
    /// One past its last character.
    pub end: usize,
    /// The same as bytes.
    #[serde(skip)]
    pub bytes: Range<usize>,
}

/// A text as the windows that a model reads it through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Windows {
    /// The input of each window, special tokens included.
    pub inputs: Vec<SequenceInput>,
    /// Which tokens of the text each window has.
    spans: Vec<Range<usize>>,
    /// Special tokens before the first token of the text.
    before: usize,
    offsets: Vec<Range<usize>>,
    words: Vec<Option<u32>>,
}

impl Model {
    /// Cuts a text into windows that overlap by a quarter; one where it fits.
    pub fn tag_windows(&self, text: &str) -> Result<Windows> {
        let all = self.tokenizer().encode(TextInput::Single(text), None, Side::Right)?;
        let inside = |i: &usize| all.texts[*i].is_some();
        let first = (0..all.ids.len()).find(inside).unwrap_or(all.ids.len());
        let end = (first..all.ids.len()).rev().find(inside).map_or(first, |last| last + 1);
        let special = all.ids.len() - (end - first);
        let room = self.max_tokens().saturating_sub(special);
        let count = end - first;
        if room < 4 && count > room {
            return Err(ModelError::Request(format!(
                "a window of {} tokens leaves {room} beside the special ones; that is too little to tag with",
                self.max_tokens()
            )));
        }
        let step = room - room / 4;
        let mut spans = Vec::new();
        let mut start = 0;
        loop {
            let stop = (start + room).min(count);
            spans.push(start..stop);
            if stop == count {
                break;
            }
            start += step;
        }
        let window = |span: &Range<usize>| {
            let pick = |list: &[u32]| -> Vec<u32> {
                let middle = &list[first + span.start..first + span.end];
                [&list[..first], middle, &list[end..]].concat()
            };
            let types = if all.types.is_empty() { Vec::new() } else { pick(&all.types) };
            SequenceInput { token_ids: pick(&all.ids), token_types: types, pooling_start: 0 }
        };
        Ok(Windows {
            inputs: spans.iter().map(window).collect(),
            spans,
            before: first,
            offsets: all.offsets[first..end].to_vec(),
            words: all.words[first..end].to_vec(),
        })
    }

    /// The entities of `text`. `logits` has, for each of its windows, the rows of all tokens, `[tokens, labels]`.
    pub fn entities(
        &self,
        text: &str,
        windows: &Windows,
        logits: &[&[f32]],
        aggregation: Aggregation,
    ) -> Result<Vec<Entity>> {
        let scores = windows.scores(logits, self.labels().len())?;
        Ok(entities(text, &windows.offsets, &windows.words, &scores, self.labels(), aggregation))
    }
}

impl Windows {
    /// For each token of the text the probabilities of the labels, from the window in which it stands farthest from an edge.
    fn scores(&self, logits: &[&[f32]], labels: usize) -> Result<Vec<Vec<f32>>> {
        let mut best: Vec<Option<(usize, Vec<f32>)>> = vec![None; self.offsets.len()];
        for ((span, input), rows) in self.spans.iter().zip(&self.inputs).zip(logits) {
            if rows.len() != input.token_ids.len() * labels {
                return Err(ModelError::Request(format!(
                    "{} logits for {} tokens and {labels} labels",
                    rows.len(),
                    input.token_ids.len()
                )));
            }
            for token in span.clone() {
                // A window's edge that is the text's own is no edge.
                let left = if span.start == 0 { usize::MAX } else { token - span.start };
                let right = if span.end == self.offsets.len() { usize::MAX } else { span.end - 1 - token };
                let distance = left.min(right);
                if best[token].as_ref().is_none_or(|(found, _)| distance > *found) {
                    let row = (self.before + token - span.start) * labels;
                    best[token] = Some((distance, softmax(&rows[row..row + labels])));
                }
            }
        }
        let all: Option<Vec<Vec<f32>>> = best.into_iter().map(|found| found.map(|(_, scores)| scores)).collect();
        all.ok_or_else(|| ModelError::Request("there are fewer answers than windows".into()))
    }
}

/// A token or a word with its label.
struct Labelled {
    label: usize,
    score: f32,
    bytes: Range<usize>,
}

fn argmax(scores: &[f32]) -> (usize, f32) {
    // The first of equal scores, as numpy has it.
    scores.iter().copied().enumerate().fold(
        (0, f32::NEG_INFINITY),
        |best, (i, score)| {
            if score > best.1 { (i, score) } else { best }
        },
    )
}

fn entities(
    text: &str,
    offsets: &[Range<usize>],
    words: &[Option<u32>],
    scores: &[Vec<f32>],
    labels: &[String],
    aggregation: Aggregation,
) -> Vec<Entity> {
    let tokens: Vec<usize> = (0..offsets.len()).filter(|&i| !offsets[i].is_empty()).collect();
    let token = |i: usize| {
        let (label, score) = argmax(&scores[i]);
        Labelled { label, score, bytes: offsets[i].clone() }
    };
    let labelled: Vec<Labelled> = match aggregation {
        Aggregation::None | Aggregation::Simple => tokens.iter().map(|&i| token(i)).collect(),
        _ => tokens
            .chunk_by(|&a, &b| words[a].is_some() && words[a] == words[b])
            .map(|word| of_word(word, offsets, scores, aggregation))
            .collect(),
    };
    let names: Vec<(bool, &str)> = labels.iter().map(|label| kind(label)).collect();
    let mut places = Places::new(text);
    let mut entity = |label: &str, score: f32, bytes: Range<usize>| Entity {
        label: label.to_owned(),
        score,
        word: text.get(bytes.clone()).unwrap_or_default().to_owned(),
        start: places.character(bytes.start),
        end: places.character(bytes.end),
        bytes,
    };
    if aggregation == Aggregation::None {
        return labelled
            .into_iter()
            .filter(|one| labels[one.label] != "O")
            .map(|one| entity(&labels[one.label], one.score, one.bytes))
            .collect();
    }
    labelled
        .chunk_by(|a, b| names[a.label].1 == names[b.label].1 && !names[b.label].0)
        .filter(|group| labels[group[0].label] != "O")
        .map(|group| {
            let score = group.iter().map(|one| f64::from(one.score)).sum::<f64>() / group.len() as f64;
            let bytes = group[0].bytes.start..group[group.len() - 1].bytes.end;
            entity(names[group[0].label].1, score as f32, bytes)
        })
        .collect()
}

fn of_word(word: &[usize], offsets: &[Range<usize>], scores: &[Vec<f32>], aggregation: Aggregation) -> Labelled {
    let (label, score) = match aggregation {
        Aggregation::Average => {
            let mean: Vec<f32> = (0..scores[word[0]].len())
                .map(|label| {
                    let sum: f64 = word.iter().map(|&i| f64::from(scores[i][label])).sum();
                    (sum / word.len() as f64) as f32
                })
                .collect();
            argmax(&mean)
        }
        Aggregation::Max => {
            let tops = word.iter().map(|&i| argmax(&scores[i]));
            tops.fold((0, f32::NEG_INFINITY), |best, top| if top.1 > best.1 { top } else { best })
        }
        _ => argmax(&scores[word[0]]),
    };
    let bytes = offsets[word[0]].start..offsets[word[word.len() - 1]].end;
    Labelled { label, score, bytes }
}

/// Whether a label begins an entity, and its kind: `B-PER` is `(true, "PER")`; a label without a prefix goes on with its like.
fn kind(label: &str) -> (bool, &str) {
    match (label.strip_prefix("B-"), label.strip_prefix("I-")) {
        (Some(kind), _) => (true, kind),
        (_, Some(kind)) => (false, kind),
        _ => (false, label),
    }
}

/// Characters before byte positions that mostly grow.
struct Places<'t> {
    text: &'t str,
    byte: usize,
    character: usize,
}

impl<'t> Places<'t> {
    fn new(text: &'t str) -> Self {
        Self { text, byte: 0, character: 0 }
    }

    fn character(&mut self, byte: usize) -> usize {
        if byte < self.byte {
            (self.byte, self.character) = (0, 0);
        }
        self.character += self.text.get(self.byte..byte).map_or(0, |between| between.chars().count());
        self.byte = byte;
        self.character
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels() -> Vec<String> {
        ["O", "B-PER", "I-PER", "B-LOC"].map(String::from).to_vec()
    }

    fn scores(tops: &[(usize, f32)]) -> Vec<Vec<f32>> {
        let row = |&(label, score): &(usize, f32)| {
            let mut row = vec![(1.0 - score) / 3.0; 4];
            row[label] = score;
            row
        };
        tops.iter().map(row).collect()
    }

    #[test]
    fn offsets_are_characters_also_after_emoji_and_combining_marks() {
        let text = "🙂e\u{301} Ana Ruiz, Oslo";
        let at = |word: &str| text.find(word).map(|start| start..start + word.len()).unwrap();
        let offsets = [at("Ana"), at("Ru"), at("iz"), at(","), at("Oslo")];
        let words = [0, 1, 1, 2, 3].map(Some);
        let scores = scores(&[(1, 0.9), (2, 0.7), (0, 0.5), (0, 0.9), (3, 0.8)]);
        let found = entities(text, &offsets, &words, &scores, &labels(), Aggregation::First);
        let brief: Vec<(&str, &str, usize, usize)> =
            found.iter().map(|e| (e.label.as_str(), e.word.as_str(), e.start, e.end)).collect();
        assert_eq!(brief, [("PER", "Ana Ruiz", 4, 12), ("LOC", "Oslo", 14, 18)]);
        let characters: Vec<char> = text.chars().collect();
        for entity in &found {
            assert_eq!(characters[entity.start..entity.end].iter().collect::<String>(), entity.word);
        }
        assert!((found[0].score - 0.8).abs() < 1e-6);
        let simple = entities(text, &offsets, &words, &scores, &labels(), Aggregation::Simple);
        assert_eq!(simple[0].word, "Ana Ru", "simple leaves a word in two where its tokens disagree");
        let none = entities(text, &offsets, &words, &scores, &labels(), Aggregation::None);
        assert_eq!(none.iter().map(|e| e.label.as_str()).collect::<Vec<_>>(), ["B-PER", "I-PER", "B-LOC"]);
    }

    #[test]
    fn a_word_by_its_mean_and_by_its_most_certain_token() {
        let offsets = [0..2, 2..4];
        let words = [Some(0), Some(0)];
        let scores = vec![vec![0.5, 0.4, 0.1, 0.0], vec![0.1, 0.6, 0.3, 0.0]];
        let label = |aggregation| {
            let found = entities("abcd", &offsets, &words, &scores, &labels(), aggregation);
            found.first().map(|entity| (entity.label.clone(), entity.score))
        };
        assert_eq!(label(Aggregation::First), None);
        assert_eq!(label(Aggregation::Average), Some(("PER".into(), 0.5)));
        assert_eq!(label(Aggregation::Max), Some(("PER".into(), 0.6)));
    }

    #[test]
    fn a_token_takes_its_scores_from_the_middle_of_a_window() {
        // Ten tokens through windows of six that overlap by two; a window says its own number as the label.
        let input = |n: usize| SequenceInput { token_ids: vec![0; n + 2], ..Default::default() };
        let windows = Windows {
            inputs: vec![input(6), input(6)],
            spans: vec![0..6, 4..10],
            before: 1,
            offsets: (0..10).map(|i| i..i + 1).collect(),
            words: vec![None; 10],
        };
        let rows = |label: usize, tokens: usize| -> Vec<f32> {
            (0..tokens * 2).map(|i| if i % 2 == label { 9.0 } else { 0.0 }).collect()
        };
        let (first, second) = (rows(0, 8), rows(1, 8));
        let scores = windows.scores(&[&first, &second], 2).unwrap();
        let labels: Vec<usize> = scores.iter().map(|row| argmax(row).0).collect();
        assert_eq!(labels, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]);
        assert!(windows.scores(&[&first], 2).is_err(), "a missing window is an error");
        assert!(windows.scores(&[&first[1..], &second], 2).is_err());
    }
}
