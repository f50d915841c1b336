//! ODT and ODP: text, headings, lists, tables, notes, text boxes, tracked deletions.

use super::opc::Package;
use crate::builder::{CellText, DocumentBuilder, Place};
use crate::error::DocumentError;
use crate::formats::ParseOptions;
use crate::formats::xml::{NodeId, Tree};
use crate::model::{BlockKind, Document, HiddenReason, Layer, PageInfo, PageStatus};

/// Repeated cells and rows are written once with a count, which may be a million for an empty rest of a sheet.
const MAX_REPEAT: usize = 64;

/// Parses an OpenDocument text or presentation.
pub(crate) fn parse(bytes: &[u8], media_type: &str, options: &ParseOptions) -> Result<Document, DocumentError> {
    let limits = &options.limits;
    let mut package = Package::open(bytes, "OpenDocument file", limits)?;
    let manifest = package.tree("META-INF/manifest.xml", None)?;
    if manifest.is_some_and(|m| m.descendants(0).any(|n| m.name(n) == "encryption-data")) {
        return Err(DocumentError::Encrypted { format: "OpenDocument file".to_owned() });
    }
    let mut out = DocumentBuilder::new(media_type, limits);
    if let Some(meta) = package.tree("meta.xml", None)? {
        read_meta(&meta, &mut out);
    }
    if let Some(styles) = package.tree("styles.xml", None)? {
        for node in styles.descendants(0) {
            let kind = match styles.name(node) {
                "header" => BlockKind::PageHeader,
                "footer" => BlockKind::PageFooter,
                _ => continue,
            };
            out.push(kind, &flat(&styles, node))?;
        }
    }
    let tree = package.required("content.xml", &mut out)?;
    let body = tree.path(0, &["document-content", "body"]);
    let body = body.ok_or_else(|| DocumentError::malformed("OpenDocument file", "content.xml has no body"))?;
    let mut walk = Walk { out: &mut out, tree: &tree, page: 0 };
    walk.blocks(body, &Context { place: Place::default(), item: None })?;
    out.finish()
}

fn read_meta(tree: &Tree, out: &mut DocumentBuilder) {
    let metadata = out.metadata();
    for node in tree.descendants(0) {
        let value = tree.all_text(node).trim().to_owned();
        if value.is_empty() {
            continue;
        }
        match tree.name(node) {
            "title" => metadata.title = Some(value),
            "initial-creator" => metadata.authors.insert(0, value),
            "creator" if !metadata.authors.contains(&value) => metadata.authors.push(value),
            "subject" => metadata.subject = Some(value),
            "keyword" => metadata.keywords.push(value),
            "creation-date" => metadata.created = Some(value),
            "date" => metadata.modified = Some(value),
            "language" => metadata.language = Some(value),
            _ => {}
        }
    }
}

#[derive(Clone)]
struct Context {
    place: Place,
    /// Depth of the list item that a paragraph belongs to.
    item: Option<u8>,
}

struct Walk<'w> {
    out: &'w mut DocumentBuilder,
    tree: &'w Tree,
    page: u32,
}

/// A paragraph's text and what hangs on it.
#[derive(Default)]
struct Inline {
    text: String,
    notes: Vec<NodeId>,
    boxes: Vec<NodeId>,
}

impl Walk<'_> {
    fn blocks(&mut self, node: NodeId, context: &Context) -> Result<(), DocumentError> {
        let tree = self.tree;
        for child in tree.children(node) {
            match tree.name(child) {
                "h" => {
                    let level = tree.attribute(child, "outline-level").and_then(|l| l.parse().ok()).unwrap_or(1);
                    self.paragraph(child, BlockKind::Heading { level }, context)?;
                }
                "p" => {
                    let style = tree.attribute(child, "style-name").unwrap_or_default();
                    let class = tree.attribute(node, "class");
                    let kind = match (context.item, style, class) {
                        (_, "Title", _) => BlockKind::Title,
                        (_, _, Some("title")) => BlockKind::Heading { level: 1 },
                        (Some(depth), ..) => BlockKind::ListItem { depth },
                        _ => BlockKind::Paragraph,
                    };
                    self.paragraph(child, kind, context)?;
                }
                "list" => {
                    let depth = context.item.map_or(0, |d| d.saturating_add(1));
                    self.blocks(child, &Context { item: Some(depth), ..context.clone() })?;
                }
                "table" => self.table(child, context)?,
                "page" => self.slide(child, context)?,
                "frame" | "custom-shape" | "rect" | "ellipse" | "g" | "text-box" | "list-item" | "list-header"
                | "section" | "text" | "presentation" | "drawing" | "a" | "index-body" | "table-of-content"
                | "alphabetical-index" | "index-title" | "line" | "path" | "polygon" | "connector" | "notes"
                | "object" | "spreadsheet" => {
                    // What a frame says about its role holds for the text box within.
                    if tree.name(child) == "frame" {
                        self.frame(child, context)?;
                    } else {
                        self.blocks(child, context)?;
                    }
                }
                "tracked-changes" => {
                    let layer = Layer::Hidden(HiddenReason::Deleted);
                    for deletion in tree.descendants(child).filter(|n| tree.name(*n) == "deletion") {
                        self.blocks(deletion, &Context { place: context.place.in_layer(layer), item: None })?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn frame(&mut self, frame: NodeId, context: &Context) -> Result<(), DocumentError> {
        let tree = self.tree;
        if tree.attribute(frame, "class") == Some("title") {
            let text = flat(tree, frame);
            self.out.push_at(BlockKind::Heading { level: 1 }, &text, context.place)?;
            return Ok(());
        }
        self.blocks(frame, context)
    }

    fn slide(&mut self, slide: NodeId, context: &Context) -> Result<(), DocumentError> {
        self.page += 1;
        let before = self.out.text_len();
        let place = Place { page: Some(self.page), ..context.place };
        self.blocks(slide, &Context { place, item: None })?;
        let status = if self.out.text_len() > before { PageStatus::Text } else { PageStatus::Empty };
        self.out.push_page(PageInfo { number: self.page, width: 0.0, height: 0.0, status });
        Ok(())
    }

    fn paragraph(&mut self, node: NodeId, kind: BlockKind, context: &Context) -> Result<(), DocumentError> {
        let mut inline = Inline::default();
        collect(self.tree, node, &mut inline);
        self.out.push_at(kind, &inline.text, context.place)?;
        for text_box in inline.boxes {
            self.blocks(text_box, context)?;
        }
        for note in inline.notes {
            self.out.push_at(BlockKind::Footnote, &flat(self.tree, note), context.place)?;
        }
        Ok(())
    }

    fn table(&mut self, table: NodeId, context: &Context) -> Result<(), DocumentError> {
        let tree = self.tree;
        let mut rows = Vec::new();
        let mut header_rows = 0;
        let mut inline = Inline::default();
        table_rows(tree, table, false, &mut |row, header| {
            let mut cells: Vec<CellText> = Vec::new();
            for cell in tree.children(row).filter(|n| matches!(tree.name(*n), "table-cell" | "covered-table-cell")) {
                let from = inline.text.len();
                for paragraph in tree.children(cell) {
                    collect(tree, paragraph, &mut inline);
                    inline.text.push('\n');
                }
                let text = inline.text.split_off(from);
                let span = |name| tree.attribute(cell, name).and_then(|v| v.parse::<u32>().ok()).unwrap_or(1);
                let repeat = (span("number-columns-repeated") as usize).min(MAX_REPEAT);
                let cell = CellText {
                    text,
                    row_span: span("number-rows-spanned").clamp(1, 1000),
                    col_span: span("number-columns-spanned").clamp(1, 1000),
                };
                cells.extend(std::iter::repeat_n(cell, repeat));
            }
            while cells.last().is_some_and(|c| c.text.trim().is_empty()) {
                cells.pop();
            }
            if header && header_rows == rows.len() {
                header_rows += 1;
            }
            rows.push(cells);
        });
        if header_rows == 0 && rows.len() > 1 && rows[0].len() > 1 {
            header_rows = 1;
        }
        self.out.push_table(rows, header_rows, context.place)?;
        for text_box in inline.boxes {
            self.blocks(text_box, context)?;
        }
        for note in inline.notes {
            self.out.push_at(BlockKind::Footnote, &flat(tree, note), context.place)?;
        }
        Ok(())
    }
}

fn table_rows(tree: &Tree, node: NodeId, header: bool, each: &mut impl FnMut(NodeId, bool)) {
    for child in tree.children(node) {
        match tree.name(child) {
            "table-row" => each(child, header),
            "table-header-rows" => table_rows(tree, child, true, each),
            "table-rows" | "table-row-group" => table_rows(tree, child, header, each),
            _ => {}
        }
    }
}

fn collect(tree: &Tree, node: NodeId, inline: &mut Inline) {
    for child in tree.children(node) {
        match tree.name(child) {
            "" => {
                // Runs of whitespace are one space; more are written as elements.
                for c in tree.text(child).unwrap_or_default().chars() {
                    match c {
                        ' ' | '\t' | '\n' | '\r' if inline.text.ends_with([' ', '\n']) => {}
                        ' ' | '\t' | '\n' | '\r' => inline.text.push(' '),
                        c => inline.text.push(c),
                    }
                }
            }
            "s" => {
                let count = tree.attribute(child, "c").and_then(|c| c.parse::<usize>().ok()).unwrap_or(1);
                inline.text.extend(std::iter::repeat_n(' ', count.min(1000)));
            }
            "tab" => inline.text.push('\t'),
            "line-break" => inline.text.push('\n'),
            "note" => inline.notes.extend(tree.child(child, "note-body")),
            "annotation" => inline.notes.push(child),
            "frame" | "text-box" | "custom-shape" => inline.boxes.push(child),
            "note-citation" => {}
            _ => collect(tree, child, inline),
        }
    }
}

/// All text below a node, a line for each paragraph.
fn flat(tree: &Tree, node: NodeId) -> String {
    let mut lines = Vec::new();
    for paragraph in tree.descendants(node).filter(|n| matches!(tree.name(*n), "p" | "h")) {
        let mut inline = Inline::default();
        collect(tree, paragraph, &mut inline);
        lines.push(inline.text);
    }
    lines.join("\n")
}
