//! Cutting text that does not fit: at sentences, at words, at last between characters.

use std::ops::Range;

use unicode_segmentation::UnicodeSegmentation;

use super::TokenCounter;

/// Counts tokens of ranges of one text, and never of a range that is far longer than the room: a tokenizer may need
/// quadratic time for a long word, or count a megabyte of it as one unknown token.
pub(super) struct Measure<'m> {
    pub text: &'m str,
    counter: &'m dyn TokenCounter,
    /// Tokens of a chunk without special tokens.
    pub room: usize,
    /// Bytes of a chunk at most.
    pub max_bytes: usize,
    /// Tokens of what stands between two pieces.
    pub joint: usize,
}

/// Bytes that a token may stand for; English has 4.5 on average, and runs of spaces in code have many.
const BYTES_PER_TOKEN: usize = 32;

impl<'m> Measure<'m> {
    pub fn new(text: &'m str, counter: &'m dyn TokenCounter, room: usize) -> Self {
        let joint = counter.count("\n\n");
        Measure { text, counter, room, max_bytes: room.saturating_mul(BYTES_PER_TOKEN), joint }
    }

    /// Tokens of a range, `None` if it is too long to be counted or has more than the room.
    pub fn tokens(&self, range: &Range<usize>) -> Option<usize> {
        (range.len() <= self.max_bytes).then(|| self.count(&self.text[range.clone()])).filter(|n| *n <= self.room)
    }

    pub fn count(&self, text: &str) -> usize {
        self.counter.count(text)
    }

    /// Sentences of a range, whitespace around them taken off.
    pub fn sentences(&self, range: Range<usize>) -> impl Iterator<Item = Range<usize>> + use<'m> {
        let text: &'m str = self.text;
        let start = range.start;
        text[range]
            .split_sentence_bound_indices()
            .map(move |(at, sentence)| trimmed(text, start + at..start + at + sentence.len()))
            .filter(|r| !r.is_empty())
    }

    /// Lines of a range that are not empty; indentation stays.
    pub fn lines(&self, range: Range<usize>) -> impl Iterator<Item = Range<usize>> + use<'m> {
        let mut at = range.start;
        self.text[range].split_inclusive('\n').filter_map(move |line| {
            let start = at;
            at += line.len();
            let content = line.trim_end();
            (!content.is_empty()).then_some(start..start + content.len())
        })
    }

    /// The longest beginning of a range, or near to it, with at most `room` tokens: its end, on a word boundary where
    /// there is one, and its tokens. The range holds more than that.
    pub fn prefix(&self, range: &Range<usize>, room: usize) -> (usize, usize) {
        let text = &self.text[range.clone()];
        let longest = text.len().min(room.saturating_mul(BYTES_PER_TOKEN));
        // Five bytes for a token are a first guess; then in proportion to what was counted.
        let mut guess = longest.min(room * 5);
        let mut best: Option<(usize, usize)> = None;
        for _ in 0..8 {
            let end = word_end(text, guess);
            let tokens = self.count(text[..end].trim_end());
            if tokens <= room {
                if best.is_none_or(|(b, _)| b < end) {
                    best = Some((end, tokens));
                }
                if end >= longest || tokens * 10 >= room * 9 {
                    break;
                }
                let next = (end * room / tokens.max(1)).min(longest);
                if word_end(text, next) <= end {
                    break;
                }
                guess = next;
            } else if let Some((end, tokens)) = best {
                return (range.start + end, tokens);
            } else {
                guess = (end * room * 9 / (tokens * 10)).min(end - 1).max(1);
            }
        }
        let (end, tokens) = best.unwrap_or_else(|| {
            // Estimates led nowhere: halve until it fits. One character always does (see MIN_ROOM).
            let mut end = word_end(text, guess);
            loop {
                let tokens = self.count(text[..end].trim_end());
                let next = floor_char(text, end / 2).max(first_char(text));
                if tokens <= room || next >= end {
                    return (end, tokens);
                }
                end = next;
            }
        });
        (range.start + end, tokens)
    }

    /// The longest end of a range, or near to it, that begins at a word and has at most `room` tokens; `None` if not
    /// even the last word fits.
    pub fn suffix(&self, range: &Range<usize>, room: usize) -> Option<(Range<usize>, usize)> {
        let mut from = range.start.max(range.end.saturating_sub(room * 6));
        while !self.text.is_char_boundary(from) {
            from += 1;
        }
        let starts = self.text[from..range.end].char_indices().filter(|(_, c)| c.is_whitespace());
        let starts: Vec<usize> = starts.map(|(i, c)| from + i + c.len_utf8()).collect();
        let fits = |start: &usize| self.count(&self.text[*start..range.end]) <= room;
        // Fewer words never have more tokens, near enough: a binary search, and the result is counted again.
        let first = starts.partition_point(|start| !fits(start));
        let found = trimmed(self.text, *starts.get(first)?..range.end);
        let tokens = self.count(&self.text[found.clone()]);
        (!found.is_empty() && tokens <= room).then_some((found, tokens))
    }
}

/// A range without the whitespace around it.
pub(super) fn trimmed(text: &str, range: Range<usize>) -> Range<usize> {
    let piece = &text[range.clone()];
    let start = range.start + (piece.len() - piece.trim_start().len());
    start..start + piece.trim().len()
}

/// The last word boundary at or before `at` (never 0); a character boundary if the word is longer.
fn word_end(text: &str, at: usize) -> usize {
    if at >= text.len() {
        return text.len();
    }
    let at = floor_char(text, at).max(first_char(text));
    // Where the next character begins a word, the cut is clean already.
    let clean = text[at..].starts_with(char::is_whitespace);
    let cut = if clean { Some(at) } else { text[..at].rfind(char::is_whitespace) };
    match cut {
        Some(cut) if !text[..cut].trim().is_empty() => cut,
        _ => at,
    }
}

fn first_char(text: &str) -> usize {
    text.chars().next().map_or(0, char::len_utf8)
}

fn floor_char(text: &str, mut at: usize) -> usize {
    at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}
