//! Open Packaging Conventions: parts of an OOXML file and the relations between them.

use std::collections::HashMap;

use crate::builder::DocumentBuilder;
use crate::error::DocumentError;
use crate::formats::container::Container;
use crate::formats::xml::Tree;
use crate::limits::Limits;
use crate::model::Child;

/// An opened package.
pub(super) struct Package<'p> {
    pub container: Container<'p>,
    pub limits: &'p Limits,
    format: &'static str,
}

/// Where a relation leads.
#[derive(Debug, Clone)]
pub(super) struct Relation {
    /// Last part of the type's address: `officeDocument`, `footnotes`, `slide`.
    pub kind: String,
    /// Name of the part.
    pub target: String,
}

impl<'p> Package<'p> {
    pub fn open(bytes: &'p [u8], format: &'static str, limits: &'p Limits) -> Result<Self, DocumentError> {
        Ok(Package { container: Container::open(bytes, format, limits)?, limits, format })
    }

    /// A part as a tree, `None` if the package has none of the name. Damage is noted as a warning.
    pub fn tree(&mut self, part: &str, out: Option<&mut DocumentBuilder>) -> Result<Option<Tree>, DocumentError> {
        let Some(bytes) = self.container.read(part)? else { return Ok(None) };
        let tree = Tree::parse(&bytes, self.limits)?;
        if let (Some(damage), Some(out)) = (&tree.damage, out) {
            out.warn(format!("{part} is damaged {damage}; what came before is kept"));
        }
        Ok(Some(tree))
    }

    /// Gives a part that is a document of its own to the caller, if it is there.
    pub fn child(&mut self, part: &str, out: &mut DocumentBuilder) -> Result<(), DocumentError> {
        match self.container.read(part)? {
            Some(bytes) if !bytes.is_empty() => {
                let name = part.rsplit('/').next().unwrap_or(part).to_owned();
                out.push_child(Child { name, media_type: None, bytes })
            }
            _ => Ok(()),
        }
    }

    /// A part that must be there.
    pub fn required(&mut self, part: &str, out: &mut DocumentBuilder) -> Result<Tree, DocumentError> {
        let format = self.format;
        self.tree(part, Some(out))?.ok_or_else(|| DocumentError::malformed(format, format!("there is no {part}")))
    }

    /// Relations of a part by their id; of the package itself for `""`.
    pub fn relations(&mut self, part: &str) -> Result<HashMap<String, Relation>, DocumentError> {
        let (folder, file) = part.rsplit_once('/').unwrap_or(("", part));
        let name = if folder.is_empty() { format!("_rels/{file}.rels") } else { format!("{folder}/_rels/{file}.rels") };
        let mut relations = HashMap::new();
        let Some(tree) = self.tree(&name, None)? else { return Ok(relations) };
        let Some(root) = tree.child(0, "Relationships") else { return Ok(relations) };
        for node in tree.all(root, "Relationship") {
            if tree.attribute(node, "TargetMode") == Some("External") {
                continue;
            }
            let (Some(id), Some(kind), Some(target)) =
                (tree.attribute(node, "Id"), tree.attribute(node, "Type"), tree.attribute(node, "Target"))
            else {
                continue;
            };
            let kind = kind.rsplit('/').next().unwrap_or(kind).to_owned();
            relations.insert(id.to_owned(), Relation { kind, target: resolve(folder, target) });
        }
        Ok(relations)
    }

    /// The first part that a relation of a kind leads to.
    pub fn related(&mut self, part: &str, kind: &str) -> Result<Option<String>, DocumentError> {
        let relations = self.relations(part)?;
        let mut targets: Vec<_> = relations.into_values().filter(|r| r.kind == kind).map(|r| r.target).collect();
        targets.sort();
        Ok(targets.into_iter().next())
    }

    /// Title, author and so on.
    pub fn properties(&mut self, out: &mut DocumentBuilder) -> Result<(), DocumentError> {
        let part = self.related("", "core-properties")?.unwrap_or_else(|| "docProps/core.xml".to_owned());
        let Some(tree) = self.tree(&part, None)? else { return Ok(()) };
        let Some(root) = tree.child(0, "coreProperties") else { return Ok(()) };
        let metadata = out.metadata();
        for node in tree.children(root) {
            let value = tree.all_text(node).trim().to_owned();
            if value.is_empty() {
                continue;
            }
            match tree.name(node) {
                "title" => metadata.title = Some(value),
                "creator" => metadata.authors = value.split(';').map(|a| a.trim().to_owned()).collect(),
                "subject" => metadata.subject = Some(value),
                "description" if metadata.subject.is_none() => metadata.subject = Some(value),
                "keywords" => metadata.keywords = value.split([',', ';']).map(|k| k.trim().to_owned()).collect(),
                "created" => metadata.created = Some(value),
                "modified" => metadata.modified = Some(value),
                "language" => metadata.language = Some(value),
                _ => {}
            }
        }
        Ok(())
    }
}

/// A relation's target as a part's name.
fn resolve(folder: &str, target: &str) -> String {
    let mut parts: Vec<&str> = match target.starts_with('/') {
        true => Vec::new(),
        false => folder.split('/').filter(|p| !p.is_empty()).collect(),
    };
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::resolve;

    #[test]
    fn targets() {
        let cases = [
            ("", "word/document.xml", "word/document.xml"),
            ("word", "footnotes.xml", "word/footnotes.xml"),
            ("ppt/slides", "../media/a.png", "ppt/media/a.png"),
            ("word", "/word/x.xml", "word/x.xml"),
            ("a", "../../../b", "b"),
        ];
        for (folder, target, expected) in cases {
            assert_eq!(resolve(folder, target), expected);
        }
    }
}
