//! What the bytes are.

use file_format::{FileFormat, Kind};

/// A format that is told apart here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Format {
    /// PDF.
    Pdf,
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
    /// Nothing that is read here; its name.
    Other(String),
}

/// Decides by signature, then by structure, and by the name only between formats that are all plain text.
pub(crate) fn sniff(bytes: &[u8], file_name: Option<&str>) -> Format {
    let head = &bytes[..bytes.len().min(1024)];
    if head.windows(5).any(|w| w == b"%PDF-") {
        return Format::Pdf;
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
    let extension = file_name
        .and_then(|name| name.rsplit_once('.'))
        .map(|(_, extension)| extension.to_ascii_lowercase())
        .unwrap_or_default();
    if looks_like_html(head) {
        return Format::Html;
    }
    match extension.as_str() {
        "md" | "markdown" | "mdown" | "mkd" | "mdx" | "qmd" | "rmd" => Format::Markdown,
        "html" | "htm" | "xhtml" => Format::Html,
        other => code_language(other).map_or(Format::Text, Format::Code),
    }
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
        let cases: [(&[u8], Option<&str>, Format); 8] = [
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
            assert_eq!(sniff(bytes, name), expected);
        }
    }
}
