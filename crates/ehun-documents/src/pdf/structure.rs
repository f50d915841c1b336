//! What a block is, judged by the whole document: titles, headings, lists, captions, footnotes; and paragraphs that go
//! on in the next column or on the next page.

use std::collections::BTreeMap;

use super::bidi;
use super::furniture::Edge;
use super::glyph::Rect;
use super::lines::{Line, Vocabulary, append_line};
use super::lists;
use super::page::{Draft, DraftContent};
use super::paragraphs::ends_sentence;
use crate::{BBox, BlockKind, CellText, DocumentBuilder, DocumentError, Layer, Place};

/// A heading is not longer than this (characters).
const MAX_HEADING: usize = 200;
const MAX_LEVEL: usize = 6;

/// Sizes are compared in half points.
fn half_points(size: f32) -> u32 {
    (size * 2.0).round().clamp(0.0, 10_000.0) as u32
}

/// What the document looks like as a whole.
pub(super) struct Looks {
    /// Size of running text.
    pub body_size: f32,
    /// Styles of headings, the most prominent first.
    headings: Vec<HeadingStyle>,
    title: Option<HeadingStyle>,
}

/// Size in half points and boldness, ordered by prominence.
type HeadingStyle = (u32, bool);

/// The size that most characters have.
pub(super) fn usual_size(sizes: impl Iterator<Item = (f32, usize)>) -> f32 {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for (size, characters) in sizes {
        *counts.entry(half_points(size)).or_default() += characters;
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    most.map_or(10.0, |(size, _)| size as f32 / 2.0)
}

fn style_of(lines: &[Line]) -> HeadingStyle {
    (half_points(lines[0].size), lines.iter().all(|line| line.bold))
}

impl Looks {
    /// Looks at all drafts.
    pub fn of(drafts: &[Draft], body_size: f32) -> Self {
        let mut looks = Looks { body_size, headings: Vec::new(), title: None };
        let mut counts: BTreeMap<HeadingStyle, (usize, u32, usize)> = BTreeMap::new();
        for draft in drafts.iter().filter(|draft| draft.placed) {
            if let DraftContent::Text { lines, column } = &draft.content
                && looks.may_head(lines, column)
            {
                let entry = counts.entry(style_of(lines)).or_insert((0, draft.page, 0));
                entry.0 += 1;
                entry.2 += lines.iter().map(|line| line.text.len()).sum::<usize>();
            }
        }
        let mut styles: Vec<(HeadingStyle, (usize, u32, usize))> = counts.into_iter().rev().collect();
        // A title is larger than all else, stands once, at the beginning, and other text follows.
        if let Some(&((size, bold), (1, 1, _))) = styles.first()
            && size as f32 / 2.0 > 1.15 * body_size
            && drafts.len() > 2
            && styles.get(1).is_none_or(|((next, _), _)| size > *next)
        {
            looks.title = Some((size, bold));
            styles.remove(0);
        }
        looks.headings = styles.into_iter().map(|(style, _)| style).collect();
        looks
    }

    /// Whether a paragraph looks like a heading.
    fn may_head(&self, lines: &[Line], column: &Rect) -> bool {
        let characters: usize = lines.iter().map(|line| line.text.chars().count()).sum();
        let text = &lines[0].text;
        let letters = lines.iter().flat_map(|line| line.text.chars()).filter(|c| c.is_alphabetic()).count();
        if characters > MAX_HEADING || letters < 2 || lines.iter().any(|line| line.mono) {
            return false;
        }
        if lists::is_caption(text) || lists::starts_bullet(text) || lines[0].raised_start > 0 {
            return false;
        }
        let last = lines[lines.len() - 1].text.trim_end();
        let size = lines[0].size;
        let larger = size > 1.12 * self.body_size && lines.len() <= 4;
        let bold = size > 0.95 * self.body_size
            && lines.len() <= 2
            && lines.iter().all(|line| line.bold)
            && !last.ends_with([',', ';'])
            && (!last.ends_with('.') || lists::starts_section(text))
            && lines[0].rect.width() < 0.95 * column.width().max(20.0 * size);
        larger || bold
    }

    fn heading(&self, lines: &[Line], column: &Rect) -> Option<BlockKind> {
        if !self.may_head(lines, column) {
            return None;
        }
        let style = style_of(lines);
        if self.title == Some(style) {
            return Some(BlockKind::Title);
        }
        let rank = self.headings.iter().position(|other| *other == style)?;
        Some(BlockKind::Heading { level: (rank.min(MAX_LEVEL - 1) + 1) as u8 })
    }
}

/// A block ready to be written.
struct Finished {
    kind: BlockKind,
    text: String,
    rows: Option<(Vec<Vec<CellText>>, usize)>,
    place: Place,
    area: usize,
    size: f32,
    /// More may follow: running text that stands last in its column.
    open: bool,
}

/// Writes all drafts of a document.
pub(super) fn write(
    drafts: Vec<Draft>,
    looks: &Looks,
    page_heights: &[f32],
    vocabulary: &Vocabulary,
    builder: &mut DocumentBuilder,
) -> Result<(), DocumentError> {
    let mut finished: Vec<Finished> = Vec::with_capacity(drafts.len());
    let mut list = ListIndent::default();
    // The last running text, which the next column may continue.
    let mut last_text: Option<usize> = None;
    for draft in drafts {
        let height = page_heights.get(draft.page as usize - 1).copied().unwrap_or(0.0);
        let next = finish(draft, looks, height, vocabulary, &mut list);
        if !next.open {
            if matches!(next.kind, BlockKind::Title | BlockKind::Heading { .. }) {
                last_text = None;
            }
            finished.push(next);
            continue;
        }
        if let Some(before) = last_text
            && goes_on(&finished[before], &next)
        {
            let before = &mut finished[before];
            append_line(&mut before.text, &next.text, vocabulary);
            before.area = next.area;
            if before.place.page == next.place.page {
                before.place.bbox = match (before.place.bbox, next.place.bbox) {
                    (Some(a), Some(b)) => Some(a.union(b)),
                    (a, b) => a.or(b),
                };
            }
            continue;
        }
        finished.push(next);
        last_text = Some(finished.len() - 1);
    }
    for block in finished {
        match block.rows {
            Some((rows, header_rows)) => builder.push_table(rows, header_rows, block.place)?,
            // A soft hyphen that is left stands inside a line, where it shows nothing.
            None => builder.push_at(block.kind, &block.text.replace('\u{ad}', ""), block.place)?,
        };
    }
    Ok(())
}

/// Whether a paragraph that begins a column goes on with the last one of an earlier column.
fn goes_on(before: &Finished, next: &Finished) -> bool {
    before.area < next.area
        && before.place.layer == next.place.layer
        && next.kind == BlockKind::Paragraph
        && (before.size - next.size).abs() < 0.06 * before.size
        && !ends_sentence(&before.text)
        && next.text.chars().next().is_some_and(char::is_lowercase)
}

fn finish(draft: Draft, looks: &Looks, height: f32, vocabulary: &Vocabulary, list: &mut ListIndent) -> Finished {
    let bbox = BBox { x0: draft.rect.x0, y0: draft.rect.y0, x1: draft.rect.x1, y1: draft.rect.y1 };
    let mut place = Place::on_page(draft.page, Some(bbox));
    if !draft.placed {
        place.layer = Layer::Unplaced;
    }
    let mut finished = Finished {
        kind: BlockKind::Paragraph,
        text: String::new(),
        rows: None,
        place,
        area: draft.area,
        size: 0.0,
        open: false,
    };
    match draft.content {
        DraftContent::Table { mut rows, header_rows } => {
            let cells: String = rows.iter().flatten().map(|cell| cell.text.as_str()).collect();
            if bidi::is_right_to_left(&cells) {
                rows.iter_mut().for_each(|row| row.reverse());
            }
            finished.rows = Some((rows, header_rows));
        }
        DraftContent::Furniture(edge, text) => {
            finished.kind = match edge {
                Edge::Header => BlockKind::PageHeader,
                Edge::Footer => BlockKind::PageFooter,
            };
            finished.text = text;
        }
        DraftContent::Hidden(reason, text) => {
            finished.place.layer = Layer::Hidden(reason);
            finished.text = text;
        }
        DraftContent::Text { lines, column } => {
            let low = height > 0.0 && draft.rect.center().1 > 0.5 * height;
            finished.size = lines[0].size;
            finished.kind = kind(&lines, &column, looks, low);
            if matches!(finished.kind, BlockKind::ListItem { .. }) {
                let rtl = bidi::reads_right_to_left(&lines[0].text);
                let start = if rtl { -lines[0].rect.x1 } else { lines[0].rect.x0 };
                finished.kind = BlockKind::ListItem { depth: list.depth(start, lines[0].size) };
            } else {
                list.end();
            }
            finished.open = matches!(finished.kind, BlockKind::Paragraph | BlockKind::ListItem { .. }) && draft.placed;
            finished.text = match finished.kind {
                BlockKind::Code => verbatim(&lines),
                _ => join(&lines, vocabulary),
            };
        }
    }
    finished
}

fn kind(lines: &[Line], column: &Rect, looks: &Looks, low: bool) -> BlockKind {
    let text = &lines[0].text;
    if lines.iter().all(|line| line.mono) && (lines.len() > 1 || lines[0].rect.x0 > column.x0 + lines[0].size) {
        return BlockKind::Code;
    }
    if lists::is_caption(text) {
        return BlockKind::Caption;
    }
    let small = lines[0].size < 0.93 * looks.body_size;
    if low && small && lists::starts_footnote(text, lines[0].raised_start) {
        return BlockKind::Footnote;
    }
    if let Some(heading) = looks.heading(lines, column) {
        return heading;
    }
    if lists::starts_item(text) && !lists::has_leader(text) {
        return BlockKind::ListItem { depth: 0 };
    }
    BlockKind::Paragraph
}

/// Where the items of nested lists begin: their left edges, or the right ones, negative, of right-to-left items.
#[derive(Default)]
struct ListIndent {
    open: Vec<f32>,
}

impl ListIndent {
    fn depth(&mut self, start: f32, size: f32) -> u8 {
        while self.open.last().is_some_and(|open| *open > start + 0.5 * size) {
            self.open.pop();
        }
        if self.open.last().is_none_or(|open| start > open + 0.5 * size) {
            self.open.push(start);
        }
        (self.open.len() - 1).min(8) as u8
    }

    fn end(&mut self) {
        self.open.clear();
    }
}

fn join(lines: &[Line], vocabulary: &Vocabulary) -> String {
    let mut text = String::new();
    for (n, line) in lines.iter().enumerate() {
        if n == 0 {
            text.push_str(&line.text);
        } else {
            append_line(&mut text, &line.text, vocabulary);
        }
    }
    text
}

/// Lines as they stand, indented by what they are indented on the page.
fn verbatim(lines: &[Line]) -> String {
    let left = lines.iter().map(|line| line.rect.x0).fold(f32::MAX, f32::min);
    let mut text = String::new();
    for (n, line) in lines.iter().enumerate() {
        if n > 0 {
            text.push('\n');
        }
        let width = line.rect.width() / line.text.chars().count().max(1) as f32;
        let indent = ((line.rect.x0 - left) / width.max(1.0)).round().clamp(0.0, 80.0);
        text.extend(std::iter::repeat_n(' ', indent as usize));
        text.push_str(&line.text);
    }
    text
}
