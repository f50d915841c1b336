//! MSG (Outlook): properties as streams, attachments as storages ([MS-OXMSG]).

use std::io::{Cursor, Write};

use super::{Ole, compressed_rtf, u16_at, utf16};
use crate::builder::{DocumentBuilder, Place};
use crate::error::DocumentError;
use crate::formats::encoding::decode;
use crate::formats::{ParseOptions, html, mail, rtf};
use crate::model::{BlockKind, Boilerplate, Child, Document, Layer};

const SUBJECT: u16 = 0x0037;
const SENDER_NAME: u16 = 0x0c1a;
const SENDER_ADDRESS: u16 = 0x5d01;
const DISPLAY_TO: u16 = 0x0e04;
const DISPLAY_CC: u16 = 0x0e03;
const BODY: u16 = 0x1000;
const BODY_RTF: u16 = 0x1009;
const BODY_HTML: u16 = 0x1013;
const SENT: u16 = 0x0039;
const RECEIVED: u16 = 0x0e06;
const ATTACHED_DATA: u16 = 0x3701;
const SHORT_NAME: u16 = 0x3704;
const LONG_NAME: u16 = 0x3707;
const ATTACHED_TYPE: u16 = 0x370e;

/// Parses an Outlook message.
pub(crate) fn parse(bytes: &[u8], options: &ParseOptions) -> Result<Document, DocumentError> {
    let mut ole = Ole::open(bytes, &options.limits)?;
    let mut out = DocumentBuilder::new("application/vnd.ms-outlook", &options.limits);
    head(&mut ole, &mut out)?;
    body(&mut ole, &mut out, options)?;
    attachments(&mut ole, &mut out)?;
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

/// Subject, sender, recipients, date.
fn head(ole: &mut Ole<'_>, out: &mut DocumentBuilder) -> Result<(), DocumentError> {
    let subject = string(ole, "/", SUBJECT);
    let sender = match (string(ole, "/", SENDER_NAME), string(ole, "/", SENDER_ADDRESS)) {
        (Some(name), Some(address)) if name != address => Some(format!("{name} <{address}>")),
        (name, address) => name.or(address),
    };
    let (to, cc) = (string(ole, "/", DISPLAY_TO), string(ole, "/", DISPLAY_CC));
    let mut head = Vec::new();
    for (name, value) in [("From", &sender), ("To", &to), ("Cc", &cc)] {
        if let Some(value) = value {
            head.push(format!("{name}: {value}"));
            out.metadata().extra.insert(name.to_lowercase(), value.clone());
        }
    }
    if let Some(date) = date(ole) {
        head.push(format!("Date: {date}"));
        out.metadata().created = Some(date);
    }
    out.metadata().title.clone_from(&subject);
    out.metadata().authors.extend(sender);
    if let Some(subject) = subject {
        out.push(BlockKind::Title, &subject)?;
    }
    let boilerplate = Place::default().in_layer(Layer::Boilerplate(Boilerplate::Header));
    out.push_at(BlockKind::Paragraph, &head.join("\n"), boilerplate)?;
    Ok(())
}

/// When it was sent, or else delivered. Properties of fixed size stand in one stream, 16 bytes each after a head of 32.
fn date(ole: &mut Ole<'_>) -> Option<String> {
    let properties = ole.stream("__properties_version1.0")?;
    let entries: Vec<&[u8]> = properties.get(32..)?.chunks_exact(16).collect();
    // 0x40: intervals of 100 ns since 1601.
    let time = |id| entries.iter().find(|e| u16_at(e, 0) == 0x40 && u16_at(e, 2) == id).map(|e| &e[8..]);
    let bytes = time(SENT).or_else(|| time(RECEIVED))?;
    let since_1601 = u64::from_le_bytes(bytes.try_into().ok()?) / 10_000_000;
    let seconds = since_1601.checked_sub(11_644_473_600)?;
    Some(mail_parser::DateTime::from_timestamp(i64::try_from(seconds).ok()?).to_rfc3339())
}

/// The text; or else its HTML; or else its RTF, which Outlook compresses.
fn body(ole: &mut Ole<'_>, out: &mut DocumentBuilder, options: &ParseOptions) -> Result<(), DocumentError> {
    if let Some(text) = string(ole, "/", BODY) {
        return mail::push_body(out, &text);
    }
    let bytes = ole.stream(&format!("/__substg1.0_{BODY_HTML:04X}0102"));
    let source = bytes.map(|b| decode(&b, html::declared_charset(&b).as_deref()).text);
    if let Some(source) = source.or_else(|| string(ole, "/", BODY_HTML)) {
        return html::push_fragment(out, &source, options);
    }
    let packed = ole.stream(&format!("/__substg1.0_{BODY_RTF:04X}0102"));
    match packed.map(|bytes| compressed_rtf::unpack(&bytes, options.limits.unpacked_bytes)) {
        Some(Ok(source)) => rtf::push_fragment(out, &source, options)?,
        Some(Err(reason)) => out.warn(format!("the message's RTF body {reason}")),
        None => out.warn("the message has no text, HTML or RTF body"),
    }
    Ok(())
}

fn attachments(ole: &mut Ole<'_>, out: &mut DocumentBuilder) -> Result<(), DocumentError> {
    let mut attachments = ole.names("/");
    attachments.retain(|name| name.starts_with("__attach_version1.0_"));
    attachments.sort();
    for (n, name) in attachments.iter().enumerate() {
        let inner = format!("/{name}/");
        let name = string(ole, &inner, LONG_NAME).or_else(|| string(ole, &inner, SHORT_NAME));
        if let Some(bytes) = ole.stream(&format!("{inner}__substg1.0_{ATTACHED_DATA:04X}0102")) {
            let name = name.unwrap_or_else(|| format!("attachment-{}.bin", n + 1));
            let media_type = string(ole, &inner, ATTACHED_TYPE);
            if !bytes.is_empty() {
                out.push_child(Child { name, media_type, bytes })?;
            }
            continue;
        }
        // An attached message is a storage of the same form: on its own it is a file again.
        let embedded = format!("{inner}__substg1.0_{ATTACHED_DATA:04X}000D/");
        if !ole.names(&embedded).is_empty() {
            let name = name.or_else(|| string(ole, &embedded, SUBJECT)).unwrap_or_else(|| format!("message-{}", n + 1));
            let name = if name.to_lowercase().ends_with(".msg") { name } else { format!("{name}.msg") };
            match on_its_own(ole, &embedded) {
                Ok(bytes) => {
                    let media_type = Some("application/vnd.ms-outlook".to_owned());
                    out.push_child(Child { name: name.replace('/', "_"), media_type, bytes })?;
                }
                Err(error) => out.warn(format!("the attached message {name} cannot be taken out: {error}")),
            }
        }
    }
    Ok(())
}

/// A storage as a compound file of its own.
fn on_its_own(ole: &mut Ole<'_>, storage: &str) -> std::io::Result<Vec<u8>> {
    let mut file = cfb::CompoundFile::create(Cursor::new(Vec::new()))?;
    for (path, is_storage) in ole.below(storage) {
        let inner = path.strip_prefix(storage.trim_end_matches('/')).unwrap_or(&path).to_owned();
        if is_storage {
            file.create_storage(&inner)?;
            continue;
        }
        let mut bytes = ole.stream(&path).unwrap_or_default();
        if inner == "/__properties_version1.0" && bytes.len() >= 24 {
            // The head of a message within a message lacks the last eight bytes of that of a file.
            bytes.splice(24..24, [0; 8]);
        }
        file.create_stream(&inner)?.write_all(&bytes)?;
    }
    file.flush()?;
    Ok(file.into_inner().into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(file: &mut cfb::CompoundFile<Cursor<Vec<u8>>>, path: &str, bytes: &[u8]) {
        file.create_stream(path).unwrap().write_all(bytes).unwrap();
    }

    fn unicode(text: &str) -> Vec<u8> {
        text.encode_utf16().flat_map(u16::to_le_bytes).collect()
    }

    #[test]
    fn a_message_in_a_message_is_a_child() {
        let mut file = cfb::CompoundFile::create(Cursor::new(Vec::new())).unwrap();
        let mut properties = vec![0; 32];
        properties.extend_from_slice(&[0x40, 0, 0x39, 0, 0, 0, 0, 0]);
        properties.extend_from_slice(&(133_000_000_000_000_000u64).to_le_bytes());
        put(&mut file, "/__properties_version1.0", &properties);
        put(&mut file, "/__substg1.0_0037001F", &unicode("Outer"));
        // Stored, not compressed.
        let rtf = b"{\\rtf1\\ansi{\\*\\htmltag64 <p>}Words in RTF\\par More}";
        let mut packed = Vec::new();
        for number in [rtf.len() as u32 + 12, rtf.len() as u32, 0x414c_454d, 0] {
            packed.extend_from_slice(&number.to_le_bytes());
        }
        packed.extend_from_slice(rtf);
        put(&mut file, "/__substg1.0_10090102", &packed);
        file.create_storage("/__attach_version1.0_#00000000").unwrap();
        let inner = "/__attach_version1.0_#00000000/__substg1.0_3701000D";
        file.create_storage(inner).unwrap();
        put(&mut file, &format!("{inner}/__properties_version1.0"), &[0; 24]);
        put(&mut file, &format!("{inner}/__substg1.0_0037001F"), &unicode("Inner / subject"));
        put(&mut file, &format!("{inner}/__substg1.0_1000001F"), &unicode("Inner words"));
        file.flush().unwrap();
        let bytes = file.into_inner().into_inner();

        let options = ParseOptions::default();
        let document = parse(&bytes, &options).unwrap();
        document.check().unwrap();
        assert_eq!(document.metadata.created.as_deref(), Some("2022-06-18T04:26:40Z"));
        assert!(document.text.ends_with("Words in RTF\n\nMore"), "{}", document.text);
        let child = &document.children[0];
        assert_eq!(child.name, "Inner _ subject.msg");
        let child = crate::parse(&child.bytes, &options).unwrap();
        assert_eq!(
            (child.metadata.media_type.as_str(), child.text.as_str()),
            ("application/vnd.ms-outlook", "Inner / subject\n\nInner words")
        );
    }
}
