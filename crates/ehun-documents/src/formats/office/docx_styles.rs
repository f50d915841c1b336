//! Styles of DOCX: which are headings, lists, captions or code, and which hide their text.

use std::collections::{HashMap, HashSet};

use crate::formats::xml::{NodeId, Tree};

/// What styles say.
#[derive(Debug, Default)]
pub(super) struct Styles {
    kinds: HashMap<String, StyleKind>,
    /// Styles, of paragraphs and of characters, whose text is not shown.
    pub(super) hidden: HashSet<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StyleKind {
    Title,
    Heading(u8),
    List,
    Caption,
    Code,
}

impl Styles {
    pub(super) fn read(tree: &Tree) -> Self {
        let mut own = HashMap::new();
        let mut own_vanish = HashMap::new();
        let mut based_on = HashMap::new();
        let root = tree.child(0, "styles").unwrap_or(0);
        for style in tree.all(root, "style") {
            let Some(id) = tree.attribute(style, "styleId") else { continue };
            if let Some(parent) = tree.child(style, "basedOn").and_then(|n| tree.attribute(n, "val")) {
                based_on.insert(id.to_owned(), parent.to_owned());
            }
            if let Some(vanish) = tree.child(style, "rPr").and_then(|p| vanish(tree, p)) {
                own_vanish.insert(id.to_owned(), vanish);
            }
            let name = tree.child(style, "name").and_then(|n| tree.attribute(n, "val")).unwrap_or(id);
            let properties = tree.child(style, "pPr");
            let kind = Self::by_name(name).or_else(|| properties.and_then(|p| paragraph_kind(tree, p)));
            if let Some(kind) = kind {
                own.insert(id.to_owned(), kind);
            }
        }
        let kinds = inherited(&own, &based_on);
        let hidden = inherited(&own_vanish, &based_on).into_iter().filter(|(_, vanish)| *vanish).map(|(id, _)| id);
        Styles { kinds, hidden: hidden.collect() }
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
    pub(super) fn get(&self, id: &str) -> Option<StyleKind> {
        self.kinds.get(id).copied().or_else(|| {
            let level = id.strip_prefix("Heading")?.parse().ok()?;
            Some(StyleKind::Heading(level))
        })
    }
}

/// What styles have of their own or, without it, of the one that they are based on.
fn inherited<T: Copy>(own: &HashMap<String, T>, based_on: &HashMap<String, String>) -> HashMap<String, T> {
    let mut all = own.clone();
    for id in based_on.keys() {
        let mut at = id;
        // A chain of styles that comes back to itself ends here.
        for _ in 0..20 {
            if let Some(value) = own.get(at) {
                all.insert(id.clone(), *value);
                break;
            }
            match based_on.get(at) {
                Some(parent) => at = parent,
                None => break,
            }
        }
    }
    all
}

/// Whether run properties hide the text, if they say anything about it.
pub(super) fn vanish(tree: &Tree, properties: NodeId) -> Option<bool> {
    tree.child(properties, "vanish").map(|v| !matches!(tree.attribute(v, "val"), Some("0" | "false" | "off")))
}

/// What a paragraph's own properties say.
pub(super) fn paragraph_kind(tree: &Tree, properties: NodeId) -> Option<StyleKind> {
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
