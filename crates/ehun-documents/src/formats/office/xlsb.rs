//! What the reader of XLSB leaves out, from the records of its parts: hidden rows and columns, comments, margins.
//!
//! After "[MS-XLSB]: Excel (.xlsb) Binary File Format". A record is its number (7 bits a byte, at most 2), its length (7 bits
//! a byte, at most 4) and that many bytes. Numbers are little-endian; a text is a count of UTF-16 units and these.

use super::beside::{Beside, without_codes};

const ROW: u16 = 0;
const COLUMNS: u16 = 60;
const SHEET: u16 = 156;
const MARGINS: u16 = 479;
const COMMENT: u16 = 637;

/// Number and content of each record, up to where the part breaks off.
fn records(part: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = part;
    std::iter::from_fn(move || {
        let number = varying(&mut rest, 2)?;
        let length = varying(&mut rest, 4)?;
        let (content, after) = rest.split_at_checked(length as usize)?;
        rest = after;
        Some((number as u16, content))
    })
}

fn varying(rest: &mut &[u8], most: u32) -> Option<u32> {
    let mut value = 0;
    for n in 0..most {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        value |= u32::from(byte & 0x7f) << (7 * n);
        if byte & 0x80 == 0 {
            break;
        }
    }
    Some(value)
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_le_bytes(*b))
}

/// Takes a text off the front; a count of all ones is none.
fn text(rest: &mut &[u8]) -> Option<String> {
    let count = number(rest, 0)?;
    *rest = &rest[4..];
    if count == u32::MAX {
        return Some(String::new());
    }
    let (units, after) = rest.split_at_checked(usize::try_from(count).ok()?.checked_mul(2)?)?;
    *rest = after;
    let units: Vec<u16> = units.chunks_exact(2).map(|unit| u16::from_le_bytes([unit[0], unit[1]])).collect();
    Some(String::from_utf16_lossy(&units))
}

/// The relation of each sheet, in the order of `workbook.bin`.
pub(super) fn sheets(workbook: &[u8]) -> Vec<String> {
    let sheets = records(workbook).filter(|(kind, _)| *kind == SHEET);
    // Its state and its number come before.
    sheets.map(|(_, content)| content.get(8..).and_then(|mut rest| text(&mut rest)).unwrap_or_default()).collect()
}

/// Reads a sheet's part.
pub(super) fn scan(sheet: &[u8], beside: &mut Beside) {
    for (kind, content) in records(sheet) {
        match kind {
            // A height of zero.
            ROW if content.get(11).is_some_and(|flags| flags & 0x10 != 0) => {
                beside.hidden_rows.extend(number(content, 0).map(|row| row..=row));
            }
            COLUMNS if content.get(16).is_some_and(|flags| flags & 1 != 0) => {
                if let (Some(first), Some(last)) = (number(content, 0), number(content, 4)) {
                    beside.hidden_columns.push(first..=last);
                }
            }
            MARGINS => {
                let mut rest = content.get(2..).unwrap_or_default();
                // Header and footer of odd, even and first pages.
                for is_header in [true, false, true, false, true, false] {
                    let Some(text) = text(&mut rest) else { break };
                    let margin = if is_header { &mut beside.headers } else { &mut beside.footers };
                    margin.push(without_codes(&text));
                }
            }
            _ => {}
        }
    }
    beside.headers.dedup();
    beside.footers.dedup();
    beside.hidden_rows.sort_by_key(|range| *range.start());
}

/// The comments of a part of comments.
pub(super) fn comments(part: &[u8]) -> Vec<String> {
    let comments = records(part).filter(|(kind, _)| *kind == COMMENT);
    // One byte of flags comes before, runs of fonts come after.
    comments.filter_map(|(_, content)| text(&mut content.get(1..)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u16, content: &[u8]) -> Vec<u8> {
        let mut out = match kind {
            0..0x80 => vec![kind as u8],
            _ => vec![(kind & 0x7f) as u8 | 0x80, (kind >> 7) as u8],
        };
        out.push(content.len() as u8);
        out.extend(content);
        out
    }

    fn wide(text: &str) -> Vec<u8> {
        let units: Vec<u16> = text.encode_utf16().collect();
        let mut out = (units.len() as u32).to_le_bytes().to_vec();
        units.iter().for_each(|unit| out.extend(unit.to_le_bytes()));
        out
    }

    #[test]
    fn records_of_a_sheet() {
        let row = |number: u32, flags: u8| {
            let mut content = number.to_le_bytes().to_vec();
            content.extend([0, 0, 0, 0, 44, 1, 0, flags, 0]);
            record(ROW, &content)
        };
        let mut columns = [2u32, 3, 0, 0].map(u32::to_le_bytes).concat();
        columns.extend([1, 0]);
        let margins = [&[0, 0][..], &wide("&LTop &P"), &[0xff; 4], &wide("&LTop &P")].concat();
        let part = [row(1, 0x10), row(2, 0x08), row(9, 0x1a), record(COLUMNS, &columns), record(MARGINS, &margins)];
        let mut beside = Beside::default();
        scan(&part.concat(), &mut beside);
        assert_eq!(
            [(1, 0), (2, 0), (9, 9), (2, 2), (2, 3), (2, 4)].map(|(row, column)| beside.hides(row, column)),
            [true, false, true, true, true, false]
        );
        assert_eq!(
            (beside.headers.as_slice(), beside.footers.as_slice()),
            (&["Top".to_owned()][..], &[String::new()][..])
        );
    }

    #[test]
    fn names_and_comments_whole_and_cut_anywhere() {
        let workbook = record(SHEET, &[&[0; 8][..], &wide("rId7"), &wide("Sheet")].concat());
        assert_eq!(sheets(&workbook), ["rId7"]);
        let part = record(COMMENT, &[&[1][..], &wide("Why ünder?"), &[0; 6]].concat());
        assert_eq!(comments(&part), ["Why ünder?"]);
        for end in 0..part.len() {
            assert!(comments(&part[..end]).is_empty(), "{end}");
        }
        assert!(comments(&record(COMMENT, &[1, 0xff, 0xff, 0xff, 0x7f, 65, 0])).is_empty());
    }
}
