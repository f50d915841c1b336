//! Where placeholders of a slide stand that do not say so themselves: their layout says, or the layout's master.

use super::opc::Package;
use super::pptx::bbox_of;
use crate::error::DocumentError;
use crate::formats::xml::{NodeId, Tree};
use crate::model::BBox;

/// The placeholders of a layout.
#[derive(Debug, Default)]
pub(super) struct Placeholders {
    holders: Vec<Holder>,
}

#[derive(Debug)]
struct Holder {
    index: String,
    role: String,
    bbox: Option<BBox>,
}

impl Placeholders {
    /// Of the layout part of a name.
    pub fn of_layout(package: &mut Package<'_>, layout: &str) -> Result<Self, DocumentError> {
        let mut holders = holders(package, layout, "sldLayout")?;
        if let Some(master) = package.related(layout, "slideMaster")? {
            let masters = self::holders(package, &master, "sldMaster")?;
            for holder in holders.iter_mut().filter(|holder| holder.bbox.is_none()) {
                let role = general(&holder.role);
                holder.bbox = masters.iter().find(|m| general(&m.role) == role).and_then(|m| m.bbox);
            }
        }
        Ok(Placeholders { holders })
    }

    /// The box for a slide's placeholder, the `ph` node of it.
    pub fn bbox(&self, tree: &Tree, holder: NodeId) -> Option<BBox> {
        let (index, role) = (index(tree, holder), role(tree, holder));
        let by_index = self.holders.iter().find(|h| h.index == index);
        let found = by_index.or_else(|| self.holders.iter().find(|h| general(&h.role) == general(role)));
        found?.bbox
    }
}

/// What a placeholder is for; `body` unless it says so.
pub(super) fn role(tree: &Tree, holder: NodeId) -> &str {
    tree.attribute(holder, "type").unwrap_or("body")
}

fn index(tree: &Tree, holder: NodeId) -> &str {
    tree.attribute(holder, "idx").unwrap_or("0")
}

/// Masters have one placeholder for several roles.
fn general(role: &str) -> &str {
    match role {
        "title" | "ctrTitle" => "title",
        "dt" | "ftr" | "sldNum" | "hdr" => role,
        _ => "body",
    }
}

fn holders(package: &mut Package<'_>, part: &str, root: &str) -> Result<Vec<Holder>, DocumentError> {
    let Some(tree) = package.tree(part, None)? else { return Ok(Vec::new()) };
    let Some(shapes) = tree.path(0, &[root, "cSld", "spTree"]) else { return Ok(Vec::new()) };
    let holders = tree.all(shapes, "sp").filter_map(|shape| {
        let holder = tree.path(shape, &["nvSpPr", "nvPr", "ph"])?;
        Some(Holder {
            index: index(&tree, holder).to_owned(),
            role: role(&tree, holder).to_owned(),
            bbox: bbox_of(&tree, shape),
        })
    });
    Ok(holders.collect())
}
