//! The example documents, read as a user's first run reads them.

use std::path::PathBuf;

use ehun_documents::{
    BlockKind, Boilerplate, ChunkOptions, Document, HiddenReason, Layer, ParseOptions, TokenCounter, chunk, parse,
};

fn example(name: &str) -> Document {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/documents").join(name);
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let options = ParseOptions { file_name: Some(name.to_owned()), ..ParseOptions::default() };
    let document = parse(&bytes, &options).unwrap();
    document.check().unwrap();
    assert_eq!(document.metadata.hash, blake3::hash(&bytes).to_hex().to_string());
    document
}

/// (level, text) of all headings that are content.
fn outline(document: &Document) -> Vec<(u8, &str)> {
    let heading = |b: &ehun_documents::Block| match b.kind {
        BlockKind::Title => Some(0),
        BlockKind::Heading { level } => Some(level),
        _ => None,
    };
    let blocks = document.blocks.iter().filter(|b| b.is_content());
    blocks.filter_map(|b| Some((heading(b)?, document.block_text(b)))).collect()
}

#[test]
fn markdown() {
    let document = example("bread-without-yeast.md");
    assert_eq!(
        outline(&document),
        [
            (1, "Bread without a packet of yeast"),
            (2, "The starter"),
            (2, "Formula"),
            (2, "Working the dough"),
            (2, "Baking")
        ]
    );
    assert_eq!(document.metadata.created.as_deref(), Some("2026-11-02"));
    let table = document.blocks.iter().find_map(|b| match &b.kind {
        BlockKind::Table(table) => Some(table),
        _ => None,
    });
    assert_eq!(table.map(|t| (t.header_rows, t.rows.len())), Some((1, 6)));
}

#[test]
fn plain_text_is_its_own_source() {
    let document = example("lighthouse-keepers-log.txt");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/documents/lighthouse-keepers-log.txt");
    assert_eq!(document.text, std::fs::read_to_string(path).unwrap());
    assert_eq!(document.blocks.len(), 7);
}

#[test]
fn html() {
    let document = example("heat-pump-faq.html");
    assert_eq!(document.metadata.language.as_deref(), Some("en"));
    assert_eq!(document.metadata.authors, ["Hearth & Home editors"]);
    assert_eq!(outline(&document).len(), 6);
    for (words, layer) in [
        ("Roofs", Layer::Boilerplate(Boilerplate::Navigation)),
        ("We use cookies", Layer::Boilerplate(Boilerplate::Widget)),
        ("Seven mistakes", Layer::Boilerplate(Boilerplate::Aside)),
        ("Imprint", Layer::Boilerplate(Boilerplate::Footer)),
        ("30 decibels", Layer::Body),
    ] {
        let block = document.blocks.iter().find(|b| document.block_text(b).contains(words));
        assert_eq!(block.map(|b| b.layer), Some(layer), "{words}");
    }
    assert!(!document.text.contains("window.visitors"));
}

#[test]
fn docx() {
    let document = example("night-trains.docx");
    assert_eq!(document.metadata.title.as_deref(), Some("The night trains of the north"));
    assert_eq!(
        outline(&document),
        [
            (0, "The night trains of the north"),
            (1, "Choosing a berth"),
            (2, "What to bring"),
            (1, "Three lines compared"),
            (1, "Delays, and how to bear them")
        ]
    );
    let find = |words: &str| {
        let found = document.blocks.iter().find(|b| document.block_text(b).contains(words));
        found.unwrap_or_else(|| panic!("no block with {words}"))
    };
    assert_eq!(find("by the attendant").kind, BlockKind::Footnote);
    assert_eq!(document.heading_path(find("by the attendant")).len(), 2);
    assert_eq!(find("Travel notes").kind, BlockKind::PageHeader);
    assert_eq!(find("check the fares").layer, Layer::Hidden(HiddenReason::Marked));
    assert_eq!(find("Slippers").kind, BlockKind::ListItem { depth: 0 });
    let BlockKind::Table(table) = &find("Helsinki").kind else { panic!("no table") };
    assert_eq!(&document.text[table.rows[3].cells[3].range.clone()], "1,013 km");
}

#[test]
fn mail() {
    let document = example("greenhouse-report.eml");
    assert_eq!(document.metadata.created.as_deref(), Some("2026-11-16T08:41:00+01:00"));
    assert_eq!(document.children.len(), 1);
    let child = &document.children[0];
    let options = ParseOptions { file_name: Some(child.name.clone()), ..ParseOptions::default() };
    let attachment = parse(&child.bytes, &options).unwrap();
    assert_eq!(attachment.metadata.media_type, "text/csv");
    let quoted = document.blocks.iter().filter(|b| b.layer == Layer::Boilerplate(Boilerplate::Quoted));
    assert_eq!(quoted.count(), 2);
}

/// A word is a token.
struct Words;

impl TokenCounter for Words {
    fn count(&self, text: &str) -> usize {
        text.split_whitespace().count()
    }

    fn special_tokens(&self) -> usize {
        2
    }
}

#[test]
fn chunks_of_the_examples_hold_to_their_sections() {
    for name in ["bread-without-yeast.md", "heat-pump-faq.html", "night-trains.docx"] {
        let document = example(name);
        let chunks = chunk(&document, &ChunkOptions::default(), &Words).unwrap();
        // Every section fits, so that there is a chunk for each heading; a title joins the one that follows it, if no
        // text stands between.
        assert_eq!(chunks.len(), outline(&document).len(), "{name}");
        for chunk in chunks {
            assert!(chunk.text.starts_with(chunk.heading_path.last().map_or("", String::as_str)), "{name}");
        }
    }
}
