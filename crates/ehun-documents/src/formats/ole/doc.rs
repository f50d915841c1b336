//! DOC (Word 97 to 2003, and 6 and 95): the text by its piece table ([MS-DOC] 2.4.1), with headings, lists, hidden and
//! deleted text by its properties.

use super::doc_format::{Formatting, Paragraph};
use super::{Ole, u16_at, u32_at};
use crate::builder::{CellText, DocumentBuilder, Place};
use crate::error::DocumentError;
use crate::formats::ParseOptions;
use crate::model::{BlockKind, Document, HiddenReason, Layer};

/// A character and the byte of the stream where it stands, by which its properties are found.
type Sign = (char, usize);

/// Parses a DOC file.
pub(crate) fn parse(bytes: &[u8], options: &ParseOptions) -> Result<Document, DocumentError> {
    let mut ole = Ole::open(bytes, &options.limits)?;
    let main = ole.stream("WordDocument").unwrap_or_default();
    let flags = u16_at(&main, 0x0a);
    if flags & 0x0100 != 0 {
        return Err(DocumentError::Encrypted { format: "DOC".to_owned() });
    }
    let mut out = DocumentBuilder::new("application/msword", &options.limits);
    ole.properties(&mut out);
    let mut formatting = Formatting::default();
    let units = match u16_at(&main, 2) {
        // Word 6 and 95 keep the text in one piece, and their properties in another form.
        ..=104 => {
            let (from, to) = (u32_at(&main, 0x18), u32_at(&main, 0x1c));
            main.get(from..to).map(|text| single_bytes(text, from).collect())
        }
        _ => {
            let table = ole.stream(if flags & 0x0200 != 0 { "1Table" } else { "0Table" }).unwrap_or_default();
            formatting = Formatting::read(&main, &table);
            let (at, length) = (u32_at(&main, 0x01a2), u32_at(&main, 0x01a6));
            table.get(at..at.saturating_add(length)).and_then(|clx| pieces(clx, &main))
        }
    };
    let units: Vec<(u16, usize)> =
        units.ok_or_else(|| DocumentError::malformed("DOC", "the table of its text pieces cannot be found"))?;

    // One text holds the parts in this order; lengths count UTF-16 units.
    let mut rest = units.as_slice();
    let parts = [
        (0x4c, BlockKind::Paragraph, Layer::Body),
        (0x50, BlockKind::Footnote, Layer::Unplaced),
        (0x54, BlockKind::PageHeader, Layer::Body),
        (0x58, BlockKind::Paragraph, Layer::Unplaced),
        (0x5c, BlockKind::Footnote, Layer::Unplaced),
        (0x60, BlockKind::Footnote, Layer::Unplaced),
        (0x64, BlockKind::Paragraph, Layer::Unplaced),
        (0x68, BlockKind::PageHeader, Layer::Unplaced),
    ];
    for (n, (field, kind, layer)) in parts.into_iter().enumerate() {
        let length = u32_at(&main, field).min(rest.len());
        // What the lengths do not cover belongs to the body rather than to nothing.
        let length = if n == 0 && length == 0 { rest.len() } else { length };
        let (part, after) = rest.split_at(length);
        rest = after;
        let writer = Writer {
            out: &mut out,
            formatting: &formatting,
            // Styles tell of the body alone: a note in the style of a heading is a note.
            plain: kind,
            styled: n == 0,
            place: Place::default().in_layer(layer),
            line: Line::default(),
            cells: Vec::new(),
            rows: Vec::new(),
        };
        writer.part(&signs(part))?;
    }
    out.finish()
}

fn single_bytes(bytes: &[u8], at: usize) -> impl Iterator<Item = (u16, usize)> {
    // Windows-1252 knows one UTF-16 unit for each byte.
    let text = encoding_rs::WINDOWS_1252.decode_without_bom_handling(bytes).0.into_owned();
    let units: Vec<u16> = text.encode_utf16().collect();
    units.into_iter().enumerate().map(move |(n, unit)| (unit, at + n))
}

fn signs(units: &[(u16, usize)]) -> Vec<Sign> {
    let mut at = 0;
    char::decode_utf16(units.iter().map(|(unit, _)| *unit))
        .map(|c| {
            let place = units[at].1;
            at += c.as_ref().map_or(1, |c| c.len_utf16());
            (c.unwrap_or(char::REPLACEMENT_CHARACTER), place)
        })
        .collect()
}

/// UTF-16 units of all pieces in order, each with its byte in the stream.
fn pieces(clx: &[u8], main: &[u8]) -> Option<Vec<(u16, usize)>> {
    let mut at = 0;
    // Property lists stand before the table.
    while clx.get(at) == Some(&1) {
        at += 3 + usize::from(u16_at(clx, at + 1));
    }
    if clx.get(at) != Some(&2) {
        return None;
    }
    let length = u32_at(clx, at + 1);
    let table = clx.get(at + 5..)?;
    let table = &table[..length.min(table.len())];
    let count = table.len().checked_sub(4)? / 12;
    let mut units = Vec::new();
    for n in 0..count {
        let chars = u32_at(table, n * 4 + 4).checked_sub(u32_at(table, n * 4))?;
        let position = u32_at(table, (count + 1) * 4 + n * 8 + 2);
        let compressed = position & 0x4000_0000 != 0;
        let (start, bytes) = match compressed {
            true => ((position & 0x3fff_ffff) / 2, chars),
            false => (position & 0x3fff_ffff, chars.saturating_mul(2)),
        };
        let start = start.min(main.len());
        let piece = &main[start..start.saturating_add(bytes).min(main.len())];
        // Overlapping pieces of a hostile file would multiply its text.
        if units.len() + piece.len() > 4 * main.len() {
            return None;
        }
        match compressed {
            true => units.extend(single_bytes(piece, start)),
            false => units.extend((0..piece.len() / 2).map(|n| (u16_at(piece, 2 * n), start + 2 * n))),
        }
    }
    Some(units)
}

/// A paragraph's text by visibility.
#[derive(Debug, Default)]
struct Line {
    visible: String,
    hidden: String,
    deleted: String,
}

/// Writes paragraphs and tables of one part.
struct Writer<'w> {
    out: &'w mut DocumentBuilder,
    formatting: &'w Formatting,
    plain: BlockKind,
    styled: bool,
    place: Place,
    line: Line,
    cells: Vec<CellText>,
    rows: Vec<Vec<CellText>>,
}

impl Writer<'_> {
    fn part(mut self, signs: &[Sign]) -> Result<(), DocumentError> {
        // Instructions of fields that are open, each until its result begins.
        let mut instructions = 0usize;
        let mut fields: Vec<bool> = Vec::new();
        for &(c, at) in signs {
            match c {
                '\u{13}' => {
                    fields.push(true);
                    instructions += 1;
                }
                '\u{14}' | '\u{15}' => {
                    if let Some(open) = fields.last_mut() {
                        instructions -= usize::from(*open);
                        *open = false;
                    }
                    if c == '\u{15}' {
                        fields.pop();
                    }
                }
                _ if instructions > 0 => {}
                // The mark that ends a row follows the mark of its last cell at once.
                '\u{7}' if self.line.visible.trim().is_empty() && !self.cells.is_empty() => {
                    self.rows.push(std::mem::take(&mut self.cells));
                }
                '\u{7}' => self.cells.push(std::mem::take(&mut self.line.visible).into()),
                '\r' | '\u{c}' if !self.cells.is_empty() => self.line.visible.push(' '),
                '\r' | '\u{c}' => self.paragraph(self.formatting.paragraph(at))?,
                // Anchors of pictures, notes and drawings; optional hyphens.
                '\u{1}' | '\u{2}' | '\u{5}' | '\u{8}' | '\u{1f}' => {}
                c => {
                    let c = match c {
                        '\u{b}' => '\n',
                        '\u{1e}' => '\u{2011}',
                        c => c,
                    };
                    let text = match self.formatting.unseen(at) {
                        None => &mut self.line.visible,
                        Some(HiddenReason::Deleted) => &mut self.line.deleted,
                        Some(_) => &mut self.line.hidden,
                    };
                    text.push(c);
                }
            }
        }
        if !self.cells.is_empty() {
            self.rows.push(std::mem::take(&mut self.cells));
        }
        self.paragraph(Paragraph::default())?;
        self.table()
    }

    fn paragraph(&mut self, properties: Paragraph) -> Result<(), DocumentError> {
        if !self.line.visible.trim().is_empty() {
            self.table()?;
        }
        let kind = match properties {
            _ if !self.styled => self.plain.clone(),
            Paragraph { title: true, .. } => BlockKind::Title,
            Paragraph { level: Some(level), .. } => BlockKind::Heading { level },
            Paragraph { caption: true, .. } => BlockKind::Caption,
            Paragraph { item: Some(depth), .. } => BlockKind::ListItem { depth },
            _ => self.plain.clone(),
        };
        let Line { visible, hidden, deleted } = std::mem::take(&mut self.line);
        self.out.push_at(kind, &visible, self.place)?;
        for (text, reason) in [(hidden, HiddenReason::Marked), (deleted, HiddenReason::Deleted)] {
            self.out.push_at(BlockKind::Paragraph, &text, self.place.in_layer(Layer::Hidden(reason)))?;
        }
        Ok(())
    }

    fn table(&mut self) -> Result<(), DocumentError> {
        let rows = std::mem::take(&mut self.rows);
        let header_rows = usize::from(rows.len() > 1);
        self.out.push_table(rows, header_rows, self.place)?;
        Ok(())
    }
}
