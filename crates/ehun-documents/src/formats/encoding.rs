//! Bytes to text, whatever their encoding.

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE};

/// A text and what its bytes were read as.
#[derive(Debug)]
pub(crate) struct Decoded {
    pub text: String,
    /// Name in the WHATWG encoding standard, or `UTF-32LE`/`UTF-32BE`.
    pub encoding: &'static str,
    /// Bytes that the encoding does not know were replaced by U+FFFD.
    pub lossy: bool,
}

/// Decodes with, in this order: a byte order mark; UTF-8 if the bytes are valid; the declared encoding; UTF-16 without a
/// mark if zeros stand in every other byte; UTF-8 with damage if most sequences are sound; what a detector makes of
/// the whole file.
pub(crate) fn decode(bytes: &[u8], declared: Option<&str>) -> Decoded {
    if let Some(decoded) = by_mark(bytes) {
        return decoded;
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        // ISO-2022-JP and HZ are made of ASCII bytes only; a declaration decides.
        match declared.and_then(|label| Encoding::for_label(label.as_bytes())) {
            Some(encoding) if !encoding.is_ascii_compatible() && encoding != UTF_16LE && encoding != UTF_16BE => {
                return with(encoding, bytes);
            }
            _ => {}
        }
        if !looks_like_iso_2022_jp(bytes) && utf16_without_mark(bytes).is_none() {
            return Decoded { text: text.to_owned(), encoding: UTF_8.name(), lossy: false };
        }
    }
    if let Some(encoding) = utf16_without_mark(bytes) {
        return with(encoding, bytes);
    }
    if let Some(encoding) = declared.and_then(|label| Encoding::for_label(label.as_bytes())) {
        let decoded = with(encoding, bytes);
        if !decoded.lossy {
            return decoded;
        }
    }
    if mostly_utf8(bytes) {
        return with(UTF_8, bytes);
    }
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Allow);
    detector.feed(bytes, true);
    with(detector.guess(None, Utf8Detection::Allow), bytes)
}

fn with(encoding: &'static Encoding, bytes: &[u8]) -> Decoded {
    let (text, lossy) = encoding.decode_without_bom_handling(bytes);
    Decoded { text: text.into_owned(), encoding: encoding.name(), lossy }
}

fn by_mark(bytes: &[u8]) -> Option<Decoded> {
    // FF FE 00 00 begins UTF-32LE and also UTF-16LE with a NUL; no text begins with a NUL.
    let utf32 = match bytes {
        [0xff, 0xfe, 0, 0, rest @ ..] => Some((rest, "UTF-32LE", true)),
        [0, 0, 0xfe, 0xff, rest @ ..] => Some((rest, "UTF-32BE", false)),
        _ => None,
    };
    if let Some((rest, encoding, little)) = utf32 {
        let mut lossy = rest.len() % 4 != 0;
        let text = rest
            .chunks_exact(4)
            .map(|c| {
                let quad = [c[0], c[1], c[2], c[3]];
                let code = if little { u32::from_le_bytes(quad) } else { u32::from_be_bytes(quad) };
                char::from_u32(code).unwrap_or_else(|| {
                    lossy = true;
                    char::REPLACEMENT_CHARACTER
                })
            })
            .collect();
        return Some(Decoded { text, encoding, lossy });
    }
    let (encoding, skip) = Encoding::for_bom(bytes)?;
    Some(with(encoding, &bytes[skip..]))
}

/// UTF-16 of a mostly Latin text has a zero in every other byte and hardly any in the others.
fn utf16_without_mark(bytes: &[u8]) -> Option<&'static Encoding> {
    let head = &bytes[..bytes.len().min(1 << 16) & !1];
    if head.len() < 8 {
        return None;
    }
    let zeros = |from: usize| head.iter().skip(from).step_by(2).filter(|b| **b == 0).count();
    let (even, odd) = (zeros(0), zeros(1));
    let half = head.len() / 2;
    if odd * 10 > half * 4 && even * 20 < half {
        Some(UTF_16LE)
    } else if even * 10 > half * 4 && odd * 20 < half {
        Some(UTF_16BE)
    } else {
        None
    }
}

fn looks_like_iso_2022_jp(bytes: &[u8]) -> bool {
    bytes.windows(3).any(|w| matches!(w, [0x1b, b'$', b'B' | b'@']))
}

/// Ten sound multi-byte sequences for each broken one: a damaged UTF-8 file rather than another encoding.
fn mostly_utf8(bytes: &[u8]) -> bool {
    let (mut sound, mut broken) = (0usize, 0usize);
    for chunk in bytes.utf8_chunks() {
        sound += chunk.valid().chars().filter(|c| !c.is_ascii()).count();
        broken += usize::from(!chunk.invalid().is_empty());
    }
    sound > 0 && sound >= broken * 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings() {
        let utf16le: Vec<u8> = "Plain words".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let utf16be_mark: Vec<u8> = "\u{feff}漢字".encode_utf16().flat_map(u16::to_be_bytes).collect();
        let utf32: Vec<u8> = "\u{feff}aé".chars().flat_map(|c| (c as u32).to_le_bytes()).collect();
        let damaged = ["äöü".repeat(10).as_bytes(), b"\xff", "ß".as_bytes()].concat();
        let russian = encoding_rs::WINDOWS_1251.encode("Съешь ещё этих мягких французских булок").0.into_owned();
        let japanese = encoding_rs::SHIFT_JIS.encode("これは日本語の文章です。").0.into_owned();
        let iso2022 = encoding_rs::ISO_2022_JP.encode("これは日本語の文章です。").0.into_owned();
        let cases: [(&[u8], &str, &str); 10] = [
            (b"", "UTF-8", ""),
            ("é".as_bytes(), "UTF-8", "é"),
            (b"\xef\xbb\xbfmark", "UTF-8", "mark"),
            (&utf16le, "UTF-16LE", "Plain words"),
            (&utf16be_mark, "UTF-16BE", "漢字"),
            (&utf32, "UTF-32LE", "aé"),
            (&damaged, "UTF-8", &format!("{}\u{fffd}ß", "äöü".repeat(10))),
            (&russian, "windows-1251", "Съешь ещё этих мягких французских булок"),
            (&japanese, "Shift_JIS", "これは日本語の文章です。"),
            (&iso2022, "ISO-2022-JP", "これは日本語の文章です。"),
        ];
        for (bytes, encoding, text) in cases {
            let decoded = decode(bytes, None);
            assert_eq!((decoded.encoding, decoded.text.as_str()), (encoding, text));
        }
    }

    #[test]
    fn a_declaration_decides_what_bytes_do_not() {
        assert_eq!(decode(b"caf\xe9", Some("iso-8859-1")).text, "café");
        assert_eq!(decode("café".as_bytes(), Some("iso-8859-1")).text, "café");
    }
}
