//! Laws that hold for whatever bytes come in: a document that is sound, or an error, and the same one each time.

use std::path::PathBuf;

use ehun_documents::{ParseOptions, parse};
use proptest::prelude::*;

/// Names and bytes of the example documents.
fn examples() -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/documents");
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let name = |p: &PathBuf| p.file_name().unwrap_or_default().to_string_lossy().into_owned();
    files.iter().map(|p| (name(p), std::fs::read(p).unwrap())).collect()
}

fn holds(bytes: &[u8], name: Option<String>) -> Result<(), TestCaseError> {
    let options = ParseOptions { file_name: name, ..ParseOptions::default() };
    let outcome = parse(bytes, &options);
    if let Ok(document) = &outcome {
        prop_assert_eq!(document.check(), Ok(()));
    }
    prop_assert_eq!(outcome, parse(bytes, &options));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn damaged_documents(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let examples = examples();
        let (name, mut bytes) = examples[which.index(examples.len())].clone();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        holds(&bytes, Some(name))?;
    }

    #[test]
    fn arbitrary_bytes(
        head in prop::sample::select(vec![
            b"".as_slice(), b"{\\rtf1", b"<?xml version='1.0'?>", b"<html>", b"From: a\nTo: b\n", b"{\"a\":", b"From a\nX-B: c\n",
            b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", b"PK\x03\x04", b"\x1f\x8b\x08\0\0\0\0\0\0\0", b"%PDF-1.4\n",
        ]),
        tail in prop::collection::vec(any::<u8>(), 0..600),
        extension in prop::sample::select(vec!["", "a.md", "a.csv", "a.json", "a.rs", "a.html"]),
    ) {
        let bytes = [head, &tail].concat();
        holds(&bytes, Some(extension.to_owned()))?;
    }

    #[test]
    fn arbitrary_markup(
        pieces in prop::collection::vec(prop::sample::select(vec![
            "<p>", "</p>", "<div hidden>", "</div>", "<table>", "<tr>", "<td>", "</table>", "<li>", "<ul>", "</ul>", "<h1>",
            "<main>", "</main>", "<nav>", "<b>", "</b>", "<pre>", "<br>", "word", " ", "\n", "&amp;", "# ", "- ", "> ", "| a |\n",
            "|---|\n", "```\n", "[^1]", "[^1]: ", "<!-- ", " -->", "<script>", "</script>", "é漢", "\t", "1. ", "***", "`",
        ]), 0..80),
        name in prop::sample::select(vec!["a.md", "a.html", "a.txt", "a.xml"]),
    ) {
        holds(pieces.concat().as_bytes(), Some(name.to_owned()))?;
    }
}
