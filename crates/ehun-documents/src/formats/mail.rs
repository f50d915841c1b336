//! Mail: EML with its attachments as children, and mbox with its messages as children.

use mail_parser::{Address, MessageParser, MessagePart, MimeHeaders, PartType};

use crate::builder::{DocumentBuilder, Place};
use crate::error::DocumentError;
use crate::formats::{ParseOptions, html, text};
use crate::model::{BlockKind, Boilerplate, Child, Document, Layer};

/// Parses one message.
pub(crate) fn parse(bytes: &[u8], options: &ParseOptions) -> Result<Document, DocumentError> {
    let message = MessageParser::default()
        .parse(bytes)
        .ok_or_else(|| DocumentError::malformed("mail message", "there are no headers"))?;
    let mut out = DocumentBuilder::new("message/rfc822", &options.limits);
    let metadata = out.metadata();
    let subject = message.subject().map(str::trim).filter(|s| !s.is_empty()).map(str::to_owned);
    metadata.title.clone_from(&subject);
    metadata.authors = message.from().map(addresses).unwrap_or_default();
    metadata.created = message.date().map(mail_parser::DateTime::to_rfc3339);
    let mut head = Vec::new();
    for (name, list) in [("From", message.from()), ("To", message.to()), ("Cc", message.cc())] {
        let names = list.map(addresses).unwrap_or_default().join(", ");
        if !names.is_empty() {
            metadata.extra.insert(name.to_lowercase(), names.clone());
            head.push(format!("{name}: {names}"));
        }
    }
    if let Some(id) = message.message_id() {
        metadata.extra.insert("message_id".to_owned(), id.to_owned());
    }
    if let Some(date) = message.date() {
        head.push(format!("Date: {}", date.to_rfc3339()));
    }
    if let Some(subject) = &subject {
        out.push(BlockKind::Title, subject)?;
    }
    let boilerplate = Place::default().in_layer(Layer::Boilerplate(Boilerplate::Header));
    out.push_at(BlockKind::Paragraph, &head.join("\n"), boilerplate)?;

    // A message says the same in text and in HTML; the text is what the sender's program thought of as its words.
    let is_text = |p: &&MessagePart<'_>| matches!(&p.body, PartType::Text(text) if !text.trim().is_empty());
    let has_words = message.text_bodies().any(|p| is_text(&p));
    let bodies: Vec<&MessagePart<'_>> = match has_words {
        true => message.text_bodies().collect(),
        false => message.html_bodies().collect(),
    };
    for part in bodies {
        match &part.body {
            PartType::Text(words) => push_body(&mut out, words)?,
            // Beside text and not instead of it: a footer that a mailing list adds, an answer in a form.
            PartType::Html(source) => html::push_fragment(&mut out, source, options)?,
            _ => {}
        }
    }

    for (n, part) in message.attachments().enumerate() {
        push_attachment(&mut out, part, n + 1)?;
    }
    out.finish()
}

fn push_attachment(out: &mut DocumentBuilder, part: &MessagePart<'_>, number: usize) -> Result<(), DocumentError> {
    let media_type = part.content_type().map(|t| match t.subtype() {
        Some(subtype) => format!("{}/{subtype}", t.ctype()).to_lowercase(),
        None => t.ctype().to_lowercase(),
    });
    let bytes = match &part.body {
        PartType::Message(message) => message.raw_message().to_vec(),
        PartType::Multipart(_) => return Ok(()),
        _ => part.contents().to_vec(),
    };
    let name = part.attachment_name().map(str::to_owned).unwrap_or_else(|| {
        let extension = match (&part.body, media_type.as_deref()) {
            (PartType::Message(_), _) => "eml",
            (PartType::Html(_), _) => "html",
            (PartType::Text(_), _) => "txt",
            (_, Some(media_type)) => media_type.rsplit('/').next().unwrap_or("bin"),
            _ => "bin",
        };
        format!("attachment-{number}.{extension}")
    });
    match bytes.is_empty() {
        true => Ok(()),
        false => out.push_child(Child { name, media_type, bytes }),
    }
}

/// Paragraphs; earlier messages and signatures are kept and labelled.
pub(crate) fn push_body(out: &mut DocumentBuilder, body: &str) -> Result<(), DocumentError> {
    let body = text::plain_lines(body.to_owned());
    let quoted_place = Place::default().in_layer(Layer::Boilerplate(Boilerplate::Quoted));
    let mut paragraph = String::new();
    let mut quoted = false;
    let mut signature = false;
    let mut flush = |paragraph: &mut String, quoted: bool| {
        let place = if quoted { quoted_place } else { Place::default() };
        let result = out.push_at(BlockKind::Paragraph, paragraph, place);
        paragraph.clear();
        result.map(drop)
    };
    for line in body.lines() {
        signature |= line == "-- ";
        let is_quoted = signature || line.starts_with('>');
        if line.trim().is_empty() || is_quoted != quoted {
            flush(&mut paragraph, quoted)?;
        }
        quoted = is_quoted;
        paragraph.push_str(line);
        paragraph.push('\n');
    }
    flush(&mut paragraph, quoted)
}

fn addresses(address: &Address<'_>) -> Vec<String> {
    address
        .iter()
        .filter_map(|a| match (a.name(), a.address()) {
            (Some(name), Some(address)) if name != address => Some(format!("{name} <{address}>")),
            (name, address) => address.or(name).map(str::to_owned),
        })
        .collect()
}

/// Splits an mbox file into its messages.
pub(crate) fn parse_mbox(bytes: &[u8], options: &ParseOptions) -> Result<Document, DocumentError> {
    let mut out = DocumentBuilder::new("application/mbox", &options.limits);
    let mut starts = Vec::new();
    let mut at = 0;
    let mut after_empty = true;
    for line in bytes.split_inclusive(|b| *b == b'\n') {
        if after_empty && line.starts_with(b"From ") {
            starts.push((at, at + line.len()));
        }
        after_empty = line.iter().all(|b| matches!(b, b'\r' | b'\n'));
        at += line.len();
    }
    let ends = starts.iter().skip(1).map(|(from, _)| *from).chain([bytes.len()]);
    for (n, ((_, body), end)) in starts.iter().zip(ends).enumerate() {
        let message = unquoted(&bytes[*body..end]);
        let name = format!("message-{:06}.eml", n + 1);
        out.push_child(Child { name, media_type: Some("message/rfc822".to_owned()), bytes: message })?;
    }
    out.finish()
}

/// `>From ` at the beginning of a line was `From `.
fn unquoted(message: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(message.len());
    for line in message.split_inclusive(|b| *b == b'\n') {
        let marks = line.iter().take_while(|b| **b == b'>').count();
        let quoted = marks > 0 && line[marks..].starts_with(b"From ");
        out.extend_from_slice(&line[usize::from(quoted)..]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = "From: Ada <ada@example.org>\r\nTo: bob@example.org\r\nSubject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\n\
        Date: Tue, 1 Dec 2026 10:00:00 +0100\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n\
        --b\r\nContent-Type: text/plain; charset=utf-8\r\n\r\nHello,\r\n\r\n> old words\r\nnew words\r\n\r\n-- \r\nAda\r\n\
        --b\r\nContent-Type: text/csv; name=\"a.csv\"\r\nContent-Transfer-Encoding: base64\r\n\
        Content-Disposition: attachment; filename=\"a.csv\"\r\n\r\nYSxiCjEsMgo=\r\n--b--\r\n";

    #[test]
    fn message_with_attachment() {
        let document = parse(MESSAGE.as_bytes(), &ParseOptions::default()).unwrap();
        document.check().unwrap();
        assert_eq!(document.metadata.title.as_deref(), Some("Grüße"));
        assert_eq!(document.metadata.authors, ["Ada <ada@example.org>"]);
        let content: Vec<_> = document.blocks.iter().filter(|b| b.is_content()).collect();
        let content: Vec<_> = content.into_iter().map(|b| document.block_text(b)).collect();
        assert_eq!(content, ["Grüße", "Hello,", "new words"]);
        assert!(document.text.contains("> old words") && document.text.contains("-- \nAda"));
        let child = &document.children[0];
        assert_eq!((child.name.as_str(), child.bytes.as_slice()), ("a.csv", b"a,b\n1,2\n".as_slice()));
    }

    #[test]
    fn mbox_splits() {
        let mbox = format!("From a Mon\n{MESSAGE}\n\nFrom b Tue\nSubject: x\n\n>From here\nFrom inside\n");
        let document = parse_mbox(mbox.as_bytes(), &ParseOptions::default()).unwrap();
        assert_eq!(document.children.len(), 2);
        assert_eq!(document.children[1].bytes, b"Subject: x\n\nFrom here\nFrom inside\n");
    }
}
