//! XML as a tree in three vectors. No entity beyond the five of XML is expanded, nothing is fetched.

use std::collections::HashMap;
use std::ops::Range;

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use crate::error::{DocumentError, Limit};
use crate::formats::encoding::decode;
use crate::formats::html::declared_charset;
use crate::limits::Limits;

/// Index of a node in [`Tree::nodes`].
pub(crate) type NodeId = u32;

const NONE: NodeId = NodeId::MAX;

#[derive(Debug)]
enum Data {
    /// Index in `names`, range in `attributes`.
    Element(u32, Range<u32>),
    /// Range in `text`.
    Text(Range<usize>),
}

#[derive(Debug)]
struct Node {
    data: Data,
    first: NodeId,
    next: NodeId,
}

/// A parsed XML file. Node 0 is an element without a name that holds the root.
///
/// Names are local names: prefixes are taken off, as every format here uses one name for one thing.
#[derive(Debug)]
pub(crate) struct Tree {
    nodes: Vec<Node>,
    names: Vec<String>,
    /// Name and value, as index and range of `text`.
    attributes: Vec<(u32, Range<usize>)>,
    text: String,
    /// The file broke off or broke the rules somewhere; what came before stands.
    pub damage: Option<String>,
}

impl Tree {
    /// Parses, in any encoding.
    ///
    /// # Errors
    /// Elements nested deeper than the limit. Damage is no error: what was read before it is kept, and noted.
    pub fn parse(bytes: &[u8], limits: &Limits) -> Result<Tree, DocumentError> {
        let decoded = decode(bytes, declared_charset(bytes).as_deref());
        Self::parse_str(&decoded.text, limits)
    }

    /// As [`parse`](Self::parse) for text that is decoded already.
    pub fn parse_str(source: &str, limits: &Limits) -> Result<Tree, DocumentError> {
        let mut build = Build::new();
        let mut reader = Reader::from_str(source);
        let config = reader.config_mut();
        config.check_end_names = false;
        config.allow_unmatched_ends = true;
        config.allow_dangling_amp = true;
        loop {
            match reader.read_event() {
                Ok(Event::Start(start)) => {
                    build.start(&start);
                    if build.open.len() > limits.nesting as usize {
                        return Err(DocumentError::LimitExceeded {
                            limit: Limit::Nesting,
                            value: u64::from(limits.nesting),
                        });
                    }
                }
                Ok(Event::Empty(start)) => {
                    build.start(&start);
                    build.end();
                }
                Ok(Event::End(_)) => build.end(),
                Ok(Event::Text(text)) => build.text(&text),
                Ok(Event::CData(text)) => build.text(&text),
                Ok(Event::GeneralRef(name)) => match name.resolve_char_ref() {
                    Ok(Some(c)) => build.text(c.encode_utf8(&mut [0; 4])),
                    _ => match quick_xml::escape::resolve_xml_entity(&name) {
                        Some(text) => build.text(text),
                        // An entity of a DTD is kept as it stands: expanding is how XML bombs go off.
                        None => build.text(&format!("&{};", &*name)),
                    },
                },
                Ok(Event::Eof) => break,
                Ok(_) => {}
                Err(e) => {
                    build.tree.damage = Some(format!("at byte {}: {e}", reader.error_position()));
                    break;
                }
            }
        }
        Ok(build.tree)
    }

    /// Children of a node, elements and texts.
    pub fn children(&self, node: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let some = |n: NodeId| (n != NONE).then_some(n);
        std::iter::successors(some(self.nodes[node as usize].first), move |n| some(self.nodes[*n as usize].next))
    }

    /// Child elements of a name.
    pub fn all<'t>(&'t self, node: NodeId, name: &'t str) -> impl Iterator<Item = NodeId> + 't {
        self.children(node).filter(move |n| self.name(*n) == name)
    }

    /// The first child element of a name.
    pub fn child(&self, node: NodeId, name: &str) -> Option<NodeId> {
        self.children(node).find(|n| self.name(*n) == name)
    }

    /// The first child of the first child ... by names.
    pub fn path(&self, node: NodeId, names: &[&str]) -> Option<NodeId> {
        names.iter().try_fold(node, |node, name| self.child(node, name))
    }

    /// All nodes below a node in document order, without it.
    pub fn descendants(&self, node: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let mut open = vec![self.nodes[node as usize].first];
        std::iter::from_fn(move || {
            loop {
                let next = open.pop()?;
                if next != NONE {
                    let node = &self.nodes[next as usize];
                    open.push(node.next);
                    open.push(node.first);
                    return Some(next);
                }
            }
        })
    }

    /// Local name of an element, empty for text.
    pub fn name(&self, node: NodeId) -> &str {
        match &self.nodes[node as usize].data {
            Data::Element(name, _) => &self.names[*name as usize],
            Data::Text(_) => "",
        }
    }

    /// A text node's text.
    pub fn text(&self, node: NodeId) -> Option<&str> {
        match &self.nodes[node as usize].data {
            Data::Text(range) => Some(&self.text[range.clone()]),
            Data::Element(..) => None,
        }
    }

    /// Value of an attribute by its local name.
    pub fn attribute(&self, node: NodeId, wanted: &str) -> Option<&str> {
        let Data::Element(_, range) = &self.nodes[node as usize].data else { return None };
        let attributes = &self.attributes[range.start as usize..range.end as usize];
        let (_, value) = attributes.iter().find(|(name, _)| self.names[*name as usize] == wanted)?;
        Some(&self.text[value.clone()])
    }

    /// Values of all attributes.
    pub fn attributes(&self, node: NodeId) -> impl Iterator<Item = &str> {
        let range = match &self.nodes[node as usize].data {
            Data::Element(_, range) => range.start as usize..range.end as usize,
            Data::Text(_) => 0..0,
        };
        self.attributes[range].iter().map(|(_, value)| &self.text[value.clone()])
    }

    /// All text below a node.
    pub fn all_text(&self, node: NodeId) -> String {
        self.descendants(node).filter_map(|n| self.text(n)).collect()
    }
}

struct Build {
    tree: Tree,
    ids: HashMap<String, u32>,
    /// Open elements and their last child.
    open: Vec<(NodeId, NodeId)>,
}

impl Build {
    fn new() -> Self {
        let tree = Tree {
            nodes: vec![Node { data: Data::Element(0, 0..0), first: NONE, next: NONE }],
            names: vec![String::new()],
            attributes: Vec::new(),
            text: String::new(),
            damage: None,
        };
        Build { tree, ids: HashMap::new(), open: vec![(0, NONE)] }
    }

    fn id(&mut self, name: &str) -> u32 {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = self.tree.names.len() as u32;
        self.tree.names.push(name.to_owned());
        self.ids.insert(name.to_owned(), id);
        id
    }

    fn add(&mut self, data: Data) -> NodeId {
        let id = self.tree.nodes.len() as NodeId;
        self.tree.nodes.push(Node { data, first: NONE, next: NONE });
        // The nameless root is never closed.
        if let Some((parent, last)) = self.open.last_mut() {
            match *last {
                NONE => self.tree.nodes[*parent as usize].first = id,
                previous => self.tree.nodes[previous as usize].next = id,
            }
            *last = id;
        }
        id
    }

    fn start(&mut self, start: &BytesStart<'_>) {
        let name = self.id(start.local_name().as_ref());
        let from = self.tree.attributes.len() as u32;
        for attribute in start.attributes().with_checks(false).flatten() {
            let key = self.id(attribute.key.local_name().as_ref());
            let at = self.tree.text.len();
            match quick_xml::escape::unescape(&attribute.value) {
                Ok(value) => self.tree.text.push_str(&value),
                Err(_) => self.tree.text.push_str(&attribute.value),
            }
            self.tree.attributes.push((key, at..self.tree.text.len()));
        }
        let attributes = from..self.tree.attributes.len() as u32;
        let id = self.add(Data::Element(name, attributes));
        self.open.push((id, NONE));
    }

    fn end(&mut self) {
        if self.open.len() > 1 {
            self.open.pop();
        }
    }

    fn text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let at = self.tree.text.len();
        self.tree.text.push_str(text);
        // Text that follows text (around a reference) becomes one node.
        if let Some((_, last)) = self.open.last()
            && let Some(Data::Text(range)) = self.tree.nodes.get_mut(*last as usize).map(|n| &mut n.data)
            && range.end == at
        {
            range.end = self.tree.text.len();
            return;
        }
        self.add(Data::Text(at..self.tree.text.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree() {
        let source =
            "<?xml version='1.0'?><w:a x='1 &lt; 2' n:y=\"z\">one &amp; <b/>two<![CDATA[<3>]]><b>four</b></w:a>";
        let tree = Tree::parse(source.as_bytes(), &Limits::default()).unwrap();
        let a = tree.child(0, "a").unwrap();
        assert_eq!((tree.attribute(a, "x"), tree.attribute(a, "y")), (Some("1 < 2"), Some("z")));
        assert_eq!(tree.all_text(a), "one & two<3>four");
        assert_eq!(tree.all(a, "b").count(), 2);
        assert_eq!(tree.damage, None);
    }

    #[test]
    fn entities_of_a_dtd_are_not_expanded() {
        let source = "<!DOCTYPE a [<!ENTITY b 'bbbb'><!ENTITY c SYSTEM 'file:///etc/passwd'>]><a>&b;&c;</a>";
        let tree = Tree::parse(source.as_bytes(), &Limits::default()).unwrap();
        assert_eq!(tree.all_text(0).trim(), "&b;&c;");
    }

    #[test]
    fn depth_is_bounded() {
        let source = "<a>".repeat(100_000);
        let result = Tree::parse(source.as_bytes(), &Limits::default());
        assert_eq!(result.unwrap_err().code(), "limit_exceeded");
    }

    #[test]
    fn damage_keeps_what_came_before() {
        let tree = Tree::parse(b"<a>one<b>two</b><c d='", &Limits::default()).unwrap();
        assert_eq!(tree.all_text(0), "onetwo");
        assert!(tree.damage.is_some());
    }
}
