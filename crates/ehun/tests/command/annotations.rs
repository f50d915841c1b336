//! Labels and entities in the tables of the main job.

use std::fs;
use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, UInt32Type, UInt64Type};
use arrow_array::{Array, RecordBatch};
use serde_json::Value;

use crate::common::{ehun, table, texts, write_all};

const CLASSIFIER: &str = "goldens/bert.sequence-classification";
const TAGGER: &str = "goldens/bert.token-classification";

fn process(arguments: &[&str], out: &Path) -> String {
    ehun(&[&["process", "--out", out.to_str().unwrap()], arguments].concat()).expect(0)
}

/// The columns of `batch` that `names` has not, in their order.
fn without(batch: &RecordBatch, start: &[&str]) -> RecordBatch {
    let schema = batch.schema();
    let kept = |i: &usize| !start.iter().any(|start| schema.field(*i).name().starts_with(start));
    batch.project(&(0..schema.fields().len()).filter(kept).collect::<Vec<_>>()).unwrap()
}

fn characters(text: &str, range: std::ops::Range<usize>) -> String {
    text.chars().skip(range.start).take(range.len()).collect()
}

#[test]
fn chunks_get_labels_and_entities_beside_all_they_had() {
    let folder = tempfile::tempdir().unwrap();
    let (plain, out) = (folder.path().join("plain"), folder.path().join("out"));
    process(&["examples/documents", "-q"], &plain);
    let arguments = ["examples/documents", "--classify", CLASSIFIER, "--tag", TAGGER];
    process(&[&arguments[..], &["-q"]].concat(), &out);

    let chunks = table(&out.join("chunks.parquet"));
    assert_eq!(without(&chunks, &["labels", "entities"]), table(&plain.join("chunks.parquet")));
    assert!(texts(&chunks, "labels_model").iter().all(|name| name == CLASSIFIER));
    assert!(texts(&chunks, "entities_weights_hash").iter().all(|hash| hash.len() == 64));

    let labels = chunks.column_by_name("labels").unwrap().as_list::<i32>();
    assert_eq!(labels.null_count(), 0);
    for row in 0..chunks.num_rows() {
        let of_row = labels.value(row);
        let of_row = of_row.as_struct();
        let mut names: Vec<_> = of_row.column(0).as_string::<i32>().iter().flatten().map(str::to_owned).collect();
        names.sort();
        assert_eq!(names, ["LABEL_A", "LABEL_B", "LABEL_C"]);
        let scores = of_row.column(1).as_primitive::<Float32Type>().values().to_vec();
        assert!(scores.is_sorted_by(|a, b| a >= b) && (scores.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{scores:?}");
    }

    let documents = table(&out.join("documents.parquet"));
    let document_texts: std::collections::HashMap<_, _> =
        texts(&documents, "path").into_iter().zip(texts(&documents, "text")).collect();
    let (paths, chunk_texts) = (texts(&chunks, "path"), texts(&chunks, "text"));
    let entities = chunks.column_by_name("entities").unwrap().as_list::<i32>();
    let (mut all, mut apart) = (0, 0);
    for row in 0..chunks.num_rows() {
        let of_row = entities.value(row);
        let of_row = of_row.as_struct();
        let word = of_row.column(2).as_string::<i32>();
        let u32s = |i: usize| of_row.column(i).as_primitive::<UInt32Type>().values().to_vec();
        let u64s = |i: usize| of_row.column(i).as_primitive::<UInt64Type>().values().to_vec();
        let (starts, ends, char_starts, char_ends) = (u32s(3), u32s(4), u64s(5), u64s(6));
        for i in 0..of_row.len() {
            let in_chunk = characters(&chunk_texts[row], starts[i] as usize..ends[i] as usize);
            assert_eq!(in_chunk, word.value(i), "{} {row}", paths[row]);
            let range = char_starts[i] as usize..char_ends[i] as usize;
            let in_document = characters(&document_texts[&paths[row]], range);
            all += 1;
            if in_document != word.value(i) {
                // Over what the chunk leaves out, or between a repeated table header and the rows.
                apart += 1;
                let (first, last) = (word.value(i).chars().next(), word.value(i).chars().last());
                assert!(in_document.chars().next() == first && in_document.chars().last() == last, "{in_document}");
            }
        }
    }
    assert!(all > 100 && apart * 10 < all, "{apart} of {all} entities are over a gap");

    let again = process(&arguments, &out);
    assert!(again.starts_with("0 documents"), "{again}");
    let changed = process(&[&arguments[..], &["--aggregation", "max"]].concat(), &out);
    assert!(!changed.starts_with("0 documents") && !changed.contains("unchanged"), "{changed}");
}

#[test]
fn the_labels_of_a_chunk_are_those_that_classify_gives() {
    let folder = tempfile::tempdir().unwrap();
    let (input, out) = (folder.path().join("in"), folder.path().join("out"));
    let text = "Anna Bauer of Oslo wrote 🙂 e\u{301}t\u{e9}, a letter to Acme.";
    write_all(&input, &[("a.txt", text.as_bytes()), ("long.txt", "Bauer lives in Oslo, ".repeat(60).as_bytes())]);
    let source = input.to_str().unwrap();
    let printed = ehun(&[
        "process",
        source,
        "--out",
        "-",
        "-q",
        "--classify",
        CLASSIFIER,
        "--top-labels",
        "2",
        "--tag",
        TAGGER,
        "--aggregation",
        "first",
    ])
    .expect(0);
    let rows: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let chunks: Vec<&Value> = rows.iter().filter(|row| row["table"] == "chunks").collect();
    let first = chunks.iter().find(|row| row["text"] == text).unwrap();
    let labels: Value =
        serde_json::from_str(&ehun(&["classify", text, "-k", "2", "--model", CLASSIFIER]).expect(0)).unwrap();
    let scores = |list: &Value| -> Vec<(String, f32)> {
        let label = |l: &Value| (l["label"].as_str().unwrap().to_owned(), l["score"].as_f64().unwrap() as f32);
        list.as_array().unwrap().iter().map(label).collect()
    };
    assert_eq!(scores(&first["labels"]), scores(&labels["labels"]));
    let tagged = ehun(&["tag", text, "--model", TAGGER, "--aggregation", "first"]).expect(0);
    let tagged: Value = serde_json::from_str(&tagged).unwrap();
    let brief = |list: &Value, text: &str| -> Vec<(String, String, u64, u64)> {
        let entity = |e: &Value| {
            let string = |key: &str| e[key].as_str().unwrap().to_owned();
            (string("label"), string(text), e["start"].as_u64().unwrap(), e["end"].as_u64().unwrap())
        };
        list.as_array().unwrap().iter().map(entity).collect()
    };
    assert_eq!(brief(&first["entities"], "text"), brief(&tagged["entities"], "word"));
    // The tagger takes 160 tokens, the chunks are longer: their ends are read too.
    let long = chunks.iter().find(|row| row["path"].as_str().unwrap().ends_with("long.txt")).unwrap();
    let last = long["entities"].as_array().unwrap().last().unwrap();
    let length = long["text"].as_str().unwrap().len() as u64;
    assert!(last["end"].as_u64().unwrap() > length * 9 / 10, "{last} of {length}");

    process(&[source, "-q", "--classify", CLASSIFIER], &out);
    // A later job that asks for nothing keeps what rows of other files have.
    fs::remove_file(input.join("a.txt")).unwrap();
    fs::write(input.join("b.txt"), "Another text.").unwrap();
    process(&[source, "-q"], &out);
    let after = table(&out.join("chunks.parquet"));
    let labels = after.column_by_name("labels").unwrap();
    let names = texts(&after, "path");
    for (row, path) in names.iter().enumerate() {
        assert_eq!(labels.is_null(row), !path.ends_with("a.txt"), "{path}");
    }
    let refused = ehun(&["process", source, "--out", "-", "--classify", TAGGER]);
    assert!(refused.stderr.contains("ForSequenceClassification"), "{}", refused.stderr);
    refused.expect(1);
}
