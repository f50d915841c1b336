//! What has been processed before. The tables are in the order in which the sources are walked, so the two are read side by side:
//! no index is made, and memory does not grow with what there is.

use std::path::Path;

use crate::error::JobError;
use crate::merge::{Cursor, Files, next_source, strings_of};
use crate::rows::FAILED;
use crate::sort::{Ahead, Spool};
use crate::source::order;

const COLUMNS: &[&str] = &["source", "fingerprint", "status"];

/// A source that has been processed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) source: String,
    /// In hexadecimal, as in the table.
    pub(crate) fingerprint: String,
    /// Whether it or a document in it failed.
    pub(crate) failed: bool,
}

/// The sources of several tables in their order, each as the newest table has it.
pub(crate) struct KnownSources {
    tables: Vec<Cursor>,
    last: Option<String>,
}

impl KnownSources {
    /// Of document tables, the oldest first; each is one or several files whose sources rise.
    pub(crate) fn new(tables: Vec<Files>) -> Self {
        let tables = tables.into_iter().map(|files| Cursor::new(files, Some(COLUMNS))).collect();
        Self { tables, last: None }
    }

    /// The next one.
    pub(crate) fn next(&mut self) -> Result<Option<Known>, JobError> {
        let Some((source, winner)) = next_source(self.tables.iter_mut(), &mut self.last)? else { return Ok(None) };
        let (mut fingerprint, mut failed) = (String::new(), false);
        for (number, table) in self.tables.iter_mut().enumerate() {
            table.pass(&source, &mut |rows| {
                if number == winner {
                    let last = rows.num_rows() - 1;
                    strings_of(rows, "fingerprint")?.value(last).clone_into(&mut fingerprint);
                    failed |= strings_of(rows, "status")?.iter().any(|status| status == Some(FAILED));
                }
                Ok(())
            })?;
        }
        Ok(Some(Known { source, fingerprint, failed }))
    }
}

/// Goes through what is known beside a walk, and notes what the walk does not come across.
pub(crate) struct Lookup {
    known: KnownSources,
    current: Option<Known>,
    /// Whether the walk came across the current one.
    seen: bool,
    gone: Option<Gone>,
}

impl Lookup {
    /// With a folder for temporary files the sources that are gone are noted.
    pub(crate) fn new(mut known: KnownSources, note_gone: Option<&Path>) -> Result<Self, JobError> {
        let gone = note_gone.map(|folder| Ok::<_, JobError>(Gone { spool: Spool::new(folder)?, count: 0 }));
        let gone = gone.transpose()?;
        Ok(Self { current: known.next()?, known, seen: false, gone })
    }

    fn advance(&mut self) -> Result<(), JobError> {
        if let (Some(Known { source, .. }), Some(gone), false) = (&self.current, &mut self.gone, self.seen)
            && !Path::new(source).exists()
        {
            gone.spool.add(&key(source), &[])?;
            gone.count += 1;
        }
        self.seen = false;
        self.current = self.known.next()?;
        Ok(())
    }

    /// What is known of `source`. Sources must be asked for in their order.
    pub(crate) fn find(&mut self, source: &str) -> Result<Option<&Known>, JobError> {
        while self.current.as_ref().is_some_and(|known| order(&known.source, source).is_lt()) {
            self.advance()?;
        }
        let found = self.current.as_ref().filter(|known| known.source == source);
        self.seen |= found.is_some();
        Ok(found)
    }

    /// After the walk: what is gone, where that is noted.
    pub(crate) fn finish(mut self) -> Result<Option<Gone>, JobError> {
        while self.gone.is_some() && self.current.is_some() {
            self.advance()?;
        }
        Ok(self.gone)
    }
}

/// Sources that are known, were not come across, and whose files are gone, in their order.
pub(crate) struct Gone {
    spool: Spool,
    count: u64,
}

impl Gone {
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Says of each source, in their order, whether it is among them.
    pub(crate) fn lookup(self) -> Result<impl FnMut(&str) -> Result<bool, JobError>, JobError> {
        let mut sources = Ahead::new(self.spool.read()?)?;
        Ok(move |source: &str| Ok(sources.take(&key(source))?.is_some()))
    }
}

/// Ends with what no path has in it, so that no key is the beginning of another.
fn key(source: &str) -> Vec<u8> {
    [source.as_bytes(), &[0]].concat()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use arrow_array::{RecordBatch, StringArray};
    use arrow_schema::{DataType, Field, Schema};
    use proptest::prelude::*;

    use super::*;
    use crate::table::TableWriter;

    /// A table of document rows in the order of `sources`; each source has two rows, and the second one may have failed.
    fn table(path: &Path, version: &str, sources: &BTreeMap<String, bool>) {
        let schema = Arc::new(Schema::new(
            COLUMNS.iter().map(|name| Field::new(*name, DataType::Utf8, false)).collect::<Vec<_>>(),
        ));
        let mut writer = TableWriter::create(path, &schema).unwrap();
        for (source, failed) in sources {
            for status in ["ok", if *failed { FAILED } else { "ok" }] {
                let columns =
                    [source.as_str(), version, status].map(|text| Arc::new(StringArray::from(vec![text])) as _);
                writer.write(&RecordBatch::try_new(Arc::clone(&schema), columns.to_vec()).unwrap()).unwrap();
            }
        }
        writer.finish().unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn as_an_index_in_memory(
            old in proptest::collection::btree_map("[a-e]{1,2}", any::<bool>(), 0..9),
            new in proptest::collection::btree_map("[a-e]{1,2}", any::<bool>(), 0..9),
            walked in proptest::collection::btree_set("[a-e]{1,2}", 0..9),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let paths = ["old", "new"].map(|name| folder.path().join(name));
            table(&paths[0], "old", &old);
            table(&paths[1], "new", &new);
            let index: BTreeMap<&String, (&str, bool)> = (old.iter().map(|(source, failed)| (source, ("old", *failed))))
                .chain(new.iter().map(|(source, failed)| (source, ("new", *failed))))
                .collect();
            let files = paths.map(|path| Box::new(std::iter::once(path)) as Files);
            let mut lookup = Lookup::new(KnownSources::new(files.into()), Some(folder.path())).unwrap();
            for source in &walked {
                let found = lookup.find(source).unwrap().map(|known| (known.fingerprint.clone(), known.failed));
                let expected = index.get(source).map(|(version, failed)| ((*version).to_owned(), *failed));
                prop_assert_eq!(found, expected);
            }
            // None of them is a file here.
            let gone = lookup.finish().unwrap().unwrap();
            let unseen: Vec<&&String> = index.keys().filter(|source| !walked.contains(**source)).collect();
            prop_assert_eq!(gone.count(), unseen.len() as u64);
            let mut is_gone = gone.lookup().unwrap();
            for source in index.keys() {
                prop_assert_eq!(is_gone(source).unwrap(), unseen.contains(&source), "{}", source);
            }
        }
    }
}
