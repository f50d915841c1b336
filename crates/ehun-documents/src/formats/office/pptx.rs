//! PPTX: slides as pages, titles as headings, boxes in reading order, notes.

use std::collections::HashMap;

use super::colours::{Fill, Palette};
use super::opc::Package;
use super::placeholders::{self, Placeholders};
use super::slide_order::{Pass, reading_order};
use crate::builder::{CellText, DocumentBuilder, Place};
use crate::error::DocumentError;
use crate::formats::ParseOptions;
use crate::formats::xml::{NodeId, Tree};
use crate::model::{BBox, BlockKind, Document, HiddenReason, Layer, PageInfo, PageStatus};

const MEDIA_TYPE: &str = "application/vnd.openxmlformats-officedocument.presentationml.presentation";

/// English Metric Units in a point.
const EMU: f32 = 12_700.0;

/// Parses a PPTX file.
pub(crate) fn parse(bytes: &[u8], options: &ParseOptions) -> Result<Document, DocumentError> {
    let limits = &options.limits;
    let mut package = Package::open(bytes, "PPTX", limits)?;
    let mut out = DocumentBuilder::new(MEDIA_TYPE, limits);
    package.properties(&mut out)?;
    let main = package.related("", "officeDocument")?.unwrap_or_else(|| "ppt/presentation.xml".to_owned());
    let tree = package.required(&main, &mut out)?;
    let root = tree.child(0, "presentation").unwrap_or(0);
    let size = tree.child(root, "sldSz").map(|n| (emu(&tree, n, "cx"), emu(&tree, n, "cy")));
    let (width, height) = size.unwrap_or_default();
    let relations = package.relations(&main)?;
    let slides = tree.child(root, "sldIdLst").map(|list| {
        // The attribute is r:id beside id; both have the local name `id`, and only one names a relation.
        tree.all(list, "sldId").filter_map(|n| tree.attributes(n).find_map(|v| relations.get(v))).collect::<Vec<_>>()
    });
    let mut layouts: HashMap<String, (Placeholders, Palette)> = HashMap::new();
    for (slide, number) in slides.unwrap_or_default().into_iter().zip(1u32..) {
        let Some(tree) = package.tree(&slide.target, Some(&mut out))? else {
            let reason = format!("there is no {}", slide.target);
            out.push_page(PageInfo { number, width, height, status: PageStatus::Failed { reason } });
            continue;
        };
        let root = tree.child(0, "sld").unwrap_or(0);
        let mut place = Place::on_page(number, None);
        if matches!(tree.attribute(root, "show"), Some("0" | "false")) {
            place = place.in_layer(Layer::Hidden(HiddenReason::Marked));
        }
        let before = out.text_len();
        if let Some(shapes) = tree.path(root, &["cSld", "spTree"]) {
            let layout = package.related(&slide.target, "slideLayout")?.unwrap_or_default();
            if !layouts.contains_key(&layout) {
                let holders = Placeholders::of_layout(&mut package, &layout)?;
                let read = (holders, Palette::of_layout(&mut package, &layout)?);
                layouts.insert(layout.clone(), read);
            }
            let (holders, palette) = &layouts[&layout];
            let mut walk = Walk { out: &mut out, tree: &tree, slide: root, holders, palette, frame: Frame::PAGE };
            for pass in [Pass::Titles, Pass::Content, Pass::Margins] {
                walk.shapes(shapes, place, pass)?;
            }
        }
        let mut related: Vec<_> = package.relations(&slide.target)?.into_values().collect();
        related.sort_by(|a, b| a.target.cmp(&b.target));
        for relation in related {
            let kind = match relation.kind.as_str() {
                "diagramData" | "chart" => BlockKind::Paragraph,
                "notesSlide" | "comments" => BlockKind::Footnote,
                "package" => {
                    package.child(&relation.target, &mut out)?;
                    continue;
                }
                _ => continue,
            };
            let Some(tree) = package.tree(&relation.target, Some(&mut out))? else { continue };
            for paragraph in tree.descendants(0).filter(|n| matches!(tree.name(*n), "p" | "text")) {
                // The number of the slide is a field in its notes.
                if tree.child(paragraph, "fld").is_none() {
                    out.push_at(kind.clone(), &paragraph_text(&tree, paragraph), place)?;
                }
            }
        }
        let has_picture = tree.descendants(root).any(|n| tree.name(n) == "pic");
        let status = match (out.text_len() > before, has_picture) {
            (true, _) => PageStatus::Text,
            (false, true) => PageStatus::NeedsOcr,
            (false, false) => PageStatus::Empty,
        };
        out.push_page(PageInfo { number, width, height, status });
    }
    out.finish()
}

/// Turns coordinates of a group into those of the slide: scale, then shift, for x and for y.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Frame {
    scale: (f32, f32),
    shift: (f32, f32),
}

impl Frame {
    const PAGE: Frame = Frame { scale: (1.0, 1.0), shift: (0.0, 0.0) };

    /// The frame within a group that stands in this one. A group says where it stands, and which box of its own
    /// coordinates that is.
    fn within(self, tree: &Tree, group: NodeId) -> Frame {
        let Some(place) = tree.path(group, &["grpSpPr", "xfrm"]) else { return self };
        let pair = |name, x, y| tree.child(place, name).map(|n| (emu(tree, n, x), emu(tree, n, y)));
        let (Some(offset), Some(size), Some(inner_offset), Some(inner_size)) =
            (pair("off", "x", "y"), pair("ext", "cx", "cy"), pair("chOff", "x", "y"), pair("chExt", "cx", "cy"))
        else {
            return self;
        };
        let ratio = |outer: f32, inner: f32| if inner > 0.0 { outer / inner } else { 1.0 };
        let scale = (ratio(size.0, inner_size.0), ratio(size.1, inner_size.1));
        let shift = (offset.0 - inner_offset.0 * scale.0, offset.1 - inner_offset.1 * scale.1);
        Frame {
            scale: (self.scale.0 * scale.0, self.scale.1 * scale.1),
            shift: (self.shift.0 + shift.0 * self.scale.0, self.shift.1 + shift.1 * self.scale.1),
        }
    }

    fn place(self, bbox: BBox) -> BBox {
        let x = |x: f32| x * self.scale.0 + self.shift.0;
        let y = |y: f32| y * self.scale.1 + self.shift.1;
        BBox { x0: x(bbox.x0), y0: y(bbox.y0), x1: x(bbox.x1), y1: y(bbox.y1) }
    }
}

struct Walk<'w> {
    out: &'w mut DocumentBuilder,
    tree: &'w Tree,
    /// The `sld` node.
    slide: NodeId,
    /// Of the slide's layout.
    holders: &'w Placeholders,
    palette: &'w Palette,
    /// Of the group that the walk is in.
    frame: Frame,
}

impl Walk<'_> {
    /// Writes what stands in the slide or in a group, which is read as a whole.
    fn shapes(&mut self, node: NodeId, place: Place, pass: Pass) -> Result<(), DocumentError> {
        let tree = self.tree;
        let mut shapes = Vec::new();
        self.collect(node, &mut shapes);
        let boxes: Vec<Option<BBox>> = shapes.iter().map(|shape| self.bbox(*shape)).collect();
        for n in reading_order(&boxes) {
            let (shape, place) = (shapes[n], Place { bbox: boxes[n], ..place });
            match tree.name(shape) {
                "grpSp" => {
                    let outer = self.frame;
                    self.frame = outer.within(tree, shape);
                    self.shapes(shape, Place { bbox: None, ..place }, pass)?;
                    self.frame = outer;
                }
                "graphicFrame" => {
                    if let (Pass::Content, Some(table)) = (pass, tree.path(shape, &["graphic", "graphicData", "tbl"])) {
                        self.table(table, place)?;
                    }
                }
                _ => self.shape(shape, place, pass)?,
            }
        }
        Ok(())
    }

    fn collect(&self, node: NodeId, shapes: &mut Vec<NodeId>) {
        let tree = self.tree;
        for shape in tree.children(node) {
            match tree.name(shape) {
                "sp" | "cxnSp" | "grpSp" | "graphicFrame" => shapes.push(shape),
                "AlternateContent" => {
                    if let Some(choice) = tree.child(shape, "Choice").or_else(|| tree.child(shape, "Fallback")) {
                        self.collect(choice, shapes);
                    }
                }
                _ => {}
            }
        }
    }

    fn shape(&mut self, shape: NodeId, place: Place, pass: Pass) -> Result<(), DocumentError> {
        let tree = self.tree;
        let role = self.holder(shape).map(|holder| placeholders::role(tree, holder));
        if pass_of(role) != pass {
            return Ok(());
        }
        let hidden = tree.path(shape, &["nvSpPr", "cNvPr"]).is_some_and(|n| tree.attribute(n, "hidden") == Some("1"));
        let place = if hidden { place.in_layer(Layer::Hidden(HiddenReason::Marked)) } else { place };
        let Some(body) = tree.child(shape, "txBody") else { return Ok(()) };
        let unseen_place = if hidden { place } else { place.in_layer(Layer::Hidden(HiddenReason::SameColour)) };
        let ground = self.palette.behind(tree, self.slide, shape, place.bbox);
        if pass == Pass::Titles {
            let (lines, unseen): (Vec<String>, Vec<String>) =
                tree.all(body, "p").map(|p| self.by_colour(p, &ground)).unzip();
            self.out.push_at(BlockKind::Heading { level: 1 }, &lines.join("\n"), place)?;
            self.out.push_at(BlockKind::Paragraph, &unseen.concat(), unseen_place)?;
            return Ok(());
        }
        for paragraph in tree.all(body, "p") {
            let level = tree.child(paragraph, "pPr").and_then(|p| tree.attribute(p, "lvl"));
            let depth = level.and_then(|l| l.parse().ok()).unwrap_or(0);
            let kind = match role {
                Some("ftr" | "sldNum" | "dt") => BlockKind::PageFooter,
                Some("hdr") => BlockKind::PageHeader,
                Some("body" | "obj") => BlockKind::ListItem { depth },
                _ => BlockKind::Paragraph,
            };
            let (seen, unseen) = self.by_colour(paragraph, &ground);
            self.out.push_at(kind, &seen, place)?;
            self.out.push_at(BlockKind::Paragraph, &unseen, unseen_place)?;
        }
        Ok(())
    }

    /// The text of a paragraph that a reader sees, and what has the colour of the ground.
    fn by_colour(&self, paragraph: NodeId, ground: &Fill) -> (String, String) {
        let (mut seen, mut unseen) = (String::new(), String::new());
        for node in self.tree.children(paragraph) {
            let is_unseen = match ground {
                Fill::Plain(ground) => self.palette.of_run(self.tree, node).as_ref() == Some(ground),
                Fill::None | Fill::Unknown => false,
            };
            push_text(self.tree, node, if is_unseen { &mut unseen } else { &mut seen });
        }
        (seen, unseen)
    }

    fn holder(&self, shape: NodeId) -> Option<NodeId> {
        self.tree.path(shape, &["nvSpPr", "nvPr", "ph"])
    }

    /// Where a shape stands on the slide: as it says itself, or as the layout has it.
    fn bbox(&self, shape: NodeId) -> Option<BBox> {
        let own = bbox_of(self.tree, shape).map(|bbox| self.frame.place(bbox));
        own.or_else(|| self.holders.bbox(self.tree, self.holder(shape)?))
    }

    fn table(&mut self, table: NodeId, place: Place) -> Result<(), DocumentError> {
        let tree = self.tree;
        let number = |n: NodeId, name: &str| tree.attribute(n, name).and_then(|v| v.parse().ok()).unwrap_or(1);
        let rows: Vec<Vec<CellText>> = tree
            .all(table, "tr")
            .map(|row| {
                let cells = tree.all(row, "tc").map(|cell| {
                    let body = tree.child(cell, "txBody");
                    let lines: Vec<String> =
                        body.map(|b| tree.all(b, "p").map(|p| paragraph_text(tree, p)).collect()).unwrap_or_default();
                    CellText {
                        text: lines.join(" "),
                        row_span: number(cell, "rowSpan"),
                        col_span: number(cell, "gridSpan"),
                    }
                });
                cells.collect()
            })
            .collect();
        let header_rows = usize::from(rows.len() > 1);
        self.out.push_table(rows, header_rows, place)?;
        Ok(())
    }
}

fn pass_of(role: Option<&str>) -> Pass {
    match role {
        Some("title" | "ctrTitle") => Pass::Titles,
        Some("ftr" | "sldNum" | "dt") => Pass::Margins,
        _ => Pass::Content,
    }
}

/// The box that a shape, a frame or a group gives, in points of what it stands in.
pub(super) fn bbox_of(tree: &Tree, shape: NodeId) -> Option<BBox> {
    let own = ["spPr", "grpSpPr"].into_iter().find_map(|name| tree.path(shape, &[name, "xfrm"]));
    let frame = own.or_else(|| tree.child(shape, "xfrm"))?;
    let (offset, extent) = (tree.child(frame, "off")?, tree.child(frame, "ext")?);
    let (x0, y0) = (emu(tree, offset, "x"), emu(tree, offset, "y"));
    Some(BBox { x0, y0, x1: x0 + emu(tree, extent, "cx"), y1: y0 + emu(tree, extent, "cy") })
}

/// Adds the text of a run, or of whatever holds some.
fn push_text(tree: &Tree, node: NodeId, text: &mut String) {
    for node in std::iter::once(node).chain(tree.descendants(node)) {
        match tree.name(node) {
            "t" => text.push_str(&tree.all_text(node)),
            "br" => text.push('\n'),
            "tab" => text.push('\t'),
            _ => {}
        }
    }
}

fn paragraph_text(tree: &Tree, paragraph: NodeId) -> String {
    let mut text = String::new();
    tree.children(paragraph).for_each(|node| push_text(tree, node, &mut text));
    // Comments hold their words without runs.
    if text.is_empty() && tree.name(paragraph) == "text" {
        text = tree.all_text(paragraph);
    }
    text
}

fn emu(tree: &Tree, node: NodeId, name: &str) -> f32 {
    tree.attribute(node, name).and_then(|v| v.parse::<f32>().ok()).unwrap_or(0.0) / EMU
}
