//! DOC (Word 97 to 2003, and 6 and 95): the text by its piece table ([MS-DOC] 2.4.1).

use super::{Ole, u16_at, u32_at, utf16, windows_1252};
use crate::builder::{CellText, DocumentBuilder, Place};
use crate::error::DocumentError;
use crate::formats::ParseOptions;
use crate::model::{BlockKind, Document, Layer};

/// Parses a DOC file. Styles are not read: headings are paragraphs.
pub(crate) fn parse(bytes: &[u8], options: &ParseOptions) -> Result<Document, DocumentError> {
    let mut ole = Ole::open(bytes, &options.limits)?;
    let main = ole.stream("WordDocument").unwrap_or_default();
    let flags = u16_at(&main, 0x0a);
    if flags & 0x0100 != 0 {
        return Err(DocumentError::Encrypted { format: "DOC".to_owned() });
    }
    let mut out = DocumentBuilder::new("application/msword", &options.limits);
    ole.properties(&mut out);
    let text = match u16_at(&main, 2) {
        // Word 6 and 95 keep the text in one piece.
        ..=104 => main.get(u32_at(&main, 0x18)..u32_at(&main, 0x1c)).map(windows_1252),
        _ => {
            let table = ole.stream(if flags & 0x0200 != 0 { "1Table" } else { "0Table" }).unwrap_or_default();
            let (at, length) = (u32_at(&main, 0x01a2), u32_at(&main, 0x01a6));
            table.get(at..at.saturating_add(length)).and_then(|clx| pieces(clx, &main))
        }
    };
    let text = text.ok_or_else(|| DocumentError::malformed("DOC", "the table of its text pieces cannot be found"))?;

    // One text holds the parts in this order; lengths count UTF-16 units.
    let units: Vec<u16> = text.encode_utf16().collect();
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
        let (part, after) = rest.split_at(length);
        rest = after;
        let place = Place::default().in_layer(layer);
        // What the lengths do not cover belongs to the body rather than to nothing.
        match n == 0 && length == 0 {
            true => push_part(&mut out, &String::from_utf16_lossy(std::mem::take(&mut rest)), &kind, place)?,
            false => push_part(&mut out, &String::from_utf16_lossy(part), &kind, place)?,
        }
    }
    out.finish()
}

/// The text of all pieces in order.
fn pieces(clx: &[u8], main: &[u8]) -> Option<String> {
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
    let mut text = String::new();
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
        text.push_str(&if compressed { windows_1252(piece) } else { utf16(piece) });
    }
    Some(text)
}

/// Paragraphs and tables of one part.
fn push_part(out: &mut DocumentBuilder, text: &str, kind: &BlockKind, place: Place) -> Result<(), DocumentError> {
    let mut line = String::new();
    let mut cells: Vec<CellText> = Vec::new();
    let mut rows: Vec<Vec<CellText>> = Vec::new();
    // Instructions of fields that are open, each until its result begins.
    let mut instructions = 0usize;
    let mut fields: Vec<bool> = Vec::new();
    for c in text.chars() {
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
            '\u{7}' if line.trim().is_empty() && !cells.is_empty() => rows.push(std::mem::take(&mut cells)),
            '\u{7}' => cells.push(std::mem::take(&mut line).into()),
            '\r' | '\u{c}' if !cells.is_empty() => line.push(' '),
            '\r' | '\u{c}' => {
                if !rows.is_empty() && !line.trim().is_empty() {
                    push_rows(out, std::mem::take(&mut rows), place)?;
                }
                out.push_at(kind.clone(), &std::mem::take(&mut line), place)?;
            }
            '\u{b}' => line.push('\n'),
            '\u{1e}' => line.push('\u{2011}'),
            // Anchors of pictures, notes and drawings; optional hyphens.
            '\u{1}' | '\u{2}' | '\u{5}' | '\u{8}' | '\u{1f}' => {}
            c => line.push(c),
        }
    }
    if !cells.is_empty() {
        rows.push(cells);
    }
    push_rows(out, rows, place)?;
    out.push_at(kind.clone(), &line, place)?;
    Ok(())
}

fn push_rows(out: &mut DocumentBuilder, rows: Vec<Vec<CellText>>, place: Place) -> Result<(), DocumentError> {
    let header_rows = usize::from(rows.len() > 1);
    out.push_table(rows, header_rows, place)?;
    Ok(())
}
