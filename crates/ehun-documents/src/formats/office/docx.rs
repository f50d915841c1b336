//! DOCX: body, headings, lists, tables, text boxes, notes, comments, headers and footers, hidden and deleted runs.

use std::collections::{HashMap, HashSet};

use super::beside;
use super::docx_styles::{StyleKind, Styles, paragraph_kind, vanish};
use super::opc::Package;
use crate::builder::{CellText, DocumentBuilder, Place};
use crate::error::DocumentError;
use crate::formats::ParseOptions;
use crate::formats::xml::{NodeId, Tree};
use crate::model::{BlockKind, Document, HiddenReason, Layer};

const MEDIA_TYPE: &str = "application/vnd.openxmlformats-officedocument.wordprocessingml.document";

/// Parses a DOCX file.
pub(crate) fn parse(bytes: &[u8], options: &ParseOptions) -> Result<Document, DocumentError> {
    let limits = &options.limits;
    let mut package = Package::open(bytes, "DOCX", limits)?;
    let mut out = DocumentBuilder::new(MEDIA_TYPE, limits);
    package.properties(&mut out)?;
    let main = package.related("", "officeDocument")?.unwrap_or_else(|| "word/document.xml".to_owned());
    let tree = package.required(&main, &mut out)?;
    let relations = package.relations(&main)?;

    let mut notes = HashMap::new();
    let mut running: Vec<(BlockKind, Tree)> = Vec::new();
    let mut styles = Styles::default();
    let mut targets: Vec<_> = relations.values().collect();
    targets.sort_by(|a, b| a.target.cmp(&b.target));
    for relation in targets {
        let kind = relation.kind.as_str();
        match kind {
            "styles" => {
                if let Some(tree) = package.tree(&relation.target, None)? {
                    styles = Styles::read(&tree);
                }
            }
            "footnotes" | "endnotes" | "comments" => {
                if let Some(tree) = package.tree(&relation.target, Some(&mut out))? {
                    notes.insert(kind.trim_end_matches('s').to_owned(), tree);
                }
            }
            "header" | "footer" => {
                if let Some(tree) = package.tree(&relation.target, Some(&mut out))? {
                    let kind = if kind == "header" { BlockKind::PageHeader } else { BlockKind::PageFooter };
                    running.push((kind, tree));
                }
            }
            _ => {}
        }
    }

    let mut seen = HashSet::new();
    for (kind, tree) in &running {
        let runs = plain_text(tree, 0, &styles);
        // First-page, even and odd headers often say the same.
        if seen.insert(runs.visible.clone()) {
            out.push(kind.clone(), &runs.visible)?;
            for (text, reason) in runs.unseen() {
                out.push_at(kind.clone(), text, Place::default().in_layer(Layer::Hidden(reason)))?;
            }
        }
    }
    let root = tree.path(0, &["document", "body"]);
    let root = root.ok_or_else(|| DocumentError::malformed("DOCX", "the main part has no body"))?;
    // A page may be coloured.
    let on_white = tree.path(0, &["document", "background"]).is_none();
    let mut walk = Walk { out: &mut out, on_white, styles: &styles, notes: &notes, used: HashSet::new() };
    walk.blocks(&tree, root, Place::default())?;
    walk.unused_notes()?;

    // Diagrams and charts keep their words in parts of their own, as do documents that stand within this one.
    let mut rest: Vec<_> = relations.into_values().collect();
    rest.sort_by(|a, b| a.target.cmp(&b.target));
    for relation in rest {
        match relation.kind.as_str() {
            "diagramData" | "chart" => {
                let Some(tree) = package.tree(&relation.target, None)? else { continue };
                for text in beside::paragraphs(&tree) {
                    out.push_at(BlockKind::Paragraph, &text, Place::default().in_layer(Layer::Unplaced))?;
                }
            }
            "aFChunk" | "package" => package.child(&relation.target, &mut out)?,
            _ => {}
        }
    }
    out.finish()
}

/// A paragraph's text by visibility, and what hangs on it.
struct Runs<'s> {
    styles: &'s Styles,
    /// Nothing is painted behind the text, as far as is known: white letters are not seen.
    on_white: bool,
    visible: String,
    hidden: String,
    deleted: String,
    /// In the colour of the paper.
    white: String,
    /// Of no size.
    tiny: String,
    /// Kind and id of notes, in order of reference.
    notes: Vec<(&'static str, String)>,
    /// Contents of text boxes.
    boxes: Vec<NodeId>,
}

impl<'s> Runs<'s> {
    fn new(styles: &'s Styles) -> Self {
        let [visible, hidden, deleted, white, tiny] = [const { String::new() }; 5];
        Runs { styles, on_white: false, visible, hidden, deleted, white, tiny, notes: Vec::new(), boxes: Vec::new() }
    }

    /// What a reader does not see, and why.
    fn unseen(&self) -> [(&str, HiddenReason); 4] {
        [
            (&self.hidden, HiddenReason::Marked),
            (&self.deleted, HiddenReason::Deleted),
            (&self.white, HiddenReason::SameColour),
            (&self.tiny, HiddenReason::ZeroSize),
        ]
    }
}

struct Walk<'w> {
    out: &'w mut DocumentBuilder,
    /// The paper is white and the text stands on it, in no box or table.
    on_white: bool,
    styles: &'w Styles,
    notes: &'w HashMap<String, Tree>,
    used: HashSet<(&'static str, String)>,
}

impl Walk<'_> {
    /// Paragraphs and tables below a node.
    fn blocks(&mut self, tree: &Tree, node: NodeId, place: Place) -> Result<(), DocumentError> {
        for child in tree.children(node) {
            match tree.name(child) {
                "p" => self.paragraph(tree, child, place)?,
                "tbl" => self.table(tree, child, place)?,
                "del" | "moveFrom" => {
                    self.blocks(tree, child, place.in_layer(Layer::Hidden(HiddenReason::Deleted)))?;
                }
                "AlternateContent" => {
                    if let Some(choice) = alternative(tree, child) {
                        self.blocks(tree, choice, place)?;
                    }
                }
                "sdt" | "sdtContent" | "ins" | "moveTo" | "customXml" | "smartTag" | "txbxContent" => {
                    self.blocks(tree, child, place)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn paragraph(&mut self, tree: &Tree, node: NodeId, place: Place) -> Result<(), DocumentError> {
        let properties = tree.child(node, "pPr");
        let style = properties.and_then(|p| tree.child(p, "pStyle")).and_then(|n| tree.attribute(n, "val"));
        let direct = properties.and_then(|p| paragraph_kind(tree, p));
        let named = style.and_then(|s| self.styles.get(s));
        let kind = match (direct, named) {
            // Numbered headings are headings.
            (Some(StyleKind::List), Some(heading @ (StyleKind::Heading(_) | StyleKind::Title))) => Some(heading),
            (direct, named) => direct.or(named),
        };
        let kind = match kind {
            Some(StyleKind::Title) => BlockKind::Title,
            Some(StyleKind::Heading(level)) => BlockKind::Heading { level },
            Some(StyleKind::Caption) => BlockKind::Caption,
            Some(StyleKind::Code) => BlockKind::Code,
            Some(StyleKind::List) => {
                let level = properties.and_then(|p| tree.path(p, &["numPr", "ilvl"]));
                let depth = level.and_then(|n| tree.attribute(n, "val")).and_then(|v| v.parse().ok());
                BlockKind::ListItem { depth: depth.unwrap_or(0) }
            }
            None => BlockKind::Paragraph,
        };
        let mut runs = Runs::new(self.styles);
        runs.on_white = self.on_white && !properties.is_some_and(|p| is_painted(tree, p));
        let layer = match style.is_some_and(|s| self.styles.hidden.contains(s)) {
            true => Layer::Hidden(HiddenReason::Marked),
            false => Layer::Body,
        };
        collect(tree, node, &mut runs, layer);
        self.out.push_at(kind.clone(), &runs.visible, place)?;
        self.unseen(&runs, place)?;
        self.attached(tree, runs, place)
    }

    fn unseen(&mut self, runs: &Runs<'_>, place: Place) -> Result<(), DocumentError> {
        for (text, reason) in runs.unseen() {
            self.out.push_at(BlockKind::Paragraph, text, place.in_layer(Layer::Hidden(reason)))?;
        }
        Ok(())
    }

    /// Text boxes and notes come right after the paragraph that they hang on.
    fn attached(&mut self, tree: &Tree, runs: Runs<'_>, place: Place) -> Result<(), DocumentError> {
        let on_white = std::mem::take(&mut self.on_white);
        for text_box in runs.boxes {
            self.blocks(tree, text_box, place)?;
        }
        self.on_white = on_white;
        for (kind, id) in runs.notes {
            let notes = self.notes;
            let Some(tree) = notes.get(kind) else { continue };
            if self.used.insert((kind, id.clone()))
                && let Some(note) = note_nodes(tree, kind).find(|n| tree.attribute(*n, "id") == Some(&id))
            {
                self.note(tree, note, place)?;
            }
        }
        Ok(())
    }

    fn note(&mut self, tree: &Tree, note: NodeId, place: Place) -> Result<(), DocumentError> {
        let runs = plain_text(tree, note, self.styles);
        self.out.push_at(BlockKind::Footnote, &runs.visible, place)?;
        self.unseen(&runs, place)
    }

    /// Notes that nothing refers to.
    fn unused_notes(&mut self) -> Result<(), DocumentError> {
        let notes = self.notes;
        for kind in ["footnote", "endnote", "comment"] {
            let Some(tree) = notes.get(kind) else { continue };
            for note in note_nodes(tree, kind) {
                let id = tree.attribute(note, "id").unwrap_or_default().to_owned();
                if !self.used.contains(&(kind, id)) {
                    self.note(tree, note, Place::default().in_layer(Layer::Unplaced))?;
                }
            }
        }
        Ok(())
    }

    fn table(&mut self, tree: &Tree, table: NodeId, place: Place) -> Result<(), DocumentError> {
        let mut rows: Vec<Vec<CellText>> = Vec::new();
        let mut header_rows = 0;
        let mut attached = Runs::new(self.styles);
        for row in rows_of(tree, table) {
            let is_header = tree.path(row, &["trPr", "tblHeader"]).is_some();
            if is_header && header_rows == rows.len() {
                header_rows += 1;
            }
            let deleted_row = tree.path(row, &["trPr", "del"]).is_some();
            let mut cells = Vec::new();
            for cell in cells_of(tree, row) {
                let properties = tree.child(cell, "tcPr");
                let span = properties.and_then(|p| tree.child(p, "gridSpan")).and_then(|n| tree.attribute(n, "val"));
                let mut runs = Runs::new(self.styles);
                let deleted = deleted_row || properties.is_some_and(|p| tree.child(p, "cellDel").is_some());
                let layer = if deleted { Layer::Hidden(HiddenReason::Deleted) } else { Layer::Body };
                cell_text(tree, cell, &mut runs, layer);
                attached.hidden.push_str(&runs.hidden);
                attached.deleted.push_str(&runs.deleted);
                attached.tiny.push_str(&runs.tiny);
                attached.notes.append(&mut runs.notes);
                attached.boxes.append(&mut runs.boxes);
                cells.push(CellText {
                    text: runs.visible,
                    row_span: 1,
                    col_span: span.and_then(|s| s.parse().ok()).unwrap_or(1).clamp(1, 1000),
                });
            }
            rows.push(cells);
        }
        // Most writers mark no header; the first row of a table with several is taken for one.
        if header_rows == 0 && rows.len() > 1 && rows[0].len() > 1 {
            header_rows = 1;
        }
        self.out.push_table(rows, header_rows, place)?;
        self.unseen(&attached, place)?;
        self.attached(tree, attached, place)
    }
}

/// Rows, also those within content controls and tracked changes.
fn rows_of(tree: &Tree, node: NodeId) -> Vec<NodeId> {
    through(tree, node, "tr")
}

fn cells_of(tree: &Tree, node: NodeId) -> Vec<NodeId> {
    through(tree, node, "tc")
}

/// Children of a name, looking through wrappers.
fn through(tree: &Tree, node: NodeId, name: &str) -> Vec<NodeId> {
    let mut found = Vec::new();
    for child in tree.children(node) {
        match tree.name(child) {
            n if n == name => found.push(child),
            "sdt" | "sdtContent" | "ins" | "customXml" | "smartTag" => found.extend(through(tree, child, name)),
            _ => {}
        }
    }
    found
}

/// Text of a cell's paragraphs, nested tables included.
fn cell_text(tree: &Tree, cell: NodeId, runs: &mut Runs<'_>, layer: Layer) {
    for child in tree.children(cell) {
        match tree.name(child) {
            "p" => {
                collect(tree, child, runs, layer);
                for text in [&mut runs.visible, &mut runs.hidden, &mut runs.deleted, &mut runs.tiny] {
                    if !text.is_empty() {
                        text.push('\n');
                    }
                }
            }
            "tbl" | "tr" | "tc" | "sdt" | "sdtContent" | "ins" | "customXml" => cell_text(tree, child, runs, layer),
            _ => {}
        }
    }
}

/// The branch of an alternative that is read: the newer form, unless it is empty.
fn alternative(tree: &Tree, node: NodeId) -> Option<NodeId> {
    let choice = tree.all(node, "Choice").find(|c| tree.children(*c).next().is_some());
    choice.or_else(|| tree.child(node, "Fallback"))
}

/// Collects the text of a paragraph or of an element within one.
fn collect(tree: &Tree, node: NodeId, runs: &mut Runs<'_>, layer: Layer) {
    for child in tree.children(node) {
        match tree.name(child) {
            "r" => run(tree, child, runs, layer),
            "del" | "moveFrom" => collect(tree, child, runs, Layer::Hidden(HiddenReason::Deleted)),
            "AlternateContent" => {
                if let Some(choice) = alternative(tree, child) {
                    collect(tree, choice, runs, layer);
                }
            }
            // Mathematics keeps its letters in m:t within m:r, and its structure around them.
            "" | "pPr" | "rPr" | "p" | "tbl" => {}
            "t" => push(tree, child, runs, layer),
            _ => collect(tree, child, runs, layer),
        }
    }
}

fn run(tree: &Tree, node: NodeId, runs: &mut Runs<'_>, layer: Layer) {
    let layer = match (layer, tree.child(node, "rPr")) {
        (Layer::Body | Layer::Hidden(HiddenReason::Marked), Some(properties)) => {
            run_layer(tree, properties, runs, layer)
        }
        (layer, _) => layer,
    };
    inline(tree, node, runs, layer);
}

/// Whether a reader sees a run with these properties, in a paragraph whose style says `from`.
fn run_layer(tree: &Tree, properties: NodeId, runs: &Runs<'_>, from: Layer) -> Layer {
    let value = |name| tree.child(properties, name).and_then(|n| tree.attribute(n, "val"));
    let by_style = value("rStyle").is_some_and(|style| runs.styles.hidden.contains(style));
    match vanish(tree, properties) {
        Some(true) => return Layer::Hidden(HiddenReason::Marked),
        Some(false) => {}
        None if by_style => return Layer::Hidden(HiddenReason::Marked),
        None if from != Layer::Body => return from,
        None => {}
    }
    // Sizes are in half points: what is below one point is a dot.
    if value("sz").and_then(|size| size.parse::<u32>().ok()).is_some_and(|size| size < 2) {
        return Layer::Hidden(HiddenReason::ZeroSize);
    }
    let is_white = value("color").is_some_and(|colour| colour.eq_ignore_ascii_case("ffffff"));
    match is_white && runs.on_white && !is_painted(tree, properties) {
        true => Layer::Hidden(HiddenReason::SameColour),
        false => Layer::Body,
    }
}

/// Whether properties of a run or a paragraph put something other than white behind the text.
fn is_painted(tree: &Tree, properties: NodeId) -> bool {
    let fill = tree.child(properties, "shd").map(|n| {
        let white =
            |name| matches!(tree.attribute(n, name), None | Some("auto" | "clear" | "nil" | "FFFFFF" | "ffffff"));
        !(white("fill") && white("val"))
    });
    fill.unwrap_or(false) || tree.child(properties, "highlight").is_some()
}

fn inline(tree: &Tree, node: NodeId, runs: &mut Runs<'_>, layer: Layer) {
    for child in tree.children(node) {
        match tree.name(child) {
            "t" | "delText" => push(tree, child, runs, layer),
            "tab" | "ptab" => push_str("\t", runs, layer),
            "br" | "cr" => push_str("\n", runs, layer),
            "noBreakHyphen" => push_str("\u{2011}", runs, layer),
            "sym" => {
                // Symbol fonts sit in the private use area; the code below it is what the user typed.
                let code = tree.attribute(child, "char").and_then(|c| u32::from_str_radix(c, 16).ok());
                if let Some(c) = code.filter(|c| !(0xf000..0xf0ff).contains(c)).and_then(char::from_u32) {
                    push_str(c.encode_utf8(&mut [0; 4]), runs, layer);
                }
            }
            "footnoteReference" | "endnoteReference" | "commentReference" => {
                let kind = match tree.name(child) {
                    "footnoteReference" => "footnote",
                    "endnoteReference" => "endnote",
                    _ => "comment",
                };
                if let Some(id) = tree.attribute(child, "id") {
                    runs.notes.push((kind, id.to_owned()));
                }
            }
            "txbxContent" => runs.boxes.push(child),
            "AlternateContent" => {
                if let Some(choice) = alternative(tree, child) {
                    inline(tree, choice, runs, layer);
                }
            }
            "" | "rPr" | "instrText" | "delInstrText" | "fldData" => {}
            // Text in a drawing that is no text box (grouped shapes, charts drawn in place).
            "p" => collect(tree, child, runs, layer),
            _ => inline(tree, child, runs, layer),
        }
    }
}

fn push(tree: &Tree, node: NodeId, runs: &mut Runs<'_>, layer: Layer) {
    for text in tree.children(node).filter_map(|n| tree.text(n)) {
        push_str(text, runs, layer);
    }
}

fn push_str(text: &str, runs: &mut Runs<'_>, layer: Layer) {
    match layer {
        Layer::Hidden(HiddenReason::Deleted) => runs.deleted.push_str(text),
        Layer::Hidden(HiddenReason::SameColour) => runs.white.push_str(text),
        Layer::Hidden(HiddenReason::ZeroSize) => runs.tiny.push_str(text),
        Layer::Hidden(_) => runs.hidden.push_str(text),
        _ => runs.visible.push_str(text),
    }
}

/// Notes of a part without the separator lines.
fn note_nodes<'t>(tree: &'t Tree, kind: &'static str) -> impl Iterator<Item = NodeId> + 't {
    let root = tree.children(0).find(|n| !tree.name(*n).is_empty()).unwrap_or(0);
    tree.all(root, kind).filter(|n| matches!(tree.attribute(*n, "type"), None | Some("normal")))
}

/// All text below a node, a line for each paragraph.
fn plain_text<'s>(tree: &Tree, node: NodeId, styles: &'s Styles) -> Runs<'s> {
    let mut all = Runs::new(styles);
    for paragraph in tree.descendants(node).filter(|n| tree.name(*n) == "p") {
        let mut runs = Runs::new(styles);
        collect(tree, paragraph, &mut runs, Layer::Body);
        for (to, text) in [
            (&mut all.visible, &runs.visible),
            (&mut all.hidden, &runs.hidden),
            (&mut all.deleted, &runs.deleted),
            (&mut all.tiny, &runs.tiny),
        ] {
            if !to.is_empty() {
                to.push('\n');
            }
            to.push_str(text.trim());
        }
    }
    all
}
