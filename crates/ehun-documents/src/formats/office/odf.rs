//! OpenDocument text, and what its presentations share with it: headings, lists, tables, notes, text boxes, tracked deletions.

use std::collections::HashSet;

use super::odp::Masters;
use super::opc::Package;
use crate::builder::{CellText, DocumentBuilder, Place};
use crate::error::DocumentError;
use crate::formats::ParseOptions;
use crate::formats::xml::{NodeId, Tree};
use crate::model::{BlockKind, Document, HiddenReason, Layer};

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
    let mut masters = Masters::default();
    if let Some(styles) = package.tree("styles.xml", None)? {
        masters = Masters::read(&styles);
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
    let mut walk = Walk { out: &mut out, tree: &tree, hidden: hidden_styles(&tree), masters: &masters, page: 0 };
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
pub(super) struct Context {
    pub place: Place,
    /// Depth of the list item that a paragraph belongs to.
    pub item: Option<u8>,
}

pub(super) struct Walk<'w> {
    pub out: &'w mut DocumentBuilder,
    pub tree: &'w Tree,
    /// Styles whose text is not shown.
    hidden: HashSet<String>,
    pub masters: &'w Masters,
    pub page: u32,
}

/// Styles of characters, paragraphs, sections and slides that the file itself defines as not shown.
fn hidden_styles(tree: &Tree) -> HashSet<String> {
    let styles = tree.descendants(0).filter(|n| tree.name(*n) == "style");
    let is_hidden = |style: &NodeId| {
        let properties = tree.children(*style).filter(|n| tree.name(*n).ends_with("-properties"));
        properties
            .into_iter()
            .any(|p| tree.attribute(p, "display") == Some("none") || tree.attribute(p, "visibility") == Some("hidden"))
    };
    styles.filter(is_hidden).filter_map(|n| tree.attribute(n, "name").map(str::to_owned)).collect()
}

/// A paragraph's text and what hangs on it.
#[derive(Default)]
struct Inline {
    text: String,
    hidden: String,
    notes: Vec<NodeId>,
    boxes: Vec<NodeId>,
}

impl Walk<'_> {
    pub(super) fn blocks(&mut self, node: NodeId, context: &Context) -> Result<(), DocumentError> {
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
                | "alphabetical-index" | "index-title" | "line" | "path" | "polygon" | "connector" | "object"
                | "spreadsheet" => {
                    // What a frame says about its role holds for the text box within.
                    let mut context = context.clone();
                    if tree.name(child) == "section" && self.is_hidden(child) && context.place.layer == Layer::Body {
                        context.place = context.place.in_layer(Layer::Hidden(HiddenReason::Marked));
                    }
                    match tree.name(child) {
                        "frame" => self.frame(child, &context)?,
                        _ => self.blocks(child, &context)?,
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

    pub(super) fn is_hidden(&self, node: NodeId) -> bool {
        let tree = self.tree;
        tree.attribute(node, "style-name").is_some_and(|style| self.hidden.contains(style))
            || tree.attribute(node, "display") == Some("none")
            || tree.all(node, "hidden-paragraph").any(|n| tree.attribute(n, "is-hidden") == Some("true"))
    }

    fn unseen(&mut self, text: &str, context: &Context) -> Result<(), DocumentError> {
        let place = context.place.in_layer(Layer::Hidden(HiddenReason::Marked));
        self.out.push_at(BlockKind::Paragraph, text, place).map(drop)
    }

    fn paragraph(&mut self, node: NodeId, kind: BlockKind, context: &Context) -> Result<(), DocumentError> {
        let mut inline = Inline::default();
        collect(self.tree, node, &self.hidden, &mut inline);
        if self.is_hidden(node) {
            let shown = std::mem::take(&mut inline.text);
            inline.hidden.insert_str(0, &shown);
        }
        self.out.push_at(kind, &inline.text, context.place)?;
        self.unseen(&inline.hidden, context)?;
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
                    collect(tree, paragraph, &self.hidden, &mut inline);
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
        self.unseen(&inline.hidden, context)?;
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

fn collect(tree: &Tree, node: NodeId, hidden: &HashSet<String>, inline: &mut Inline) {
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
            // Shown or not by a condition, which the file says how it came out.
            "hidden-text" => {
                let text = tree.attribute(child, "string-value").unwrap_or_default();
                match tree.attribute(child, "is-hidden") {
                    Some("false") => inline.text.push_str(text),
                    _ => inline.hidden.push_str(text),
                }
            }
            "span" if tree.attribute(child, "style-name").is_some_and(|style| hidden.contains(style)) => {
                let shown = std::mem::take(&mut inline.text);
                collect(tree, child, hidden, inline);
                let unseen = std::mem::replace(&mut inline.text, shown);
                inline.hidden.push_str(&unseen);
            }
            _ => collect(tree, child, hidden, inline),
        }
    }
}

/// All text below a node, a line for each paragraph.
pub(super) fn flat(tree: &Tree, node: NodeId) -> String {
    let mut lines = Vec::new();
    for paragraph in tree.descendants(node).filter(|n| matches!(tree.name(*n), "p" | "h")) {
        let mut inline = Inline::default();
        collect(tree, paragraph, &HashSet::new(), &mut inline);
        lines.push(inline.text);
    }
    lines.join("\n")
}
