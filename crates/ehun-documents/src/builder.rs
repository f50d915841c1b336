//! The only way to make a [`Document`]: text and blocks are written together, so that ranges cannot be wrong.

use crate::error::{DocumentError, Limit};
use crate::limits::Limits;
use crate::model::{BBox, Block, BlockKind, Cell, Child, Document, Layer, Metadata, PageInfo, Row, Table};

/// Where a block stands and how visible it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Place {
    /// Relation to the visible content.
    pub layer: Layer,
    /// 1-based page.
    pub page: Option<u32>,
    /// Box on the page.
    pub bbox: Option<BBox>,
}

impl Default for Place {
    fn default() -> Self {
        Place { layer: Layer::Body, page: None, bbox: None }
    }
}

impl Place {
    /// Body text on a page.
    pub fn on_page(page: u32, bbox: Option<BBox>) -> Self {
        Place { page: Some(page), bbox, ..Place::default() }
    }

    /// The same place in another layer.
    pub fn in_layer(self, layer: Layer) -> Self {
        Place { layer, ..self }
    }
}

/// One cell handed to [`DocumentBuilder::push_table`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellText {
    /// Its text; line ends and tabs become spaces.
    pub text: String,
    /// Rows that it covers, at least 1.
    pub row_span: u32,
    /// Columns that it covers, at least 1.
    pub col_span: u32,
}

impl From<String> for CellText {
    fn from(text: String) -> Self {
        CellText { text, row_span: 1, col_span: 1 }
    }
}

impl From<&str> for CellText {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

/// Writes a document from front to back.
///
/// Blocks are separated by an empty line, list items by a line end. Blocks of [`Layer::Unplaced`] may be pushed at any
/// time: they are kept aside and written at the end. Control characters other than tab and line end are taken out.
#[derive(Debug)]
pub struct DocumentBuilder {
    document: Document,
    /// Open headings: (level, block), levels rising; the title has level 0.
    headings: Vec<(u8, u32)>,
    unplaced: Vec<Unplaced>,
    text_limit: u64,
    child_limit: u64,
    child_bytes: u64,
}

impl DocumentBuilder {
    /// An empty document of a MIME type.
    pub fn new(media_type: &str, limits: &Limits) -> Self {
        let metadata = Metadata { media_type: media_type.to_owned(), ..Metadata::default() };
        DocumentBuilder {
            document: Document { metadata, ..Document::default() },
            headings: Vec::new(),
            unplaced: Vec::new(),
            text_limit: limits.text_bytes,
            child_limit: limits.child_bytes,
            child_bytes: 0,
        }
    }

    /// What the file says about itself, to be filled in.
    pub fn metadata(&mut self) -> &mut Metadata {
        &mut self.document.metadata
    }

    /// Notes something odd that did not stop the parser. Repeats are noted once, and at most 100 in all.
    pub fn warn(&mut self, warning: impl Into<String>) {
        let warning = warning.into();
        if self.document.warnings.len() < 100 && !self.document.warnings.contains(&warning) {
            self.document.warnings.push(warning);
        }
    }

    /// Adds a page's entry.
    pub fn push_page(&mut self, page: PageInfo) {
        self.document.pages.push(page);
    }

    /// Adds an attachment or archive member.
    pub fn push_child(&mut self, child: Child) -> Result<(), DocumentError> {
        self.child_bytes += child.bytes.len() as u64;
        if self.child_bytes > self.child_limit {
            return Err(DocumentError::LimitExceeded { limit: Limit::ChildBytes, value: self.child_limit });
        }
        self.document.children.push(child);
        Ok(())
    }

    /// Appends a block of body text. See [`push_at`](Self::push_at).
    pub fn push(&mut self, kind: BlockKind, text: &str) -> Result<Option<usize>, DocumentError> {
        self.push_at(kind, text, Place::default())
    }

    /// Appends a block. Whitespace around the text is taken off (of code: empty lines around it); if nothing is left,
    /// there is no block. Returns the block's index, or `None` without one or while it waits among the unplaced.
    ///
    /// A [`BlockKind::Table`] given here becomes one row with one cell; use [`push_table`](Self::push_table).
    pub fn push_at(&mut self, kind: BlockKind, text: &str, place: Place) -> Result<Option<usize>, DocumentError> {
        if matches!(kind, BlockKind::Table(_)) {
            return self.push_table(vec![vec![text.into()]], 0, place);
        }
        let text = clean(text);
        let text = match kind {
            BlockKind::Code => trim_empty_lines(&text),
            _ => text.trim(),
        };
        if text.trim().is_empty() {
            return Ok(None);
        }
        if place.layer == Layer::Unplaced {
            let content = Content::Text(kind, text.to_owned());
            self.unplaced.push(Unplaced { content, place });
            return Ok(None);
        }
        self.separate(matches!(kind, BlockKind::ListItem { .. }));
        let start = self.document.text.len();
        self.append(text)?;
        Ok(Some(self.add(kind, start, place)))
    }

    /// Appends a table. Rows without any text are left out. Returns the block's index, `None` if no cell has text.
    ///
    /// `header_rows` counts in the rows as given.
    pub fn push_table(
        &mut self,
        rows: Vec<Vec<CellText>>,
        header_rows: usize,
        place: Place,
    ) -> Result<Option<usize>, DocumentError> {
        let mut kept_header = 0u32;
        let mut kept: Vec<Vec<CellText>> = Vec::with_capacity(rows.len());
        for (n, mut row) in rows.into_iter().enumerate() {
            for cell in &mut row {
                cell.text = cell_line(&cell.text);
            }
            if row.iter().any(|cell| !cell.text.is_empty()) {
                kept_header += u32::from(n < header_rows);
                kept.push(row);
            }
        }
        if kept.is_empty() {
            return Ok(None);
        }
        if place.layer == Layer::Unplaced {
            self.unplaced.push(Unplaced { content: Content::Table(kept, kept_header), place });
            return Ok(None);
        }
        self.write_table(kept, kept_header, place).map(Some)
    }

    /// Rows of clean cells, at least one with text.
    fn write_table(
        &mut self,
        rows: Vec<Vec<CellText>>,
        header_rows: u32,
        place: Place,
    ) -> Result<usize, DocumentError> {
        self.separate(false);
        let start = self.document.text.len();
        let mut table = Table { header_rows, rows: Vec::with_capacity(rows.len()) };
        for (n, row) in rows.into_iter().enumerate() {
            if n > 0 {
                self.append("\n")?;
            }
            let row_start = self.document.text.len();
            let mut cells = Vec::with_capacity(row.len());
            for (m, cell) in row.into_iter().enumerate() {
                if m > 0 {
                    self.append("\t")?;
                }
                let cell_start = self.document.text.len();
                self.append(&cell.text)?;
                cells.push(Cell {
                    range: cell_start..self.document.text.len(),
                    row_span: cell.row_span.max(1),
                    col_span: cell.col_span.max(1),
                });
            }
            table.rows.push(Row { range: row_start..self.document.text.len(), cells });
        }
        Ok(self.add(BlockKind::Table(table), start, place))
    }

    /// Appends whitespace between blocks as the source has it, so that the document's text can equal the source.
    /// Characters that are not whitespace are left out: they would belong to no block.
    pub fn gap(&mut self, whitespace: &str) -> Result<(), DocumentError> {
        let kept: String = whitespace.chars().filter(|c| c.is_whitespace()).collect();
        self.append(&kept)
    }

    /// Appends a block right where the text stands, without separator and without taking off whitespace: for formats
    /// whose text is the source itself, together with [`gap`](Self::gap). Text that is all whitespace is a gap.
    pub fn push_verbatim(&mut self, kind: BlockKind, text: &str, place: Place) -> Result<Option<usize>, DocumentError> {
        if text.trim().is_empty() {
            return self.gap(text).map(|()| None);
        }
        let start = self.document.text.len();
        self.append(&clean(text))?;
        if self.document.text[start..].trim().is_empty() {
            return Ok(None);
        }
        Ok(Some(self.add(kind, start, place)))
    }

    /// Bytes of text written so far.
    pub fn text_len(&self) -> usize {
        self.document.text.len()
    }

    /// Closes the document: unplaced blocks come last, under no heading.
    pub fn finish(mut self) -> Result<Document, DocumentError> {
        self.headings.clear();
        for Unplaced { content, place } in std::mem::take(&mut self.unplaced) {
            match content {
                Content::Table(rows, header_rows) => {
                    self.write_table(rows, header_rows, place)?;
                }
                Content::Text(kind, text) => {
                    // Without a place it cannot be the head of what happens to follow it.
                    let kind = match kind {
                        BlockKind::Title | BlockKind::Heading { .. } => BlockKind::Paragraph,
                        other => other,
                    };
                    self.separate(matches!(kind, BlockKind::ListItem { .. }));
                    let start = self.document.text.len();
                    self.append(&text)?;
                    self.add(kind, start, place);
                }
            }
        }
        Ok(self.document)
    }

    fn append(&mut self, text: &str) -> Result<(), DocumentError> {
        if (self.document.text.len() + text.len()) as u64 > self.text_limit {
            return Err(DocumentError::LimitExceeded { limit: Limit::TextBytes, value: self.text_limit });
        }
        self.document.text.push_str(text);
        Ok(())
    }

    fn separate(&mut self, next_is_item: bool) {
        let text = &mut self.document.text;
        if text.is_empty() {
            return;
        }
        let both_items =
            next_is_item && self.document.blocks.last().is_some_and(|b| matches!(b.kind, BlockKind::ListItem { .. }));
        let wanted = if both_items { "\n" } else { "\n\n" };
        if !text.ends_with(wanted) {
            let have = usize::from(wanted.len() == 2 && text.ends_with('\n'));
            text.push_str(&wanted[have..]);
        }
    }

    fn add(&mut self, mut kind: BlockKind, start: usize, place: Place) -> usize {
        let index = self.document.blocks.len();
        // Headings that a reader does not see, or of a menu, do not head the content that follows.
        let level = match (&mut kind, place.layer) {
            (BlockKind::Title, Layer::Body) => Some(0),
            (BlockKind::Heading { level }, layer) => {
                *level = (*level).clamp(1, 9);
                (layer == Layer::Body).then_some(*level)
            }
            _ => None,
        };
        if let Some(level) = level {
            while self.headings.last().is_some_and(|(open, _)| *open >= level) {
                self.headings.pop();
            }
        }
        let heading = match place.layer {
            Layer::Body | Layer::Hidden(_) => self.headings.last().map(|(_, block)| *block),
            Layer::Unplaced | Layer::Boilerplate(_) => None,
        };
        if let Some(level) = level {
            self.headings.push((level, index as u32));
        }
        let range = start..self.document.text.len();
        self.document.blocks.push(Block {
            kind,
            layer: place.layer,
            range,
            page: place.page,
            bbox: place.bbox,
            heading,
        });
        index
    }
}

#[derive(Debug)]
struct Unplaced {
    content: Content,
    place: Place,
}

#[derive(Debug)]
enum Content {
    Text(BlockKind, String),
    /// Rows, and how many of them are the header.
    Table(Vec<Vec<CellText>>, u32),
}

/// Takes out control characters other than tab and line end; line ends become `\n`.
fn clean(text: &str) -> std::borrow::Cow<'_, str> {
    let odd = |c: char| c.is_control() && c != '\t' && c != '\n';
    if !text.contains(odd) {
        return text.into();
    }
    let text = text.replace("\r\n", "\n").replace(['\r', '\u{85}', '\u{b}', '\u{c}'], "\n");
    text.chars().filter(|c| !odd(*c)).collect::<String>().into()
}

/// A cell's text as one line: runs of whitespace become one space.
fn cell_line(text: &str) -> String {
    let text = clean(text);
    let mut line = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    line
}

/// Takes off empty lines before and whitespace after a verbatim text, and keeps the first line's indentation.
fn trim_empty_lines(text: &str) -> &str {
    let text = text.trim_end();
    let content = text.len() - text.trim_start().len();
    let from = text[..content].rfind('\n').map_or(0, |n| n + 1);
    &text[from..]
}
