//! From the order in which glyphs stand on a line to the order in which they are read.

use unicode_bidi::{BidiClass, BidiInfo, Level, bidi_class};
use unicode_normalization::char::is_combining_mark;

/// True for letters that are written from right to left.
pub(super) fn is_rtl(c: char) -> bool {
    // The Latin part of Unicode has none; most text never gets past this line.
    c >= '\u{590}' && matches!(bidi_class(c), BidiClass::R | BidiClass::AL)
}

/// Whether a line is read from right to left: most of its letters are.
pub(super) fn reads_right_to_left(text: &str) -> bool {
    let rtl = text.chars().filter(|c| is_rtl(*c)).count();
    rtl > 0 && rtl >= text.chars().filter(|c| bidi_class(*c) == BidiClass::L).count()
}

/// Whether right-to-left letters are by far the most, so that columns run from right to left, too: a table of words in two
/// languages does not say.
pub(super) fn is_right_to_left(text: &str) -> bool {
    let rtl = text.chars().filter(|c| is_rtl(*c)).count();
    rtl > 2 * text.chars().filter(|c| bidi_class(*c) == BidiClass::L).count()
}

/// Text whose characters stand from left to right as seen, put into logical order.
///
/// The bidirectional algorithm takes logical order to visual order. What it does to a line is to reverse runs by their
/// level, and for what a page can hold (two levels, and numbers within) doing so twice restores the line.
pub(super) fn logical(visual: &str) -> String {
    if !visual.chars().any(is_rtl) {
        return visual.to_owned();
    }
    let visual = &marks_before_letters(visual);
    let level = if reads_right_to_left(visual) { Level::rtl() } else { Level::ltr() };
    let info = BidiInfo::new(visual, Some(level));
    let text: String = info
        .paragraphs
        .iter()
        .map(|paragraph| info.reorder_line(paragraph, paragraph.range.clone()).into_owned())
        .collect();
    mend_brackets(text)
}

/// Reversing a line puts a mark before its letter; so it is put there beforehand.
fn marks_before_letters(visual: &str) -> String {
    let mut out: Vec<char> = Vec::with_capacity(visual.len());
    let mut letter = None;
    for c in visual.chars() {
        match letter {
            Some(at) if is_combining_mark(c) => out.insert(at, c),
            _ => {
                letter = is_rtl(c).then_some(out.len());
                out.push(c);
            }
        }
    }
    out.into_iter().collect()
}

/// A file may say that a bracket's glyph is the bracket as it looks, or as it is meant. In logical order it opens
/// before it closes: if more pairs come of it so, or without any if they only close, all are turned.
fn mend_brackets(text: String) -> String {
    const PAIRS: [(char, char); 4] = [('(', ')'), ('[', ']'), ('{', '}'), ('«', '»')];
    // Pairs, and closing brackets without one.
    let count = |open: char, close: char| {
        let (mut depth, mut pairs, mut loose) = (0u32, 0, 0);
        for c in text.chars() {
            if c == open {
                depth += 1;
            } else if c == close && depth > 0 {
                pairs += 1;
                depth -= 1;
            } else if c == close {
                loose += 1;
            }
        }
        (pairs, loose)
    };
    let wrong = |open: char, close: char| {
        let ((pairs, loose), (turned, _)) = (count(open, close), count(close, open));
        turned > pairs || (turned == pairs && loose > pairs)
    };
    let turned: Vec<_> = PAIRS.into_iter().filter(|(open, close)| wrong(*open, *close)).collect();
    if turned.is_empty() {
        return text;
    }
    text.chars()
        .map(|c| {
            turned
                .iter()
                .find_map(|(open, close)| match c {
                    c if c == *open => Some(*close),
                    c if c == *close => Some(*open),
                    _ => None,
                })
                .unwrap_or(c)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visual_order_becomes_logical() {
        // Hebrew letters are given here by their visual order, leftmost first.
        let cases = [
            ("plain text", "plain text"),
            ("םולש", "שלום"),
            ("םלוע םולש", "שלום עולם"),
            // A number keeps its own order inside right-to-left text.
            ("םימי 365 הנשב", "בשנה 365 ימים"),
            // Latin words inside right-to-left text.
            ("ךמסמ PDF הז", "זה PDF מסמך"),
            // One right-to-left word inside Latin text.
            ("The word םולש means peace", "The word שלום means peace"),
            // A vowel mark stays behind its letter: drawn after it, seen above it.
            ("םו\u{5b9}לש", "שלו\u{5b9}ם"),
            // Brackets as they look.
            (")הארוה( הלימ", "מילה (הוראה)"),
            // As python-bidi, another implementation of the algorithm, shows them.
            ("(ךרעב) רטמ 12.5 ודדמנ 2024 תנשב", "בשנת 2024 נמדדו 12.5 מטר (בערך)"),
            ("3 קלח ,The Sea רפסה", "הספר The Sea, חלק 3"),
            ("הדיחיל ח\"ש 1,250 :ריחמה", "המחיר: 1,250 ש\"ח ליחידה"),
            ("17:30 דע 03-555-1234 ןופלט", "טלפון 03-555-1234 עד 17:30"),
            ("ןושאר טירפ .א", "א. פריט ראשון"),
            ("[2] םגו [1] האר", "ראה [1] וגם [2]"),
            ("The word םולש, in 3 lines", "The word שלום, in 3 lines"),
            ("45 ةحفصلا يف ١٢٣ ددعلا", "العدد ١٢٣ في الصفحة 45"),
            ("םירקמהמ 50%", "50% מהמקרים"),
            ("The Hebrew for sea (םי) is short", "The Hebrew for sea (ים) is short"),
            ("2020 דע 1948-מ", "מ-1948 עד 2020"),
            ("16:00 העשב 14/05/1948 םויב", "ביום 14/05/1948 בשעה 16:00"),
        ];
        for (visual, expected) in cases {
            assert_eq!(logical(visual), expected, "{visual}");
        }
    }
}
