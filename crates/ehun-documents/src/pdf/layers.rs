//! Optional content: layers that are switched off when the document is opened.

use std::collections::HashSet;

use hayro_syntax::object::{Array, Dict, MaybeRef, Name, ObjRef, Object};
use hayro_syntax::xref::XRef;

/// Which layers are off.
#[derive(Debug, Default)]
pub(super) struct Layers {
    off: HashSet<(u32, i32)>,
}

fn key(reference: &ObjRef) -> (u32, i32) {
    (reference.obj_number, reference.gen_number)
}

fn references(array: Option<Array<'_>>) -> HashSet<(u32, i32)> {
    let items = array.map(|array| array.raw_iter().collect::<Vec<_>>()).unwrap_or_default();
    items
        .iter()
        .filter_map(|item| match item {
            MaybeRef::Ref(reference) => Some(key(reference)),
            MaybeRef::NotRef(_) => None,
        })
        .collect()
}

impl Layers {
    /// Reads the default configuration of a document.
    pub fn read(xref: &XRef) -> Self {
        let properties =
            xref.get::<Dict<'_>>(xref.root_id()).and_then(|catalog| catalog.get::<Dict<'_>>("OCProperties"));
        let Some(properties) = properties else {
            return Layers::default();
        };
        let config = properties.get::<Dict<'_>>("D").unwrap_or_default();
        let base_off = config.get::<Name<'_>>("BaseState").is_some_and(|name| name.as_ref() == b"OFF");
        let mut off = if base_off { references(properties.get("OCGs")) } else { HashSet::new() };
        off.extend(references(config.get("OFF")));
        if base_off {
            for on in references(config.get("ON")) {
                off.remove(&on);
            }
        }
        Layers { off }
    }

    /// Whether the content under an `OC` entry is switched off: `group` is its dictionary, `reference` where it lies.
    pub fn is_off(&self, group: &Dict<'_>, reference: Option<ObjRef>) -> bool {
        if self.off.is_empty() {
            return false;
        }
        let is_membership = group.get::<Name<'_>>("Type").is_some_and(|name| name.as_ref() == b"OCMD");
        if !is_membership {
            return reference.is_some_and(|reference| self.off.contains(&key(&reference)));
        }
        let members = match group.get_raw::<Object<'_>>("OCGs") {
            Some(MaybeRef::Ref(reference)) if group.get::<Array<'_>>("OCGs").is_none() => {
                HashSet::from([key(&reference)])
            }
            _ => references(group.get("OCGs")),
        };
        let off = members.iter().filter(|member| self.off.contains(member)).count();
        let policy = group.get::<Name<'_>>("P");
        match policy.as_ref().map(|name| name.as_ref()) {
            Some(b"AllOn") => off > 0,
            Some(b"AnyOff") => off == 0,
            Some(b"AllOff") => off < members.len(),
            _ => !members.is_empty() && off == members.len(),
        }
    }
}
