//! Lines on standard output.

use std::io::Write;

use serde::Serialize;

use crate::error::CommandError;

/// Writes `value` as one line of JSON.
pub fn json_line(value: &impl Serialize) -> Result<(), CommandError> {
    let mut line = serde_json::to_vec(value).map_err(|error| CommandError::Usage(error.to_string()))?;
    line.push(b'\n');
    bytes(&line)
}

/// Writes `text` and ends the line.
pub fn line(text: &str) -> Result<(), CommandError> {
    bytes(format!("{text}\n").as_bytes())
}

fn bytes(bytes: &[u8]) -> Result<(), CommandError> {
    std::io::stdout().lock().write_all(bytes).map_err(CommandError::io("standard output"))
}

/// The beginning of `text` in one line of at most `width` characters.
pub fn snippet(text: &str, width: usize) -> String {
    let mut line = String::new();
    for (count, c) in text.split_whitespace().flat_map(|word| word.chars().chain([' '])).enumerate() {
        if count >= width {
            line.truncate(line.trim_end().len());
            line.push('…');
            return line;
        }
        // Control characters of an untrusted text must not reach the terminal.
        if !c.is_control() {
            line.push(c);
        }
    }
    line.truncate(line.trim_end().len());
    line
}

#[cfg(test)]
mod tests {
    use super::snippet;

    #[test]
    fn snippets_are_one_safe_line() {
        for (text, width, want) in [
            ("", 5, ""),
            ("a\n b\tc", 10, "a b c"),
            ("one two three", 7, "one two…"),
            ("\u{1b}[31mred\u{7}", 20, "[31mred"),
            ("äöü ß", 3, "äöü…"),
        ] {
            assert_eq!(snippet(text, width), want);
        }
    }
}
