//! What inline styles say about whether a text can be seen. Style sheets are not read.

use super::dom::{Dom, NodeData, NodeId};
use crate::model::{HiddenReason, Layer};

/// The declarations of an element's `style`, names and values in lower case without spaces.
fn declarations(dom: &Dom, node: NodeId) -> Vec<(String, String)> {
    let style = dom.attribute(node, "style").unwrap_or_default();
    let plain = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>().to_ascii_lowercase();
    style
        .split(';')
        .filter_map(|declaration| declaration.split_once(':'))
        .map(|(name, value)| (plain(name), plain(value).trim_end_matches("!important").to_owned()))
        .collect()
}

/// Why an element and all within it is not seen, if it is not.
pub(super) fn hidden(dom: &Dom, node: NodeId) -> Option<HiddenReason> {
    if dom.attribute(node, "hidden").is_some() {
        return Some(HiddenReason::Marked);
    }
    let declarations = declarations(dom, node);
    let says = |name: &str| declarations.iter().rfind(|(n, _)| n == name).map(|(_, value)| value.as_str());
    let number = |value: &str| {
        let end = value.find(|c: char| !matches!(c, '0'..='9' | '.' | '-' | '+')).unwrap_or(value.len());
        value[..end].parse::<f32>().ok()
    };
    let zero = |value: &str| number(value) == Some(0.0);
    if says("display") == Some("none")
        || matches!(says("visibility"), Some("hidden" | "collapse"))
        || says("opacity").is_some_and(zero)
    {
        return Some(HiddenReason::Marked);
    }
    if says("font-size").is_some_and(zero) {
        return Some(HiddenReason::ZeroSize);
    }
    let far = |value: &str| value.ends_with("px") && number(value).is_some_and(|n| n <= -999.0);
    let moved = matches!(says("position"), Some("absolute" | "fixed"))
        && (says("left").is_some_and(far) || says("top").is_some_and(far));
    (moved || says("text-indent").is_some_and(far)).then_some(HiddenReason::OffPage)
}

/// The colours of a text and of what is behind it; `None` is a colour that is not known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Paint {
    ink: Option<[u8; 3]>,
    paper: Option<[u8; 3]>,
    /// Whether a class may change a colour.
    has_style_sheet: bool,
}

impl Paint {
    /// Of a page: black on white, unless it has a style sheet.
    pub fn of_page(dom: &Dom) -> Paint {
        let is_sheet = |n: NodeId| match dom.name(n) {
            "style" => true,
            "link" => dom.attribute(n, "rel").is_some_and(|rel| rel.to_ascii_lowercase().contains("stylesheet")),
            _ => false,
        };
        match (0..dom.nodes.len()).any(is_sheet) {
            true => Paint { ink: None, paper: None, has_style_sheet: true },
            false => Paint { ink: Some([0; 3]), paper: Some([255; 3]), has_style_sheet: false },
        }
    }

    /// Within an element of what is painted so.
    pub fn within(mut self, dom: &Dom, node: NodeId) -> Paint {
        let NodeData::Element { attrs, .. } = &dom.nodes[node].data else { return self };
        if attrs.is_empty() {
            return self;
        }
        if self.has_style_sheet && (dom.attribute(node, "class").is_some() || dom.attribute(node, "id").is_some()) {
            (self.ink, self.paper) = (None, None);
        }
        if dom.name(node) == "a" {
            self.ink = None;
        }
        for name in ["text", "color"] {
            if let Some(value) = dom.attribute(node, name) {
                self.ink = colour(&value.to_ascii_lowercase());
            }
        }
        for name in ["bgcolor", "background"] {
            if let Some(value) = dom.attribute(node, name) {
                self.paper = colour(&value.to_ascii_lowercase());
            }
        }
        for (name, value) in declarations(dom, node) {
            let transparent = matches!(value.as_str(), "transparent" | "none" | "inherit");
            match name.as_str() {
                "color" if value != "inherit" => self.ink = colour(&value),
                "background" | "background-color" if !transparent => self.paper = colour(&value),
                "background-image" if !transparent => self.paper = None,
                _ => {}
            }
        }
        self
    }

    /// The layer of a text that were in `layer` if it could be seen.
    pub fn layer_over(self, layer: Layer) -> Layer {
        match (self.ink, self.paper, layer) {
            (_, _, Layer::Hidden(_)) => layer,
            (Some(ink), Some(paper), _) if ink == paper => Layer::Hidden(HiddenReason::SameColour),
            _ => layer,
        }
    }
}

/// A colour in lower case without spaces; `None` for what is not one plain colour.
fn colour(value: &str) -> Option<[u8; 3]> {
    if let Some(digits) = value.strip_prefix('#') {
        let digits: Option<Vec<u8>> = digits.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect();
        return match digits?.as_slice() {
            [r, g, b] => Some([r * 17, g * 17, b * 17]),
            [r, s, g, h, b, c] => Some([r * 16 + s, g * 16 + h, b * 16 + c]),
            _ => None,
        };
    }
    if let Some(inner) = value.strip_prefix("rgb(").and_then(|rest| rest.strip_suffix(')')) {
        let parts: Option<Vec<u8>> = inner.split(',').map(|part| part.parse().ok()).collect();
        return parts?.try_into().ok();
    }
    match value {
        "white" => Some([255; 3]),
        "black" => Some([0; 3]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::{ParseOptions, html};

    #[test]
    fn what_inline_styles_hide() {
        use HiddenReason::{Marked, OffPage, SameColour, ZeroSize};
        let hidden = |reason| Layer::Hidden(reason);
        for (source, layer) in [
            ("<p style='color:#fff'>x", hidden(SameColour)),
            ("<p style='color: RGB(255, 255, 255) !important'>x", hidden(SameColour)),
            ("<font color=white>x</font>", hidden(SameColour)),
            ("<div style='background:#123456'><p style='color:#123456'>x", hidden(SameColour)),
            ("<body bgcolor=black><p>x", hidden(SameColour)),
            ("<table bgcolor='#000000'><tr><td><p><span style='color:white'>x", Layer::Body),
            ("<div style='background:url(a.png)'><p style='color:white'>x", Layer::Body),
            ("<div style='color:white'><p style='color:black'>x", Layer::Body),
            ("<style>p{background:navy}</style><p style='color:white'>x", Layer::Body),
            ("<style>p{}</style><p style='color:white;background-color:#FFFFFF'>x", hidden(SameColour)),
            ("<style>p{}</style><div style='color:white;background:white'><p class=a>x", Layer::Body),
            ("<p style='font-size:0px'>x", hidden(ZeroSize)),
            ("<p style='font-size:0.8em'>x", Layer::Body),
            ("<p style='opacity:0'>x", hidden(Marked)),
            ("<p style='visibility:hidden'>x", hidden(Marked)),
            ("<p style='position:absolute; left:-9999px'>x", hidden(OffPage)),
            ("<p style='left:-9999px'>x", Layer::Body),
            ("<p style='text-indent:-9999px'>x", hidden(OffPage)),
        ] {
            let document = html::parse(source.as_bytes(), &ParseOptions::default()).unwrap();
            assert_eq!(document.blocks.last().map(|block| block.layer), Some(layer), "{source}");
        }
    }
}
