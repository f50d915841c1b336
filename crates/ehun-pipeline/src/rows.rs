//! The rows of the two tables and their columns.

use std::sync::Arc;

use arrow_array::builder::{
    FixedSizeListBuilder, Float32Builder, ListBuilder, StringBuilder, UInt32Builder, UInt64Builder,
};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use ehun_models::tasks::scores::LabelScore;

use crate::annotate::Stretch;
use crate::extra::{Annotator, EntityRow, Extra, extra_columns};

/// Where the vectors come from; the same for every chunk of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Producer {
    /// The model's name.
    pub model: String,
    /// The commit that it is known by, where it is.
    pub revision: Option<String>,
    /// blake3 of its weights, hexadecimal.
    pub weights_hash: String,
    /// Width of a vector.
    pub dimension: usize,
    /// What the chunks' labels come from, where they get some.
    pub labels: Option<Annotator>,
    /// What the chunks' entities come from, where they are looked for.
    pub entities: Option<Annotator>,
}

/// A row of `documents.parquet`.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct DocumentRow {
    /// Path; of an attachment or archive member: the parent's path, `!/`, its name.
    pub(crate) path: String,
    /// The file that it comes from.
    pub(crate) source: String,
    /// blake3 of its bytes.
    pub(crate) document_id: String,
    pub(crate) parent_id: Option<String>,
    /// Code and message where it failed.
    pub(crate) error: Option<(String, String)>,
    pub(crate) media_type: Option<String>,
    pub(crate) title: Option<String>,
    pub(crate) authors: Vec<String>,
    pub(crate) language: Option<String>,
    pub(crate) created: Option<String>,
    pub(crate) modified: Option<String>,
    pub(crate) bytes: u64,
    pub(crate) chars: u64,
    pub(crate) pages: u32,
    pub(crate) pages_need_ocr: u32,
    pub(crate) chunks: u32,
    pub(crate) tokens: u64,
    pub(crate) warnings: Vec<String>,
    pub(crate) text: Option<String>,
    /// Hash of the file's bytes and of the settings: equal is unchanged.
    pub(crate) fingerprint: String,
}

/// A row of `chunks.parquet`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ChunkRow {
    pub(crate) document_id: Arc<str>,
    pub(crate) path: Arc<str>,
    pub(crate) source: Arc<str>,
    pub(crate) chunk: u32,
    pub(crate) text: Arc<str>,
    pub(crate) heading_path: Vec<String>,
    pub(crate) page: Option<u32>,
    pub(crate) last_page: Option<u32>,
    /// Character range in the document's text (Unicode scalar values).
    pub(crate) char_start: u64,
    pub(crate) char_end: u64,
    /// Characters at the front of the text that repeat the header of its table.
    pub(crate) repeated_chars: u32,
    pub(crate) token_count: u32,
    /// What of the document's text its own text is made of.
    pub(crate) stretches: Arc<[Stretch]>,
    pub(crate) embedded: Option<Embedded>,
    pub(crate) labels: Option<Vec<LabelScore>>,
    pub(crate) entities: Option<Vec<EntityRow>>,
}

/// A vector and what ran to make it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Embedded {
    pub(crate) vector: Vec<f32>,
    pub(crate) backend: String,
    pub(crate) device: String,
    pub(crate) precision: String,
    pub(crate) attention: Arc<str>,
}

fn text(name: &str, nullable: bool) -> Field {
    Field::new(name, DataType::Utf8, nullable)
}

fn texts(name: &str) -> Field {
    Field::new(name, DataType::List(Arc::new(Field::new("item", DataType::Utf8, true))), false)
}

fn number(name: &str, kind: DataType, nullable: bool) -> Field {
    Field::new(name, kind, nullable)
}

/// Columns of `documents.parquet`.
pub(crate) fn document_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        text("path", false),
        text("source", false),
        text("document_id", false),
        text("parent_id", true),
        text("status", false),
        text("error_code", true),
        text("error", true),
        text("media_type", true),
        text("title", true),
        texts("authors"),
        text("language", true),
        text("created", true),
        text("modified", true),
        number("bytes", DataType::UInt64, false),
        number("chars", DataType::UInt64, false),
        number("pages", DataType::UInt32, false),
        number("pages_need_ocr", DataType::UInt32, false),
        number("chunks", DataType::UInt32, false),
        number("tokens", DataType::UInt64, false),
        texts("warnings"),
        text("text", true),
        text("fingerprint", false),
    ]))
}

/// Columns of `chunks.parquet` with vectors of `dimension`, and those of `extra`.
pub(crate) fn chunk_schema(dimension: usize, extra: Extra) -> SchemaRef {
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    let vector = DataType::FixedSizeList(item, dimension as i32);
    let mut fields = vec![
        text("document_id", false),
        text("path", false),
        text("source", false),
        number("chunk", DataType::UInt32, false),
        text("text", false),
        texts("heading_path"),
        number("page", DataType::UInt32, true),
        number("last_page", DataType::UInt32, true),
        number("char_start", DataType::UInt64, false),
        number("char_end", DataType::UInt64, false),
        // Not in tables of earlier versions, whose rows may go on into a new one.
        number("repeated_chars", DataType::UInt32, true),
        number("token_count", DataType::UInt32, false),
        Field::new("embedding", vector, true),
        text("model", false),
        text("revision", true),
        text("weights_hash", false),
        text("backend", true),
        text("device", true),
        text("precision", true),
        text("attention_kernel", true),
    ];
    fields.extend(extra.fields());
    Arc::new(Schema::new(fields))
}

pub(crate) fn strings<'a>(values: impl Iterator<Item = Option<&'a str>>) -> ArrayRef {
    let mut builder = StringBuilder::new();
    values.for_each(|value| builder.append_option(value));
    Arc::new(builder.finish())
}

fn lists<'a>(values: impl Iterator<Item = &'a Vec<String>>) -> ArrayRef {
    let mut builder = ListBuilder::new(StringBuilder::new());
    for value in values {
        value.iter().for_each(|text| builder.values().append_value(text));
        builder.append(true);
    }
    Arc::new(builder.finish())
}

fn u32s(values: impl Iterator<Item = Option<u32>>) -> ArrayRef {
    let mut builder = UInt32Builder::new();
    values.for_each(|value| builder.append_option(value));
    Arc::new(builder.finish())
}

fn u64s(values: impl Iterator<Item = u64>) -> ArrayRef {
    let mut builder = UInt64Builder::new();
    values.for_each(|value| builder.append_value(value));
    Arc::new(builder.finish())
}

/// Document rows as columns.
pub(crate) fn document_batch(rows: &[DocumentRow]) -> Result<RecordBatch, ArrowError> {
    let some = |get: fn(&DocumentRow) -> &str| strings(rows.iter().map(|row| Some(get(row))));
    let option = |get: fn(&DocumentRow) -> Option<&str>| strings(rows.iter().map(get));
    let columns = vec![
        some(|row| &row.path),
        some(|row| &row.source),
        some(|row| &row.document_id),
        option(|row| row.parent_id.as_deref()),
        some(|row| if row.error.is_some() { FAILED } else { "ok" }),
        option(|row| row.error.as_ref().map(|(code, _)| code.as_str())),
        option(|row| row.error.as_ref().map(|(_, message)| message.as_str())),
        option(|row| row.media_type.as_deref()),
        option(|row| row.title.as_deref()),
        lists(rows.iter().map(|row| &row.authors)),
        option(|row| row.language.as_deref()),
        option(|row| row.created.as_deref()),
        option(|row| row.modified.as_deref()),
        u64s(rows.iter().map(|row| row.bytes)),
        u64s(rows.iter().map(|row| row.chars)),
        u32s(rows.iter().map(|row| Some(row.pages))),
        u32s(rows.iter().map(|row| Some(row.pages_need_ocr))),
        u32s(rows.iter().map(|row| Some(row.chunks))),
        u64s(rows.iter().map(|row| row.tokens)),
        lists(rows.iter().map(|row| &row.warnings)),
        option(|row| row.text.as_deref()),
        some(|row| &row.fingerprint),
    ];
    RecordBatch::try_new(document_schema(), columns)
}

/// The status of a document that gave no text or not all vectors.
pub(crate) const FAILED: &str = "failed";

/// Chunk rows as columns.
pub(crate) fn chunk_batch(rows: &[ChunkRow], producer: &Producer) -> Result<RecordBatch, ArrowError> {
    let mut vectors = FixedSizeListBuilder::new(Float32Builder::new(), producer.dimension as i32);
    for row in rows {
        match &row.embedded {
            Some(embedded) => vectors.values().append_slice(&embedded.vector),
            None => vectors.values().append_nulls(producer.dimension),
        }
        vectors.append(row.embedded.is_some());
    }
    let some = |get: fn(&ChunkRow) -> &str| strings(rows.iter().map(|row| Some(get(row))));
    let ran = |get: fn(&Embedded) -> &str| strings(rows.iter().map(|row| row.embedded.as_ref().map(get)));
    let same = |value: Option<&str>| strings(rows.iter().map(|_| value));
    let mut columns = vec![
        some(|row| &row.document_id),
        some(|row| &row.path),
        some(|row| &row.source),
        u32s(rows.iter().map(|row| Some(row.chunk))),
        some(|row| &row.text),
        lists(rows.iter().map(|row| &row.heading_path)),
        u32s(rows.iter().map(|row| row.page)),
        u32s(rows.iter().map(|row| row.last_page)),
        u64s(rows.iter().map(|row| row.char_start)),
        u64s(rows.iter().map(|row| row.char_end)),
        u32s(rows.iter().map(|row| Some(row.repeated_chars))),
        u32s(rows.iter().map(|row| Some(row.token_count))),
        Arc::new(vectors.finish()) as ArrayRef,
        same(Some(&producer.model)),
        same(producer.revision.as_deref()),
        same(Some(&producer.weights_hash)),
        ran(|embedded| &embedded.backend),
        ran(|embedded| &embedded.device),
        ran(|embedded| &embedded.precision),
        ran(|embedded| &embedded.attention),
    ];
    columns.extend(extra_columns(rows, producer)?);
    RecordBatch::try_new(chunk_schema(producer.dimension, Extra::of_producer(producer)), columns)
}
