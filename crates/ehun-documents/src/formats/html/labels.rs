//! What on a page is content, and what is navigation, widgets or hidden.

use super::dom::{Dom, NodeData, NodeId};
use super::style;
use crate::model::{Boilerplate, HiddenReason, Layer};

/// The element that holds the main content, if the page says which and it holds a fair share of the text.
pub(super) fn main_element(dom: &Dom) -> Option<NodeId> {
    let total = visible_len(dom, 0);
    let mut articles = Vec::new();
    let mut mains = Vec::new();
    for node in 0..dom.nodes.len() {
        let name = dom.name(node);
        if name == "main" || dom.attribute(node, "role") == Some("main") {
            mains.push(node);
        } else if name == "article" {
            articles.push(node);
        }
    }
    let candidate = match (mains.as_slice(), articles.as_slice()) {
        ([one], _) => *one,
        ([], [one]) => *one,
        _ => return None,
    };
    let held = visible_len(dom, candidate);
    (held >= 200 || held * 4 >= total).then_some(candidate)
}

/// Bytes of text below a node that are not script or style, counted without recursion.
fn visible_len(dom: &Dom, root: NodeId) -> usize {
    let mut length = 0;
    let mut open = vec![root];
    while let Some(node) = open.pop() {
        match &dom.nodes[node].data {
            NodeData::Text(text) => length += text.trim().len(),
            _ if matches!(dom.name(node), "script" | "style" | "template" | "noscript" | "head") => {}
            _ => open.extend(dom.children(node)),
        }
    }
    length
}

/// The layer that an element puts its content in, `None` if it changes nothing.
///
/// `in_article`: within the main content, where `header` and `footer` belong to the text.
pub(super) fn layer_of(dom: &Dom, node: NodeId, in_article: bool) -> Option<Layer> {
    let name = dom.name(node);
    if matches!(name, "" | "html" | "body" | "main" | "article") {
        return hidden(dom, node);
    }
    if let Some(layer) = hidden(dom, node) {
        return Some(layer);
    }
    let boilerplate = match name {
        "template" | "noscript" => return Some(Layer::Hidden(HiddenReason::Marked)),
        "nav" | "menu" => Some(Boilerplate::Navigation),
        "header" if !in_article => Some(Boilerplate::Header),
        "footer" if !in_article => Some(Boilerplate::Footer),
        "aside" => Some(Boilerplate::Aside),
        "form" if !holds_most(dom, node) => Some(Boilerplate::Widget),
        "button" | "select" | "dialog" | "textarea" => Some(Boilerplate::Widget),
        _ => None,
    };
    let by_role = || match dom.attribute(node, "role")? {
        "navigation" | "menu" | "menubar" | "tablist" => Some(Boilerplate::Navigation),
        "banner" if !in_article => Some(Boilerplate::Header),
        "contentinfo" => Some(Boilerplate::Footer),
        "complementary" => Some(Boilerplate::Aside),
        "search" | "dialog" | "alertdialog" | "toolbar" | "button" => Some(Boilerplate::Widget),
        _ => None,
    };
    let found = boilerplate.or_else(by_role).or_else(|| by_class(dom, node)).or_else(|| link_list(dom, node));
    found.map(Layer::Boilerplate)
}

fn hidden(dom: &Dom, node: NodeId) -> Option<Layer> {
    style::hidden(dom, node).map(Layer::Hidden)
}

/// Old pages wrap everything in one form.
fn holds_most(dom: &Dom, node: NodeId) -> bool {
    visible_len(dom, node) * 2 > visible_len(dom, 0)
}

fn by_class(dom: &Dom, node: NodeId) -> Option<Boilerplate> {
    if !matches!(dom.name(node), "div" | "section" | "ul" | "ol" | "span" | "p" | "table" | "td") {
        return None;
    }
    let class = dom.attribute(node, "class").unwrap_or_default();
    let id = dom.attribute(node, "id").unwrap_or_default();
    let words = class.split_whitespace().chain([id]).flat_map(|name| name.split(['-', '_', ':']));
    let mut labels = words.filter_map(|word| match word.to_ascii_lowercase().as_str() {
        "nav" | "navbar" | "navigation" | "menu" | "breadcrumb" | "breadcrumbs" | "pagination" | "pager" | "toc"
        | "sitemap" | "skip" => Some(Boilerplate::Navigation),
        "footer" | "copyright" | "colophon" => Some(Boilerplate::Footer),
        "sidebar" | "related" | "recommended" | "trending" => Some(Boilerplate::Aside),
        "cookie" | "cookies" | "consent" | "gdpr" | "newsletter" | "subscribe" | "signup" | "share" | "sharing"
        | "social" | "advert" | "advertisement" | "ads" | "popup" | "modal" | "promo" | "toolbar" => {
            Some(Boilerplate::Widget)
        }
        _ => None,
    });
    let label = labels.next_back()?;
    // A class name says little about an element that holds most of the page.
    (!holds_most(dom, node)).then_some(label)
}

/// A list of short links and nothing else is a menu.
fn link_list(dom: &Dom, node: NodeId) -> Option<Boilerplate> {
    if !matches!(dom.name(node), "ul" | "ol") {
        return None;
    }
    let (mut links, mut linked) = (0, 0);
    let mut open = vec![node];
    while let Some(node) = open.pop() {
        if dom.name(node) == "a" {
            links += 1;
            linked += visible_len(dom, node);
        } else {
            open.extend(dom.children(node));
        }
    }
    let all = visible_len(dom, node);
    (links >= 4 && linked * 10 >= all * 9 && linked < links * 30).then_some(Boilerplate::Navigation)
}
