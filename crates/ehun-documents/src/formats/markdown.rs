//! Markdown (CommonMark with tables, footnotes, task lists and front matter).

use pulldown_cmark::{Event, HeadingLevel, MetadataBlockKind, Options, Parser, Tag, TagEnd};

use crate::builder::{CellText, DocumentBuilder, Place};
use crate::error::DocumentError;
use crate::formats::encoding::decode;
use crate::formats::{ParseOptions, html, text};
use crate::model::{BlockKind, Document};

/// Parses Markdown. Markup is taken off; what it said is in the blocks' kinds.
pub(crate) fn parse(bytes: &[u8], options: &ParseOptions) -> Result<Document, DocumentError> {
    let mut decoded = decode(bytes, None);
    let source = text::plain_lines(std::mem::take(&mut decoded.text));
    let mut walk = Walk {
        out: text::builder("text/markdown", &decoded, &options.limits),
        text: String::new(),
        marker: String::new(),
        kind: Vec::new(),
        list_depth: 0,
        table: None,
        html: String::new(),
        options,
    };
    let extensions = Options::ENABLE_TABLES
        | Options::ENABLE_FOOTNOTES
        | Options::ENABLE_STRIKETHROUGH
        | Options::ENABLE_TASKLISTS
        | Options::ENABLE_YAML_STYLE_METADATA_BLOCKS
        | Options::ENABLE_PLUSES_DELIMITED_METADATA_BLOCKS
        | Options::ENABLE_DEFINITION_LIST;
    for event in Parser::new_ext(&source, extensions) {
        walk.event(event)?;
    }
    walk.flush()?;
    let mut document = walk.out.finish()?;
    if document.metadata.title.is_none() {
        let first = document.blocks.iter().find(|b| matches!(b.kind, BlockKind::Heading { .. }));
        document.metadata.title = first.map(|b| document.block_text(b).to_owned());
    }
    Ok(document)
}

struct Walk<'o> {
    out: DocumentBuilder,
    /// Text of the block that is open.
    text: String,
    /// What stands before the next text: the name of a footnote.
    marker: String,
    /// Kinds of the open containers, innermost last; text outside all is a paragraph.
    kind: Vec<BlockKind>,
    list_depth: u8,
    table: Option<OpenTable>,
    /// HTML block that is open.
    html: String,
    options: &'o ParseOptions,
}

#[derive(Default)]
struct OpenTable {
    rows: Vec<Vec<CellText>>,
}

impl Walk<'_> {
    fn flush(&mut self) -> Result<(), DocumentError> {
        let kind = self.kind.last().cloned().unwrap_or(BlockKind::Paragraph);
        if !self.text.trim().is_empty() {
            self.text.insert_str(0, &std::mem::take(&mut self.marker));
        }
        self.out.push(kind, &self.text)?;
        self.text.clear();
        Ok(())
    }

    fn open(&mut self, kind: BlockKind) -> Result<(), DocumentError> {
        self.flush()?;
        self.kind.push(kind);
        Ok(())
    }

    fn close(&mut self) -> Result<(), DocumentError> {
        self.flush()?;
        self.kind.pop();
        Ok(())
    }

    fn event(&mut self, event: Event<'_>) -> Result<(), DocumentError> {
        match event {
            Event::Text(t) | Event::Code(t) | Event::InlineMath(t) | Event::DisplayMath(t) => self.text.push_str(&t),
            Event::Html(t) => self.html.push_str(&t),
            Event::InlineHtml(t) => {
                if t.starts_with("<br") {
                    self.text.push('\n');
                }
            }
            Event::SoftBreak | Event::HardBreak => self.text.push('\n'),
            Event::FootnoteReference(name) => {
                self.text.push('[');
                self.text.push_str(&name);
                self.text.push(']');
            }
            Event::TaskListMarker(done) => self.text.push_str(if done { "[x] " } else { "[ ] " }),
            Event::Rule => self.flush()?,
            Event::Start(tag) => self.start(tag)?,
            Event::End(tag) => self.end(tag)?,
        }
        Ok(())
    }

    fn start(&mut self, tag: Tag<'_>) -> Result<(), DocumentError> {
        match tag {
            Tag::Paragraph | Tag::BlockQuote(_) | Tag::DefinitionList | Tag::DefinitionListDefinition => {
                self.flush()?
            }
            Tag::DefinitionListTitle => self.flush()?,
            Tag::Heading { level, .. } => self.open(BlockKind::Heading { level: number(level) })?,
            Tag::CodeBlock(_) => self.open(BlockKind::Code)?,
            Tag::HtmlBlock => self.flush()?,
            Tag::List(_) => {
                self.flush()?;
                self.list_depth = self.list_depth.saturating_add(1);
            }
            Tag::Item => {
                let depth = self.list_depth.saturating_sub(1);
                self.open(BlockKind::ListItem { depth })?;
            }
            Tag::FootnoteDefinition(name) => {
                self.open(BlockKind::Footnote)?;
                self.marker = format!("[{name}] ");
            }
            Tag::Table(_) => {
                self.flush()?;
                self.table = Some(OpenTable::default());
            }
            Tag::TableHead | Tag::TableRow => {
                if let Some(table) = &mut self.table {
                    table.rows.push(Vec::new());
                }
            }
            Tag::MetadataBlock(_) => self.flush()?,
            Tag::TableCell
            | Tag::Emphasis
            | Tag::Strong
            | Tag::Strikethrough
            | Tag::Superscript
            | Tag::Subscript
            | Tag::Link { .. }
            | Tag::Image { .. } => {}
        }
        Ok(())
    }

    fn end(&mut self, tag: TagEnd) -> Result<(), DocumentError> {
        match tag {
            TagEnd::Heading(_) | TagEnd::CodeBlock | TagEnd::Item | TagEnd::FootnoteDefinition => self.close()?,
            TagEnd::Paragraph
            | TagEnd::BlockQuote(_)
            | TagEnd::DefinitionList
            | TagEnd::DefinitionListTitle
            | TagEnd::DefinitionListDefinition => self.flush()?,
            TagEnd::HtmlBlock => {
                let source = std::mem::take(&mut self.html);
                html::push_fragment(&mut self.out, &source, self.options)?;
            }
            TagEnd::List(_) => {
                self.flush()?;
                self.list_depth = self.list_depth.saturating_sub(1);
            }
            TagEnd::TableCell => {
                let cell = std::mem::take(&mut self.text);
                if let Some(row) = self.table.as_mut().and_then(|t| t.rows.last_mut()) {
                    row.push(cell.into());
                }
            }
            TagEnd::Table => {
                if let Some(table) = self.table.take() {
                    self.out.push_table(table.rows, 1, Place::default())?;
                }
            }
            TagEnd::MetadataBlock(kind) => {
                let source = std::mem::take(&mut self.text);
                self.front_matter(&source, kind);
            }
            TagEnd::TableHead
            | TagEnd::TableRow
            | TagEnd::Emphasis
            | TagEnd::Strong
            | TagEnd::Strikethrough
            | TagEnd::Superscript
            | TagEnd::Subscript
            | TagEnd::Link
            | TagEnd::Image => {}
        }
        Ok(())
    }

    /// Takes the simple `key: value` (YAML) or `key = value` (TOML) lines; others are kept whole under `front_matter`.
    fn front_matter(&mut self, source: &str, kind: MetadataBlockKind) {
        let separator = match kind {
            MetadataBlockKind::YamlStyle => ':',
            MetadataBlockKind::PlusesStyle => '=',
        };
        let metadata = self.out.metadata();
        for line in source.lines() {
            let Some((key, value)) = line.split_once(separator) else { continue };
            let value = value.trim().trim_matches(['"', '\'']).to_owned();
            if value.is_empty() {
                continue;
            }
            match key.trim() {
                "title" => metadata.title = Some(value),
                "author" => metadata.authors = vec![value],
                "date" => metadata.created = Some(value),
                "lang" | "language" => metadata.language = Some(value),
                "description" | "subject" => metadata.subject = Some(value),
                _ => {}
            }
        }
        metadata.extra.insert("front_matter".to_owned(), source.trim().to_owned());
    }
}

fn number(level: HeadingLevel) -> u8 {
    level as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structure() {
        let source = "---\ntitle: Front\n---\n# One *two*\n\npara\nline `code`[^1]\n\n- a\n  - b\n- c\n\n\
            | x | y |\n|---|---|\n| 1 | 2 |\n\n## Sub\n\n```rust\nfn f() {}\n```\n<p>html <b>text</b></p>\n\n[^1]: note\n";
        let document = parse(source.as_bytes(), &ParseOptions::default()).unwrap();
        document.check().unwrap();
        let seen: Vec<_> = document
            .blocks
            .iter()
            .map(|b| {
                let kind = format!("{:?}", b.kind);
                let kind = kind.split([' ', '(']).next().unwrap_or_default().to_owned();
                (kind, document.block_text(b), document.heading_path(b).join(" / "))
            })
            .collect();
        let expected = [
            ("Heading", "One two", ""),
            ("Paragraph", "para\nline code[1]", "One two"),
            ("ListItem", "a", "One two"),
            ("ListItem", "b", "One two"),
            ("ListItem", "c", "One two"),
            ("Table", "x\ty\n1\t2", "One two"),
            ("Heading", "Sub", "One two"),
            ("Code", "fn f() {}", "One two / Sub"),
            ("Paragraph", "html text", "One two / Sub"),
            ("Footnote", "[1] note", "One two / Sub"),
        ];
        let seen: Vec<_> = seen.iter().map(|(k, t, p)| (k.as_str(), *t, p.as_str())).collect();
        assert_eq!(seen, expected);
        assert_eq!(document.metadata.title.as_deref(), Some("Front"));
    }
}
