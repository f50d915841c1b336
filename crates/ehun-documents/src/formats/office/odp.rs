//! Slides of OpenDocument presentations: titles first, boxes in reading order, date, footer and number last, then notes.

use std::collections::HashMap;

use super::odf::{Context, Walk, flat};
use super::slide_order::{Pass, reading_order};
use crate::builder::Place;
use crate::error::DocumentError;
use crate::formats::xml::{NodeId, Tree};
use crate::model::{BBox, BlockKind, HiddenReason, Layer, PageInfo, PageStatus};

/// Points in a unit of length.
const UNITS: [(&str, f32); 6] =
    [("cm", 72.0 / 2.54), ("mm", 7.2 / 2.54), ("in", 72.0), ("pt", 1.0), ("pc", 12.0), ("px", 0.75)];

/// Master pages by name.
#[derive(Debug, Default)]
pub(super) struct Masters(HashMap<String, Master>);

#[derive(Debug, Default)]
struct Master {
    /// Width and height of its slides, points.
    size: (f32, f32),
    /// Where its placeholders stand, by their class.
    boxes: HashMap<String, BBox>,
}

impl Masters {
    /// Of the styles of a file.
    pub fn read(styles: &Tree) -> Self {
        let name = |node| styles.attribute(node, "name").unwrap_or_default().to_owned();
        let mut sizes = HashMap::new();
        for layout in styles.descendants(0).filter(|n| styles.name(*n) == "page-layout") {
            let properties = styles.child(layout, "page-layout-properties");
            let extent = |name| properties.and_then(|p| length(styles.attribute(p, name)?)).unwrap_or(0.0);
            sizes.insert(name(layout), (extent("page-width"), extent("page-height")));
        }
        let masters = styles.descendants(0).filter(|n| styles.name(*n) == "master-page").map(|master| {
            let layout = styles.attribute(master, "page-layout-name").unwrap_or_default();
            let boxes = styles
                .all(master, "frame")
                .filter_map(|frame| Some((styles.attribute(frame, "class")?.to_owned(), bbox_of(styles, frame)?)));
            (name(master), Master { size: sizes.get(layout).copied().unwrap_or_default(), boxes: boxes.collect() })
        });
        Masters(masters.collect())
    }
}

impl Walk<'_> {
    pub(super) fn slide(&mut self, slide: NodeId, context: &Context) -> Result<(), DocumentError> {
        let tree = self.tree;
        self.page += 1;
        let before = self.out.text_len();
        let mut place = Place { page: Some(self.page), ..context.place };
        if self.is_hidden(slide) {
            place = place.in_layer(Layer::Hidden(HiddenReason::Marked));
        }
        let masters = self.masters;
        let none = Master::default();
        let master = tree.attribute(slide, "master-page-name").and_then(|name| masters.0.get(name)).unwrap_or(&none);
        for pass in [Pass::Titles, Pass::Content, Pass::Margins] {
            self.shapes(slide, place, pass, master)?;
        }
        for notes in tree.all(slide, "notes") {
            for frame in tree.children(notes).filter(|n| pass_of(tree, *n) == Pass::Content) {
                for paragraph in flat(tree, frame).lines() {
                    self.out.push_at(BlockKind::Footnote, paragraph, place)?;
                }
            }
        }
        let has_picture = || tree.descendants(slide).any(|n| tree.name(n) == "image");
        let status = match self.out.text_len() > before {
            true => PageStatus::Text,
            false if has_picture() => PageStatus::NeedsOcr,
            false => PageStatus::Empty,
        };
        let (width, height) = master.size;
        self.out.push_page(PageInfo { number: self.page, width, height, status });
        Ok(())
    }

    /// Writes what stands on the slide or in a group, which is read as a whole.
    fn shapes(&mut self, node: NodeId, place: Place, pass: Pass, master: &Master) -> Result<(), DocumentError> {
        let tree = self.tree;
        let shapes: Vec<NodeId> = tree.children(node).filter(|n| is_shape(tree.name(*n))).collect();
        let boxes: Vec<Option<BBox>> = shapes.iter().map(|shape| group_box(tree, *shape, master)).collect();
        for n in reading_order(&boxes) {
            let shape = shapes[n];
            let mut place = Place { bbox: boxes[n], ..place };
            if self.is_hidden(shape) {
                place = place.in_layer(Layer::Hidden(HiddenReason::Marked));
            }
            if is_group(tree, shape) {
                self.shapes(shape, Place { bbox: None, ..place }, pass, master)?;
            } else if pass_of(tree, shape) == pass {
                let kind = match (pass, tree.attribute(shape, "class")) {
                    (Pass::Titles, _) => BlockKind::Heading { level: 1 },
                    (Pass::Margins, Some("header")) => BlockKind::PageHeader,
                    (Pass::Margins, _) => BlockKind::PageFooter,
                    (Pass::Content, _) => {
                        self.blocks(shape, &Context { place, item: None })?;
                        continue;
                    }
                };
                self.out.push_at(kind, &flat(tree, shape), place)?;
            }
        }
        Ok(())
    }
}

fn pass_of(tree: &Tree, shape: NodeId) -> Pass {
    match tree.attribute(shape, "class") {
        Some("title") => Pass::Titles,
        Some("header" | "footer" | "date-time" | "page-number") => Pass::Margins,
        _ => Pass::Content,
    }
}

fn is_shape(name: &str) -> bool {
    matches!(
        name,
        "frame"
            | "custom-shape"
            | "rect"
            | "ellipse"
            | "circle"
            | "line"
            | "path"
            | "polygon"
            | "polyline"
            | "regular-polygon"
            | "connector"
            | "caption"
            | "measure"
            | "g"
            | "a"
    )
}

/// Shapes that are one, or that are one link.
fn is_group(tree: &Tree, shape: NodeId) -> bool {
    matches!(tree.name(shape), "g" | "a")
}

/// The box of a shape, or of all in a group: its members have their places on the slide, not in the group.
fn group_box(tree: &Tree, shape: NodeId, master: &Master) -> Option<BBox> {
    if !is_group(tree, shape) {
        let holder = || master.boxes.get(tree.attribute(shape, "class")?).copied();
        return bbox_of(tree, shape).or_else(holder);
    }
    let members = tree.children(shape).filter(|n| is_shape(tree.name(*n)));
    members.filter_map(|member| group_box(tree, member, master)).reduce(BBox::union)
}

/// The box that a shape gives, in points.
fn bbox_of(tree: &Tree, shape: NodeId) -> Option<BBox> {
    let at = |name| length(tree.attribute(shape, name)?);
    if let (Some(x1), Some(y1), Some(x2), Some(y2)) = (at("x1"), at("y1"), at("x2"), at("y2")) {
        return Some(BBox { x0: x1.min(x2), y0: y1.min(y2), x1: x1.max(x2), y1: y1.max(y2) });
    }
    let (width, height) = (at("width")?, at("height").unwrap_or(0.0));
    match tree.attribute(shape, "transform") {
        None => {
            let (x0, y0) = (at("x")?, at("y")?);
            Some(BBox { x0, y0, x1: x0 + width, y1: y0 + height })
        }
        Some(transform) => {
            let (x, y) = (at("x").unwrap_or(0.0), at("y").unwrap_or(0.0));
            let corners = [(x, y), (x + width, y), (x, y + height), (x + width, y + height)];
            let corners = corners.map(|corner| moved(corner, transform));
            let dots = corners.into_iter().flatten().map(|(x, y)| BBox { x0: x, y0: y, x1: x, y1: y });
            dots.reduce(BBox::union)
        }
    }
}

/// A point after `rotate (radians) translate (x y)`; `None` for what else a transform may do.
fn moved((mut x, mut y): (f32, f32), transform: &str) -> Option<(f32, f32)> {
    for step in transform.split(')').map(str::trim).filter(|step| !step.is_empty()) {
        let (what, values) = step.split_once('(')?;
        let mut values = values.split([' ', ',']).filter(|value| !value.is_empty());
        match what.trim() {
            "translate" => {
                x += length(values.next()?)?;
                y += values.next().map_or(Some(0.0), length)?;
            }
            // Against the clock, in coordinates that go down.
            "rotate" => {
                let (sin, cos) = values.next()?.parse::<f32>().ok()?.sin_cos();
                (x, y) = (x * cos + y * sin, y * cos - x * sin);
            }
            _ => return None,
        }
    }
    Some((x, y))
}

/// A length in points.
fn length(value: &str) -> Option<f32> {
    let (unit, points) = UNITS.iter().find(|(unit, _)| value.ends_with(unit))?;
    let number: f32 = value[..value.len() - unit.len()].trim().parse().ok()?;
    number.is_finite().then_some(number * points)
}
