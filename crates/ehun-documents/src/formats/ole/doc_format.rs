//! What DOC says about its characters and paragraphs: styles, headings, lists, hidden and deleted text ([MS-DOC] 2.4.6).
//!
//! Properties hang on positions in the file, not on characters: pages of 512 bytes list where in the stream a run or a
//! paragraph begins and which modifiers (sprm) it has.

use std::ops::Range;

use super::{u16_at, u32_at};
use crate::model::HiddenReason;

/// Paragraph styles by number, the intervals of paragraphs, the intervals that a reader does not see.
#[derive(Debug, Default)]
pub(super) struct Formatting {
    /// Byte range in the stream and properties, by start.
    paragraphs: Vec<(Range<usize>, Paragraph)>,
    /// By start.
    unseen: Vec<(Range<usize>, HiddenReason)>,
}

/// What a paragraph is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Paragraph {
    /// Outline level from 1, if it is a heading.
    pub level: Option<u8>,
    /// Depth in a list, if it is an item.
    pub item: Option<u8>,
    pub title: bool,
    pub caption: bool,
}

/// Properties that modifiers set; `None` where they say nothing.
#[derive(Debug, Clone, Copy, Default)]
struct Modified {
    outline: Option<u8>,
    list: Option<bool>,
    list_level: Option<u8>,
    hidden: Option<bool>,
    deleted: Option<bool>,
}

#[derive(Debug, Clone, Copy)]
struct Style {
    /// Number of a built-in style.
    built_in: u16,
    parent: u16,
    own: Modified,
}

/// Styles that are looked through to the one that says something.
const MAX_CHAIN: usize = 16;
const NIL: u16 = 0xfff;

impl Formatting {
    /// Reads what the file information block points at. What cannot be read is left out.
    pub(super) fn read(main: &[u8], table: &[u8]) -> Self {
        let part = |field: usize| {
            let (at, length) = (u32_at(main, field), u32_at(main, field + 4));
            table.get(at..at.saturating_add(length)).unwrap_or_default()
        };
        let styles = styles(part(0xa2));
        let mut formatting = Formatting::default();
        for page in pages(part(0x102), main) {
            for n in 0..usize::from(page[511]) {
                let Some((range, at)) = entry(page, n, 13) else { break };
                // Lengths are in words; an odd one is told by a leading zero.
                let (from, length) = match page.get(at) {
                    Some(0) => (at + 2, 2 * usize::from(page.get(at + 1).copied().unwrap_or(0))),
                    Some(&words) => (at + 1, (2 * usize::from(words)).saturating_sub(1)),
                    None => continue,
                };
                let content = page.get(from..(from + length).min(511)).unwrap_or_default();
                let properties = paragraph(&styles, u16_at(content, 0), content.get(2..).unwrap_or_default());
                formatting.paragraphs.push((range, properties));
            }
        }
        for page in pages(part(0xfa), main) {
            for n in 0..usize::from(page[511]) {
                let Some((range, at)) = entry(page, n, 1) else { break };
                if at == 0 {
                    continue;
                }
                let length = usize::from(page.get(at).copied().unwrap_or(0));
                let modified = modify(page.get(at + 1..(at + 1 + length).min(511)).unwrap_or_default());
                let reason = match (modified.deleted, modified.hidden) {
                    (Some(true), _) => HiddenReason::Deleted,
                    (_, Some(true)) => HiddenReason::Marked,
                    _ => continue,
                };
                formatting.unseen.push((range, reason));
            }
        }
        formatting.paragraphs.sort_by_key(|(range, _)| range.start);
        formatting.unseen.sort_by_key(|(range, _)| range.start);
        formatting
    }

    /// The paragraph whose mark is at this byte of the stream.
    pub(super) fn paragraph(&self, at: usize) -> Paragraph {
        find(&self.paragraphs, at).unwrap_or_default()
    }

    /// Why a reader does not see the character at this byte, if so.
    pub(super) fn unseen(&self, at: usize) -> Option<HiddenReason> {
        find(&self.unseen, at)
    }
}

fn find<T: Copy>(intervals: &[(Range<usize>, T)], at: usize) -> Option<T> {
    let after = intervals.partition_point(|(range, _)| range.start <= at);
    let (range, value) = &intervals[after.checked_sub(1)?];
    range.contains(&at).then_some(*value)
}

/// The pages that a table of pages names.
fn pages<'m>(plc: &[u8], main: &'m [u8]) -> Vec<&'m [u8]> {
    let count = plc.len().saturating_sub(4) / 8;
    let number = |n: usize| u32_at(plc, (count + 1) * 4 + n * 4) & 0x3f_ffff;
    (0..count).filter_map(|n| main.get(number(n) * 512..number(n) * 512 + 512)).collect()
}

/// Interval and place of the properties of the `n`th entry, whose descriptions are `size` bytes.
fn entry(page: &[u8], n: usize, size: usize) -> Option<(Range<usize>, usize)> {
    let count = usize::from(page[511]);
    let description = (count + 1) * 4 + n * size;
    let range = u32_at(page, n * 4)..u32_at(page, n * 4 + 4);
    (description < 511 && range.start < range.end).then(|| (range, 2 * usize::from(page[description])))
}

fn paragraph(styles: &[Option<Style>], number: u16, modifiers: &[u8]) -> Paragraph {
    let own = modify(modifiers);
    let mut paragraph = Paragraph::default();
    let (mut outline, mut list, mut list_level) = (own.outline, own.list, own.list_level);
    let mut next = number;
    for _ in 0..MAX_CHAIN {
        let Some(style) = styles.get(usize::from(next)).copied().flatten() else { break };
        match style.built_in {
            1..=9 => outline = outline.or(Some(style.built_in as u8 - 1)),
            34 => paragraph.caption = true,
            62 => paragraph.title = true,
            _ => {}
        }
        outline = outline.or(style.own.outline);
        list = list.or(style.own.list);
        list_level = list_level.or(style.own.list_level);
        next = style.parent;
        if next == NIL {
            break;
        }
    }
    // 9 is body text.
    paragraph.level = outline.filter(|level| *level < 9).map(|level| level + 1);
    paragraph.item = list.filter(|list| *list).map(|_| list_level.unwrap_or(0));
    paragraph
}

/// The style sheet ([MS-DOC] 2.9.271): paragraph styles by their number.
fn styles(sheet: &[u8]) -> Vec<Option<Style>> {
    let head = usize::from(u16_at(sheet, 0));
    let (count, base_size) = (usize::from(u16_at(sheet, 2)), usize::from(u16_at(sheet, 4)));
    let mut at = 2 + head;
    let mut styles = Vec::new();
    for _ in 0..count.min(4096) {
        let length = usize::from(u16_at(sheet, at));
        let content = sheet.get(at + 2..at + 2 + length).unwrap_or_default();
        at += 2 + length + length % 2;
        let is_paragraph = u16_at(content, 2) & 0xf == 1;
        styles.push((content.len() > base_size && is_paragraph).then(|| {
            // The name, then the paragraph's own modifiers after the style's number.
            let name = base_size + 2 + 2 * usize::from(u16_at(content, base_size)) + 2;
            let size = usize::from(u16_at(content, name));
            let own = content.get(name + 4..(name + 2 + size).min(content.len())).map(modify).unwrap_or_default();
            Style { built_in: u16_at(content, 0) & 0xfff, parent: u16_at(content, 2) >> 4, own }
        }));
    }
    styles
}

/// Runs through modifiers. Operands have sizes by class; only those of interest are read.
fn modify(mut modifiers: &[u8]) -> Modified {
    let mut modified = Modified::default();
    while modifiers.len() >= 3 {
        let code = u16_at(modifiers, 0);
        let operand = &modifiers[2..];
        let size = match code >> 13 {
            0 | 1 => 1,
            2 | 4 | 5 => 2,
            3 => 4,
            7 => 3,
            _ => match code {
                // The definition of a table's columns has a length of two bytes, which is one too large.
                0xd608 | 0xd606 => 1 + usize::from(u16_at(operand, 0)),
                _ => 1 + usize::from(operand[0]),
            },
        };
        // Toggles: 0 and 1, and 128 and 129 for as and unlike the style.
        let on = matches!(operand[0], 1 | 129);
        match code {
            0x0800 => modified.deleted = Some(on),
            0x083c => modified.hidden = Some(on),
            0x2640 => modified.outline = Some(operand[0]),
            0x460b => modified.list = Some(u16_at(operand, 0) != 0),
            0x260a => modified.list_level = Some(operand[0]),
            _ => {}
        }
        modifiers = operand.get(size..).unwrap_or_default();
    }
    modified
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modifiers_of_all_sizes_are_passed() {
        let bytes = [
            [0x35, 0x08, 1].as_slice(), // bold, one byte
            &[0x43, 0x4a, 24, 0],       // size, two
            &[0x70, 0x68, 0, 0, 0, 0],  // colour, four
            &[0x0d, 0xc6, 3, 9, 9, 9],  // tabs, as long as they say
            &[0x08, 0xd6, 3, 0, 9, 9],  // table, two bytes of length
            &[0x3c, 0x08, 1, 0x00, 0x08, 1, 0x40, 0x26, 2, 0x0b, 0x46, 1, 0, 0x0a, 0x26, 1],
        ]
        .concat();
        let modified = modify(&bytes);
        assert_eq!((modified.hidden, modified.deleted, modified.outline), (Some(true), Some(true), Some(2)));
        assert_eq!((modified.list, modified.list_level), (Some(true), Some(1)));
        for cut in 0..bytes.len() {
            modify(&bytes[..cut]);
        }
    }

    #[test]
    fn a_style_without_a_level_asks_the_one_it_is_based_on() {
        let style = |built_in, parent| Some(Style { built_in, parent, own: Modified::default() });
        let styles = [style(0, NIL), style(2, 0), style(4094, 1), style(4094, 4), style(4094, 3)];
        let level = |number| paragraph(&styles, number, &[]).level;
        assert_eq!([0, 1, 2, 3, 9].map(level), [None, Some(2), Some(2), None, None]);
        assert_eq!(paragraph(&styles, 1, &[0x40, 0x26, 9]).level, None);
    }
}
