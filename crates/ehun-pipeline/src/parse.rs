//! A source becomes documents and chunks: itself, then its attachments and members, parents before children.

use std::collections::HashSet;
use std::fs::File;
use std::sync::Arc;

use ehun_documents::{
    CharIndex, Chunk, ChunkOptions, Document, DocumentError, PageStatus, ParseOptions, TokenCounter, WorkerPool, chunk,
};

use crate::annotate::Stretch;
use crate::error::JobError;
use crate::rows::{ChunkRow, DocumentRow};
use crate::source::SourceFile;

/// Attachments within attachments, members within members.
const MOST_DEPTH: usize = 8;
/// Documents of one source.
const MOST_DOCUMENTS: usize = 20_000;

/// What the parsing threads share.
pub(crate) struct Parser<'a> {
    pub(crate) pool: &'a WorkerPool,
    pub(crate) options: ParseOptions,
    pub(crate) chunk: ChunkOptions,
    pub(crate) counter: &'a (dyn TokenCounter + Sync),
    pub(crate) settings: blake3::Hash,
}

/// A document with its chunks, not embedded.
pub(crate) struct Parsed {
    pub(crate) row: DocumentRow,
    pub(crate) chunks: Vec<ChunkRow>,
}

struct Todo {
    name: String,
    bytes: Vec<u8>,
    depth: usize,
    parent: String,
}

/// blake3 of a file's bytes and their number, read in pieces.
pub(crate) fn hash_file(file: &SourceFile) -> std::io::Result<(blake3::Hash, u64)> {
    // Before it is opened: opening a pipe that nobody writes to waits for ever, and a device may have no end.
    if !std::fs::metadata(&file.path)?.is_file() {
        return Err(std::io::Error::other("it is no regular file"));
    }
    let mut hasher = blake3::Hasher::new();
    let bytes = std::io::copy(&mut File::open(&file.path)?, &mut hasher)?;
    Ok((hasher.finalize(), bytes))
}

/// What changes exactly when the bytes or the settings do.
pub(crate) fn fingerprint(bytes: &blake3::Hash, settings: &blake3::Hash) -> blake3::Hash {
    blake3::Hasher::new().update(bytes.as_bytes()).update(settings.as_bytes()).finalize()
}

impl Parser<'_> {
    /// Parses `file`, whose bytes have the hash `hash`, and gives each document to `give`, until that says that nobody
    /// wants more.
    pub(crate) fn source(
        &self,
        file: &SourceFile,
        hash: blake3::Hash,
        give: &mut dyn FnMut(Parsed) -> bool,
    ) -> Result<(), JobError> {
        let mut left = self.options.limits.unpacked_bytes;
        let mut mark = fingerprint(&hash, &self.settings).to_hex().to_string();
        let result = match &file.error {
            Some(error) => Err(DocumentError::Io { path: file.path.display().to_string(), reason: error.to_string() }),
            None => self.pool.parse_path(&file.path, &self.options),
        };
        let mut id = hash.to_hex().to_string();
        if let Ok(document) = &result
            && let Ok(parsed) = blake3::Hash::from_hex(&document.metadata.hash)
            && parsed != hash
        {
            // The file changed between the two readings; what was parsed is what counts.
            id = parsed.to_hex().to_string();
            mark = fingerprint(&parsed, &self.settings).to_hex().to_string();
        }
        let mut todo = Vec::new();
        let (parsed, children) = self.document(&file.name, file, id.clone(), None, &mark, result)?;
        push_children(&mut todo, children, &file.name, &id, 1);
        if !give(parsed) {
            return Ok(());
        }
        let mut count = 1;
        while let Some(Todo { name, bytes, depth, parent }) = todo.pop() {
            count += 1;
            let size = bytes.len() as u64;
            let limit = |limit, value| Err(DocumentError::LimitExceeded { limit, value });
            let result = if depth > MOST_DEPTH {
                limit(ehun_documents::Limit::Nesting, MOST_DEPTH as u64)
            } else if count > MOST_DOCUMENTS {
                limit(ehun_documents::Limit::ArchiveEntries, MOST_DOCUMENTS as u64)
            } else if size > left {
                limit(ehun_documents::Limit::UnpackedBytes, self.options.limits.unpacked_bytes)
            } else {
                left -= size;
                let file_name = name.rsplit('/').next().map(str::to_owned);
                self.pool.parse(&bytes, &ParseOptions { file_name, ..self.options.clone() })
            };
            let id = blake3::hash(&bytes).to_hex().to_string();
            drop(bytes);
            let (mut parsed, children) = self.document(&name, file, id.clone(), Some(parent), &mark, result)?;
            parsed.row.bytes = size;
            push_children(&mut todo, children, &name, &id, depth + 1);
            if !give(parsed) {
                break;
            }
        }
        Ok(())
    }

    fn document(
        &self,
        name: &str,
        file: &SourceFile,
        id: String,
        parent: Option<String>,
        mark: &str,
        result: Result<Document, DocumentError>,
    ) -> Result<(Parsed, Vec<ehun_documents::Child>), JobError> {
        let mut row = DocumentRow {
            path: name.to_owned(),
            source: file.name.clone(),
            document_id: id,
            parent_id: parent,
            fingerprint: mark.to_owned(),
            ..DocumentRow::default()
        };
        let mut document = match result {
            Ok(document) => document,
            // Without workers no document can be parsed: that is not the document's fault.
            Err(error @ DocumentError::WorkerUnavailable { .. }) => return Err(JobError::Workers(error)),
            Err(error) => {
                row.error = Some((error.code().to_owned(), error.to_string()));
                row.bytes = std::fs::metadata(&file.path).map_or(0, |metadata| metadata.len());
                return Ok((Parsed { row, chunks: Vec::new() }, Vec::new()));
            }
        };
        let cut = chunk(&document, &self.chunk, self.counter).map_err(|e| JobError::Settings(e.to_string()))?;
        let characters = CharIndex::new(&document.text);
        let (path, source, id): (Arc<str>, Arc<str>, Arc<str>) =
            (row.path.as_str().into(), row.source.as_str().into(), row.document_id.as_str().into());
        let chunks = cut.into_iter().map(|chunk| chunk_row(chunk, &characters, &id, &path, &source)).collect();
        row.chars = characters.chars_before(document.text.len()) as u64;
        row.pages = document.pages.len() as u32;
        row.pages_need_ocr = document.pages.iter().filter(|page| page.status == PageStatus::NeedsOcr).count() as u32;
        let children = std::mem::take(&mut document.children);
        if row.pages_need_ocr > 0 && children.is_empty() && document.has_no_content() {
            let error = DocumentError::NeedsOcr { format: document.metadata.media_type.clone() };
            row.error = Some((error.code().to_owned(), error.to_string()));
        }
        let metadata = document.metadata;
        row.bytes = metadata.bytes;
        row.media_type = Some(metadata.media_type);
        row.title = metadata.title;
        row.authors = metadata.authors;
        row.language = metadata.language;
        row.created = metadata.created;
        row.modified = metadata.modified;
        row.warnings = document.warnings;
        row.text = Some(document.text);
        Ok((Parsed { row, chunks }, children))
    }
}

fn chunk_row(chunk: Chunk, characters: &CharIndex<'_>, id: &Arc<str>, path: &Arc<str>, source: &Arc<str>) -> ChunkRow {
    let range = characters.range(&chunk.span());
    let parts = chunk.repeated.iter().chain(&chunk.ranges).map(|bytes| characters.range(bytes));
    // A line end stands between the header and the rows.
    let repeated = chunk.repeated.as_ref().map_or(0, |bytes| characters.range(bytes).len() + 1);
    let stretches = Stretch::all(parts.map(|range| range.start as u64..range.end as u64));
    ChunkRow {
        document_id: Arc::clone(id),
        path: Arc::clone(path),
        source: Arc::clone(source),
        chunk: chunk.number,
        text: chunk.text.into(),
        heading_path: chunk.heading_path,
        page: chunk.page,
        last_page: chunk.last_page,
        char_start: range.start as u64,
        char_end: range.end as u64,
        repeated_chars: repeated as u32,
        token_count: chunk.token_count as u32,
        stretches,
        embedded: None,
        labels: None,
        entities: None,
    }
}

/// Puts children on the stack so that the first is taken first; names that come twice get a number.
fn push_children(todo: &mut Vec<Todo>, children: Vec<ehun_documents::Child>, path: &str, parent: &str, depth: usize) {
    let mut names = HashSet::new();
    let mut next = Vec::with_capacity(children.len());
    for child in children {
        let plain = format!("{path}!/{}", child.name);
        let mut name = plain.clone();
        let mut number = 1;
        while !names.insert(name.clone()) {
            number += 1;
            name = format!("{plain}#{number}");
        }
        next.push(Todo { name, bytes: child.bytes, depth, parent: parent.to_owned() });
    }
    todo.extend(next.into_iter().rev());
}
