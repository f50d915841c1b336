//! RTF: paragraphs, outline levels, tables, footnotes, headers and footers, hidden and deleted text.

use encoding_rs::Encoding;

use crate::builder::{CellText, DocumentBuilder, Place};
use crate::error::{DocumentError, Limit};
use crate::formats::ParseOptions;
use crate::model::{BlockKind, Document, HiddenReason, Layer};

/// Where text goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Body,
    Footnote,
    Header,
    Footer,
    /// Title, author and so on, by name.
    Info(&'static str),
    /// Font tables, pictures and everything else that is no text.
    Nothing,
}

/// What a group inherits and gives back.
#[derive(Debug, Clone, Copy)]
struct State {
    target: Target,
    hidden: bool,
    deleted: bool,
    in_table: bool,
    outline: Option<u8>,
    list: bool,
    /// Characters after `\u` that stand in for it.
    fallback: usize,
    encoding: &'static Encoding,
}

/// Parses an RTF file.
pub(crate) fn parse(bytes: &[u8], options: &ParseOptions) -> Result<Document, DocumentError> {
    let mut out = DocumentBuilder::new("application/rtf", &options.limits);
    push_fragment(&mut out, bytes, options)?;
    out.finish()
}

/// Appends the blocks of RTF that stands in another document.
pub(crate) fn push_fragment(
    out: &mut DocumentBuilder,
    bytes: &[u8],
    options: &ParseOptions,
) -> Result<(), DocumentError> {
    let mut parser = Parser {
        out,
        bytes,
        at: 0,
        state: State {
            target: Target::Body,
            hidden: false,
            deleted: false,
            in_table: false,
            outline: None,
            list: false,
            fallback: 1,
            encoding: encoding_rs::WINDOWS_1252,
        },
        groups: Vec::new(),
        pending: Vec::new(),
        skip: 0,
        high: None,
        paragraph: String::new(),
        hidden: String::new(),
        deleted: String::new(),
        aside: Vec::new(),
        info: String::new(),
        cells: Vec::new(),
        rows: Vec::new(),
        max_groups: options.limits.nesting as usize * 4,
    };
    parser.run()
}

struct Parser<'p> {
    out: &'p mut DocumentBuilder,
    bytes: &'p [u8],
    at: usize,
    state: State,
    groups: Vec<State>,
    /// Bytes that wait to be decoded together: a character of an Asian encoding has two.
    pending: Vec<u8>,
    /// Stand-in characters still to be left out.
    skip: usize,
    /// First half of a surrogate pair.
    high: Option<u16>,
    paragraph: String,
    hidden: String,
    deleted: String,
    /// Footnotes, headers and footers that are open: (kind, text).
    aside: Vec<(BlockKind, String)>,
    info: String,
    cells: Vec<CellText>,
    rows: Vec<Vec<CellText>>,
    max_groups: usize,
}

impl Parser<'_> {
    fn run(&mut self) -> Result<(), DocumentError> {
        while let Some(byte) = self.next() {
            match byte {
                b'{' => {
                    self.decode_pending();
                    if self.groups.len() >= self.max_groups {
                        return Err(DocumentError::LimitExceeded {
                            limit: Limit::Nesting,
                            value: self.max_groups as u64,
                        });
                    }
                    self.groups.push(self.state);
                }
                b'}' => self.end_group()?,
                b'\\' => self.control()?,
                b'\r' | b'\n' => {}
                byte => self.byte(byte),
            }
        }
        self.end_paragraph()?;
        self.end_table()?;
        self.end_asides(0)
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.bytes.get(self.at).copied()?;
        self.at += 1;
        Some(byte)
    }

    fn byte(&mut self, byte: u8) {
        match self.skip {
            0 => self.pending.push(byte),
            _ => self.skip -= 1,
        }
    }

    fn decode_pending(&mut self) {
        if !self.pending.is_empty() {
            let (text, _) = self.state.encoding.decode_without_bom_handling(&self.pending);
            let text = text.into_owned();
            self.pending.clear();
            self.push(&text);
        }
        self.skip = 0;
    }

    fn push(&mut self, text: &str) {
        match self.state.target {
            Target::Nothing => {}
            Target::Info(_) => self.info.push_str(text),
            Target::Footnote | Target::Header | Target::Footer => {
                if let Some((_, aside)) = self.aside.last_mut() {
                    aside.push_str(text);
                }
            }
            Target::Body if self.state.deleted => self.deleted.push_str(text),
            Target::Body if self.state.hidden => self.hidden.push_str(text),
            Target::Body => self.paragraph.push_str(text),
        }
    }

    fn end_group(&mut self) -> Result<(), DocumentError> {
        self.decode_pending();
        let ended = self.state;
        if let Some(state) = self.groups.pop() {
            self.state = state;
        }
        if let (Target::Info(name), true) = (ended.target, ended.target != self.state.target) {
            let value = std::mem::take(&mut self.info).trim().to_owned();
            if !value.is_empty() {
                let metadata = self.out.metadata();
                match name {
                    "title" => metadata.title = Some(value),
                    "author" => metadata.authors = vec![value],
                    "subject" => metadata.subject = Some(value),
                    _ => metadata.keywords.push(value),
                }
            }
        }
        // Headers stand outside the text; a footnote waits until its paragraph ends.
        if matches!(ended.target, Target::Header | Target::Footer) && ended.target != self.state.target {
            let keep = self.aside.len().saturating_sub(1);
            self.end_asides(keep)?;
        }
        Ok(())
    }

    fn end_asides(&mut self, keep: usize) -> Result<(), DocumentError> {
        for (kind, text) in self.aside.split_off(keep.min(self.aside.len())) {
            self.out.push(kind, &text)?;
        }
        Ok(())
    }

    fn end_paragraph(&mut self) -> Result<(), DocumentError> {
        self.decode_pending();
        if self.state.target != Target::Body {
            self.push("\n");
            return Ok(());
        }
        if self.state.in_table {
            self.paragraph.push(' ');
            return Ok(());
        }
        self.end_table()?;
        let kind = match (self.state.outline, self.state.list) {
            (Some(level), _) => BlockKind::Heading { level: level + 1 },
            (None, true) => BlockKind::ListItem { depth: 0 },
            (None, false) => BlockKind::Paragraph,
        };
        self.out.push(kind, &std::mem::take(&mut self.paragraph))?;
        for (text, reason) in [
            (std::mem::take(&mut self.hidden), HiddenReason::Marked),
            (std::mem::take(&mut self.deleted), HiddenReason::Deleted),
        ] {
            self.out.push_at(BlockKind::Paragraph, &text, Place::default().in_layer(Layer::Hidden(reason)))?;
        }
        self.end_asides(0)
    }

    fn end_table(&mut self) -> Result<(), DocumentError> {
        let rows = std::mem::take(&mut self.rows);
        if rows.is_empty() {
            return Ok(());
        }
        let header_rows = usize::from(rows.len() > 1);
        self.out.push_table(rows, header_rows, Place::default())?;
        self.end_asides(0)
    }

    fn control(&mut self) -> Result<(), DocumentError> {
        let Some(first) = self.next() else { return Ok(()) };
        if !first.is_ascii_alphabetic() {
            match first {
                b'\'' => {
                    let hex = self.bytes.get(self.at..self.at + 2).and_then(|h| std::str::from_utf8(h).ok());
                    if let Some(byte) = hex.and_then(|h| u8::from_str_radix(h, 16).ok()) {
                        self.at += 2;
                        self.byte(byte);
                    }
                }
                b'*' => self.state.target = Target::Nothing,
                b'~' => self.literal("\u{a0}"),
                b'_' => self.literal("\u{2011}"),
                b'-' => {}
                b'\r' | b'\n' => self.end_paragraph()?,
                other => self.byte(other),
            }
            return Ok(());
        }
        let start = self.at - 1;
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_alphabetic) {
            self.at += 1;
        }
        let word = std::str::from_utf8(&self.bytes[start..self.at]).unwrap_or_default();
        let digits = self.at;
        if self.bytes.get(self.at) == Some(&b'-') {
            self.at += 1;
        }
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        let number = std::str::from_utf8(&self.bytes[digits..self.at]).ok().and_then(|d| d.parse::<i64>().ok());
        if self.bytes.get(self.at) == Some(&b' ') {
            self.at += 1;
        }
        self.word(word, number)
    }

    fn literal(&mut self, text: &str) {
        if self.skip > 0 {
            self.skip -= 1;
            return;
        }
        self.decode_pending();
        self.push(text);
    }

    fn word(&mut self, word: &str, number: Option<i64>) -> Result<(), DocumentError> {
        let on = number != Some(0);
        if word == "u" {
            // Not through `literal`: the skip that is pending belongs to what follows.
            let skip = std::mem::take(&mut self.skip);
            if skip == 0 {
                self.decode_pending();
            }
            self.unicode(number.unwrap_or(0));
            self.skip = self.state.fallback;
            return Ok(());
        }
        if word == "bin" {
            let length = number.and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
            self.at = self.at.saturating_add(length).min(self.bytes.len());
            return Ok(());
        }
        self.decode_pending();
        match word {
            "par" | "sect" | "page" => self.end_paragraph()?,
            "line" => self.push("\n"),
            "tab" => self.push("\t"),
            "emdash" => self.push("\u{2014}"),
            "endash" => self.push("\u{2013}"),
            "lquote" => self.push("\u{2018}"),
            "rquote" => self.push("\u{2019}"),
            "ldblquote" => self.push("\u{201c}"),
            "rdblquote" => self.push("\u{201d}"),
            "bullet" => self.push("\u{2022}"),
            "pard" => {
                self.state.in_table = false;
                self.state.outline = None;
                self.state.list = false;
            }
            "plain" => {
                self.state.hidden = false;
                self.state.deleted = false;
            }
            "intbl" => self.state.in_table = true,
            "cell" | "nestcell" => self.cells.push(std::mem::take(&mut self.paragraph).into()),
            "row" | "nestrow" => self.rows.push(std::mem::take(&mut self.cells)),
            "v" => self.state.hidden = on,
            "deleted" => self.state.deleted = on,
            "outlinelevel" => {
                self.state.outline = number.and_then(|n| u8::try_from(n).ok()).filter(|n| *n < 9);
            }
            "ls" => self.state.list = on,
            "uc" => self.state.fallback = number.and_then(|n| usize::try_from(n).ok()).unwrap_or(1).min(16),
            "ansicpg" => self.set_encoding(number),
            "footnote" => self.open_aside(Target::Footnote, BlockKind::Footnote),
            "annotation" => self.open_aside(Target::Footnote, BlockKind::Footnote),
            "header" | "headerl" | "headerr" | "headerf" => self.open_aside(Target::Header, BlockKind::PageHeader),
            "footer" | "footerl" | "footerr" | "footerf" => self.open_aside(Target::Footer, BlockKind::PageFooter),
            "title" => self.state.target = Target::Info("title"),
            "author" => self.state.target = Target::Info("author"),
            "subject" => self.state.target = Target::Info("subject"),
            "keywords" => self.state.target = Target::Info("keywords"),
            "fonttbl" | "colortbl" | "stylesheet" | "info" | "pict" | "object" | "listtext" | "pntext"
            | "generator" | "themedata" | "datastore" | "fldinst" | "xe" | "tc" | "listtable" | "revtbl"
            | "nonshppict" | "latentstyles" | "filetbl" => self.state.target = Target::Nothing,
            // Text boxes and results of fields are marked as ignorable and are text all the same.
            "shptxt" | "fldrslt" => {
                self.state.target = if self.aside.is_empty() { Target::Body } else { Target::Footnote };
            }
            "shpinst" => self.state.target = Target::Nothing,
            _ => {}
        }
        Ok(())
    }

    fn open_aside(&mut self, target: Target, kind: BlockKind) {
        self.state.target = target;
        self.aside.push((kind, String::new()));
    }

    fn set_encoding(&mut self, code_page: Option<i64>) {
        let label = match code_page.unwrap_or(0) {
            932 => "shift_jis".to_owned(),
            936 => "gbk".to_owned(),
            949 => "euc-kr".to_owned(),
            950 => "big5".to_owned(),
            10000 => "macintosh".to_owned(),
            65001 => "utf-8".to_owned(),
            page => format!("windows-{page}"),
        };
        if let Some(encoding) = Encoding::for_label(label.as_bytes()) {
            self.state.encoding = encoding;
            // The code page is the document's, and groups that are open already inherit it.
            self.groups.iter_mut().for_each(|g| g.encoding = encoding);
        }
    }

    fn unicode(&mut self, code: i64) {
        // Written as a signed 16-bit number.
        let unit = (code & 0xffff) as u16;
        let units: Vec<u16> = self.high.take().into_iter().chain([unit]).collect();
        if (0xd800..0xdc00).contains(&unit) {
            self.high = Some(unit);
            return;
        }
        let text = String::from_utf16_lossy(&units);
        self.push(&text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rtf() {
        let source = br"{\rtf1\ansi\ansicpg1252{\fonttbl{\f0 Arial;}}{\info{\title The title}{\author Ann}}
{\header Running\par}\pard\outlinelevel0 Head\par\pard Caf\'e9 \u8364?5{\footnote The note} and {\v secret}more.\par
\trowd\intbl a\cell b\cell\row\trowd\intbl 1\cell 2\cell\row\pard After {\*\unknown dropped}\u-10179?\u-8704?.\par}";
        let document = parse(source, &ParseOptions::default()).unwrap();
        document.check().unwrap();
        let seen: Vec<_> = document.blocks.iter().map(|b| document.block_text(b)).collect();
        let expected = [
            "Running",
            "Head",
            "Caf\u{e9} \u{20ac}5 and more.",
            "secret",
            "The note",
            "a\tb\n1\t2",
            "After \u{1f600}.",
        ];
        assert_eq!(seen, expected);
        assert_eq!(document.metadata.title.as_deref(), Some("The title"));
        assert!(matches!(document.blocks[1].kind, BlockKind::Heading { level: 1 }));
        assert!(matches!(document.blocks[3].layer, Layer::Hidden(_)));
    }

    #[test]
    fn depth_is_bounded() {
        let source = [b"{\\rtf1".as_slice(), &b"{".repeat(100_000)].concat();
        assert_eq!(parse(&source, &ParseOptions::default()).unwrap_err().code(), "limit_exceeded");
    }
}
