//! Columns of `chunks.parquet` that are there only where they were asked for: labels and entities.

use std::sync::Arc;

use arrow_array::builder::{Float32Builder, StringBuilder, UInt32Builder, UInt64Builder};
use arrow_array::{ArrayRef, ListArray, RecordBatch, StructArray, new_null_array};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema, SchemaRef};
use ehun_models::tasks::scores::LabelScore;

use crate::rows::{ChunkRow, Producer, strings};

/// What labels or entities come from; the same for every chunk of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Annotator {
    /// The model's name.
    pub model: String,
    /// blake3 of its weights, hexadecimal.
    pub weights_hash: String,
}

/// An entity of a chunk, with its characters in the chunk's text and in the document's.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct EntityRow {
    pub(crate) label: String,
    pub(crate) score: f32,
    pub(crate) text: String,
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) char_start: u64,
    pub(crate) char_end: u64,
}

/// Which of the columns a table has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Extra {
    pub(crate) labels: bool,
    pub(crate) entities: bool,
}

fn required(name: &str, kind: DataType) -> Field {
    Field::new(name, kind, false)
}

fn label_fields() -> Fields {
    vec![required("label", DataType::Utf8), required("score", DataType::Float32)].into()
}

fn entity_fields() -> Fields {
    vec![
        required("label", DataType::Utf8),
        required("score", DataType::Float32),
        required("text", DataType::Utf8),
        required("start", DataType::UInt32),
        required("end", DataType::UInt32),
        required("char_start", DataType::UInt64),
        required("char_end", DataType::UInt64),
    ]
    .into()
}

fn item(fields: Fields) -> Arc<Field> {
    Arc::new(Field::new("item", DataType::Struct(fields), false))
}

fn columns_of(name: &str, fields: Fields) -> [Field; 3] {
    [
        Field::new(name, DataType::List(item(fields)), true),
        Field::new(format!("{name}_model"), DataType::Utf8, true),
        Field::new(format!("{name}_weights_hash"), DataType::Utf8, true),
    ]
}

impl Extra {
    pub(crate) fn of_producer(producer: &Producer) -> Self {
        Self { labels: producer.labels.is_some(), entities: producer.entities.is_some() }
    }

    pub(crate) fn of_schema(schema: &Schema) -> Self {
        let has = |name| schema.column_with_name(name).is_some();
        Self { labels: has("labels"), entities: has("entities") }
    }

    pub(crate) fn or(self, other: Self) -> Self {
        Self { labels: self.labels || other.labels, entities: self.entities || other.entities }
    }

    pub(crate) fn fields(self) -> Vec<Field> {
        let labels = self.labels.then(|| columns_of("labels", label_fields()));
        let entities = self.entities.then(|| columns_of("entities", entity_fields()));
        labels.into_iter().chain(entities).flatten().collect()
    }
}

/// The columns of `rows`, as [`Extra::fields`] names them.
pub(crate) fn extra_columns(rows: &[ChunkRow], producer: &Producer) -> Result<Vec<ArrayRef>, ArrowError> {
    let mut columns = Vec::new();
    let mut add = |list: ListArray, annotator: &Annotator| {
        let same = |value: &str| strings(rows.iter().map(|_| Some(value)));
        columns.extend([Arc::new(list) as ArrayRef, same(&annotator.model), same(&annotator.weights_hash)]);
    };
    if let Some(annotator) = &producer.labels {
        add(labels(rows)?, annotator);
    }
    if let Some(annotator) = &producer.entities {
        add(entities(rows)?, annotator);
    }
    Ok(columns)
}

/// A list of structs from their flattened columns and the length of each list.
pub(crate) fn list(fields: Fields, columns: Vec<ArrayRef>, lengths: &[Option<usize>]) -> Result<ListArray, ArrowError> {
    let offsets = OffsetBuffer::from_lengths(lengths.iter().map(|length| length.unwrap_or(0)));
    let nulls: NullBuffer = lengths.iter().map(Option::is_some).collect();
    let values = StructArray::try_new(fields.clone(), columns, None)?;
    ListArray::try_new(item(fields), offsets, Arc::new(values), Some(nulls))
}

fn labels(rows: &[ChunkRow]) -> Result<ListArray, ArrowError> {
    let all = || rows.iter().filter_map(|row| row.labels.as_ref()).flatten();
    let mut scores = Float32Builder::new();
    all().for_each(|label: &LabelScore| scores.append_value(label.score));
    let columns = vec![strings(all().map(|label| Some(label.label.as_str()))), Arc::new(scores.finish())];
    let lengths: Vec<_> = rows.iter().map(|row| row.labels.as_ref().map(Vec::len)).collect();
    list(label_fields(), columns, &lengths)
}

fn entities(rows: &[ChunkRow]) -> Result<ListArray, ArrowError> {
    let all = || rows.iter().filter_map(|row| row.entities.as_ref()).flatten();
    let (mut labels, mut texts, mut scores) = (StringBuilder::new(), StringBuilder::new(), Float32Builder::new());
    let (mut starts, mut ends) = (UInt32Builder::new(), UInt32Builder::new());
    let (mut char_starts, mut char_ends) = (UInt64Builder::new(), UInt64Builder::new());
    for entity in all() {
        labels.append_value(&entity.label);
        scores.append_value(entity.score);
        texts.append_value(&entity.text);
        starts.append_value(entity.start);
        ends.append_value(entity.end);
        char_starts.append_value(entity.char_start);
        char_ends.append_value(entity.char_end);
    }
    let columns: Vec<ArrayRef> = vec![
        Arc::new(labels.finish()),
        Arc::new(scores.finish()),
        Arc::new(texts.finish()),
        Arc::new(starts.finish()),
        Arc::new(ends.finish()),
        Arc::new(char_starts.finish()),
        Arc::new(char_ends.finish()),
    ];
    let lengths: Vec<_> = rows.iter().map(|row| row.entities.as_ref().map(Vec::len)).collect();
    list(entity_fields(), columns, &lengths)
}

/// `batch` with the columns of `schema`: one that it lacks is null in every row.
pub(crate) fn conform(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    let rows = batch.num_rows();
    let column = |field: &Arc<Field>| match batch.column_by_name(field.name()) {
        Some(column) => Arc::clone(column),
        None => new_null_array(field.data_type(), rows),
    };
    RecordBatch::try_new(Arc::clone(schema), schema.fields().iter().map(column).collect())
}

#[cfg(test)]
mod tests {
    use arrow_array::Array;

    use super::*;

    #[test]
    fn a_table_without_the_columns_gets_them_empty() {
        let plain: SchemaRef = Arc::new(Schema::new(vec![required("text", DataType::Utf8)]));
        let batch =
            RecordBatch::try_new(Arc::clone(&plain), vec![strings([Some("a"), Some("b")].into_iter())]).unwrap();
        let both = Extra { labels: true, entities: true };
        let mut fields = vec![required("text", DataType::Utf8)];
        fields.extend(both.fields());
        let schema: SchemaRef = Arc::new(Schema::new(fields));
        let wide = conform(&batch, &schema).unwrap();
        assert_eq!((wide.num_columns(), wide.column(1).null_count(), wide.column(4).null_count()), (7, 2, 2));
        assert_eq!(Extra::of_schema(&wide.schema()), both);
        assert_eq!(Extra::of_schema(&plain), Extra::default());
        assert_eq!(conform(&batch, &plain).unwrap(), batch);
    }
}
