//! Plain text and source code: the document's text is the decoded file, blocks are ranges of it.

use crate::builder::{DocumentBuilder, Place};
use crate::error::DocumentError;
use crate::formats::ParseOptions;
use crate::formats::encoding::{Decoded, decode};
use crate::limits::Limits;
use crate::model::{BlockKind, Document};

/// A builder for a text format, with encoding and damage noted.
pub(crate) fn builder(media_type: &str, decoded: &Decoded, limits: &Limits) -> DocumentBuilder {
    let mut builder = DocumentBuilder::new(media_type, limits);
    builder.metadata().encoding = Some(decoded.encoding.to_owned());
    if decoded.lossy {
        builder.warn(format!("some bytes are not valid {}; each was replaced by U+FFFD", decoded.encoding));
    }
    builder
}

/// Line ends as `\n`, without NULs; what is left of a text that was cut by them stays in place.
pub(crate) fn plain_lines(text: String) -> String {
    if !text.contains(['\r', '\0']) {
        return text;
    }
    text.replace("\r\n", "\n").replace('\r', "\n").replace('\0', "")
}

/// Paragraphs are separated by empty lines.
pub(crate) fn parse(bytes: &[u8], options: &ParseOptions) -> Result<Document, DocumentError> {
    let mut decoded = decode(bytes, None);
    decoded.text = plain_lines(std::mem::take(&mut decoded.text));
    let mut out = builder("text/plain", &decoded, &options.limits);
    push_paragraphs(&mut out, &decoded.text, BlockKind::Paragraph, Place::default())?;
    out.finish()
}

/// Source code: as plain text, but every block is verbatim.
pub(crate) fn parse_code(bytes: &[u8], language: &str, options: &ParseOptions) -> Result<Document, DocumentError> {
    let mut decoded = decode(bytes, None);
    decoded.text = plain_lines(std::mem::take(&mut decoded.text));
    let mut out = builder("text/plain", &decoded, &options.limits);
    out.metadata().extra.insert("code_language".to_owned(), language.to_owned());
    push_paragraphs(&mut out, &decoded.text, BlockKind::Code, Place::default())?;
    out.finish()
}

/// Appends a text as it stands, one block for each run of lines that are not empty.
pub(crate) fn push_paragraphs(
    out: &mut DocumentBuilder,
    text: &str,
    kind: BlockKind,
    place: Place,
) -> Result<(), DocumentError> {
    let mut start = 0;
    let mut end = 0;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let content = line.trim_end();
        if content.trim_start().is_empty() {
            if end > start {
                out.push_verbatim(kind.clone(), &text[start..end], place)?;
                out.gap(&text[end..at])?;
            }
            out.gap(line)?;
            start = at + line.len();
            end = start;
        } else {
            if end <= start {
                let indent = match kind {
                    BlockKind::Code => 0,
                    _ => line.len() - line.trim_start().len(),
                };
                out.gap(&line[..indent])?;
                start = at + indent;
            }
            end = at + content.len();
        }
        at += line.len();
    }
    if end > start {
        out.push_verbatim(kind, &text[start..end], place)?;
        out.gap(&text[end..])?;
    }
    Ok(())
}

/// Appends the paragraphs of a text that is only a part of the document.
pub(crate) fn push_paragraphs_apart(out: &mut DocumentBuilder, text: &str) -> Result<(), DocumentError> {
    let text = plain_lines(text.to_owned());
    let mut paragraph = String::new();
    for line in text.lines().chain([""]) {
        if line.trim().is_empty() {
            out.push(BlockKind::Paragraph, &paragraph)?;
            paragraph.clear();
        } else {
            paragraph.push_str(line);
            paragraph.push('\n');
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_the_source() {
        for source in ["one\ntwo\n\n\n  three \n\t\nfour", "a", "\n\n a\n \n\n", "x\n\ny\n"] {
            let document = parse(source.as_bytes(), &ParseOptions::default()).unwrap();
            document.check().unwrap();
            assert_eq!(document.text, source);
        }
        let document = parse(b"one\r\ntwo\r\n\r\nthree\0!", &ParseOptions::default()).unwrap();
        let blocks: Vec<_> = document.blocks.iter().map(|b| document.block_text(b)).collect();
        assert_eq!(blocks, ["one\ntwo", "three!"]);
    }
}
