//! MSG (Outlook): properties as streams, attachments as storages ([MS-OXMSG]).

use super::{Ole, utf16};
use crate::builder::{DocumentBuilder, Place};
use crate::error::{DocumentError, Limit};
use crate::formats::encoding::decode;
use crate::formats::{ParseOptions, html, mail};
use crate::model::{BlockKind, Boilerplate, Child, Document, Layer};

const SUBJECT: u16 = 0x0037;
const SENDER_NAME: u16 = 0x0c1a;
const SENDER_ADDRESS: u16 = 0x5d01;
const DISPLAY_TO: u16 = 0x0e04;
const DISPLAY_CC: u16 = 0x0e03;
const BODY: u16 = 0x1000;
const BODY_HTML: u16 = 0x1013;
const ATTACHED_DATA: u16 = 0x3701;
const SHORT_NAME: u16 = 0x3704;
const LONG_NAME: u16 = 0x3707;
const ATTACHED_TYPE: u16 = 0x370e;

/// Parses an Outlook message.
pub(crate) fn parse(bytes: &[u8], options: &ParseOptions) -> Result<Document, DocumentError> {
    let mut ole = Ole::open(bytes, &options.limits)?;
    let mut out = DocumentBuilder::new("application/vnd.ms-outlook", &options.limits);
    message(&mut ole, &mut out, "/", 0, options)?;
    out.finish()
}

/// A property as a string, in Unicode or in some code page.
fn string(ole: &mut Ole<'_>, storage: &str, property: u16) -> Option<String> {
    let unicode = ole.stream(&format!("{storage}__substg1.0_{property:04X}001F")).map(|b| utf16(&b));
    let text = unicode
        .or_else(|| ole.stream(&format!("{storage}__substg1.0_{property:04X}001E")).map(|b| decode(&b, None).text))?;
    let text = text.trim_end_matches('\0').trim().to_owned();
    (!text.is_empty()).then_some(text)
}

fn message(
    ole: &mut Ole<'_>,
    out: &mut DocumentBuilder,
    storage: &str,
    depth: u32,
    options: &ParseOptions,
) -> Result<(), DocumentError> {
    if depth > options.limits.nesting {
        return Err(DocumentError::LimitExceeded { limit: Limit::Nesting, value: options.limits.nesting.into() });
    }
    let subject = string(ole, storage, SUBJECT);
    let sender = match (string(ole, storage, SENDER_NAME), string(ole, storage, SENDER_ADDRESS)) {
        (Some(name), Some(address)) if name != address => Some(format!("{name} <{address}>")),
        (name, address) => name.or(address),
    };
    let (to, cc) = (string(ole, storage, DISPLAY_TO), string(ole, storage, DISPLAY_CC));
    let mut head = Vec::new();
    for (name, value) in [("From", &sender), ("To", &to), ("Cc", &cc)] {
        if let Some(value) = value {
            head.push(format!("{name}: {value}"));
            if depth == 0 {
                out.metadata().extra.insert(name.to_lowercase(), value.clone());
            }
        }
    }
    if depth == 0 {
        out.metadata().title.clone_from(&subject);
        out.metadata().authors.extend(sender);
    }
    if let Some(subject) = subject {
        let kind = if depth == 0 { BlockKind::Title } else { BlockKind::Heading { level: depth.min(9) as u8 } };
        out.push(kind, &subject)?;
    }
    let boilerplate = Place::default().in_layer(Layer::Boilerplate(Boilerplate::Header));
    out.push_at(BlockKind::Paragraph, &head.join("\n"), boilerplate)?;

    if let Some(body) = string(ole, storage, BODY) {
        mail::push_body(out, &body)?;
    } else {
        let bytes = ole.stream(&format!("{storage}__substg1.0_{BODY_HTML:04X}0102"));
        let source = bytes.map(|b| decode(&b, html::declared_charset(&b).as_deref()).text);
        match source.or_else(|| string(ole, storage, BODY_HTML)) {
            Some(source) => html::push_fragment(out, &source, options)?,
            None => out.warn("the message has no text or HTML body"),
        }
    }
    let mut attachments = ole.names(storage);
    attachments.retain(|name| name.starts_with("__attach_version1.0_"));
    for (n, name) in attachments.iter().enumerate() {
        let inner = format!("{storage}{name}/");
        if let Some(bytes) = ole.stream(&format!("{inner}__substg1.0_{ATTACHED_DATA:04X}0102")) {
            let name = string(ole, &inner, LONG_NAME).or_else(|| string(ole, &inner, SHORT_NAME));
            let name = name.unwrap_or_else(|| format!("attachment-{}.bin", n + 1));
            let media_type = string(ole, &inner, ATTACHED_TYPE);
            if !bytes.is_empty() {
                out.push_child(Child { name, media_type, bytes })?;
            }
        } else {
            // An attached message is a storage of the same form within this file, and no file of its own.
            let embedded = format!("{inner}__substg1.0_{ATTACHED_DATA:04X}000D/");
            if !ole.names(&embedded).is_empty() {
                message(ole, out, &embedded, depth + 1, options)?;
            }
        }
    }
    Ok(())
}
