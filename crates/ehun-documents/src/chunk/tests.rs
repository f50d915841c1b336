use proptest::prelude::*;

use super::*;
use crate::builder::{CellText, DocumentBuilder, Place};
use crate::limits::Limits;
use crate::model::{Boilerplate, HiddenReason};

/// Four bytes of a word are a token, and so is each emoji byte; a joint costs nothing.
struct Quarters;

impl TokenCounter for Quarters {
    fn count(&self, text: &str) -> usize {
        text.split_whitespace().map(|w| w.len().div_ceil(4)).sum()
    }

    fn special_tokens(&self) -> usize {
        2
    }
}

/// Every byte is a token, also of whitespace: nothing is additive for free.
struct Bytes;

impl TokenCounter for Bytes {
    fn count(&self, text: &str) -> usize {
        text.len()
    }

    fn special_tokens(&self) -> usize {
        1
    }
}

/// A token more than words: counts of parts do not add up to the count of the whole from below.
struct WithStart;

impl TokenCounter for WithStart {
    fn count(&self, text: &str) -> usize {
        let words = text.split_whitespace().count();
        words + words / 7 + text.matches("\n").count()
    }

    fn special_tokens(&self) -> usize {
        0
    }
}

fn cut(document: &Document, max_tokens: usize, overlap: usize) -> Vec<Chunk> {
    chunk(document, &ChunkOptions { max_tokens, overlap, ..ChunkOptions::default() }, &Quarters).unwrap()
}

#[test]
fn headings_begin_chunks() {
    let mut out = DocumentBuilder::new("", &Limits::default());
    for (kind, text) in [
        (BlockKind::Title, "Title"),
        (BlockKind::Heading { level: 1 }, "One"),
        (BlockKind::Paragraph, "First text."),
        (BlockKind::Heading { level: 2 }, "Sub"),
        (BlockKind::Paragraph, "Second text."),
    ] {
        out.push(kind, text).unwrap();
    }
    let document = out.finish().unwrap();
    let chunks = cut(&document, 100, 0);
    let seen: Vec<_> = chunks.iter().map(|c| (c.text.as_str(), c.heading_path.join("/"))).collect();
    assert_eq!(
        seen,
        [("Title\n\nOne\n\nFirst text.", "Title/One".to_owned()), ("Sub\n\nSecond text.", "Title/One/Sub".to_owned())]
    );
}

#[test]
fn tables_repeat_their_header() {
    let mut out = DocumentBuilder::new("", &Limits::default());
    let row = |n: usize| vec![CellText::from(format!("r{n:02}")), CellText::from("word ".repeat(5))];
    let mut rows = vec![vec!["key".into(), "value".into()]];
    rows.extend((0..12).map(row));
    out.push_table(rows, 1, Place::default()).unwrap();
    let document = out.finish().unwrap();
    let chunks = cut(&document, 32, 0);
    assert!(chunks.len() > 2);
    for (n, chunk) in chunks.iter().enumerate() {
        assert!(chunk.text.starts_with("key\tvalue\n"), "{}", chunk.text);
        assert_eq!(chunk.repeated.is_some(), n > 0);
        assert!(chunk.token_count <= 32);
    }
}

#[test]
fn ten_megabytes_in_one_line() {
    for line in ["word ".repeat(2 << 20), "x".repeat(10 << 20), "漢".repeat(3 << 20)] {
        let mut out = DocumentBuilder::new("", &Limits::default());
        out.push(BlockKind::Paragraph, &line).unwrap();
        let document = out.finish().unwrap();
        let chunks = cut(&document, 256, 0);
        let bytes: usize = chunks.iter().flat_map(|c| &c.ranges).map(ExactSizeIterator::len).sum();
        assert!(chunks.iter().all(|c| c.token_count <= 256));
        assert!(bytes + chunks.len() >= line.trim().len());
    }
}

#[test]
fn options_without_room_are_refused() {
    let document = Document::default();
    let small = ChunkOptions { max_tokens: 8, ..ChunkOptions::default() };
    assert!(matches!(chunk(&document, &small, &Quarters), Err(ChunkError::LimitTooSmall { .. })));
    let wide = ChunkOptions { max_tokens: 64, overlap: 40, ..ChunkOptions::default() };
    assert!(matches!(chunk(&document, &wide, &Quarters), Err(ChunkError::OverlapTooLarge { .. })));
}

#[derive(Debug, Clone)]
enum Part {
    Block(BlockKind, String, Layer),
    Table(Vec<Vec<String>>, usize),
}

fn text() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        8 => "[a-z]{1,9}[.!?,]?",
        1 => "[a-z]{100,400}",
        1 => "[äß漢字🙂é]{1,20}",
        1 => "\n",
    ];
    proptest::collection::vec(word, 0..120).prop_map(|words| words.join(" "))
}

fn part() -> impl Strategy<Value = Part> {
    let layer = prop_oneof![
        6 => Just(Layer::Body),
        1 => Just(Layer::Hidden(HiddenReason::Marked)),
        1 => Just(Layer::Boilerplate(Boilerplate::Navigation)),
        1 => Just(Layer::Unplaced),
    ];
    let kind = prop_oneof![
        Just(BlockKind::Title),
        (1u8..4).prop_map(|level| BlockKind::Heading { level }),
        Just(BlockKind::Paragraph),
        Just(BlockKind::Paragraph),
        Just(BlockKind::ListItem { depth: 0 }),
        Just(BlockKind::Code),
        Just(BlockKind::PageFooter),
    ];
    let cells = proptest::collection::vec(proptest::collection::vec("[a-z ]{0,30}", 1..4), 1..12);
    prop_oneof![
        5 => (kind, text(), layer).prop_map(|(k, t, l)| Part::Block(k, t, l)),
        1 => (cells, 0usize..3).prop_map(|(cells, header)| Part::Table(cells, header)),
    ]
}

fn build(parts: Vec<Part>) -> Document {
    let mut out = DocumentBuilder::new("", &Limits::default());
    for part in parts {
        match part {
            Part::Block(kind, text, layer) => {
                out.push_at(kind, &text, Place { layer, ..Place::default() }).unwrap();
            }
            Part::Table(rows, header) => {
                let rows = rows.into_iter().map(|r| r.into_iter().map(CellText::from).collect()).collect();
                out.push_table(rows, header, Place::default()).unwrap();
            }
        }
    }
    out.finish().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn laws(
        parts in proptest::collection::vec(part(), 0..12),
        max_tokens in 20usize..200,
        overlap_share in 0usize..3,
        which in 0usize..3,
    ) {
        let document = build(parts);
        prop_assert_eq!(document.check(), Ok(()));
        let counter: &dyn TokenCounter = [&Quarters as &dyn TokenCounter, &Bytes, &WithStart][which];
        let overlap = (max_tokens - 2) / 8 * overlap_share;
        let options = ChunkOptions { max_tokens, overlap, ..ChunkOptions::default() };
        let chunks = chunk(&document, &options, counter).unwrap();

        // How often each byte is in the new part of a chunk.
        let mut covered = vec![0u8; document.text.len()];
        for (n, chunk) in chunks.iter().enumerate() {
            prop_assert_eq!(chunk.number as usize, n);
            prop_assert!(chunk.token_count <= max_tokens, "{} tokens of {}", chunk.token_count, max_tokens);
            prop_assert_eq!(chunk.token_count, counter.count(&chunk.text) + counter.special_tokens());
            let parts: Vec<&str> =
                chunk.repeated.iter().chain(&chunk.ranges).map(|r| &document.text[r.clone()]).collect();
            prop_assert_eq!(&chunk.text, &parts.join("\n"));
            for range in &chunk.ranges {
                for at in range.clone().filter(|at| *at >= chunk.new_from) {
                    covered[at] += 1;
                }
            }
        }
        for block in &document.blocks {
            let expected = u8::from(options.includes(block));
            for (at, c) in document.text[block.range.clone()].char_indices() {
                if !c.is_whitespace() {
                    prop_assert_eq!(covered[block.range.start + at], expected);
                }
            }
        }
    }
}
