//! The information dictionary and the catalog.

use hayro_syntax::Pdf;
use hayro_syntax::object::{DateTime, Dict, String as PdfString};

use crate::Metadata;

/// Reads what the file says about itself.
pub(super) fn read(pdf: &Pdf, metadata: &mut Metadata) {
    let info = pdf.metadata();
    let text = |bytes: &Option<Box<[u8]>>| {
        let text = bytes.as_deref().map(text_string).map(|text| text.trim().to_owned());
        text.filter(|text| !text.is_empty())
    };
    metadata.title = text(&info.title);
    metadata.authors = text(&info.author).into_iter().collect();
    metadata.subject = text(&info.subject);
    let keywords = text(&info.keywords).unwrap_or_default();
    metadata.keywords =
        keywords.split([',', ';']).map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect();
    metadata.created = info.creation_date.as_ref().map(rfc3339);
    metadata.modified = info.modification_date.as_ref().map(rfc3339);
    for (key, value) in [("creator", text(&info.creator)), ("producer", text(&info.producer))] {
        if let Some(value) = value {
            metadata.extra.insert(key.to_owned(), value);
        }
    }
    metadata.extra.insert("pages".to_owned(), pdf.pages().len().to_string());
    let xref = pdf.xref();
    let language = xref
        .get::<Dict<'_>>(xref.root_id())
        .and_then(|catalog| catalog.get::<PdfString<'_>>("Lang"))
        .map(|language| text_string(language.as_bytes()).trim().to_owned());
    metadata.language = language.filter(|language| !language.is_empty());
}

fn rfc3339(date: &DateTime) -> String {
    let DateTime { year, month, day, hour, minute, second, utc_offset_hour, utc_offset_minute } = *date;
    let zone = match (utc_offset_hour, utc_offset_minute) {
        (0, 0) => "Z".to_owned(),
        (hours, minutes) => format!("{hours:+03}:{minutes:02}"),
    };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{zone}")
}

/// PDFDocEncoding from 0x18 to 0x1f and from 0x80 to 0xa0 (ISO 32000-1, D.2).
const LOW: [char; 8] = ['˘', 'ˇ', 'ˆ', '˙', '˝', '˛', '˚', '˜'];
const HIGH: [char; 33] = [
    '•', '†', '‡', '…', '—', '–', 'ƒ', '⁄', '‹', '›', '−', '‰', '„', '“', '”', '‘', '’', '‚', '™', 'ﬁ', 'ﬂ', 'Ł', 'Œ',
    'Š', 'Ÿ', 'Ž', 'ı', 'ł', 'œ', 'š', 'ž', '\u{fffd}', '€',
];

/// A text string: UTF-16 or UTF-8 with a mark, else PDFDocEncoding.
pub(super) fn text_string(bytes: &[u8]) -> String {
    let utf16 = |bytes: &[u8], read: fn([u8; 2]) -> u16| {
        let units: Vec<u16> = bytes.as_chunks::<2>().0.iter().map(|pair| read(*pair)).collect();
        let text = String::from_utf16_lossy(&units);
        without_language_marks(&text)
    };
    match bytes {
        [0xfe, 0xff, rest @ ..] => utf16(rest, u16::from_be_bytes),
        [0xff, 0xfe, rest @ ..] => utf16(rest, u16::from_le_bytes),
        [0xef, 0xbb, 0xbf, rest @ ..] => String::from_utf8_lossy(rest).into_owned(),
        // Out of the standard, but common: UTF-8 without a mark.
        _ if !bytes.is_ascii() && std::str::from_utf8(bytes).is_ok() => String::from_utf8_lossy(bytes).into_owned(),
        _ => bytes
            .iter()
            .map(|byte| match byte {
                0x18..=0x1f => LOW[usize::from(byte - 0x18)],
                0x80..=0xa0 => HIGH[usize::from(byte - 0x80)],
                _ => char::from(*byte),
            })
            .collect(),
    }
}

/// UTF-16 strings may name their language between two escape characters.
fn without_language_marks(text: &str) -> String {
    text.split('\u{1b}').enumerate().filter(|(n, _)| n % 2 == 0).map(|(_, part)| part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_strings() {
        let cases: [(&[u8], &str); 5] = [
            (b"plain", "plain"),
            (b"\xfe\xff\x00H\x05\xd0", "Hא"),
            (b"\xef\xbb\xbf\xc3\xa9", "é"),
            (b"caf\xe9 \x84 \x93", "café — \u{fb01}"),
            (b"\xfe\xff\x00\x1b\x00e\x00n\x00\x1b\x00A", "A"),
        ];
        for (bytes, expected) in cases {
            assert_eq!(text_string(bytes), expected);
        }
    }

    #[test]
    fn dates() {
        let date = DateTime {
            year: 2026,
            month: 2,
            day: 3,
            hour: 4,
            minute: 5,
            second: 6,
            utc_offset_hour: -3,
            utc_offset_minute: 30,
        };
        assert_eq!(rfc3339(&date), "2026-02-03T04:05:06-03:30");
    }
}
