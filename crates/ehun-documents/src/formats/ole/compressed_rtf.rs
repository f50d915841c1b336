//! Compressed RTF, the form of a message's body in Outlook ([MS-OXRTFCP]): LZ77 over a window of 4,096 bytes that begins
//! with frequent words of RTF.

use super::u32_at;

const COMPRESSED: usize = 0x7546_5a4c;
const STORED: usize = 0x414c_454d;
const WINDOW: usize = 4096;

/// What the window holds in the beginning.
const WORDS: &[u8] = b"{\\rtf1\\ansi\\mac\\deff0\\deftab720{\\fonttbl;}{\\f0\\fnil \\froman \\fswiss \\fmodern \\fscript \\fdecor MS Sans SerifSymbolArialTimes New RomanCourier{\\colortbl\\red0\\green0\\blue0\r\n\\par \\pard\\plain\\f0\\fs20\\b\\i\\u\\tab\\tx";

/// Unpacks a body; at most `limit` bytes. What is wrong continues a sentence about it.
pub(super) fn unpack(packed: &[u8], limit: u64) -> Result<Vec<u8>, String> {
    let content = packed.get(16..).ok_or("is cut short")?;
    // The head counts from behind its first number.
    let content = &content[..u32_at(packed, 0).saturating_sub(12).min(content.len())];
    let size = u32_at(packed, 4);
    if size as u64 > limit {
        return Err(format!("says that it is {size} bytes long, more than the limit of {limit}"));
    }
    match u32_at(packed, 8) {
        STORED => Ok(content[..size.min(content.len())].to_vec()),
        COMPRESSED => Ok(decompress(content, size)),
        other => Err(format!("is in an unknown form ({other:#010x})")),
    }
}

/// Up to `size` bytes; what a damaged end leaves is kept.
fn decompress(content: &[u8], size: usize) -> Vec<u8> {
    let mut window = [b' '; WINDOW];
    window[..WORDS.len()].copy_from_slice(WORDS);
    let mut at = WORDS.len();
    let mut out = Vec::new();
    let mut bytes = content.iter().copied();
    let mut put = |byte: u8, window: &mut [u8; WINDOW], out: &mut Vec<u8>| {
        window[at] = byte;
        at = (at + 1) % WINDOW;
        out.push(byte);
        at
    };
    while let Some(flags) = bytes.next() {
        for bit in 0..8 {
            let Some(first) = bytes.next() else { return out };
            if flags & (1 << bit) == 0 {
                put(first, &mut window, &mut out);
            } else {
                let Some(second) = bytes.next() else { return out };
                let reference = usize::from(first) << 8 | usize::from(second);
                let (from, length) = (reference >> 4, (reference & 0xf) + 2);
                // A reference to the place of writing is the end.
                if from == (WORDS.len() + out.len()) % WINDOW {
                    return out;
                }
                for n in 0..length {
                    let byte = window[(from + n) % WINDOW];
                    put(byte, &mut window, &mut out);
                }
            }
            if out.len() >= size {
                out.truncate(size);
                return out;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of [MS-OXRTFCP] 4.1.
    #[test]
    fn examples_of_the_specification() {
        let simple = [
            0x2d, 0x00, 0x00, 0x00, 0x2b, 0x00, 0x00, 0x00, 0x4c, 0x5a, 0x46, 0x75, 0xf1, 0xc5, 0xc7, 0xa7, 0x03, 0x00,
            0x0a, 0x00, 0x72, 0x63, 0x70, 0x67, 0x31, 0x32, 0x35, 0x42, 0x32, 0x0a, 0xf3, 0x20, 0x68, 0x65, 0x6c, 0x09,
            0x00, 0x20, 0x62, 0x77, 0x05, 0xb0, 0x6c, 0x64, 0x7d, 0x0a, 0x80, 0x0f, 0xa0,
        ];
        assert_eq!(unpack(&simple, 1000).unwrap(), b"{\\rtf1\\ansi\\ansicpg1252\\pard hello world}\r\n");
        let crossing = [
            0x1a, 0x00, 0x00, 0x00, 0x1c, 0x00, 0x00, 0x00, 0x4c, 0x5a, 0x46, 0x75, 0xe2, 0xd4, 0x4b, 0x51, 0x41, 0x00,
            0x04, 0x20, 0x57, 0x58, 0x59, 0x5a, 0x0d, 0x6e, 0x7d, 0x01, 0x0e, 0xb0,
        ];
        assert_eq!(unpack(&crossing, 1000).unwrap(), b"{\\rtf1 WXYZWXYZWXYZWXYZWXYZ}");
        for cut in 0..simple.len() {
            let _ = unpack(&simple[..cut], 1000);
        }
        assert!(unpack(&simple, 10).is_err());
    }
}
