//! What calamine does not tell of an XLS file: hidden rows and columns, comments, text boxes, headers, footers
//! ([MS-XLS] 2.4). The cells are its own.

use super::{Ole, u16_at, u32_at};
use crate::error::DocumentError;
use crate::formats::office::{Beside, without_codes};
use crate::limits::Limits;

const EOF: u16 = 0x000a;
const HEADER: u16 = 0x0014;
const FOOTER: u16 = 0x0015;
const NOTE: u16 = 0x001c;
const CONTINUE: u16 = 0x003c;
const OBJECT: u16 = 0x005d;
const COLUMN_INFO: u16 = 0x007d;
const BOUND_SHEET: u16 = 0x0085;
const TEXT_OBJECT: u16 = 0x01b6;
const ROW: u16 = 0x0208;
const BEGIN: u16 = 0x0809;

/// Of all sheets, in their order. Nothing where the file is of an older kind or cannot be read.
pub(crate) fn beside(bytes: &[u8], limits: &Limits) -> Result<Vec<Beside>, DocumentError> {
    let mut ole = Ole::open(bytes, limits)?;
    // Excel 5 and 95 (`Book`) keep their strings in another form.
    let stream = ole.stream("Workbook").unwrap_or_default();
    let sheets = Records { stream: &stream, at: 0 }.filter(|(kind, _)| *kind == BOUND_SHEET);
    Ok(sheets.map(|(_, content)| sheet(&stream, u32_at(content, 0))).collect())
}

struct Records<'s> {
    stream: &'s [u8],
    at: usize,
}

impl<'s> Iterator for Records<'s> {
    type Item = (u16, &'s [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let head = self.stream.get(self.at..self.at.checked_add(4)?)?;
        let from = self.at + 4;
        let content = self.stream.get(from..from + usize::from(u16_at(head, 2)))?;
        self.at = from + content.len();
        Some((u16_at(head, 0), content))
    }
}

fn sheet(stream: &[u8], at: usize) -> Beside {
    let mut beside = Beside::default();
    let mut depth = 0;
    // Text of an object follows it in continuations: first the letters, then how they look.
    let mut letters = 0;
    let mut object = 0;
    let mut texts: Vec<(u16, String)> = Vec::new();
    let mut noted: Vec<u16> = Vec::new();
    for (kind, content) in (Records { stream, at }) {
        match kind {
            // Charts within the sheet are streams of their own within it.
            BEGIN => depth += 1,
            EOF if depth > 1 => depth -= 1,
            EOF => break,
            ROW if u16_at(content, 12) & 0x20 != 0 => beside.hide_row(u16_at(content, 0).into()),
            COLUMN_INFO if u16_at(content, 8) & 1 != 0 => {
                beside.hidden_columns.push(u16_at(content, 0).into()..=u16_at(content, 2).into());
            }
            HEADER | FOOTER if content.len() > 3 => {
                let text = without_codes(&characters(&content[2..], u16_at(content, 0).into()));
                if kind == HEADER { &mut beside.headers } else { &mut beside.footers }.push(text);
            }
            OBJECT => object = u16_at(content, 6),
            TEXT_OBJECT => {
                letters = usize::from(u16_at(content, 10));
                texts.push((object, String::new()));
            }
            CONTINUE if letters > 0 => {
                let part = characters(content, letters);
                letters -= part.encode_utf16().count().clamp(1, letters);
                if let Some((_, text)) = texts.last_mut() {
                    text.push_str(&part);
                }
            }
            NOTE => noted.push(u16_at(content, 6)),
            _ => {}
        }
    }
    for (object, text) in texts {
        if noted.contains(&object) { &mut beside.notes } else { &mut beside.boxes }.push(text);
    }
    beside.hidden_rows.sort_by_key(|range| *range.start());
    beside
}

/// Up to `count` characters after a byte that says whether they have one byte or two.
fn characters(content: &[u8], count: usize) -> String {
    let Some((flags, bytes)) = content.split_first() else { return String::new() };
    match flags & 1 {
        // One byte is the lower half of a UTF-16 unit.
        0 => bytes.iter().take(count).map(|byte| char::from(*byte)).collect(),
        _ => super::utf16(&bytes[..bytes.len().min(2 * count)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_a_sheet() {
        let record =
            |kind: u16, content: &[u8]| [&kind.to_le_bytes(), &(content.len() as u16).to_le_bytes(), content].concat();
        let mut row = [0; 16];
        row[0] = 4;
        row[12] = 0x20;
        let mut text = [0; 18];
        text[10] = 5;
        let object = |id: u8| record(OBJECT, &[0x15, 0, 18, 0, 0, 0, id, 0]);
        let stream = [
            record(BEGIN, &[0; 8]),
            record(HEADER, b"\x06\0\0&CHead"),
            record(COLUMN_INFO, &[1, 0, 2, 0, 0, 0, 0, 0, 1, 0]),
            record(ROW, &row),
            object(1),
            record(TEXT_OBJECT, &text),
            record(CONTINUE, b"\0Boxed"),
            record(CONTINUE, b"\0formatting"),
            object(2),
            record(TEXT_OBJECT, &text),
            record(CONTINUE, b"\x01N\0o\0"),
            record(CONTINUE, b"\0ted"),
            record(NOTE, &[0, 0, 0, 0, 0, 0, 2, 0]),
            record(EOF, &[]),
            record(HEADER, b"\x04\0\0Next"),
        ]
        .concat();
        let beside = sheet(&stream, 0);
        assert_eq!(
            (beside.headers, beside.boxes, beside.notes),
            (vec!["Head".into()], vec!["Boxed".into()], vec!["Noted".into()])
        );
        assert_eq!((beside.hidden_rows, beside.hidden_columns), (vec![4..=4], vec![1..=2]));
        for cut in 0..stream.len() {
            sheet(&stream[..cut], 0);
        }
    }
}
