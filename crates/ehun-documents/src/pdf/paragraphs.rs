//! Lines of a column become paragraphs.

use super::glyph::{Rect, bounds};
use super::lines::Line;
use super::lists;

/// Splits a column's lines where a paragraph ends.
pub(super) fn paragraphs(lines: Vec<Line>) -> Vec<Vec<Line>> {
    let Some(column) = bounds(lines.iter().map(|line| &line.rect)) else {
        return Vec::new();
    };
    let leading = leading(&lines);
    let mut paragraphs: Vec<Vec<Line>> = Vec::new();
    for line in lines {
        match paragraphs.last_mut() {
            Some(open) if !begins(&line, open, leading, &column) => open.push(line),
            _ => paragraphs.push(vec![line]),
        }
    }
    paragraphs
}

/// The usual distance of baselines, in font sizes.
fn leading(lines: &[Line]) -> f32 {
    let mut pitches: Vec<f32> = lines
        .windows(2)
        .filter(|pair| (pair[0].size - pair[1].size).abs() < 0.1 * pair[0].size)
        .map(|pair| (pair[1].baseline - pair[0].baseline) / pair[1].size.max(1.0))
        .filter(|pitch| (0.8..2.6).contains(pitch))
        .collect();
    if pitches.len() < 3 {
        return 1.3;
    }
    pitches.sort_by(f32::total_cmp);
    pitches[pitches.len() / 2]
}

fn begins(line: &Line, open: &[Line], leading: f32, column: &Rect) -> bool {
    let Some(last) = open.last() else { return true };
    let first = &open[0];
    let size = line.size.max(last.size).max(1.0);
    if (line.size - last.size).abs() > 0.1 * size || line.bold != last.bold && !is_short(line) && !is_short(last) {
        return true;
    }
    if line.mono != last.mono {
        return true;
    }
    let pitch = (line.baseline - last.baseline) / size;
    if pitch > (1.28 * leading).max(1.3) || pitch < -0.1 {
        return true;
    }
    if line.mono {
        return false;
    }
    if line.raised_start > 0 || lists::starts_item(&line.text) && !only_looks_like_item(line, open) {
        return true;
    }
    // Lines of a table of contents.
    if lists::has_leader(&last.text) {
        return true;
    }
    let ended = ends_sentence(&last.text);
    let indented = line.rect.x0 - last.rect.x0;
    // An indented first line. The second line of a list item hangs, too, but its first has a mark.
    if indented > 0.8 * size
        && indented < 6.0 * size
        && last.rect.x0 - column.x0 < 0.8 * size
        && !(open.len() == 1 && (lists::starts_item(&first.text) || first.raised_start > 0))
        && (ended || last.rect.x1 < column.x1 - 3.0 * size)
    {
        return true;
    }
    // Back out of a hanging indent.
    if -indented > 0.8 * size && open.len() > 1 && first.rect.x0 <= line.rect.x0 + 0.5 * size && ended {
        return true;
    }
    // The line above ended though the next word would have had room.
    let word = line.text.split_whitespace().next().map_or(0, |word| word.chars().count() + 1);
    let word_width = word as f32 / line.text.chars().count().max(1) as f32 * line.rect.width();
    ended && column.x1 - last.rect.x1 > word_width + 1.5 * size
}

fn is_short(line: &Line) -> bool {
    line.text.chars().count() < 3
}

/// True after the end of a sentence.
pub(super) fn ends_sentence(text: &str) -> bool {
    let text = text.trim_end().trim_end_matches(['"', '”', '’', '\'', ')', ']', '»']);
    text.ends_with(['.', '!', '?', ':', '。', '！', '？', '؟', '…'])
}

/// "... see section" + "2. It": a number or dash within a sentence looks like a mark.
fn only_looks_like_item(line: &Line, open: &[Line]) -> bool {
    let Some(last) = open.last() else { return false };
    let certain = lists::starts_bullet(&line.text) && !line.text.trim_start().starts_with(['-', '–', '—', '*', '·']);
    !certain
        && !lists::starts_item(&open[0].text)
        && (line.rect.x0 - last.rect.x0).abs() < 0.5 * line.size
        && last.text.trim_end().ends_with(|c: char| c.is_lowercase() || c == ',')
}
