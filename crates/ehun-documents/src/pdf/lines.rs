//! Fragments become lines, and lines become the text of a paragraph.

use std::collections::HashSet;

use super::bidi;
use super::columns::group_lines;
use super::fragments::{Fragment, SPACE_GAP};
use super::glyph::{Rect, bounds};

/// One line of one column.
#[derive(Debug, Clone)]
pub(super) struct Line {
    pub rect: Rect,
    pub baseline: f32,
    pub size: f32,
    pub text: String,
    pub bold: bool,
    pub mono: bool,
    /// Bytes at the beginning of the text that are raised: a footnote's mark.
    pub raised_start: usize,
    /// Pieces with a wide gap between them, from left to right.
    pub cells: Vec<Fragment>,
}

/// Makes the lines of one column, from top to bottom.
pub(super) fn lines(fragments: Vec<Fragment>) -> Vec<Line> {
    let all: Vec<usize> = (0..fragments.len()).collect();
    let groups = group_lines(&all, |n| fragments[n].rect);
    let mut fragments: Vec<Option<Fragment>> = fragments.into_iter().map(Some).collect();
    groups
        .into_iter()
        .filter_map(|group| line(group.into_iter().filter_map(|n| fragments[n].take()).collect()))
        .collect()
}

fn line(cells: Vec<Fragment>) -> Option<Line> {
    let rect = bounds(cells.iter().map(|cell| &cell.rect))?;
    let weight = |cell: &&Fragment| cell.text.len() as f32 * cell.size;
    let main = cells.iter().max_by(|a, b| weight(a).total_cmp(&weight(b)))?;
    let all_text: String = cells.iter().map(|cell| cell.text.as_str()).collect();
    let rtl = bidi::reads_right_to_left(&all_text);
    let (size, baseline) = (main.size, main.baseline);
    let mut order: Vec<&Fragment> = cells.iter().collect();
    if rtl {
        order.reverse();
    }
    let mut text = String::with_capacity(all_text.len() + cells.len());
    let mut last: Option<&Fragment> = None;
    for cell in &order {
        if let Some(last) = last {
            let gap = cell.rect.x0.max(last.rect.x0) - cell.rect.x1.min(last.rect.x1);
            if gap > SPACE_GAP * size {
                text.push(' ');
            }
        }
        text.push_str(&cell.text);
        last = Some(cell);
    }
    let bold_bytes: usize = cells.iter().filter(|cell| cell.bold).map(|cell| cell.text.len()).sum();
    Some(Line {
        rect,
        baseline,
        size,
        bold: bold_bytes * 10 > all_text.len() * 8,
        mono: cells.iter().all(|cell| cell.mono),
        raised_start: order.first().map_or(0, |cell| cell.raised_start),
        text,
        cells,
    })
}

/// Words of the whole document, to tell a hyphen that divides a word from one that belongs to it.
#[derive(Debug, Default)]
pub(super) struct Vocabulary {
    words: HashSet<Box<str>>,
}

/// More different words than this decide nothing new.
const MAX_WORDS: usize = 200_000;

impl Vocabulary {
    /// Takes in the words of a line that are not cut by its end.
    pub fn learn(&mut self, line: &str) {
        let mut words = line.split_whitespace().map(bare).peekable();
        let mut first = true;
        while let Some(word) = words.next() {
            // The first may be the rest of a divided word, the last its beginning.
            let cut = std::mem::take(&mut first) || words.peek().is_none();
            if !cut && word.len() > 3 && self.words.len() < MAX_WORDS {
                self.words.insert(word.to_lowercase().into());
            }
        }
    }

    fn knows(&self, word: &str) -> bool {
        self.words.contains(word.to_lowercase().as_str())
    }
}

fn bare(word: &str) -> &str {
    word.trim_matches(|c: char| !c.is_alphanumeric())
}

/// Appends the next line of a paragraph.
pub(super) fn append_line(text: &mut String, next: &str, vocabulary: &Vocabulary) {
    let next = next.trim();
    text.truncate(text.trim_end().len());
    let (Some(last), Some(first)) = (text.chars().last(), next.chars().next()) else {
        text.push_str(next);
        return;
    };
    if matches!(last, '-' | '\u{2010}' | '\u{ad}') && divides_word(text, next, last, vocabulary) {
        text.truncate(text.len() - last.len_utf8());
    } else if last == '\u{2010}' || last == '-' {
        // "well-" + "known": the hyphen stays and no space belongs behind it; after a lone dash one does.
        let joins = text.chars().rev().nth(1).is_some_and(char::is_alphanumeric) && first.is_alphanumeric();
        if !joins {
            text.push(' ');
        }
    } else if !(is_unspaced(last) && is_unspaced(first)) {
        text.push(' ');
    }
    text.push_str(next);
}

/// Whether the hyphen at the end of a line is there only because the line ended.
fn divides_word(text: &str, next: &str, hyphen: char, vocabulary: &Vocabulary) -> bool {
    let before = &text[..text.len() - hyphen.len_utf8()];
    if !before.chars().last().is_some_and(char::is_alphabetic) || !next.chars().next().is_some_and(char::is_lowercase) {
        return false;
    }
    if hyphen == '\u{ad}' {
        return true;
    }
    let head =
        before.split_whitespace().last().map_or("", |word| word.trim_start_matches(|c: char| !c.is_alphanumeric()));
    let tail = bare(next.split_whitespace().next().unwrap_or(""));
    if vocabulary.knows(&format!("{head}{tail}")) {
        return true;
    }
    if vocabulary.knows(&format!("{head}-{tail}")) {
        return false;
    }
    // "state-of-the-" + "art": a chain goes on.
    !head.contains(['-', '\u{2010}'])
}

/// Scripts that put no space between words (of those with line breaks anywhere).
fn is_unspaced(c: char) -> bool {
    matches!(u32::from(c), 0x3000..=0x30ff | 0x3400..=0x4dbf | 0x4e00..=0x9fff | 0xf900..=0xfaff | 0xff00..=0xffef | 0x20000..=0x3ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_join() {
        let mut vocabulary = Vocabulary::default();
        vocabulary.learn("the well-known tide tables of computation here");
        let cases = [
            ("the predic-", "tion of tides", "the prediction of tides"),
            ("a well-", "known man", "a well-known man"),
            ("a compu-", "tation", "a computation"),
            ("state-of-the-", "art work", "state-of-the-art work"),
            ("from 1910-", "1920", "from 1910-1920"),
            ("plain", "words", "plain words"),
            ("a dash -", "then more", "a dash - then more"),
            ("soft\u{ad}", "ware", "software"),
            ("漢字", "仮名", "漢字仮名"),
            ("X-", "Ray", "X-Ray"),
        ];
        for (a, b, expected) in cases {
            let mut text = a.to_owned();
            append_line(&mut text, b, &vocabulary);
            assert_eq!(text, expected);
        }
    }
}
