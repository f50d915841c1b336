//! The main job on the example documents, and what a second run does.

use std::fs;
use std::path::Path;

use crate::common::{command, ehun, table, texts, write_all};
use arrow_array::cast::AsArray;
use arrow_array::{Array, FixedSizeListArray, Float32Array, RecordBatch, UInt32Array, UInt64Array};

fn numbers(batch: &RecordBatch, column: &str) -> Vec<u64> {
    let column = batch.column_by_name(column).unwrap().as_any();
    match column.downcast_ref::<UInt32Array>() {
        Some(small) => small.iter().map(|n| u64::from(n.unwrap_or_default())).collect(),
        None => column.downcast_ref::<UInt64Array>().unwrap().iter().flatten().collect(),
    }
}

fn process(arguments: &[&str], out: &Path) -> crate::common::Ran {
    let out = out.to_str().unwrap();
    ehun(&[&["process", "--out", out], arguments].concat())
}

#[test]
fn the_example_documents_end_to_end() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let said = process(&["examples/documents"], &out).expect(0);
    assert!(said.contains("documents.parquet") && said.contains("chunks.parquet"), "{said}");

    let documents = table(&out.join("documents.parquet"));
    let chunks = table(&out.join("chunks.parquet"));
    let paths = texts(&documents, "path");
    let mut files: Vec<String> = fs::read_dir(crate::common::root().join("examples/documents"))
        .unwrap()
        .map(|entry| format!("examples/documents/{}", entry.unwrap().file_name().to_string_lossy()))
        .collect();
    files.sort();
    let sources: std::collections::BTreeSet<String> = texts(&documents, "source").into_iter().collect();
    assert_eq!(sources.into_iter().collect::<Vec<_>>(), files);
    assert!(texts(&documents, "status").iter().all(|status| status == "ok"));

    // Provenance: a chunk's text is what its range of the document's text says.
    let document_texts: std::collections::HashMap<String, Vec<char>> =
        paths.iter().cloned().zip(texts(&documents, "text").iter().map(|text| text.chars().collect())).collect();
    let (starts, ends) = (numbers(&chunks, "char_start"), numbers(&chunks, "char_end"));
    let chunk_texts = texts(&chunks, "text");
    let repeated = numbers(&chunks, "repeated_chars");
    let mut exact = 0;
    for (i, path) in texts(&chunks, "path").iter().enumerate() {
        let range: String = document_texts[path][starts[i] as usize..ends[i] as usize].iter().collect();
        exact += usize::from(range == chunk_texts[i]);
        let own: String = chunk_texts[i].chars().skip(repeated[i] as usize).collect();
        assert!(range.starts_with(own.lines().next().unwrap()), "{path} {i}: its own part begins where its range does");
        // What is left out between two parts of a chunk is boilerplate or hidden; what is repeated is a table's header.
        let first = chunk_texts[i].lines().next().unwrap();
        let last = chunk_texts[i].lines().last().unwrap();
        assert!(range.ends_with(last) && document_texts[path].iter().collect::<String>().contains(first), "{path} {i}");
    }
    assert!(exact * 10 >= chunk_texts.len() * 8, "{exact} of {} chunks are their range exactly", chunk_texts.len());

    // Vectors: there, of length 1, and marked with what made them.
    let vectors = chunks.column_by_name("embedding").unwrap().as_any().downcast_ref::<FixedSizeListArray>().unwrap();
    assert_eq!((vectors.value_length(), vectors.null_count()), (384, 0));
    let values = vectors.values().as_any().downcast_ref::<Float32Array>().unwrap();
    for vector in values.values().chunks_exact(384) {
        let length: f32 = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
    }
    assert!(texts(&chunks, "backend").iter().all(|name| name == "cpu"));
    assert!(texts(&chunks, "precision").iter().all(|name| name == "f32"));
    assert!(texts(&chunks, "attention_kernel").iter().all(|name| !name.is_empty() && !name.contains(' ')));
    assert!(texts(&chunks, "weights_hash").iter().all(|hash| hash.len() == 64));
    assert!(numbers(&chunks, "token_count").iter().all(|&count| count > 2 && count <= 256));

    let again = process(&["examples/documents"], &out).expect(0);
    assert!(again.starts_with("0 documents") && again.contains("unchanged"), "{again}");
    assert_eq!(table(&out.join("chunks.parquet")), chunks);
}

#[test]
fn a_repeated_table_header_is_marked() {
    let folder = tempfile::tempdir().unwrap();
    let (input, out) = (folder.path().join("in"), folder.path().join("out"));
    let rows: String = (0..60).map(|n| format!("Station {n},calm with a little swell\n")).collect();
    write_all(&input, &[("readings.csv", format!("Name,Remark\n{rows}").as_bytes())]);
    process(&[input.to_str().unwrap(), "--chunk-tokens", "128", "--quiet"], &out).expect(0);
    let chunks = table(&out.join("chunks.parquet"));
    let repeated = numbers(&chunks, "repeated_chars");
    assert!(repeated.len() > 2);
    assert_eq!(repeated[0], 0);
    let header = "Name\tRemark\n";
    for (text, repeated) in texts(&chunks, "text").iter().zip(repeated).skip(1) {
        assert_eq!((&text[..header.len()], repeated), (header, header.len() as u64));
    }
}

#[test]
fn a_search_finds_the_right_document() {
    let folder = tempfile::tempdir().unwrap();
    let (input, out) = (folder.path().join("in"), folder.path().join("out"));
    write_all(
        &input,
        &[
            (
                "bread.md",
                b"# Bread\n\nKnead the dough of flour, water and yeast, let it rise, and bake it in a hot oven.",
            ),
            ("stars.md", b"# Stars\n\nA telescope gathers the light of distant galaxies, nebulae and planets."),
            ("law.txt", b"The court found that the contract was void because it had not been signed by both parties."),
        ],
    );
    process(&[input.to_str().unwrap(), "--quiet"], &out).expect(0);
    let out = out.to_str().unwrap();
    for (query, want) in [
        ("how do I make a loaf", "bread.md"),
        ("observing the night sky", "stars.md"),
        ("invalid agreement between companies", "law.txt"),
    ] {
        let lines = ehun(&["search", out, query, "-k", "2", "--json"]).expect(0);
        let hits: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(hits.len(), 2);
        assert!(hits[0]["path"].as_str().unwrap().ends_with(want), "{query}: {lines}");
        assert!(hits[0]["score"].as_f64() > hits[1]["score"].as_f64());
    }
    let shown = ehun(&["search", out, "telescope", "-k", "1"]).expect(0);
    assert!(shown.contains("stars.md") && shown.contains("Stars") && shown.contains("galaxies"), "{shown}");
}

#[test]
fn changed_files_are_replaced_failed_ones_wait_and_gone_ones_are_pruned() {
    let folder = tempfile::tempdir().unwrap();
    let (input, out) = (folder.path().join("in"), folder.path().join("out"));
    write_all(
        &input,
        &[
            ("a.txt", b"The first text."),
            ("b.txt", b"The second text."),
            ("c/d.txt", b"The fourth."),
            ("bad.pdf", b"%PDF-1.7\n%%EOF"),
        ],
    );
    let source = input.to_str().unwrap();
    let names = || -> Vec<String> {
        let documents = table(&out.join("documents.parquet"));
        let short = |path: &String| Path::new(path).strip_prefix(&input).unwrap().display().to_string();
        texts(&documents, "path").iter().map(short).collect()
    };

    let ran = process(&[source], &out);
    assert!(ran.stderr.contains("1 of 4 documents failed") && ran.stderr.contains("bad.pdf"), "{}", ran.stderr);
    ran.expect(3);
    assert_eq!(names(), ["a.txt", "b.txt", "bad.pdf", "c/d.txt"]);

    fs::write(input.join("b.txt"), "The second text, in a new version.").unwrap();
    fs::write(input.join("aa.txt"), "A new text.").unwrap();
    let said = process(&[source], &out).expect(3);
    assert!(said.starts_with("2 documents") && said.contains("1 of them failed before"), "{said}");
    assert_eq!(names(), ["a.txt", "aa.txt", "b.txt", "bad.pdf", "c/d.txt"]);
    let chunks = texts(&table(&out.join("chunks.parquet")), "text");
    assert_eq!(chunks, ["The first text.", "A new text.", "The second text, in a new version.", "The fourth."]);

    let said = process(&[source, "--retry-failed"], &out).expect(3);
    assert!(said.starts_with("1 documents"), "{said}");

    fs::remove_file(input.join("a.txt")).unwrap();
    fs::remove_file(input.join("bad.pdf")).unwrap();
    process(&[source], &out).expect(0);
    assert_eq!(names().len(), 5, "without --prune nothing is removed");
    let said = process(&[source, "--prune"], &out).expect(0);
    assert!(said.contains("2 files gone and removed"), "{said}");
    assert_eq!(names(), ["aa.txt", "b.txt", "c/d.txt"]);
    assert_eq!(texts(&table(&out.join("chunks.parquet")), "text").len(), 3);

    // Other settings: everything again.
    let said = process(&[source, "--chunk-tokens", "40"], &out).expect(0);
    assert!(said.starts_with("3 documents"), "{said}");
}

#[test]
fn a_second_run_on_the_same_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    fs::create_dir_all(out.join(".ehun")).unwrap();
    let lock = fs::File::create(out.join(".ehun/lock")).unwrap();
    lock.lock().unwrap();
    let ran = process(&["examples/documents"], &out);
    assert!(ran.stderr.contains("in use by another run"), "{}", ran.stderr);
    ran.expect(1);
    drop(lock);
    process(&["examples/documents"], &out).expect(0);
}

#[test]
fn shards_together_are_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in");
    for i in 0..24 {
        write_all(&input, &[(&format!("{i:02}.txt"), format!("Text number {i}.").as_bytes())]);
    }
    let source = input.to_str().unwrap();
    let (whole, parts) = (folder.path().join("whole"), folder.path().join("parts"));
    process(&[source, "-q"], &whole).expect(0);
    let mut all = Vec::new();
    for shard in ["1/3", "2/3", "3/3"] {
        process(&[source, "-q", "--shard", shard], &parts).expect(0);
    }
    for index in 0..3 {
        let rows = texts(&table(&parts.join(format!("chunks-{index:05}-of-00003.parquet"))), "text");
        assert!(!rows.is_empty() && rows.len() < 24);
        all.extend(rows);
    }
    all.sort();
    let mut expected = texts(&table(&whole.join("chunks.parquet")), "text");
    expected.sort();
    assert_eq!(all, expected);
    let found = ehun(&["search", parts.to_str().unwrap(), "Text number 17.", "-k", "1", "--json"]).expect(0);
    assert!(found.contains("17.txt"), "{found}");
}

#[test]
fn other_formats_hold_the_same_rows() {
    let folder = tempfile::tempdir().unwrap();
    let parquet = folder.path().join("parquet");
    process(&["examples/documents", "-q"], &parquet).expect(0);
    let expected = texts(&table(&parquet.join("chunks.parquet")), "text");

    let jsonl = folder.path().join("jsonl");
    process(&["examples/documents", "-q", "--format", "jsonl"], &jsonl).expect(0);
    let from_lines = |text: &str, table: Option<&str>| -> Vec<String> {
        let rows = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        rows.filter(|row| table.is_none_or(|table| row["table"] == table))
            .map(|row| {
                assert_eq!(row["embedding"].as_array().unwrap().len(), 384);
                row["text"].as_str().unwrap().to_owned()
            })
            .collect()
    };
    assert_eq!(from_lines(&fs::read_to_string(jsonl.join("chunks.jsonl")).unwrap(), None), expected);
    let said = process(&["examples/documents", "--format", "jsonl"], &jsonl).expect(0);
    assert!(said.starts_with("0 documents"), "{said}");
    let ran = process(&["examples/documents"], &jsonl);
    assert!(ran.stderr.contains("--format jsonl"), "{}", ran.stderr);
    ran.expect(1);

    let printed = ehun(&["process", "examples/documents", "--out", "-", "-q"]).expect(0);
    assert_eq!(from_lines(&printed, Some("chunks")), expected);

    let arrow = folder.path().join("arrow");
    process(&["examples/documents", "-q", "--format", "arrow"], &arrow).expect(0);
    assert!(fs::read(arrow.join("chunks.arrow")).unwrap().starts_with(b"ARROW1"));
}

#[test]
fn json_events_say_what_happens() {
    let folder = tempfile::tempdir().unwrap();
    let said = process(&["examples/documents", "--json"], &folder.path().join("out")).expect(0);
    let events: Vec<serde_json::Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let done = events.last().unwrap();
    assert_eq!(done["event"], "done");
    let sources = events.iter().filter(|event| event["event"] == "source").count();
    assert_eq!(done["sources"], sources);
    assert!(done["chunks"].as_u64() > Some(0) && done["rows"][1] == done["chunks"], "{done}");
}

#[cfg(unix)]
#[test]
fn an_interrupt_finishes_what_is_in_flight_and_the_job_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (input, out) = (folder.path().join("in"), folder.path().join("out"));
    let text = "A sentence of some length that has to be read and embedded. ".repeat(40);
    for i in 0..60 {
        write_all(&input, &[(&format!("{i:02}.txt"), format!("{i} {text}").as_bytes())]);
    }
    let arguments = ["process", input.to_str().unwrap(), "--out", out.to_str().unwrap(), "--part-documents", "2"];
    let child = command(&arguments).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let part = |number: u32| out.join(format!(".ehun/parts/{number:08}.chunks.parquet"));
    while !part(1).exists() {
        assert!(std::time::Instant::now() < end, "no part was written");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let status = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("Run the same command again"), "{said}");
    let said = ehun(&arguments).expect(0);
    assert!(said.contains("files unchanged"), "{said}");
    assert_eq!(table(&out.join("documents.parquet")).num_rows(), 60);
}

/// The rows of a document that was in flight are all there after the first interrupt; the second ends the program whatever is
/// in flight; the same command goes on after either.
#[cfg(unix)]
#[test]
fn interrupts_within_one_large_document() {
    use std::io::BufRead;
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in");
    let large = "A sentence of some length that has to be read and embedded. ".repeat(500);
    write_all(&input, &[("00.txt", large.as_bytes())]);
    for i in 1..20 {
        write_all(&input, &[(&format!("{i:02}.txt"), format!("Text number {i}.").as_bytes())]);
    }
    let signal = |child: &std::process::Child| {
        let status = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(status.success());
    };
    let mut chunks = Vec::new();
    for interrupts in [0, 1, 2] {
        let out = folder.path().join(format!("out-{interrupts}"));
        let arguments = ["process", input.to_str().unwrap(), "--out", out.to_str().unwrap()];
        let arguments = [&arguments[..], &["--chunk-tokens", "32", "--workers", "1"]].concat();
        if interrupts > 0 {
            let mut child = command(&arguments).stderr(std::process::Stdio::piped()).spawn().unwrap();
            let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
            // Rows of the first document are being written.
            while fs::read_dir(out.join(".ehun/parts")).map_or(0, Iterator::count) == 0 {
                assert!(std::time::Instant::now() < end, "no part was begun");
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            signal(&child);
            let mut said = String::new();
            for line in std::io::BufReader::new(child.stderr.take().unwrap()).lines() {
                let line = line.unwrap();
                if line.contains("stopping:") && interrupts == 2 {
                    signal(&child);
                }
                said += &line;
            }
            assert_eq!(child.wait().unwrap().code(), Some(130), "{said}");
            assert!(interrupts == 2 || said.contains("Run the same command again"), "{said}");
            assert!(!out.join("documents.parquet").exists());
        }
        let said = ehun(&arguments).expect(0);
        assert!(interrupts != 1 || said.contains("files unchanged"), "{said}");
        let documents = table(&out.join("documents.parquet"));
        assert_eq!(documents.num_rows(), 20);
        chunks.push(texts(&table(&out.join("chunks.parquet")), "text"));
    }
    assert!(chunks[0].len() > 200, "{}", chunks[0].len());
    assert!(chunks[1] == chunks[0] && chunks[2] == chunks[0]);
}

#[test]
fn repeated_chunks_are_kept_once_with_their_places() {
    let folder = tempfile::tempdir().unwrap();
    let (input, out, plain) = (folder.path().join("in"), folder.path().join("out"), folder.path().join("plain"));
    let notice = "This message is confidential and meant for its addressee alone.";
    write_all(
        &input,
        &[
            ("a.txt", notice.as_bytes()),
            ("b.txt", b"A text of its own."),
            ("c.txt", b"This message is confidential\nand meant for   its addressee alone."),
            ("d.txt", notice.as_bytes()),
        ],
    );
    let source = input.to_str().unwrap();
    let run = |more: &[&str]| process(&[&[source, "--dedup", "--part-documents", "1"], more].concat(), &out).expect(0);
    let kept = || -> Vec<(String, Vec<String>)> {
        let chunks = table(&out.join("chunks.parquet"));
        let places = chunks.column_by_name("also_at").unwrap().as_list::<i32>();
        let name = |path: &str| path.rsplit('/').next().unwrap().to_owned();
        let paths = texts(&chunks, "path");
        let places_of = |row: usize| {
            let places = places.value(row);
            places.as_struct().column(1).as_string::<i32>().iter().flatten().map(name).collect()
        };
        paths.iter().enumerate().map(|(row, path)| (name(path), places_of(row))).collect()
    };
    let pair =
        |path: &str, places: &[&str]| (path.to_owned(), places.iter().map(|place| (*place).to_owned()).collect());
    run(&[]);
    assert_eq!(kept(), [pair("a.txt", &["c.txt", "d.txt"]), pair("b.txt", &[])]);
    let found = ehun(&["search", out.to_str().unwrap(), "confidential message", "-k", "1", "--json"]).expect(0);
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    assert_eq!((found["also_at"].as_array().unwrap().len(), &found["also_at"][1]["chunk"]), (2, &0.into()));

    // Across runs: a new file repeats it; the kept one changes, and the next takes its place; then that is gone.
    write_all(&input, &[("aa.txt", notice.as_bytes())]);
    assert!(run(&[]).starts_with("1 documents"));
    assert_eq!(kept()[0], pair("a.txt", &["aa.txt", "c.txt", "d.txt"]));
    write_all(&input, &[("a.txt", b"Something else now.")]);
    run(&[]);
    let aa = pair("aa.txt", &["c.txt", "d.txt"]);
    assert_eq!(kept(), [pair("a.txt", &[]), aa, pair("b.txt", &[])]);
    fs::remove_file(input.join("aa.txt")).unwrap();
    run(&["--prune"]);
    assert_eq!(kept(), [pair("a.txt", &[]), pair("b.txt", &[]), pair("c.txt", &["d.txt"])]);
    assert!(run(&[]).starts_with("0 documents"));

    // Apart from what is left out, the table is the one without the flag.
    process(&[source], &plain).expect(0);
    let (all, once) = (table(&plain.join("chunks.parquet")), table(&out.join("chunks.parquet")));
    assert_eq!(all.slice(0, 3).columns(), &once.columns()[..once.num_columns() - 1]);
    assert_eq!(table(&plain.join("documents.parquet")), table(&out.join("documents.parquet")));

    for (arguments, want) in
        [(vec![source], "--dedup"), (vec![source, "--dedup", "--format", "jsonl"], "--format parquet")]
    {
        let ran = process(&arguments, &out);
        assert!(ran.stderr.contains(want), "{}", ran.stderr);
        ran.expect(1);
    }
    ehun(&["process", source, "--dedup", "--out", "-"]).expect(2);
    let jsonl = folder.path().join("jsonl");
    process(&[source, "--dedup", "--format", "jsonl"], &jsonl).expect(0);
    let lines = fs::read_to_string(jsonl.join("chunks.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), 3);
    let last: serde_json::Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert!(last["also_at"][0]["path"].as_str().unwrap().ends_with("d.txt"), "{last}");
}
