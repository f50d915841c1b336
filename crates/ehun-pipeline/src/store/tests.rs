//! Whatever the order of runs and crashes: each source once, from the newest run, in the order of sources.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::StringArray;
use proptest::prelude::*;

use super::*;
use crate::known::Known;
use crate::rows::Embedded;
use crate::source::order;

fn producer() -> Producer {
    Producer {
        model: "m".into(),
        revision: None,
        weights_hash: "h".repeat(64),
        dimension: 2,
        labels: None,
        entities: None,
    }
}

fn open(folder: &Path) -> Store {
    Store::open(folder, None, Format::Parquet, &producer(), false).unwrap()
}

/// Writes a source with `chunks` chunks, each with the text `version`.
fn add(part: &mut Part, source: &str, version: &str, chunks: u32) {
    let rows: Vec<ChunkRow> = (0..chunks)
        .map(|chunk| ChunkRow {
            document_id: "id".into(),
            path: source.into(),
            source: source.into(),
            chunk,
            text: version.into(),
            heading_path: vec!["a".into(), version.into()],
            page: (chunk > 0).then_some(chunk),
            last_page: None,
            char_start: 0,
            char_end: 1,
            repeated_chars: 0,
            token_count: 3,
            stretches: Arc::new([]),
            labels: None,
            entities: None,
            embedded: Some(Embedded {
                vector: vec![0.6, chunk as f32],
                backend: "cpu".into(),
                device: "d".into(),
                precision: "f32".into(),
                attention: "flash".into(),
            }),
        })
        .collect();
    if !rows.is_empty() {
        part.add_chunks(&rows).unwrap();
    }
    let fingerprint = blake3::hash(version.as_bytes()).to_hex().to_string();
    let error = (chunks == 0).then(|| ("empty".to_owned(), "nothing".to_owned()));
    part.add_document(DocumentRow {
        path: source.into(),
        source: source.into(),
        text: Some(version.into()),
        fingerprint,
        error,
        chunks,
        ..DocumentRow::default()
    })
    .unwrap();
}

/// Source and text of each row.
fn rows(path: &Path) -> Vec<(String, String)> {
    let mut rows = Vec::new();
    for batch in read_table(path, None, 1024).unwrap() {
        let batch = batch.unwrap();
        let column = |name| batch.column_by_name(name).unwrap().as_any().downcast_ref::<StringArray>().unwrap().clone();
        let (sources, texts) = (column("source"), column("text"));
        rows.extend((0..batch.num_rows()).map(|i| (sources.value(i).to_owned(), texts.value(i).to_owned())));
    }
    rows
}

fn all(mut known: KnownSources) -> Vec<Known> {
    std::iter::from_fn(|| known.next().unwrap()).collect()
}

fn expected(sources: &BTreeMap<Vec<String>, (String, u32)>, chunks: bool) -> Vec<(String, String)> {
    let row = |(parts, (version, count)): (&Vec<String>, &(String, u32))| {
        let copies = if chunks { *count as usize } else { 1 };
        vec![(parts.join("/"), version.clone()); copies]
    };
    sources.iter().flat_map(row).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn the_newest_of_each_source_in_order(
        runs in proptest::collection::vec(
            (proptest::collection::btree_map("[ab]{1,2}(/[a.]{1,2}){0,2}", 0u32..4, 0..9), any::<bool>(), 1usize..4),
            1..5,
        ),
        dropped in "[ab]",
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut model: BTreeMap<Vec<String>, (String, u32)> = BTreeMap::new();
        let is_dropped = |source: &str| source.starts_with(&dropped);
        for (number, (sources, publish, part_size)) in runs.iter().enumerate() {
            let mut store = open(folder.path());
            let version = format!("run {number}");
            let mut sources: Vec<(&String, &u32)> = sources.iter().collect();
            sources.sort_by(|a, b| order(a.0, b.0));
            for group in sources.chunks(*part_size) {
                let mut part = store.begin().unwrap();
                for (source, chunks) in group {
                    add(&mut part, source, &version, **chunks);
                    model.insert(source.split('/').map(str::to_owned).collect(), (version.clone(), **chunks));
                }
                store.commit(part).unwrap();
            }
            // A part that is begun and not committed leaves nothing.
            add(&mut store.begin().unwrap(), "zz", "lost", 2);
            let known: Vec<Known> = all(store.known());
            let expected_known = model.iter().map(|(parts, (version, chunks))| Known {
                source: parts.join("/"),
                fingerprint: blake3::hash(version.as_bytes()).to_hex().to_string(),
                failed: *chunks == 0,
            });
            prop_assert_eq!(known, expected_known.collect::<Vec<_>>());
            if *publish {
                let drop_some = number % 2 == 1;
                store.publish(&mut |source| Ok(drop_some && is_dropped(source))).unwrap();
                if drop_some {
                    model.retain(|parts, _| !is_dropped(&parts.join("/")));
                }
                prop_assert_eq!(rows(&folder.path().join("documents.parquet")), expected(&model, false));
                prop_assert_eq!(rows(&folder.path().join("chunks.parquet")), expected(&model, true));
            }
        }
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target)
        } else {
            fs::copy(entry.path(), target).map(|_| ()).unwrap()
        }
    }
}

#[test]
fn a_crash_at_any_step_of_publishing_is_recovered_from() {
    let folder = tempfile::tempdir().unwrap();
    let (before, after) = (folder.path().join("before"), folder.path().join("after"));
    let fill = |store: &mut Store, version: &str, sources: &[&str]| {
        for source in sources {
            let mut part = store.begin().unwrap();
            add(&mut part, source, version, 2);
            store.commit(part).unwrap();
        }
    };
    let mut store = open(&before);
    fill(&mut store, "old", &["a", "b", "c"]);
    store.publish(&mut |_| Ok(false)).unwrap();
    fill(&mut store, "new", &["b", "d"]);
    drop(store);
    copy(&before, &after);
    open(&after).publish(&mut |_| Ok(false)).unwrap();
    let tables = ["documents.parquet", "chunks.parquet"];
    let good = tables.map(|name| rows(&after.join(name)));
    assert_eq!(good[0].len(), 4);

    // What is there when the crash comes, step by step.
    let next = |at: &Path, name: &str| {
        fs::create_dir_all(at.join(".ehun/next")).unwrap();
        fs::copy(after.join(name), at.join(".ehun/next").join(name)).unwrap();
    };
    let mark = |at: &Path| {
        Journal::open(&at.join(".ehun/journal"), |_| {}).unwrap().add(&Record::Publish { through: 5 }).unwrap();
    };
    let install = |at: &Path, name: &str| fs::rename(at.join(".ehun/next").join(name), at.join(name)).unwrap();
    let reset = |at: &Path| {
        Journal::open(&at.join(".ehun/journal"), |_| {}).unwrap().reset(&Record::Published { through: 5 }).unwrap();
    };
    type Step<'a> = Box<dyn Fn(&Path) + 'a>;
    let steps: Vec<(&str, Step<'_>)> = vec![
        (
            "a torn table",
            Box::new(|at| {
                next(at, tables[0]);
                fs::write(at.join(".ehun/next/documents.parquet"), b"PAR1torn").unwrap();
            }),
        ),
        ("one table is made", Box::new(|at| next(at, tables[0]))),
        ("both tables are made", Box::new(|at| next(at, tables[1]))),
        ("marked", Box::new(mark)),
        ("one table is in place", Box::new(|at| install(at, tables[0]))),
        ("both tables are in place", Box::new(|at| install(at, tables[1]))),
        ("marked as published", Box::new(reset)),
        ("a part is deleted", Box::new(|at| fs::remove_file(at.join(".ehun/parts/00000004.chunks.parquet")).unwrap())),
        (
            "a part was being written",
            Box::new(|at| fs::write(at.join(".ehun/parts/00000006.chunks.parquet.new"), b"x").unwrap()),
        ),
        (
            "a part was not marked",
            Box::new(|at| fs::write(at.join(".ehun/parts/00000006.documents.parquet"), b"x").unwrap()),
        ),
    ];
    for last in 0..steps.len() {
        let crashed = folder.path().join(format!("crashed-{last}"));
        copy(&before, &crashed);
        steps[..=last].iter().for_each(|(_, step)| step(&crashed));
        let what = steps[last].0;
        // A reader is told of two tables that do not belong together, and of nothing else.
        let read = crate::search::chunk_tables(&crashed).map_err(|error| error.to_string());
        match what {
            "one table is in place" => assert!(read.as_ref().is_err_and(|e| e.contains("run the same")), "{read:?}"),
            _ => assert!(read.is_ok(), "{what}: {read:?}"),
        }
        let mut store = open(&crashed);
        assert_eq!(all(store.known()).len(), 4, "{what}");
        if store.has_parts() {
            store.publish(&mut |_| Ok(false)).unwrap();
        }
        for (name, good) in tables.iter().zip(&good) {
            assert_eq!(&rows(&crashed.join(name)), good, "{name} after a crash when {what}");
        }
        assert_eq!(fs::read_dir(crashed.join(".ehun/parts")).unwrap().count(), 0, "{what}");
        assert!(!crashed.join(".ehun/next").exists(), "{what}");
    }
}

#[test]
fn other_vectors_are_not_mixed_in_and_a_second_run_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let second = Store::open(folder.path(), None, Format::Parquet, &producer(), false);
    assert!(matches!(second, Err(JobError::Locked { .. })));
    drop(store);
    let other = Producer { weights_hash: "other".into(), ..producer() };
    let message = Store::open(folder.path(), None, Format::Parquet, &other, false).err().unwrap().to_string();
    assert!(message.contains("another folder"), "{message}");
    drop(open(folder.path()));
}
