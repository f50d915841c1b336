//! What the bytes are.

use file_format::{FileFormat, Kind};

use super::container::Container;
use super::{archive, office, ole};
use crate::limits::Limits;

/// A format that is told apart here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Format {
    /// PDF.
    Pdf,
    /// Word, 2007 and later.
    Docx,
    /// PowerPoint, 2007 and later.
    Pptx,
    /// Excel, 2007 and later, also in its binary form.
    Xlsx,
    /// OpenDocument text.
    Odt,
    /// OpenDocument presentation.
    Odp,
    /// OpenDocument spreadsheet.
    Ods,
    /// Word before 2007.
    Doc,
    /// PowerPoint before 2007.
    Ppt,
    /// Excel before 2007.
    Xls,
    /// Outlook message.
    Msg,
    /// Rich Text Format.
    Rtf,
    /// Electronic book.
    Epub,
    /// Comma or otherwise separated values.
    Csv,
    /// JSON or JSON Lines.
    Json,
    /// XML of any vocabulary.
    Xml,
    /// ZIP archive.
    Zip,
    /// TAR archive.
    Tar,
    /// GZIP, perhaps around a TAR archive.
    Gzip,
    /// One message (RFC 5322).
    Mail,
    /// A file of messages.
    Mbox,
    /// HTML or XHTML.
    Html,
    /// Markdown.
    Markdown,
    /// Plain text.
    Text,
    /// Source code in a language.
    Code(&'static str),
    /// A picture.
    Image(String),
    /// Any of the above with a password.
    Encrypted(&'static str),
    /// Nothing that is read here; its name.
    Other(String),
}

/// Decides by signature, then by structure, and by the name only between formats that are all plain text.
pub(crate) fn sniff(bytes: &[u8], file_name: Option<&str>, limits: &Limits) -> Format {
    let head = &bytes[..bytes.len().min(1024)];
    if head.windows(5).any(|w| w == b"%PDF-") {
        return Format::Pdf;
    }
    if bytes.starts_with(b"PK\x03\x04") || bytes.starts_with(b"PK\x05\x06") {
        return zip_format(bytes, limits);
    }
    if bytes.starts_with(ole::MAGIC) {
        return ole_format(bytes, limits);
    }
    if bytes.starts_with(b"{\\rtf") {
        return Format::Rtf;
    }
    if bytes.starts_with(b"\x1f\x8b") {
        return Format::Gzip;
    }
    if archive::is_tar(bytes) {
        return Format::Tar;
    }
    let known = FileFormat::from_bytes(bytes);
    if known.kind() == Kind::Image && !matches!(known.media_type(), "image/svg+xml") {
        return Format::Image(known.name().to_owned());
    }
    if is_binary(bytes) {
        let name = match known {
            FileFormat::ArbitraryBinaryData | FileFormat::PlainText | FileFormat::Empty => "binary data".to_owned(),
            known => known.name().to_owned(),
        };
        return Format::Other(name);
    }
    if let Some(mail) = mail_format(head) {
        return mail;
    }
    let extension = file_name
        .and_then(|name| name.rsplit_once('.'))
        .map(|(_, extension)| extension.to_ascii_lowercase())
        .unwrap_or_default();
    if looks_like_html(head) {
        return Format::Html;
    }
    let first = first_sign(head);
    match extension.as_str() {
        // A message may have a header or two, and a damaged one none that is known.
        "eml" | "mht" | "mhtml" => Format::Mail,
        "csv" | "tsv" | "tab" => Format::Csv,
        "json" | "jsonl" | "ndjson" | "geojson" | "ipynb" => Format::Json,
        "md" | "markdown" | "mdown" | "mkd" | "mdx" | "qmd" | "rmd" => Format::Markdown,
        "html" | "htm" | "xhtml" => Format::Html,
        other => match (code_language(other), first) {
            (Some(language), _) => Format::Code(language),
            (None, Some('{' | '[')) => Format::Json,
            (None, Some('<')) if looks_like_xml(head, other) => Format::Xml,
            _ => Format::Text,
        },
    }
}

/// What a ZIP file holds: its first member's MIME type, or the parts that its names tell of.
fn zip_format(bytes: &[u8], limits: &Limits) -> Format {
    let Ok(mut container) = Container::open(bytes, "ZIP archive", limits) else { return Format::Zip };
    let mut parts = [false; 4];
    for index in 0..container.len() {
        let Ok(entry) = container.entry(index) else { continue };
        if entry.name == "mimetype" {
            let media_type = container.read_index(index).unwrap_or_default();
            let media_type = String::from_utf8_lossy(&media_type);
            // Templates and masters are named after what they are templates of.
            let media_type = media_type.trim().trim_end_matches("-template");
            match media_type {
                "application/epub+zip" => return Format::Epub,
                office::ODT | "application/vnd.oasis.opendocument.text-master" => return Format::Odt,
                office::ODP | "application/vnd.oasis.opendocument.graphics" => return Format::Odp,
                office::ODS => return Format::Ods,
                _ => {}
            }
        }
        let name = entry.name.replace('\\', "/").to_ascii_lowercase();
        for (part, prefix) in parts.iter_mut().zip(["[content_types].xml", "word/", "ppt/", "xl/"]) {
            *part |= name.trim_start_matches('/').starts_with(prefix);
        }
    }
    match parts {
        [true, true, ..] => Format::Docx,
        [true, _, true, _] => Format::Pptx,
        [true, _, _, true] => Format::Xlsx,
        _ => Format::Zip,
    }
}

fn ole_format(bytes: &[u8], limits: &Limits) -> Format {
    match ole::Ole::open(bytes, limits).map(|file| file.kind()) {
        Ok(ole::Kind::Doc) => Format::Doc,
        Ok(ole::Kind::Ppt) => Format::Ppt,
        Ok(ole::Kind::Xls) => Format::Xls,
        Ok(ole::Kind::Msg) => Format::Msg,
        Ok(ole::Kind::EncryptedPackage) => Format::Encrypted("office file"),
        Ok(ole::Kind::Other) => Format::Other("compound file of an unknown kind".to_owned()),
        Err(_) => Format::Other("damaged compound file".to_owned()),
    }
}

/// Two header lines of a message at the beginning, or the line that begins an mbox.
fn mail_format(head: &[u8]) -> Option<Format> {
    let text = String::from_utf8_lossy(head);
    if text.starts_with("From ") && text.lines().nth(1).is_some_and(|l| is_header(l).is_some()) {
        return Some(Format::Mbox);
    }
    let mut known = 0;
    for line in text.trim_start_matches('\u{feff}').lines() {
        if line.starts_with([' ', '\t']) && known > 0 {
            continue;
        }
        if line.is_empty() {
            break;
        }
        match is_header(line) {
            Some(true) => known += 1,
            Some(false) => {}
            None => break,
        }
    }
    // Headers of a body's parts alone make a message as well; text does not begin with them.
    let lower = text.to_ascii_lowercase();
    let is_typed = ["content-type: multipart/", "content-type: message/"].iter().any(|head| lower.starts_with(head));
    (known >= 2 || is_typed).then_some(Format::Mail)
}

/// Whether a line is a header field, and if so, one that only messages have.
fn is_header(line: &str) -> Option<bool> {
    let (name, _) = line.split_once(':')?;
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_graphic()) {
        return None;
    }
    let name = name.to_ascii_lowercase();
    Some(
        matches!(
            name.as_str(),
            "from"
                | "to"
                | "cc"
                | "date"
                | "subject"
                | "received"
                | "return-path"
                | "message-id"
                | "mime-version"
                | "reply-to"
                | "delivered-to"
                | "content-type"
                | "content-transfer-encoding"
                | "in-reply-to"
                | "sender"
        ) || name.starts_with("x-"),
    )
}

/// The first character that is no whitespace.
fn first_sign(head: &[u8]) -> Option<char> {
    super::encoding::decode(head, None).text.chars().find(|c| !c.is_whitespace())
}

/// An XML declaration, or a name that says so.
fn looks_like_xml(head: &[u8], extension: &str) -> bool {
    let declared = super::encoding::decode(head, None).text.trim_start().starts_with("<?xml");
    declared || matches!(extension, "xml" | "svg" | "rss" | "atom" | "xsd" | "xsl" | "tei" | "dbk")
}

/// A tenth of control characters in the beginning, unless it is UTF-16 or UTF-32.
fn is_binary(bytes: &[u8]) -> bool {
    let head = &bytes[..bytes.len().min(1 << 16)];
    let decoded = super::encoding::decode(head, None);
    let (mut odd, mut all) = (0usize, 0usize);
    for c in decoded.text.chars() {
        all += 1;
        odd += usize::from((c.is_control() && !c.is_whitespace() && c != '\u{1b}') || c == char::REPLACEMENT_CHARACTER);
    }
    odd * 10 > all
}

fn looks_like_html(head: &[u8]) -> bool {
    let text = super::encoding::decode(head, None).text.to_ascii_lowercase();
    let mut text = text.trim_start();
    // Comments and an XML declaration may stand first.
    loop {
        let rest = if let Some(rest) = text.strip_prefix("<!--") {
            rest.split_once("-->").map(|(_, rest)| rest)
        } else if let Some(rest) = text.strip_prefix("<?xml") {
            rest.split_once("?>").map(|(_, rest)| rest)
        } else {
            break;
        };
        match rest {
            Some(rest) => text = rest.trim_start(),
            None => return false,
        }
    }
    ["<!doctype html", "<html", "<head", "<body"].iter().any(|tag| text.starts_with(tag))
}

fn code_language(extension: &str) -> Option<&'static str> {
    Some(match extension {
        "rs" => "Rust",
        "py" | "pyi" => "Python",
        "js" | "mjs" | "cjs" | "jsx" => "JavaScript",
        "ts" | "tsx" => "TypeScript",
        "java" => "Java",
        "kt" | "kts" => "Kotlin",
        "c" | "h" => "C",
        "cc" | "cpp" | "cxx" | "hpp" | "hh" => "C++",
        "cs" => "C#",
        "go" => "Go",
        "rb" => "Ruby",
        "php" => "PHP",
        "swift" => "Swift",
        "scala" => "Scala",
        "sh" | "bash" | "zsh" => "Shell",
        "ps1" => "PowerShell",
        "sql" => "SQL",
        "r" => "R",
        "jl" => "Julia",
        "lua" => "Lua",
        "pl" | "pm" => "Perl",
        "hs" => "Haskell",
        "ml" | "mli" => "OCaml",
        "ex" | "exs" => "Elixir",
        "erl" => "Erlang",
        "clj" => "Clojure",
        "css" | "scss" | "less" => "CSS",
        "toml" => "TOML",
        "yaml" | "yml" => "YAML",
        "ini" | "cfg" | "conf" => "INI",
        "dockerfile" => "Dockerfile",
        "cmake" => "CMake",
        "zig" => "Zig",
        "dart" => "Dart",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_by_bytes() {
        let cases: [(&[u8], Option<&str>, Format); 10] = [
            (b"From: a\nTo: b\n\nhello", None, Format::Mail),
            (b"From a Mon\nSubject: x\n\nhello", None, Format::Mbox),
            (b"%PDF-1.7\n", Some("x.txt"), Format::Pdf),
            (b"  <!-- c --><!DOCTYPE html><p>", None, Format::Html),
            (b"# Head\n", Some("a.MD"), Format::Markdown),
            (b"plain", Some("a"), Format::Text),
            (b"fn main() {}", Some("a.rs"), Format::Code("Rust")),
            (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", None, Format::Image("Portable Network Graphics".to_owned())),
            (b"\0\x01\x02\x03\x04\x05\x06\x07", None, Format::Other("binary data".to_owned())),
            (b"one\0word with a NUL in it", None, Format::Text),
        ];
        for (bytes, name, expected) in cases {
            assert_eq!(sniff(bytes, name, &Limits::default()), expected);
        }
    }
}
