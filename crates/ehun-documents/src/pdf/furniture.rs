//! Running headers and footers: what stands at the edge of several pages.

use std::collections::{HashMap, HashSet};

use super::columns::group_lines;
use super::fragments::Fragment;
use super::glyph::Rect;

/// Which edge a line belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Edge {
    Header,
    Footer,
}

/// Share of the page's height at each edge that is looked at.
const MARGIN: f32 = 0.15;
/// Lines at an edge that may be furniture.
const MAX_LINES: usize = 4;
/// Lines on two pages are at one height if not further apart than this (points).
const SAME_HEIGHT: f32 = 8.0;

/// A page's fragments, and where on the page's frame they may stand.
pub(super) struct PageView<'p> {
    pub fragments: &'p [Fragment],
    /// The page in the frame of its fragments.
    pub frame: Rect,
}

struct EdgeLine {
    edge: Edge,
    /// Distance from the edge.
    depth: f32,
    key: String,
    number_only: bool,
    artifact: bool,
    size: f32,
    members: Vec<usize>,
}

/// For each page, which fragments are furniture.
pub(super) fn find(pages: &[PageView<'_>], body_size: f32) -> Vec<HashMap<usize, Edge>> {
    let edges: Vec<Vec<EdgeLine>> = pages.iter().map(edge_lines).collect();
    let mut places: HashMap<(Edge, &str), Vec<(usize, f32)>> = HashMap::new();
    for (page, lines) in edges.iter().enumerate() {
        for line in lines {
            places.entry((line.edge, line.key.as_str())).or_default().push((page, line.depth));
        }
    }
    let repeats = |page: usize, line: &EdgeLine| -> usize {
        let Some(places) = places.get(&(line.edge, line.key.as_str())) else { return 0 };
        // Neighbours decide: a header changes with the chapter, and left and right pages differ.
        let near = places
            .iter()
            .filter(|(other, depth)| other.abs_diff(page) <= 12 && (depth - line.depth).abs() < SAME_HEIGHT)
            .map(|(other, _)| *other)
            .collect::<HashSet<_>>();
        near.len()
    };
    edges
        .iter()
        .enumerate()
        .map(|(page, lines)| {
            let mut found = HashMap::new();
            for edge in [Edge::Header, Edge::Footer] {
                // From the edge inwards, up to the first line that is content.
                for line in lines.iter().filter(|line| line.edge == edge) {
                    let count = repeats(page, line);
                    let everywhere = count >= 2 && count == pages.len();
                    let lone_number = line.number_only && (count >= 2 || line.depth < 0.08);
                    let small = line.size <= 1.3 * body_size;
                    if !(line.artifact || lone_number || small && (count >= 3 || everywhere)) {
                        break;
                    }
                    found.extend(line.members.iter().map(|member| (*member, edge)));
                }
            }
            found
        })
        .collect()
}

fn edge_lines(page: &PageView<'_>) -> Vec<EdgeLine> {
    let (top, bottom) = (page.frame.y0, page.frame.y1);
    let height = (bottom - top).max(1.0);
    let near = |fragment: &Fragment, edge: Edge| match edge {
        Edge::Header => fragment.rect.y1 < top + MARGIN * height,
        Edge::Footer => fragment.rect.y0 > bottom - MARGIN * height,
    };
    let mut found = Vec::new();
    for edge in [Edge::Header, Edge::Footer] {
        let members: Vec<usize> = (0..page.fragments.len()).filter(|n| near(&page.fragments[*n], edge)).collect();
        let mut lines = group_lines(&members, |n| page.fragments[n].rect);
        if edge == Edge::Footer {
            lines.reverse();
        }
        for members in lines.into_iter().take(MAX_LINES) {
            let pieces: Vec<&Fragment> = members.iter().map(|n| &page.fragments[*n]).collect();
            let text = pieces.iter().map(|piece| piece.text.as_str()).collect::<Vec<_>>().join(" ");
            let depth = match edge {
                Edge::Header => pieces[0].baseline - top,
                Edge::Footer => bottom - pieces[0].baseline,
            };
            found.push(EdgeLine {
                edge,
                depth: if text.trim().len() <= 24 && is_page_number(&text) { depth.min(height * 0.5) } else { depth },
                key: key(&text),
                number_only: is_page_number(&text) && depth < 0.1 * height,
                artifact: pieces.iter().all(|piece| piece.artifact),
                size: pieces.iter().map(|piece| piece.size).fold(0.0, f32::max),
                members,
            });
        }
    }
    found
}

/// The line without what changes from page to page.
fn key(text: &str) -> String {
    let mut key = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !key.is_empty() {
            key.push(' ');
        }
        let mut in_number = false;
        for c in word.chars() {
            let digit = c.is_numeric();
            if !(digit && in_number) {
                key.push(if digit { '#' } else { c });
            }
            in_number = digit;
        }
    }
    if is_roman(&key) { "#".to_owned() } else { key }
}

fn is_roman(text: &str) -> bool {
    !text.is_empty() && text.len() <= 7 && text.bytes().all(|b| b"ivxlc".contains(&b))
}

/// `12`, `- 12 -`, `Page 3 of 9`, `xiv`, `3 / 9`.
fn is_page_number(text: &str) -> bool {
    let key = key(text);
    let words: Vec<&str> = key
        .split_whitespace()
        .map(|word| word.trim_matches(['-', '–', '—', '|', '[', ']', '(', ')', '.']))
        .filter(|word| !word.is_empty())
        .collect();
    let known = |word: &&str| {
        matches!(word.to_lowercase().as_str(), "#" | "page" | "seite" | "página" | "of" | "von" | "de" | "/" | "#/#")
    };
    (1..=4).contains(&words.len()) && words.iter().all(known) && key.contains('#')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_numbers() {
        for text in ["12", "- 12 -", "Page 3 of 9", "xiv", "3 / 9", "[7]"] {
            assert!(is_page_number(text), "{text}");
        }
        for text in ["Chapter 3", "page", "12 apples", "of"] {
            assert!(!is_page_number(text), "{text}");
        }
    }
}
