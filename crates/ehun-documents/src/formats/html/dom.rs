//! A tree in one vector for html5ever. Depth is bounded while parsing, so that walks may recurse.

use std::borrow::Cow;
use std::cell::{Cell, Ref, RefCell};

use html5ever::tendril::StrTendril;
use html5ever::tokenizer::{BufferQueue, TagKind, Token, TokenSink, TokenSinkResult, Tokenizer, TokenizerOpts};
use html5ever::tree_builder::{ElementFlags, NodeOrText, QuirksMode, TreeBuilder, TreeBuilderOpts, TreeSink};
use html5ever::{Attribute, LocalName, QualName};

/// Elements deeper than this are taken out of the tree and their text stays with the parent (browsers do likewise).
const MAX_DEPTH: u32 = 400;

pub(crate) type NodeId = usize;

#[derive(Debug)]
pub(crate) enum NodeData {
    Element {
        name: QualName,
        attrs: Vec<Attribute>,
    },
    Text(StrTendril),
    /// Document, comment, processing instruction.
    Other,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub data: NodeData,
    parent: Option<NodeId>,
    pub first_child: Option<NodeId>,
    last_child: Option<NodeId>,
    pub next: Option<NodeId>,
    previous: Option<NodeId>,
    depth: u32,
}

/// A parsed page; node 0 is the document.
#[derive(Debug)]
pub(crate) struct Dom {
    pub nodes: Vec<Node>,
}

impl Dom {
    pub fn children(&self, node: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        std::iter::successors(self.nodes[node].first_child, |n| self.nodes[*n].next)
    }

    /// Parents up to the document.
    pub fn ancestors(&self, node: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        std::iter::successors(self.nodes[node].parent, |n| self.nodes[*n].parent)
    }

    /// Local name of an element, empty for anything else.
    pub fn name(&self, node: NodeId) -> &str {
        match &self.nodes[node].data {
            NodeData::Element { name, .. } => &name.local,
            _ => "",
        }
    }

    pub fn attribute(&self, node: NodeId, wanted: &str) -> Option<&str> {
        match &self.nodes[node].data {
            NodeData::Element { attrs, .. } => {
                attrs.iter().find(|a| &*a.name.local == wanted).map(|a| a.value.as_ref())
            }
            _ => None,
        }
    }
}

/// Parses a page. Nothing is fetched and no script is run.
pub(crate) fn parse(source: &str) -> Dom {
    let options = TreeBuilderOpts { scripting_enabled: false, ..TreeBuilderOpts::default() };
    let sink = DepthLimit { builder: TreeBuilder::new(Sink::new(), options), dropped: RefCell::new(Vec::new()) };
    let tokenizer = Tokenizer::new(sink, TokenizerOpts::default());
    let queue = BufferQueue::default();
    // A tendril holds at most 4 GiB and copies when cut; pieces keep both small.
    let mut rest = source;
    while !rest.is_empty() {
        let mut cut = rest.len().min(1 << 16);
        while !rest.is_char_boundary(cut) {
            cut -= 1;
        }
        queue.push_back(StrTendril::from(&rest[..cut]));
        rest = &rest[cut..];
        // Scripts would return here; they are not run.
        while !queue.is_empty() {
            let _ = tokenizer.feed(&queue);
        }
    }
    tokenizer.end();
    tokenizer.sink.builder.sink.finish()
}

/// Between tokenizer and tree builder: start tags that would nest too deeply are left out with their end tags.
struct DepthLimit {
    builder: TreeBuilder<NodeId, Sink>,
    dropped: RefCell<Vec<LocalName>>,
}

impl TokenSink for DepthLimit {
    type Handle = NodeId;

    fn process_token(&self, token: Token, line: u64) -> TokenSinkResult<NodeId> {
        if let Token::TagToken(tag) = &token {
            let mut dropped = self.dropped.borrow_mut();
            match tag.kind {
                TagKind::StartTag if self.builder.sink.depth.get() >= MAX_DEPTH => {
                    let void = matches!(&*tag.name, "br" | "hr" | "img" | "input" | "meta" | "link" | "wbr");
                    if !void && !tag.self_closing && dropped.len() < 1 << 20 {
                        dropped.push(tag.name.clone());
                    }
                    return TokenSinkResult::Continue;
                }
                TagKind::EndTag => {
                    if dropped.last() == Some(&tag.name) {
                        dropped.pop();
                        return TokenSinkResult::Continue;
                    }
                    dropped.clear();
                    let depth = &self.builder.sink.depth;
                    depth.set(depth.get().saturating_sub(1));
                }
                TagKind::StartTag => {}
            }
        }
        self.builder.process_token(token, line)
    }

    fn end(&self) {
        self.builder.end();
    }

    fn adjusted_current_node_present_but_not_in_html_namespace(&self) -> bool {
        self.builder.adjusted_current_node_present_but_not_in_html_namespace()
    }
}

struct Sink {
    nodes: RefCell<Vec<Node>>,
    /// Depth of the element that was placed last.
    depth: Cell<u32>,
}

impl Sink {
    fn new() -> Self {
        let sink = Sink { nodes: RefCell::new(Vec::new()), depth: Cell::new(0) };
        sink.create(NodeData::Other);
        sink
    }

    fn create(&self, data: NodeData) -> NodeId {
        let mut nodes = self.nodes.borrow_mut();
        nodes.push(Node {
            data,
            parent: None,
            first_child: None,
            last_child: None,
            next: None,
            previous: None,
            depth: 0,
        });
        nodes.len() - 1
    }

    fn detach(&self, node: NodeId) {
        let mut nodes = self.nodes.borrow_mut();
        let (parent, previous, next) =
            (nodes[node].parent.take(), nodes[node].previous.take(), nodes[node].next.take());
        let Some(parent) = parent else { return };
        match previous {
            Some(p) => nodes[p].next = next,
            None => nodes[parent].first_child = next,
        }
        match next {
            Some(n) => nodes[n].previous = previous,
            None => nodes[parent].last_child = previous,
        }
    }

    /// Puts a node before `next`, or last if that is `None`.
    fn insert(&self, parent: NodeId, child: NodeId, next: Option<NodeId>) {
        self.detach(child);
        let mut nodes = self.nodes.borrow_mut();
        let previous = match next {
            Some(n) => nodes[n].previous,
            None => nodes[parent].last_child,
        };
        let depth = nodes[parent].depth + 1;
        nodes[child].parent = Some(parent);
        nodes[child].previous = previous;
        nodes[child].next = next;
        nodes[child].depth = depth;
        match previous {
            Some(p) => nodes[p].next = Some(child),
            None => nodes[parent].first_child = Some(child),
        }
        match next {
            Some(n) => nodes[n].previous = Some(child),
            None => nodes[parent].last_child = Some(child),
        }
        if matches!(nodes[child].data, NodeData::Element { .. }) {
            self.depth.set(depth);
        }
    }

    fn insert_node_or_text(&self, parent: NodeId, child: NodeOrText<NodeId>, next: Option<NodeId>) {
        match child {
            NodeOrText::AppendNode(node) => self.insert(parent, node, next),
            NodeOrText::AppendText(text) => {
                let before = match next {
                    Some(n) => self.nodes.borrow()[n].previous,
                    None => self.nodes.borrow()[parent].last_child,
                };
                if let Some(before) = before
                    && let NodeData::Text(have) = &mut self.nodes.borrow_mut()[before].data
                {
                    have.push_tendril(&text);
                    return;
                }
                let node = self.create(NodeData::Text(text));
                self.insert(parent, node, next);
            }
        }
    }
}

impl TreeSink for Sink {
    type Handle = NodeId;
    type Output = Dom;
    type ElemName<'a> = Ref<'a, QualName>;

    fn finish(self) -> Dom {
        Dom { nodes: self.nodes.into_inner() }
    }

    fn parse_error(&self, _: Cow<'static, str>) {}

    fn get_document(&self) -> NodeId {
        0
    }

    fn elem_name<'a>(&'a self, target: &'a NodeId) -> Ref<'a, QualName> {
        Ref::map(self.nodes.borrow(), |nodes| match &nodes[*target].data {
            NodeData::Element { name, .. } => name,
            // The tree builder asks for names of elements that it created, and of no other node.
            _ => unreachable!("name of a node that is no element"),
        })
    }

    fn create_element(&self, name: QualName, attrs: Vec<Attribute>, _: ElementFlags) -> NodeId {
        self.create(NodeData::Element { name, attrs })
    }

    fn create_comment(&self, _: StrTendril) -> NodeId {
        self.create(NodeData::Other)
    }

    fn create_pi(&self, _: StrTendril, _: StrTendril) -> NodeId {
        self.create(NodeData::Other)
    }

    fn append(&self, parent: &NodeId, child: NodeOrText<NodeId>) {
        self.insert_node_or_text(*parent, child, None);
    }

    fn append_based_on_parent_node(&self, element: &NodeId, previous: &NodeId, child: NodeOrText<NodeId>) {
        if self.nodes.borrow()[*element].parent.is_some() {
            self.append_before_sibling(element, child);
        } else {
            self.append(previous, child);
        }
    }

    fn append_doctype_to_document(&self, _: StrTendril, _: StrTendril, _: StrTendril) {}

    fn get_template_contents(&self, target: &NodeId) -> NodeId {
        *target
    }

    fn same_node(&self, x: &NodeId, y: &NodeId) -> bool {
        x == y
    }

    fn set_quirks_mode(&self, _: QuirksMode) {}

    fn append_before_sibling(&self, sibling: &NodeId, new_node: NodeOrText<NodeId>) {
        let parent = self.nodes.borrow()[*sibling].parent;
        if let Some(parent) = parent {
            self.insert_node_or_text(parent, new_node, Some(*sibling));
        }
    }

    fn add_attrs_if_missing(&self, target: &NodeId, new: Vec<Attribute>) {
        if let NodeData::Element { attrs, .. } = &mut self.nodes.borrow_mut()[*target].data {
            for attribute in new {
                if !attrs.iter().any(|a| a.name == attribute.name) {
                    attrs.push(attribute);
                }
            }
        }
    }

    fn remove_from_parent(&self, target: &NodeId) {
        self.detach(*target);
    }

    fn reparent_children(&self, node: &NodeId, new_parent: &NodeId) {
        loop {
            let child = self.nodes.borrow()[*node].first_child;
            let Some(child) = child else { break };
            self.insert(*new_parent, child, None);
        }
    }
}
