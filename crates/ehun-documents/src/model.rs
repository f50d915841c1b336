//! The document model: one text, blocks over it, and what is known about where they came from.
//!
//! Invariants, kept by [`DocumentBuilder`](crate::DocumentBuilder) and checked again by [`Document::check`] when a
//! document arrives from a worker process:
//!
//! - a block's range lies in the text, on character boundaries, and is not empty;
//! - blocks are ordered by range and do not overlap;
//! - text outside all blocks is whitespace;
//! - rows lie in their table's range and cells in their row's, ordered and without overlap;
//! - `heading` points to an earlier block that is a title or a heading.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// One parsed document.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// All text, also what is hidden or boilerplate. Blocks are ranges of it.
    pub text: String,
    /// In reading order, which is the order of their ranges.
    pub blocks: Vec<Block>,
    /// What the file says about itself.
    pub metadata: Metadata,
    /// Attachments and archive members, each a document of its own, not parsed yet.
    pub children: Vec<Child>,
    /// One entry per page, for formats that have pages.
    pub pages: Vec<PageInfo>,
    /// What was odd but did not stop the parser.
    pub warnings: Vec<String>,
}

/// A contiguous part of the text that is one thing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// What it is.
    pub kind: BlockKind,
    /// Whether a reader would see it as part of the content.
    pub layer: Layer,
    /// Byte range in [`Document::text`], on character boundaries.
    pub range: Range<usize>,
    /// 1-based page (or slide, or sheet), where the format has such.
    pub page: Option<u32>,
    /// Bounding box on that page.
    pub bbox: Option<BBox>,
    /// Index in [`Document::blocks`] of the innermost heading that this block stands under. For a heading: the one
    /// above it. See [`Document::heading_path`].
    pub heading: Option<u32>,
}

/// What a block is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum BlockKind {
    /// The document's title, standing above all headings.
    Title,
    /// A heading; 1 is the outermost level.
    Heading {
        /// 1 to 9.
        level: u8,
    },
    /// Running text.
    Paragraph,
    /// One item of a list, without those nested in it.
    ListItem {
        /// 0 for the outermost list.
        depth: u8,
    },
    /// Rows of cells: cells are separated by a tab, rows by a newline.
    Table(Table),
    /// Verbatim text; whitespace counts.
    Code,
    /// The caption of a figure or table.
    Caption,
    /// A footnote, endnote or comment.
    Footnote,
    /// A running header.
    PageHeader,
    /// A running footer, a page number.
    PageFooter,
}

/// How a block relates to the visible content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Layer {
    /// Content, placed in reading order.
    Body,
    /// Content whose place in the reading order is not known; it stands at the end.
    Unplaced,
    /// Text that a reader does not see.
    Hidden(HiddenReason),
    /// Visible, but not what the document is about.
    Boilerplate(Boilerplate),
}

/// Why a reader does not see a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HiddenReason {
    /// PDF text render mode 3 (neither fill nor stroke) or 7.
    RenderMode,
    /// The text has the colour of what is behind it.
    SameColour,
    /// Outside the page or the clipping area.
    OffPage,
    /// A font size of zero or next to it.
    ZeroSize,
    /// Covered by an opaque object.
    Covered,
    /// In an optional layer or sheet that is switched off.
    LayerOff,
    /// Marked as hidden by the format (hidden run, `hidden` attribute, `display:none`, hidden sheet or slide).
    Marked,
    /// Deleted in a tracked change.
    Deleted,
}

/// Why a text counts as boilerplate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Boilerplate {
    /// Navigation, menus, breadcrumbs.
    Navigation,
    /// Site header.
    Header,
    /// Site footer.
    Footer,
    /// Side column, related links.
    Aside,
    /// Forms, buttons, cookie notices, advertisements, sharing.
    Widget,
    /// Outside the part that was recognised as the main content.
    OutsideMain,
    /// Earlier messages quoted in a reply, signatures.
    Quoted,
}

/// A table's rows, as ranges of the document's text.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// How many of the first rows are the header.
    pub header_rows: u32,
    /// From top to bottom.
    pub rows: Vec<Row>,
}

/// One row of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Byte range in the document's text; may be empty.
    pub range: Range<usize>,
    /// From left to right in logical order.
    pub cells: Vec<Cell>,
}

/// One cell of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Byte range in the document's text; may be empty.
    pub range: Range<usize>,
    /// Rows that it covers, at least 1.
    pub row_span: u32,
    /// Columns that it covers, at least 1.
    pub col_span: u32,
}

/// A rectangle on a page in points (1/72 inch); the origin is the top left corner of the page as it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BBox {
    /// Left.
    pub x0: f32,
    /// Top.
    pub y0: f32,
    /// Right, `>= x0`.
    pub x1: f32,
    /// Bottom, `>= y0`.
    pub y1: f32,
}

impl BBox {
    /// The smallest box that holds both.
    pub fn union(self, other: BBox) -> BBox {
        BBox {
            x0: self.x0.min(other.x0),
            y0: self.y0.min(other.y0),
            x1: self.x1.max(other.x1),
            y1: self.y1.max(other.y1),
        }
    }
}

/// What a file says about itself. Dates are RFC 3339 where the file's own could be read, else as they stand there.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Metadata {
    /// Title.
    pub title: Option<String>,
    /// Authors or sender.
    pub authors: Vec<String>,
    /// Subject or description.
    pub subject: Option<String>,
    /// Keywords.
    pub keywords: Vec<String>,
    /// When it was made or sent.
    pub created: Option<String>,
    /// When it was last changed.
    pub modified: Option<String>,
    /// Language tag (BCP 47 or ISO 639): declared by the file, else detected from the text.
    pub language: Option<String>,
    /// MIME type, from the bytes.
    pub media_type: String,
    /// Character encoding that the bytes were read with, for text formats.
    pub encoding: Option<String>,
    /// blake3 of the bytes, hexadecimal.
    pub hash: String,
    /// Size of the input.
    pub bytes: u64,
    /// Everything else worth keeping (recipients, generator, ...).
    pub extra: BTreeMap<String, String>,
}

/// An attachment or archive member: parse it as a document of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Child {
    /// Name as the parent gives it, with its folder within an archive; not safe as a path.
    pub name: String,
    /// MIME type as the parent gives it, if it does.
    pub media_type: Option<String>,
    /// Its bytes.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

/// One page, slide or sheet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PageInfo {
    /// 1-based.
    pub number: u32,
    /// Width as shown, points; 0 where there is none.
    pub width: f32,
    /// Height as shown, points; 0 where there is none.
    pub height: f32,
    /// What came of it.
    pub status: PageStatus,
}

/// What came of a page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PageStatus {
    /// It has text.
    Text,
    /// Nothing on it.
    Empty,
    /// Pictures and no text to speak of: OCR is needed.
    NeedsOcr,
    /// Parsing it failed; the other pages stand.
    Failed {
        /// Why.
        reason: String,
    },
    /// Its text comes from an OCR part.
    Recognised {
        /// Name and version of that.
        by: String,
    },
}

impl Block {
    /// True for what a reader sees as content: body or unplaced, and no running header or footer.
    pub fn is_content(&self) -> bool {
        matches!(self.layer, Layer::Body | Layer::Unplaced)
            && !matches!(self.kind, BlockKind::PageHeader | BlockKind::PageFooter)
    }
}

impl Document {
    /// The text of a block.
    pub fn block_text(&self, block: &Block) -> &str {
        &self.text[block.range.clone()]
    }

    /// Texts of the headings above a block, outermost first.
    pub fn heading_path(&self, block: &Block) -> Vec<&str> {
        let mut path = Vec::new();
        let mut next = block.heading;
        while let Some(heading) = next.and_then(|i| self.blocks.get(i as usize)) {
            path.push(self.block_text(heading));
            next = heading.heading;
        }
        path.reverse();
        path
    }

    /// True if no block is content.
    pub fn has_no_content(&self) -> bool {
        !self.blocks.iter().any(Block::is_content)
    }

    /// Checks the invariants of the module's text. A document made by a builder always passes; one that came through
    /// a pipe is checked before anything indexes with its ranges.
    pub fn check(&self) -> Result<(), String> {
        let mut end = 0;
        for (i, block) in self.blocks.iter().enumerate() {
            let Range { start, end: stop } = block.range.clone();
            if start >= stop || start < end || self.text.get(start..stop).is_none() {
                return Err(format!("block {i}: bad range {start}..{stop}"));
            }
            if !self.text[end..start].trim().is_empty() {
                return Err(format!("text before block {i} belongs to no block"));
            }
            end = stop;
            if let Some(h) = block.heading {
                let target = self.blocks.get(h as usize).filter(|_| (h as usize) < i);
                let is_heading = |b: &Block| matches!(b.kind, BlockKind::Title | BlockKind::Heading { .. });
                if !target.is_some_and(is_heading) {
                    return Err(format!("block {i}: {h} is no heading before it"));
                }
            }
            if let BlockKind::Table(table) = &block.kind {
                self.check_table(table, &block.range).map_err(|e| format!("block {i}: {e}"))?;
            }
        }
        match self.text[end..].trim().is_empty() {
            true => Ok(()),
            false => Err("text after the last block belongs to no block".to_owned()),
        }
    }

    fn check_table(&self, table: &Table, within: &Range<usize>) -> Result<(), String> {
        let inside = |r: &Range<usize>, at: usize, end: usize| {
            r.start >= at && r.start <= r.end && r.end <= end && self.text.get(r.clone()).is_some()
        };
        let mut at = within.start;
        for (n, row) in table.rows.iter().enumerate() {
            if !inside(&row.range, at, within.end) {
                return Err(format!("row {n}: bad range {:?}", row.range));
            }
            at = row.range.end;
            let mut cell_at = row.range.start;
            for (m, cell) in row.cells.iter().enumerate() {
                if !inside(&cell.range, cell_at, row.range.end) {
                    return Err(format!("row {n}, cell {m}: bad range {:?}", cell.range));
                }
                cell_at = cell.range.end;
            }
        }
        if table.header_rows as usize > table.rows.len() {
            return Err("more header rows than rows".to_owned());
        }
        Ok(())
    }
}

/// Turns byte offsets of a text into character offsets (Unicode scalar values, what Python's `len` counts).
///
/// Holds one number per 1,024 bytes; a look-up counts at most that many.
#[derive(Debug)]
pub struct CharIndex<'a> {
    text: &'a str,
    /// Characters before byte `i * STEP`; empty if all is ASCII.
    before: Vec<usize>,
}

const STEP: usize = 1024;

impl<'a> CharIndex<'a> {
    /// Indexes a text in one pass.
    pub fn new(text: &'a str) -> Self {
        let mut before = Vec::new();
        if !text.is_ascii() {
            let mut chars = 0;
            for piece in text.as_bytes().chunks(STEP) {
                before.push(chars);
                chars += count_starts(piece);
            }
            before.push(chars);
        }
        CharIndex { text, before }
    }

    /// Characters before byte `offset`; past the end counts as the end.
    pub fn chars_before(&self, offset: usize) -> usize {
        let offset = offset.min(self.text.len());
        match self.before.get(offset / STEP) {
            None => offset,
            Some(chars) => {
                let from = offset - offset % STEP;
                chars + count_starts(&self.text.as_bytes()[from..offset])
            }
        }
    }

    /// A byte range as a character range.
    pub fn range(&self, bytes: &Range<usize>) -> Range<usize> {
        self.chars_before(bytes.start)..self.chars_before(bytes.end)
    }
}

/// Bytes that begin a character.
fn count_starts(bytes: &[u8]) -> usize {
    bytes.iter().filter(|b| (**b as i8) >= -0x40).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn char_index_agrees_with_counting() {
        for text in ["", "plain", &"ab".repeat(2000), &"aé漢🙂".repeat(900)] {
            let index = CharIndex::new(text);
            let offsets = text.char_indices().map(|(i, _)| i).chain([text.len()]);
            for (chars, offset) in offsets.enumerate() {
                assert_eq!(index.chars_before(offset), chars);
            }
        }
    }
}
