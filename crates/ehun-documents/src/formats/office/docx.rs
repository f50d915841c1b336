//! DOCX: body, headings, lists, tables, text boxes, notes, comments, headers and footers, hidden and deleted runs.

use std::collections::{HashMap, HashSet};

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
        let text = plain_text(tree, 0);
        // First-page, even and odd headers often say the same.
        if seen.insert(text.clone()) {
            out.push(kind.clone(), &text)?;
        }
    }
    let root = tree.path(0, &["document", "body"]);
    let root = root.ok_or_else(|| DocumentError::malformed("DOCX", "the main part has no body"))?;
    let mut walk = Walk { out: &mut out, styles: &styles, notes: &notes, used: HashSet::new() };
    walk.blocks(&tree, root, Place::default())?;
    walk.unused_notes()?;

    // Diagrams keep their words in parts of their own.
    for relation in sorted(relations.values().filter(|r| r.kind == "diagramData").map(|r| r.target.clone())) {
        if let Some(tree) = package.tree(&relation, None)? {
            for paragraph in tree.descendants(0).filter(|n| tree.name(*n) == "t") {
                let place = Place::default().in_layer(Layer::Unplaced);
                out.push_at(BlockKind::Paragraph, &tree.all_text(paragraph), place)?;
            }
        }
    }
    out.finish()
}

fn sorted(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// What paragraph styles say.
#[derive(Debug, Default)]
struct Styles {
    kinds: HashMap<String, StyleKind>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StyleKind {
    Title,
    Heading(u8),
    List,
    Caption,
    Code,
}

impl Styles {
    fn read(tree: &Tree) -> Self {
        let mut own = HashMap::new();
        let mut based_on = HashMap::new();
        let root = tree.child(0, "styles").unwrap_or(0);
        for style in tree.all(root, "style") {
            let Some(id) = tree.attribute(style, "styleId") else { continue };
            if let Some(parent) = tree.child(style, "basedOn").and_then(|n| tree.attribute(n, "val")) {
                based_on.insert(id.to_owned(), parent.to_owned());
            }
            let name = tree.child(style, "name").and_then(|n| tree.attribute(n, "val")).unwrap_or(id);
            let properties = tree.child(style, "pPr");
            let kind = Self::by_name(name).or_else(|| properties.and_then(|p| paragraph_kind(tree, p)));
            if let Some(kind) = kind {
                own.insert(id.to_owned(), kind);
            }
        }
        let mut kinds = own.clone();
        for id in based_on.keys() {
            let mut at = id;
            // A chain of styles that comes back to itself ends here.
            for _ in 0..20 {
                if let Some(kind) = own.get(at) {
                    kinds.insert(id.clone(), *kind);
                    break;
                }
                match based_on.get(at) {
                    Some(parent) => at = parent,
                    None => break,
                }
            }
        }
        Styles { kinds }
    }

    fn by_name(name: &str) -> Option<StyleKind> {
        let name = name.to_ascii_lowercase();
        if let Some(level) = name.strip_prefix("heading ").and_then(|n| n.trim().parse().ok()) {
            return Some(StyleKind::Heading(level));
        }
        match name.as_str() {
            "title" => Some(StyleKind::Title),
            "caption" => Some(StyleKind::Caption),
            "html preformatted" | "source code" | "code" | "macro text" => Some(StyleKind::Code),
            _ if name.starts_with("list ") && name != "list paragraph" => Some(StyleKind::List),
            _ => None,
        }
    }

    /// The style with an id; an unknown id is tried as a name, as styles.xml may be missing.
    fn get(&self, id: &str) -> Option<StyleKind> {
        self.kinds.get(id).copied().or_else(|| {
            let level = id.strip_prefix("Heading")?.parse().ok()?;
            Some(StyleKind::Heading(level))
        })
    }
}

/// What a paragraph's own properties say.
fn paragraph_kind(tree: &Tree, properties: NodeId) -> Option<StyleKind> {
    if let Some(level) = tree.child(properties, "outlineLvl").and_then(|n| tree.attribute(n, "val")) {
        // 9 is body text.
        if let Some(level) = level.parse::<u8>().ok().filter(|l| *l < 9) {
            return Some(StyleKind::Heading(level + 1));
        }
    }
    let numbered = tree.child(properties, "numPr")?;
    let id = tree.child(numbered, "numId").and_then(|n| tree.attribute(n, "val"));
    (id != Some("0")).then_some(StyleKind::List)
}

/// A paragraph's text by visibility, and what hangs on it.
#[derive(Default)]
struct Runs {
    visible: String,
    hidden: String,
    deleted: String,
    /// Kind and id of notes, in order of reference.
    notes: Vec<(&'static str, String)>,
    /// Contents of text boxes.
    boxes: Vec<NodeId>,
}

struct Walk<'w> {
    out: &'w mut DocumentBuilder,
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
        let mut runs = Runs::default();
        collect(tree, node, &mut runs, Layer::Body);
        self.out.push_at(kind.clone(), &runs.visible, place)?;
        for (text, reason) in [(&runs.hidden, HiddenReason::Marked), (&runs.deleted, HiddenReason::Deleted)] {
            self.out.push_at(BlockKind::Paragraph, text, place.in_layer(Layer::Hidden(reason)))?;
        }
        self.attached(tree, runs, place)
    }

    /// Text boxes and notes come right after the paragraph that they hang on.
    fn attached(&mut self, tree: &Tree, runs: Runs, place: Place) -> Result<(), DocumentError> {
        for text_box in runs.boxes {
            self.blocks(tree, text_box, place)?;
        }
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
        self.out.push_at(BlockKind::Footnote, &plain_text(tree, note), place)?;
        Ok(())
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
        let mut attached = Runs::default();
        for row in rows_of(tree, table) {
            let is_header = tree.path(row, &["trPr", "tblHeader"]).is_some();
            if is_header && header_rows == rows.len() {
                header_rows += 1;
            }
            let mut cells = Vec::new();
            for cell in cells_of(tree, row) {
                let properties = tree.child(cell, "tcPr");
                let span = properties.and_then(|p| tree.child(p, "gridSpan")).and_then(|n| tree.attribute(n, "val"));
                let mut runs = Runs::default();
                cell_text(tree, cell, &mut runs);
                attached.hidden.push_str(&runs.hidden);
                attached.deleted.push_str(&runs.deleted);
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
        for (text, reason) in [(&attached.hidden, HiddenReason::Marked), (&attached.deleted, HiddenReason::Deleted)] {
            self.out.push_at(BlockKind::Paragraph, text, place.in_layer(Layer::Hidden(reason)))?;
        }
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
fn cell_text(tree: &Tree, cell: NodeId, runs: &mut Runs) {
    for child in tree.children(cell) {
        match tree.name(child) {
            "p" => {
                collect(tree, child, runs, Layer::Body);
                runs.visible.push('\n');
            }
            "tbl" | "tr" | "tc" | "sdt" | "sdtContent" | "ins" | "customXml" => cell_text(tree, child, runs),
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
fn collect(tree: &Tree, node: NodeId, runs: &mut Runs, layer: Layer) {
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

fn run(tree: &Tree, node: NodeId, runs: &mut Runs, layer: Layer) {
    let properties = tree.child(node, "rPr");
    let vanish = properties
        .and_then(|p| tree.child(p, "vanish"))
        .is_some_and(|v| !matches!(tree.attribute(v, "val"), Some("0" | "false" | "off")));
    let layer = match layer {
        Layer::Body if vanish => Layer::Hidden(HiddenReason::Marked),
        layer => layer,
    };
    inline(tree, node, runs, layer);
}

fn inline(tree: &Tree, node: NodeId, runs: &mut Runs, layer: Layer) {
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

fn push(tree: &Tree, node: NodeId, runs: &mut Runs, layer: Layer) {
    for text in tree.children(node).filter_map(|n| tree.text(n)) {
        push_str(text, runs, layer);
    }
}

fn push_str(text: &str, runs: &mut Runs, layer: Layer) {
    match layer {
        Layer::Hidden(HiddenReason::Deleted) => runs.deleted.push_str(text),
        Layer::Hidden(_) => runs.hidden.push_str(text),
        _ => runs.visible.push_str(text),
    }
}

/// Notes of a part without the separator lines.
fn note_nodes<'t>(tree: &'t Tree, kind: &'static str) -> impl Iterator<Item = NodeId> + 't {
    let root = tree.children(0).find(|n| !tree.name(*n).is_empty()).unwrap_or(0);
    tree.all(root, kind).filter(|n| matches!(tree.attribute(*n, "type"), None | Some("normal")))
}

/// All visible text below a node, a line for each paragraph.
fn plain_text(tree: &Tree, node: NodeId) -> String {
    let mut text = String::new();
    for paragraph in tree.descendants(node).filter(|n| tree.name(*n) == "p") {
        let mut runs = Runs::default();
        collect(tree, paragraph, &mut runs, Layer::Body);
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(runs.visible.trim());
    }
    text
}
