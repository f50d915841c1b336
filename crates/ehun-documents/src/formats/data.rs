//! Data formats: CSV and TSV, JSON and JSON Lines, XML.

use serde_json::Value;

use crate::builder::{CellText, DocumentBuilder, Place};
use crate::error::{DocumentError, Limit};
use crate::formats::encoding::decode;
use crate::formats::html::declared_charset;
use crate::formats::xml::{NodeId, Tree};
use crate::formats::{ParseOptions, text};
use crate::model::{BlockKind, Boilerplate, Document, Layer};

/// Parses CSV, or a relative with another separator: one table, whose first row is its header.
pub(crate) fn parse_csv(bytes: &[u8], options: &ParseOptions) -> Result<Document, DocumentError> {
    let decoded = decode(bytes, None);
    let (separator, content) = match named_separator(&decoded.text) {
        Some(named) => named,
        None => (separator(&decoded.text), decoded.text.as_str()),
    };
    let media_type = if separator == '\t' { "text/tab-separated-values" } else { "text/csv" };
    let mut out = text::builder(media_type, &decoded, &options.limits);
    let rows = records(content, separator);
    let header_rows = usize::from(rows.len() > 1);
    out.push_table(rows, header_rows, Place::default())?;
    out.finish()
}

/// Excel begins a file with `sep=;` where its reader could not guess; the line is no record.
fn named_separator(text: &str) -> Option<(char, &str)> {
    let (line, rest) = text.split_once('\n')?;
    let mut named = line.trim_end_matches('\r').strip_prefix("sep=")?.chars();
    let separator = named.next()?;
    named.next().is_none().then_some((separator, rest))
}

/// The separator that stands most often in the first lines, counted outside quotes.
fn separator(text: &str) -> char {
    let mut counts = [0usize; 4];
    let candidates = [',', ';', '\t', '|'];
    let mut quoted = false;
    for c in text.lines().take(20).flat_map(str::chars) {
        if c == '"' {
            quoted = !quoted;
        } else if let Some(n) = candidates.iter().position(|s| *s == c && !quoted) {
            counts[n] += 1;
        }
    }
    let best = (0..4).max_by_key(|n| (counts[*n], 4 - n)).unwrap_or(0);
    candidates[best]
}

/// RFC 4180, with leniency: a quote within an unquoted field is a quote.
fn records(text: &str, separator: char) -> Vec<Vec<CellText>> {
    let mut rows = Vec::new();
    let mut row: Vec<CellText> = Vec::new();
    let mut field = String::new();
    let mut quoted = false;
    let mut fresh = true;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if quoted {
            match c {
                '"' if chars.peek() == Some(&'"') => {
                    chars.next();
                    field.push('"');
                }
                '"' => quoted = false,
                c => field.push(c),
            }
            continue;
        }
        match c {
            '"' if fresh => {
                quoted = true;
                fresh = false;
            }
            c if c == separator => {
                row.push(std::mem::take(&mut field).into());
                fresh = true;
            }
            '\r' if chars.peek() == Some(&'\n') => {}
            '\n' | '\r' => {
                row.push(std::mem::take(&mut field).into());
                rows.push(std::mem::take(&mut row));
                fresh = true;
            }
            c => {
                field.push(c);
                fresh = false;
            }
        }
    }
    if !field.is_empty() || !row.is_empty() {
        row.push(field.into());
        rows.push(row);
    }
    rows
}

/// Parses JSON or JSON Lines: one paragraph for each record. With a text field, that field is the record's text and the
/// others are kept beside it as boilerplate; without, all members are written as `name: value` lines.
///
/// `None` if the text is not JSON.
pub(crate) fn parse_json(bytes: &[u8], options: &ParseOptions) -> Option<Result<Document, DocumentError>> {
    let decoded = decode(bytes, None);
    let (records, media_type) = match serde_json::from_str::<Value>(&decoded.text) {
        Ok(Value::Array(items)) => (items, "application/json"),
        Ok(value) => (vec![value], "application/json"),
        Err(e) if e.to_string().starts_with("recursion limit") => {
            return Some(Err(DocumentError::LimitExceeded { limit: Limit::Nesting, value: 128 }));
        }
        Err(_) => {
            let lines = decoded.text.lines().filter(|l| !l.trim().is_empty());
            let records: Result<Vec<Value>, _> = lines.map(serde_json::from_str).collect();
            (records.ok().filter(|r| r.len() > 1)?, "application/jsonl")
        }
    };
    let mut out = text::builder(media_type, &decoded, &options.limits);
    let field = options.text_field.as_deref();
    Some(records.iter().try_for_each(|r| push_record(&mut out, r, field)).and_then(|()| out.finish()))
}

fn push_record(out: &mut DocumentBuilder, record: &Value, field: Option<&str>) -> Result<(), DocumentError> {
    let text = field.and_then(|f| record.get(f)).and_then(Value::as_str);
    let mut lines = String::new();
    flatten(record, "", field.filter(|_| text.is_some()), &mut lines);
    match text {
        Some(text) => {
            text::push_paragraphs_apart(out, text)?;
            let beside = Place::default().in_layer(Layer::Boilerplate(Boilerplate::OutsideMain));
            out.push_at(BlockKind::Paragraph, &lines, beside)?;
        }
        None => {
            out.push(BlockKind::Paragraph, &lines)?;
        }
    }
    Ok(())
}

/// Writes `path.to.name: value` lines. serde_json bounds the depth at 128.
fn flatten(value: &Value, path: &str, skip: Option<&str>, lines: &mut String) {
    let line = |lines: &mut String, value: &str| {
        if !path.is_empty() {
            lines.push_str(path);
            lines.push_str(": ");
        }
        lines.push_str(value);
        lines.push('\n');
    };
    match value {
        Value::Null => {}
        Value::String(text) => line(lines, text),
        Value::Bool(_) | Value::Number(_) => line(lines, &value.to_string()),
        Value::Array(items) => items.iter().for_each(|item| flatten(item, path, None, lines)),
        Value::Object(members) => {
            for (name, member) in members {
                if skip == Some(name) {
                    continue;
                }
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                flatten(member, &path, None, lines);
            }
        }
    }
}

/// Parses XML of any vocabulary: an element that holds text of its own is a paragraph.
pub(crate) fn parse_xml(bytes: &[u8], options: &ParseOptions) -> Result<Document, DocumentError> {
    let decoded = decode(bytes, declared_charset(bytes).as_deref());
    let tree = Tree::parse_str(&decoded.text, &options.limits)?;
    let mut out = text::builder("application/xml", &decoded, &options.limits);
    if let Some(damage) = &tree.damage {
        out.warn(format!("the XML is damaged {damage}; what came before is kept"));
    }
    push_element(&tree, 0, &mut out)?;
    out.finish()
}

fn push_element(tree: &Tree, node: NodeId, out: &mut DocumentBuilder) -> Result<(), DocumentError> {
    for child in tree.children(node) {
        let own = |n: NodeId| tree.text(n).is_some_and(|t| !t.trim().is_empty());
        if own(child) || tree.children(child).any(own) {
            let text = tree.text(child).map_or_else(|| tree.all_text(child), str::to_owned);
            let words: Vec<&str> = text.split_whitespace().collect();
            let kind = match tree.name(child) {
                "title" if out.text_len() == 0 => BlockKind::Title,
                "title" | "head" | "heading" => BlockKind::Heading { level: 1 },
                _ => BlockKind::Paragraph,
            };
            out.push(kind, &words.join(" "))?;
        } else {
            push_element(tree, child, out)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(source: &str, field: Option<&str>) -> String {
        let options = ParseOptions { text_field: field.map(str::to_owned), ..ParseOptions::default() };
        let document = parse_json(source.as_bytes(), &options).unwrap().unwrap();
        document.check().unwrap();
        let content = document.blocks.iter().filter(|b| b.is_content());
        content.map(|b| document.block_text(b)).collect::<Vec<_>>().join("|")
    }

    #[test]
    fn csv() {
        let source = "name;note\r\n\"Ann; B\";\"said \"\"no\"\"\nand left\"\r\n\r\nBob;5\" pipe\n";
        let document = parse_csv(source.as_bytes(), &ParseOptions::default()).unwrap();
        document.check().unwrap();
        assert_eq!(document.text, "name\tnote\nAnn; B\tsaid \"no\" and left\nBob\t5\" pipe");
        let document = parse_csv(b"sep=|\r\na,b|c\r\n1,2|3\r\n", &ParseOptions::default()).unwrap();
        assert_eq!(document.text, "a,b\tc\n1,2\t3");
    }

    #[test]
    fn json_records() {
        assert_eq!(json(r#"{"a":"x","b":{"c":[1,2]}}"#, None), "a: x\nb.c: 1\nb.c: 2");
        assert_eq!(json("{\"t\":\"one\",\"n\":1}\n{\"t\":\"two\"}\n", Some("t")), "one|two");
        assert_eq!(json(r#"[{"t":"one"},{"u":"no text"}]"#, Some("t")), "one|u: no text");
        assert!(parse_json(b"{not json}", &ParseOptions::default()).is_none());
        let deep = "[".repeat(100_000);
        assert_eq!(
            parse_json(deep.as_bytes(), &ParseOptions::default()).unwrap().unwrap_err().code(),
            "limit_exceeded"
        );
    }

    #[test]
    fn xml() {
        let source = b"<r><title>T</title><i><n>one  <b>two</b></n><n>three</n></i></r>";
        let document = parse_xml(source, &ParseOptions::default()).unwrap();
        assert_eq!(document.text, "T\n\none two\n\nthree");
    }
}
