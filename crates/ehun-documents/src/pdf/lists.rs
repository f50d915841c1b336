//! Marks at the beginning of a line: of list items, captions, footnotes and numbered headings.

const BULLETS: &str = "•◦▪▫‣⁃∙●○■□◆◇►▸➢➤➔✓✔✗·–—*-\u{f0b7}\u{f0a7}\u{f076}\u{f0d8}\u{f0fc}";

/// A text that is nothing but a list mark: a bullet, `1.`, `(a)`, `iv)`, `[12]`.
pub(super) fn is_mark(text: &str) -> bool {
    let text = text.trim();
    let mut chars = text.chars();
    if let (Some(only), None) = (chars.next(), chars.next()) {
        return BULLETS.contains(only) || only == 'o';
    }
    is_ordinal(text)
}

fn is_ordinal(text: &str) -> bool {
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if let Some(inner) = bracketed {
        return !inner.is_empty() && inner.len() <= 4 && inner.bytes().all(|b| b.is_ascii_digit());
    }
    let (inner, closed) = match text.strip_prefix('(') {
        Some(rest) => (rest.strip_suffix(')'), true),
        None => (text.strip_suffix(['.', ')']), false),
    };
    let Some(inner) = inner.filter(|inner| !inner.is_empty()) else {
        return false;
    };
    let digits = inner.len() <= 3 && inner.bytes().all(|b| b.is_ascii_digit());
    let roman = inner.len() <= 5 && inner.bytes().all(|b| b"ivx".contains(&b));
    let letter =
        inner.len() == 1 && inner.bytes().all(|b| b.is_ascii_lowercase() || (closed && b.is_ascii_uppercase()));
    digits || roman || letter
}

/// True if a line begins with a list mark and goes on.
pub(super) fn starts_item(text: &str) -> bool {
    let text = text.trim_start();
    let Some((mark, rest)) = text.split_once(char::is_whitespace) else {
        return false;
    };
    if rest.trim().is_empty() {
        return false;
    }
    // A dash or asterisk is a mark only before a space, a letter o only as a mark of its own.
    is_mark(mark) && mark != "o"
}

/// True if a line begins with a bullet (not a number or letter).
pub(super) fn starts_bullet(text: &str) -> bool {
    starts_item(text) && text.trim_start().starts_with(|c| BULLETS.contains(c))
}

/// True if a text is the caption of a figure or table: `Figure 3: ...`, `Tab. 2.1 ...`.
pub(super) fn is_caption(text: &str) -> bool {
    const WORDS: [&str; 20] = [
        "figure",
        "fig.",
        "fig",
        "table",
        "tab.",
        "listing",
        "algorithm",
        "chart",
        "plate",
        "scheme",
        "exhibit",
        "photo",
        "abbildung",
        "abb.",
        "tabelle",
        "tableau",
        "figura",
        "tabla",
        "irudia",
        "taula",
    ];
    let mut words = text.split_whitespace();
    let Some(first) = words.next().map(str::to_lowercase) else {
        return false;
    };
    if !WORDS.contains(&first.as_str()) {
        return false;
    }
    let Some(number) = words.next() else { return false };
    let starts = number.starts_with(|c: char| c.is_ascii_digit() || (c.is_ascii_uppercase() && number.len() <= 4));
    let label = number.trim_end_matches([':', '.', '|', '-', '–']);
    let marked = label.len() < number.len()
        || words.next().is_none_or(|next| next.starts_with(char::is_uppercase) || next == "–" || next == "-");
    starts && marked
}

/// True if a small text at the foot of a page begins as a footnote does: a raised mark, or a symbol.
pub(super) fn starts_footnote(text: &str, raised: usize) -> bool {
    raised > 0 || text.starts_with(['*', '†', '‡', '§', '¶', '¹', '²', '³']) || {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        (1..=3).contains(&digits) && text[digits..].starts_with([' ', '.', ')'])
    }
}

/// True if a text has a row of dots that leads to a page number.
pub(super) fn has_leader(text: &str) -> bool {
    let mut run = 0;
    for c in text.chars() {
        match c {
            '.' | '·' | '_' => run += 1,
            '…' => run += 3,
            ' ' => {}
            _ => run = 0,
        }
        if run >= 5 {
            return true;
        }
    }
    false
}

/// True if a text begins with a section number: `2.1 Methods`, `IV. Results`, `Chapter 3`.
pub(super) fn starts_section(text: &str) -> bool {
    let mut words = text.split_whitespace();
    let (Some(first), Some(second)) = (words.next(), words.next()) else {
        return false;
    };
    let number = first.trim_end_matches('.');
    let dotted = !number.is_empty()
        && number.split('.').all(|part| (1..=2).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit()));
    let roman =
        first.ends_with('.') && !number.is_empty() && number.len() <= 5 && number.bytes().all(|b| b"IVX".contains(&b));
    (dotted || roman) && second.starts_with(|c: char| c.is_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks() {
        for (text, item, caption, section) in [
            ("• first", true, false, false),
            ("1. First", true, false, true),
            ("(a) first", true, false, false),
            ("[12] A reference", true, false, false),
            ("- dash", true, false, false),
            ("-5 degrees", false, false, false),
            ("Figure 3: A tide", false, true, false),
            ("Table 2. Heights", false, true, false),
            ("Figure 3 shows that", false, false, false),
            ("2.1 Methods", false, false, true),
            ("IV. Results", false, false, true),
            ("2020 was a year", false, false, false),
        ] {
            assert_eq!(starts_item(text), item, "item: {text}");
            assert_eq!(is_caption(text), caption, "caption: {text}");
            assert_eq!(starts_section(text), section, "section: {text}");
        }
    }
}
