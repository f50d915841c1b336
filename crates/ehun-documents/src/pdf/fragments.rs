//! Glyphs become fragments: pieces of a line without a wide gap in them.
//!
//! All of this happens in the frame of one [`Direction`]: turned so that its baselines run to the right. Columns, cells
//! and lines are made of fragments later; a fragment never reaches over a gutter, because a gutter is wider than any
//! space between words.

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

use super::bidi;
use super::glyph::{Direction, Glyph, PageContent, Rect, bounds};

/// A wider gap than this ends a fragment (font sizes).
const WIDE_GAP: f32 = 0.75;
/// A wider gap than this is a space (font sizes).
pub(super) const SPACE_GAP: f32 = 0.13;
/// Drawn again this near, the same character is drawn once (font sizes): a way to look bold.
const DOUBLE_STRIKE: f32 = 0.12;

/// A piece of a line.
#[derive(Debug, Clone)]
pub(super) struct Fragment {
    /// In the frame of its direction.
    pub rect: Rect,
    pub baseline: f32,
    pub size: f32,
    /// In logical order.
    pub text: String,
    pub bold: bool,
    pub mono: bool,
    pub artifact: bool,
    /// Characters raised at its beginning: `12` of `¹² See above.`
    pub raised_start: usize,
}

/// A glyph in the frame of its direction.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placed {
    pub index: usize,
    pub u: f32,
    pub v: f32,
    pub width: f32,
    pub size: f32,
    space_before: bool,
    space_after: bool,
}

impl Placed {
    fn end(&self) -> f32 {
        self.u + self.width
    }

    pub fn rect(&self) -> Rect {
        Rect { x0: self.u, y0: self.v - 0.75 * self.size, x1: self.end(), y1: self.v + 0.22 * self.size }
    }

    pub fn center(&self) -> (f32, f32) {
        (self.u + self.width / 2.0, self.v - 0.25 * self.size)
    }
}

/// Turns a point into the frame of a direction.
pub(super) fn into_frame(direction: Direction, x: f32, y: f32) -> (f32, f32) {
    let (sin, cos) = direction.angle().sin_cos();
    (x * cos + y * sin, y * cos - x * sin)
}

/// Turns a box of a direction's frame back onto the page.
pub(super) fn onto_page(direction: Direction, rect: &Rect) -> Rect {
    let (sin, cos) = direction.angle().sin_cos();
    let turn = |u: f32, v: f32| (u * cos - v * sin, u * sin + v * cos);
    let corners = [(rect.x0, rect.y0), (rect.x1, rect.y0), (rect.x0, rect.y1), (rect.x1, rect.y1)];
    let corners = corners.map(|(u, v)| {
        let (x, y) = turn(u, v);
        Rect::around(x, y, x, y)
    });
    bounds(&corners).unwrap_or(*rect)
}

/// The glyphs that `keep` lets through, without whitespace and without double strikes, in drawing order.
pub(super) fn place(content: &PageContent, keep: impl Fn(&Glyph) -> bool) -> Vec<Placed> {
    let mut placed: Vec<Placed> = Vec::new();
    let mut space: Option<(f32, f32)> = None;
    for (index, glyph) in content.glyphs.iter().enumerate() {
        if !keep(glyph) {
            continue;
        }
        let (u, v) = into_frame(glyph.direction, glyph.x, glyph.y);
        let text = content.glyph_text(glyph);
        if text.chars().all(char::is_whitespace) {
            if let Some(last) = placed.last_mut().filter(|last| (last.v - v).abs() < 0.5 * last.size) {
                last.space_after = true;
            }
            space = Some((u, v));
            continue;
        }
        let twin = placed.iter().rev().take(4).any(|other| {
            (other.u - u).abs() < DOUBLE_STRIKE * glyph.size
                && (other.v - v).abs() < DOUBLE_STRIKE * glyph.size
                && content.glyph_text(&content.glyphs[other.index]) == text
        });
        if twin {
            continue;
        }
        let space_before = space.take().is_some_and(|(_, sv)| (sv - v).abs() < 0.5 * glyph.size);
        placed.push(Placed { index, u, v, width: glyph.width, size: glyph.size, space_before, space_after: false });
    }
    placed
}

/// Groups glyphs into fragments.
pub(super) fn fragments(content: &PageContent, placed: &[Placed]) -> Vec<Fragment> {
    let runs = runs(placed);
    let groups = merge(runs);
    groups.into_iter().map(|group| fragment(content, group)).collect()
}

/// Glyphs that follow one another in drawing order.
struct Run {
    glyphs: Vec<Placed>,
    rect: Rect,
    baseline: f32,
    size: f32,
}

fn runs(placed: &[Placed]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for glyph in placed {
        if let Some(run) = runs.last_mut()
            && let Some(last) = run.glyphs.last()
            && (last.v - glyph.v).abs() < 0.02 * run.size
            && (last.size - glyph.size).abs() < 0.05 * run.size
            && (-0.3 * run.size..WIDE_GAP * run.size).contains(&(glyph.u - last.end()))
            && glyph.u >= last.u
        {
            run.rect = run.rect.union(&glyph.rect());
            run.glyphs.push(*glyph);
            continue;
        }
        runs.push(Run { glyphs: vec![*glyph], rect: glyph.rect(), baseline: glyph.v, size: glyph.size });
    }
    runs
}

/// Joins runs that touch on one line: text drawn piece by piece, raised numbers, right-to-left text.
fn merge(mut runs: Vec<Run>) -> Vec<Run> {
    runs.sort_by(|a, b| a.rect.x0.total_cmp(&b.rect.x0));
    let by_baseline = {
        let mut order: Vec<usize> = (0..runs.len()).collect();
        order.sort_by(|a, b| runs[*a].baseline.total_cmp(&runs[*b].baseline));
        order
    };
    let largest = runs.iter().map(|run| run.size).fold(0.0, f32::max).min(72.0);
    let mut groups: Vec<usize> = (0..runs.len()).collect();
    for (n, &a) in by_baseline.iter().enumerate() {
        for &b in &by_baseline[n + 1..] {
            if runs[b].baseline - runs[a].baseline > 0.6 * largest {
                break;
            }
            if belong_together(&runs[a], &runs[b]) {
                let (a, b) = (root(&mut groups, a), root(&mut groups, b));
                groups[a.max(b)] = a.min(b);
            }
        }
    }
    let mut merged: Vec<Option<Run>> = runs.into_iter().map(Some).collect();
    for n in 0..merged.len() {
        let target = root(&mut groups, n);
        if target == n {
            continue;
        }
        let Some(run) = merged[n].take() else { continue };
        if let Some(into) = merged[target].as_mut() {
            into.rect = into.rect.union(&run.rect);
            // The larger part says where the line is.
            let weight = |run: &Run| run.size * run.glyphs.len() as f32;
            if weight(&run) > weight(into) {
                (into.baseline, into.size) = (run.baseline, run.size);
            }
            into.glyphs.extend(run.glyphs);
        }
    }
    merged.into_iter().flatten().collect()
}

fn root(groups: &mut [usize], mut at: usize) -> usize {
    while groups[at] != at {
        groups[at] = groups[groups[at]];
        at = groups[at];
    }
    at
}

fn belong_together(a: &Run, b: &Run) -> bool {
    let (small, large) = if a.size < b.size { (a, b) } else { (b, a) };
    let apart = (a.baseline - b.baseline).abs();
    let same_size = small.size > 0.8 * large.size;
    // Raised and lowered characters are smaller than the line they stand on.
    let on_line = if same_size { apart < 0.22 * large.size } else { apart < 0.6 * large.size };
    if !on_line || a.rect.overlap_y(&b.rect) <= 0.0 {
        return false;
    }
    let gap = a.rect.x0.max(b.rect.x0) - a.rect.x1.min(b.rect.x1);
    let reach = if same_size { large.size } else { small.size };
    let covered = a.rect.overlap_x(&b.rect) > 0.5 * a.rect.width().min(b.rect.width());
    gap < (WIDE_GAP - 0.05) * reach && (!covered || a.rect.width().min(b.rect.width()) < large.size)
}

fn fragment(content: &PageContent, run: Run) -> Fragment {
    let mut glyphs = run.glyphs;
    let text_of = |placed: &Placed| content.glyph_text(&content.glyphs[placed.index]);
    let is_mark = |placed: &Placed| text_of(placed).chars().all(is_combining_mark);
    sort_by_place(&mut glyphs, is_mark);
    let is_letter = |placed: &Placed| text_of(placed).chars().all(char::is_alphanumeric);
    let threshold = space_threshold(&glyphs, run.size, is_letter);
    let mut visual = String::new();
    let mut raised_start = 0;
    let mut previous: Option<&Placed> = None;
    for glyph in &glyphs {
        if let Some(last) = previous {
            let gap = glyph.u - last.end();
            // What is drawn right to left has its spaces the other way round.
            let forwards = last.index < glyph.index;
            let explicit =
                if forwards { last.space_after && glyph.space_before } else { last.space_before && glyph.space_after };
            if (gap > threshold || (explicit && gap > -0.2 * run.size)) && !is_mark(glyph) {
                visual.push(' ');
            }
        }
        if glyph.size < 0.85 * run.size && glyph.v < run.baseline - 0.15 * run.size && raised_start == visual.len() {
            raised_start += text_of(glyph).len();
        }
        push_normal(&mut visual, text_of(glyph));
        if !is_mark(glyph) {
            previous = Some(glyph);
        }
    }
    let count = glyphs.len().max(1);
    let of = |f: fn(&Glyph) -> bool| glyphs.iter().filter(|placed| f(&content.glyphs[placed.index])).count();
    Fragment {
        rect: run.rect,
        baseline: run.baseline,
        size: run.size,
        bold: of(|g| g.bold) * 10 > count * 8,
        mono: of(|g| g.mono) * 10 > count * 8,
        artifact: of(|g| g.artifact) * 2 > count,
        raised_start: raised_start.min(visual.len()),
        text: bidi::logical(&visual),
    }
}

/// From left to right; a mark comes behind the letter that it stands above.
fn sort_by_place(glyphs: &mut Vec<Placed>, is_mark: impl Fn(&Placed) -> bool) {
    let (marks, mut letters): (Vec<Placed>, Vec<Placed>) = glyphs.iter().partition(|glyph| is_mark(glyph));
    if !letters.is_sorted_by(|a, b| a.u <= b.u) {
        letters.sort_by(|a, b| a.u.total_cmp(&b.u));
    }
    let middle = |glyph: &Placed| glyph.u + glyph.width / 2.0;
    let mut above: Vec<Vec<Placed>> = vec![Vec::new(); letters.len()];
    for mark in marks {
        let nearest = (0..letters.len()).min_by(|a, b| {
            let distance = |n: usize| (middle(&letters[n]) - middle(&mark)).abs();
            distance(*a).total_cmp(&distance(*b))
        });
        match nearest {
            Some(letter) => above[letter].push(mark),
            // Marks alone stay as they are.
            None => return,
        }
    }
    glyphs.clear();
    for (letter, marks) in letters.into_iter().zip(above) {
        glyphs.push(letter);
        glyphs.extend(marks);
    }
}

/// In text that is set wide every gap is large; a space is larger still.
fn space_threshold(glyphs: &[Placed], size: f32, is_letter: impl Fn(&Placed) -> bool) -> f32 {
    let mut gaps: Vec<f32> = glyphs
        .windows(2)
        .filter(|pair| !pair[0].space_after && is_letter(&pair[0]) && is_letter(&pair[1]))
        .map(|pair| pair[1].u - pair[0].end())
        .collect();
    gaps.sort_by(f32::total_cmp);
    let usual = if gaps.len() >= 4 { gaps[gaps.len() / 2].max(0.0) } else { 0.0 };
    usual + SPACE_GAP * size
}

/// Appends characters, ligatures and presentation forms as the letters they stand for.
fn push_normal(text: &mut String, glyph: &str) {
    let mut letters: Vec<char> = Vec::new();
    for c in glyph.chars() {
        match c {
            '\u{fb00}'..='\u{fdff}' | '\u{fe70}'..='\u{fefc}' => letters.extend(std::iter::once(c).nfkc()),
            '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' => letters.push(' '),
            '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{feff}' | '\u{200e}' | '\u{200f}' => {}
            _ => letters.push(c),
        }
    }
    // The line is put together as seen, from the left; within one glyph the letters are in logical order.
    if letters.len() > 1 && bidi::is_rtl(letters[0]) {
        letters.reverse();
    }
    text.extend(letters);
}
