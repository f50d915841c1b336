//! Colours of a presentation: what a run is painted in, and what is known to be behind it.
//!
//! A colour is known only where the file says it plainly: gradients, pictures, patterns and shades of a theme's colours are
//! not, and text on them counts as seen.

use std::collections::HashMap;

use super::opc::Package;
use super::pptx::bbox_of;
use crate::error::DocumentError;
use crate::formats::xml::{NodeId, Tree};
use crate::model::BBox;

/// Red, green and blue, as `RRGGBB` in capitals.
pub(super) type Colour = String;

/// What is behind a shape, or that it cannot be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fill {
    /// One plain colour.
    Plain(Colour),
    /// Nothing of its own: what is below shows.
    None,
    /// Something else.
    Unknown,
}

/// The colours and the ground of the slides of one layout.
#[derive(Debug)]
pub(super) struct Palette {
    /// The theme's colours, under the names that slides use.
    scheme: HashMap<String, Colour>,
    /// Behind everything.
    ground: Fill,
    /// Where the layout and its master paint something.
    painted: Vec<Option<BBox>>,
    /// One of their placeholders is filled, and so are those of slides that follow it.
    has_filled_holder: bool,
    /// The layout gives the names of colours another meaning.
    is_remapped: bool,
}

impl Palette {
    /// Of the slides of a layout.
    pub fn of_layout(package: &mut Package<'_>, layout: &str) -> Result<Self, DocumentError> {
        let mut palette = Palette {
            scheme: HashMap::new(),
            ground: Fill::None,
            painted: Vec::new(),
            has_filled_holder: false,
            is_remapped: false,
        };
        let Some(master) = package.related(layout, "slideMaster")? else { return Ok(palette) };
        let theme = match package.related(&master, "theme")? {
            Some(theme) => package.tree(&theme, None)?,
            None => None,
        };
        if let Some(tree) = package.tree(&master, None)? {
            if let Some(theme) = &theme {
                palette.scheme = scheme(theme, &tree);
            }
            palette.add(&tree, "sldMaster", theme.as_ref());
        }
        if let Some(tree) = package.tree(layout, None)? {
            palette.add(&tree, "sldLayout", theme.as_ref());
            palette.is_remapped = is_remapped(&tree, "sldLayout");
        }
        if palette.ground == Fill::None {
            palette.ground = Fill::Plain("FFFFFF".to_owned());
        }
        Ok(palette)
    }

    /// What a master or a layout puts behind its slides.
    fn add(&mut self, tree: &Tree, root: &str, theme: Option<&Tree>) {
        let Some(common) = tree.path(0, &[root, "cSld"]) else { return };
        if let Some(ground) = tree.child(common, "bg") {
            self.ground = self.background(tree, ground, theme);
        }
        let Some(shapes) = tree.child(common, "spTree") else { return };
        for shape in tree.children(shapes) {
            if self.paints(tree, shape) {
                match is_holder(tree, shape) {
                    true => self.has_filled_holder = true,
                    false => self.painted.push(drawn_box(tree, shape)),
                }
            }
        }
    }

    /// A background: properties of its own, or one of the theme's three with a colour put in.
    fn background(&self, tree: &Tree, ground: NodeId, theme: Option<&Tree>) -> Fill {
        if let Some(properties) = tree.child(ground, "bgPr") {
            return self.fill(tree, properties);
        }
        // 1001 is the theme's first; in most themes it is the bare colour.
        let first = theme.and_then(|theme| {
            let styles = theme.descendants(0).find(|n| theme.name(*n) == "bgFillStyleLst")?;
            let first = theme.children(styles).find(|n| !theme.name(*n).is_empty())?;
            let colour = theme.child(first, "schemeClr").filter(|_| theme.name(first) == "solidFill")?;
            Some(theme.attribute(colour, "val") == Some("phClr") && theme.children(colour).next().is_none())
        });
        let reference = tree.child(ground, "bgRef").filter(|n| tree.attribute(*n, "idx") == Some("1001"));
        let colour = reference.filter(|_| first == Some(true)).and_then(|n| self.colour_in(tree, n));
        colour.map_or(Fill::Unknown, Fill::Plain)
    }

    /// What is behind the text of a shape of a slide, the `sld` node of it. `bbox` is where the shape stands.
    pub fn behind(&self, tree: &Tree, slide: NodeId, shape: NodeId, bbox: Option<BBox>) -> Fill {
        if self.is_remapped || is_remapped(tree, "sld") {
            return Fill::Unknown;
        }
        let own = tree.child(shape, "spPr").map_or(Fill::None, |properties| self.fill(tree, properties));
        if own != Fill::None {
            return own;
        }
        if is_painted_by_style(tree, shape)
            || (self.has_filled_holder && is_holder(tree, shape))
            || is_turned(tree, shape)
        {
            return Fill::Unknown;
        }
        let (Some(bbox), Some(shapes)) = (bbox, tree.path(slide, &["cSld", "spTree"])) else { return Fill::Unknown };
        // In a group it is not known what is below.
        if !tree.children(shapes).any(|other| other == shape) {
            return Fill::Unknown;
        }
        let covers = |other: Option<BBox>| other.is_none_or(|other| meet(other, bbox));
        let mut below = tree.children(shapes).take_while(|other| *other != shape);
        if self.painted.iter().any(|other| covers(*other))
            || below.any(|other| self.paints(tree, other) && covers(drawn_box(tree, other)))
        {
            return Fill::Unknown;
        }
        match tree.path(slide, &["cSld", "bg"]) {
            Some(ground) => match tree.child(ground, "bgPr") {
                Some(properties) => self.fill(tree, properties),
                None => Fill::Unknown,
            },
            None => self.ground.clone(),
        }
    }

    /// Whether a shape is more than its letters: a picture, a table, a chart, a group, or a box that is filled.
    fn paints(&self, tree: &Tree, shape: NodeId) -> bool {
        match tree.name(shape) {
            "sp" => {
                let properties = tree.child(shape, "spPr");
                properties.is_some_and(|p| self.fill(tree, p) != Fill::None) || is_painted_by_style(tree, shape)
            }
            "cxnSp" => false,
            name => matches!(name, "pic" | "grpSp" | "graphicFrame" | "contentPart" | "AlternateContent"),
        }
    }

    /// The fill that properties name.
    fn fill(&self, tree: &Tree, properties: NodeId) -> Fill {
        for child in tree.children(properties) {
            return match tree.name(child) {
                "solidFill" => self.colour_in(tree, child).map_or(Fill::Unknown, Fill::Plain),
                "gradFill" | "blipFill" | "pattFill" | "grpFill" => Fill::Unknown,
                _ => continue,
            };
        }
        Fill::None
    }

    /// The colour of a run, if it says so itself and plainly: outlines, shadows and links have others.
    pub fn of_run(&self, tree: &Tree, run: NodeId) -> Option<Colour> {
        let properties = tree.child(run, "rPr")?;
        let others = ["ln", "effectLst", "effectDag", "highlight", "hlinkClick"];
        if tree.children(properties).any(|n| others.contains(&tree.name(n))) {
            return None;
        }
        self.colour_in(tree, tree.child(properties, "solidFill")?)
    }

    /// The colour below a node, without shades.
    fn colour_in(&self, tree: &Tree, node: NodeId) -> Option<Colour> {
        let colour = tree.children(node).find(|n| !tree.name(*n).is_empty())?;
        if tree.children(colour).any(|n| !tree.name(n).is_empty()) {
            return None;
        }
        let value = tree.attribute(colour, "val");
        match tree.name(colour) {
            "srgbClr" => value.map(str::to_ascii_uppercase),
            "sysClr" => tree.attribute(colour, "lastClr").map(str::to_ascii_uppercase),
            "schemeClr" => self.scheme.get(value?).cloned(),
            "prstClr" if value == Some("white") => Some("FFFFFF".to_owned()),
            "prstClr" if value == Some("black") => Some("000000".to_owned()),
            _ => None,
        }
    }
}

fn is_holder(tree: &Tree, shape: NodeId) -> bool {
    tree.path(shape, &["nvSpPr", "nvPr", "ph"]).is_some()
}

/// Where something is painted; `None` if it may be anywhere.
fn drawn_box(tree: &Tree, shape: NodeId) -> Option<BBox> {
    bbox_of(tree, shape).filter(|_| !is_turned(tree, shape))
}

fn is_turned(tree: &Tree, shape: NodeId) -> bool {
    let turn = tree.path(shape, &["spPr", "xfrm"]).and_then(|n| tree.attribute(n, "rot"));
    turn.is_some_and(|turn| turn != "0")
}

/// Whether a slide or a layout gives the names of colours another meaning than its master.
fn is_remapped(tree: &Tree, root: &str) -> bool {
    tree.path(0, &[root, "clrMapOvr", "overrideClrMapping"]).is_some()
}

/// A theme fills shapes that name one of its fills; 0 is none.
fn is_painted_by_style(tree: &Tree, shape: NodeId) -> bool {
    let emptied = tree.path(shape, &["spPr", "noFill"]).is_some();
    let reference = tree.path(shape, &["style", "fillRef"]);
    !emptied && reference.is_some_and(|n| tree.attribute(n, "idx") != Some("0"))
}

fn meet(a: BBox, b: BBox) -> bool {
    a.x0 < b.x1 && b.x0 < a.x1 && a.y0 < b.y1 && b.y0 < a.y1
}

/// Colours by the names of slides, which the master maps to the theme's.
fn scheme(theme: &Tree, master: &Tree) -> HashMap<String, Colour> {
    let mut colours = HashMap::new();
    let Some(list) = theme.descendants(0).find(|n| theme.name(*n) == "clrScheme") else { return colours };
    for entry in theme.children(list) {
        let colour = theme.children(entry).find_map(|n| match theme.name(n) {
            "srgbClr" => theme.attribute(n, "val"),
            "sysClr" => theme.attribute(n, "lastClr"),
            _ => None,
        });
        if let Some(colour) = colour {
            colours.insert(theme.name(entry).to_owned(), colour.to_ascii_uppercase());
        }
    }
    if let Some(map) = master.path(0, &["sldMaster", "clrMap"]) {
        for name in ["bg1", "tx1", "bg2", "tx2"] {
            if let Some(colour) = master.attribute(map, name).and_then(|to| colours.get(to)).cloned() {
                colours.insert(name.to_owned(), colour);
            }
        }
    }
    colours
}
