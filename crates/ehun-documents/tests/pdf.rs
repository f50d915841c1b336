//! PDFs against expected texts: `tests/pdf/NAME.pdf` is read, and what comes out is compared with `NAME.txt`.
//!
//! The files are made by `tools/pdf/make_test_pdfs.py`. `EHUN_UPDATE_GOLDENS=1` rewrites the expected texts.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use ehun_documents::{BlockKind, Document, Layer, Limits, pdf};
use proptest::prelude::*;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pdf")
}

fn files() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder()).expect("tests/pdf is part of the repository");
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "pdf"));
    files.sort();
    assert!(files.len() > 10, "the test files are missing: run tools/pdf/make_test_pdfs.py");
    files
}

/// One line per block, and what is known of the pages and the document.
fn dump(document: &Document) -> String {
    let mut out = String::new();
    for block in &document.blocks {
        let layer = match block.layer {
            Layer::Body => String::new(),
            layer => format!("{layer:?} "),
        };
        let page = block.page.unwrap_or(0);
        let text = document.block_text(block).replace('\n', "⏎").replace('\t', "⇥");
        let kind = match &block.kind {
            BlockKind::Table(table) => format!("Table({} rows)", table.rows.len()),
            kind => format!("{kind:?}"),
        };
        writeln!(out, "{layer}{kind} p{page}: {text}").expect("writing to a string");
    }
    for page in &document.pages {
        writeln!(out, "page {}: {}x{} {:?}", page.number, page.width, page.height, page.status)
            .expect("writing to a string");
    }
    let metadata = &document.metadata;
    for (key, value) in [("title", &metadata.title), ("language", &metadata.language)] {
        if let Some(value) = value {
            writeln!(out, "{key}: {value}").expect("writing to a string");
        }
    }
    for warning in &document.warnings {
        writeln!(out, "warning: {warning}").expect("writing to a string");
    }
    out
}

#[test]
fn files_give_the_expected_blocks() {
    let update = std::env::var_os("EHUN_UPDATE_GOLDENS").is_some();
    let mut wrong = Vec::new();
    for path in files() {
        let bytes = std::fs::read(&path).expect("a file of the repository");
        let found = match pdf::parse(&bytes, &Limits::default()) {
            Ok(document) => {
                document.check().expect("the document model's invariants");
                dump(&document)
            }
            Err(error) => format!("error: {}\n", error.code()),
        };
        let golden = path.with_extension("txt");
        if update {
            std::fs::write(&golden, &found).expect("writing the expected text");
            continue;
        }
        let expected = std::fs::read_to_string(&golden).unwrap_or_default();
        if expected != found {
            wrong.push(format!("{}\n--- expected\n{expected}--- found\n{found}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Text that no limit lets through is an error, not a shortened document.
#[test]
fn the_text_limit_holds() {
    let bytes = std::fs::read(folder().join("columns.pdf")).expect("a file of the repository");
    let limits = Limits { text_bytes: 100, ..Limits::default() };
    let error = pdf::parse(&bytes, &limits).expect_err("more than 100 bytes of text");
    assert_eq!(error.code(), "limit_exceeded");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever happens to a file's bytes, there is a document that keeps its invariants, or a typed error.
    #[test]
    fn damaged_files_do_no_harm(
        file in 0usize..64,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..24),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let files = files();
        let path = &files[file % files.len()];
        // Too slow for many cases: it is there to reach a bound.
        prop_assume!(!path.ends_with("form-bomb.pdf"));
        let mut bytes = std::fs::read(path).expect("a file of the repository");
        prop_assume!(!bytes.is_empty());
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(document) = pdf::parse(&bytes, &Limits::default()) {
            prop_assert_eq!(document.check(), Ok(()));
        }
    }
}
