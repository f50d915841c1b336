//! HTML: main content, with boilerplate and hidden text kept and labelled.

pub(crate) mod dom;
mod labels;
mod style;

use self::dom::{Dom, NodeData, NodeId};
use self::style::Paint;
use crate::builder::{CellText, DocumentBuilder, Place};
use crate::error::DocumentError;
use crate::formats::encoding::decode;
use crate::formats::{ParseOptions, text};
use crate::model::{BlockKind, Boilerplate, Document, Layer, Metadata};

/// Parses a page.
pub(crate) fn parse(bytes: &[u8], options: &ParseOptions) -> Result<Document, DocumentError> {
    let decoded = decode(bytes, declared_charset(bytes).as_deref());
    let dom = dom::parse(&decoded.text);
    let mut out = text::builder("text/html", &decoded, &options.limits);
    read_head(&dom, out.metadata());
    push_page(&mut out, &dom, None)?;
    let document = out.finish()?;
    if document.has_no_content() && !document.blocks.is_empty() {
        // Everything was taken for boilerplate: then the labels are wrong, not the page.
        let mut out = text::builder("text/html", &decoded, &options.limits);
        read_head(&dom, out.metadata());
        out.warn("no main content was recognised; the whole page is taken as content");
        Walk::new(&mut out, &dom, None, false).run(Place::default())?;
        return out.finish();
    }
    Ok(document)
}

/// Appends a fragment of HTML (of Markdown, of a message): hidden text is labelled, nothing is boilerplate.
pub(crate) fn push_fragment(
    out: &mut DocumentBuilder,
    source: &str,
    _options: &ParseOptions,
) -> Result<(), DocumentError> {
    let dom = dom::parse(source);
    Walk::new(out, &dom, None, false).run(Place::default())
}

/// Appends a whole page, labelled; `page` is its number within a book.
pub(crate) fn push_page(out: &mut DocumentBuilder, dom: &Dom, page: Option<u32>) -> Result<(), DocumentError> {
    let place = Place { page, ..Place::default() };
    Walk::new(out, dom, labels::main_element(dom), true).run(place)
}

/// The `charset` of a `meta` element or an XML declaration in the first 2,048 bytes.
pub(crate) fn declared_charset(bytes: &[u8]) -> Option<String> {
    let head = String::from_utf8_lossy(&bytes[..bytes.len().min(2048)]).to_ascii_lowercase();
    let at = head.find("charset=").map(|n| n + 8).or_else(|| {
        let from = head.find("<?xml")?;
        head[from..].find("encoding=").map(|n| from + n + 9)
    })?;
    let value = head[at..].trim_start_matches(['"', '\'', ' ']);
    let end = value.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | ':' | '.')))?;
    (end > 0).then(|| value[..end].to_owned())
}

fn read_head(dom: &Dom, metadata: &mut Metadata) {
    for node in 0..dom.nodes.len() {
        match dom.name(node) {
            "html" => metadata.language = dom.attribute(node, "lang").map(str::to_owned).filter(|l| !l.is_empty()),
            "title" if metadata.title.is_none() => {
                let title = inline_text(dom, node);
                metadata.title = Some(title.trim().to_owned()).filter(|t| !t.is_empty());
            }
            "meta" => {
                let key = dom.attribute(node, "name").or_else(|| dom.attribute(node, "property")).unwrap_or_default();
                let Some(content) = dom.attribute(node, "content").filter(|c| !c.trim().is_empty()) else { continue };
                let content = content.trim().to_owned();
                match key.to_ascii_lowercase().as_str() {
                    "description" | "og:description" => metadata.subject = Some(content),
                    "author" | "article:author" => metadata.authors.push(content),
                    "keywords" => {
                        metadata.keywords.extend(content.split(',').map(|k| k.trim().to_owned()));
                    }
                    "date" | "article:published_time" | "dc.date" => metadata.created = Some(content),
                    "article:modified_time" | "last-modified" => metadata.modified = Some(content),
                    "generator" => {
                        metadata.extra.insert("generator".to_owned(), content);
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }
}

/// Text below a node, whitespace collapsed, without recursion.
pub(crate) fn inline_text(dom: &Dom, root: NodeId) -> String {
    let mut text = String::new();
    let mut open = vec![root];
    while let Some(node) = open.pop() {
        match &dom.nodes[node].data {
            NodeData::Text(t) => push_collapsed(&mut text, t),
            _ if matches!(dom.name(node), "script" | "style") => {}
            _ => {
                if matches!(dom.name(node), "br" | "p" | "div" | "li" | "tr" | "td" | "th") {
                    push_collapsed(&mut text, " ");
                }
                let from = open.len();
                open.extend(dom.children(node));
                open[from..].reverse();
            }
        }
    }
    text
}

fn push_collapsed(text: &mut String, piece: &str) {
    for c in piece.chars() {
        if !matches!(c, ' ' | '\t' | '\n' | '\r' | '\u{c}') {
            text.push(c);
        } else if !text.is_empty() && !text.ends_with([' ', '\n']) {
            text.push(' ');
        }
    }
}

/// What the elements around a text say about it.
#[derive(Clone)]
struct Context {
    kind: BlockKind,
    place: Place,
    /// That of the text if its colours let it be seen; that of `place` says whether they do.
    layer: Layer,
    paint: Paint,
    list_depth: u8,
    in_main: bool,
    preformatted: bool,
}

struct Walk<'w> {
    out: &'w mut DocumentBuilder,
    dom: &'w Dom,
    main: Option<NodeId>,
    /// Whether boilerplate is looked for.
    label: bool,
    text: String,
}

impl<'w> Walk<'w> {
    fn new(out: &'w mut DocumentBuilder, dom: &'w Dom, main: Option<NodeId>, label: bool) -> Self {
        Walk { out, dom, main, label, text: String::new() }
    }

    fn run(mut self, place: Place) -> Result<(), DocumentError> {
        let outside = self.main.map(|_| Layer::Boilerplate(Boilerplate::OutsideMain));
        let layer = outside.unwrap_or(place.layer);
        let context = Context {
            kind: BlockKind::Paragraph,
            place: place.in_layer(layer),
            layer,
            paint: Paint::of_page(self.dom),
            list_depth: 0,
            in_main: false,
            preformatted: false,
        };
        self.children(0, &context)?;
        self.flush(&context)
    }

    fn flush(&mut self, context: &Context) -> Result<(), DocumentError> {
        self.out.push_at(context.kind.clone(), &self.text, context.place)?;
        self.text.clear();
        Ok(())
    }

    fn children(&mut self, node: NodeId, context: &Context) -> Result<(), DocumentError> {
        let dom = self.dom;
        dom.children(node).try_for_each(|child| self.node(child, context))
    }

    fn node(&mut self, node: NodeId, outer: &Context) -> Result<(), DocumentError> {
        let dom = self.dom;
        if let NodeData::Text(text) = &dom.nodes[node].data {
            match outer.preformatted {
                true => self.text.push_str(text),
                false => push_collapsed(&mut self.text, text),
            }
            return Ok(());
        }
        let name = dom.name(node);
        match name {
            "" | "script" | "style" | "head" | "iframe" | "object" | "input" => return Ok(()),
            "br" => {
                let trimmed = self.text.trim_end_matches(' ').len();
                self.text.truncate(trimmed);
                self.text.push('\n');
                return Ok(());
            }
            "hr" => return self.flush(outer),
            "td" | "th" => {
                self.flush(outer)?;
            }
            _ => {}
        }
        let mut inner = outer.clone();
        self.relabel(node, outer, &mut inner);
        inner.paint = outer.paint.within(dom, node);
        inner.place.layer = inner.paint.layer_over(inner.layer);
        let relabelled = inner.place.layer != outer.place.layer;
        match name {
            "h1" | "h2" | "h3" | "h4" | "h5" | "h6" => {
                inner.kind = BlockKind::Heading { level: name.as_bytes()[1] - b'0' };
            }
            "ul" | "ol" | "menu" | "dir" => inner.list_depth = outer.list_depth.saturating_add(1),
            "li" | "dd" => inner.kind = BlockKind::ListItem { depth: outer.list_depth.saturating_sub(1) },
            "pre" | "listing" | "xmp" => {
                inner.kind = BlockKind::Code;
                inner.preformatted = true;
            }
            "figcaption" | "caption" => inner.kind = BlockKind::Caption,
            "table" if self.is_data_table(node) => {
                self.flush(outer)?;
                return self.table(node, &inner);
            }
            _ if is_block(name) || relabelled => {}
            _ => return self.children(node, &inner),
        }
        self.flush(outer)?;
        self.children(node, &inner)?;
        self.flush(&inner)
    }

    /// The element's own layer, unless that of an outer one holds for all within.
    fn relabel(&self, node: NodeId, outer: &Context, inner: &mut Context) {
        if Some(node) == self.main {
            inner.in_main = true;
            if outer.layer == Layer::Boilerplate(Boilerplate::OutsideMain) {
                inner.layer = Layer::Body;
            }
        }
        if self.dom.name(node) == "article" {
            inner.in_main = true;
        }
        let Some(layer) = labels::layer_of(self.dom, node, inner.in_main) else { return };
        // The innermost label says most, but what is hidden stays hidden and the main content stays content.
        let settled = matches!(outer.layer, Layer::Hidden(_)) || Some(node) == self.main;
        let wanted = self.label || matches!(layer, Layer::Hidden(_));
        // What holds the main content is not boilerplate, whatever its name.
        if wanted && !settled && !self.holds_main(node) {
            inner.layer = layer;
        }
    }

    fn holds_main(&self, node: NodeId) -> bool {
        self.main.is_some_and(|main| self.dom.ancestors(main).any(|a| a == node))
    }

    /// Rows of short cells; a table that holds tables, headings or several paragraphs in a cell is layout.
    fn is_data_table(&self, table: NodeId) -> bool {
        if matches!(self.dom.attribute(table, "role"), Some("presentation" | "none")) {
            return false;
        }
        let mut cells = 0;
        let mut open: Vec<NodeId> = self.dom.children(table).collect();
        while let Some(node) = open.pop() {
            match self.dom.name(node) {
                "table" | "h1" | "h2" | "h3" | "h4" | "form" | "pre" => return false,
                "td" | "th" => {
                    cells += 1;
                    let blocks = self.dom.children(node).filter(|n| matches!(self.dom.name(*n), "p" | "ul" | "ol"));
                    if blocks.count() > 2 {
                        return false;
                    }
                }
                _ => {}
            }
            open.extend(self.dom.children(node));
        }
        cells > 1
    }

    fn table(&mut self, table: NodeId, context: &Context) -> Result<(), DocumentError> {
        let mut rows: Vec<Vec<CellText>> = Vec::new();
        let mut header_rows = 0;
        let dom = self.dom;
        for child in dom.children(table) {
            if dom.name(child) == "caption" {
                let kind = BlockKind::Caption;
                self.out.push_at(kind, &inline_text(dom, child), context.place)?;
            }
        }
        let sections = dom.children(table).flat_map(|child| {
            let rows: Vec<NodeId> = match dom.name(child) {
                "tr" => vec![child],
                "thead" | "tbody" | "tfoot" => dom.children(child).filter(|n| dom.name(*n) == "tr").collect(),
                _ => Vec::new(),
            };
            let head = dom.name(child) == "thead";
            rows.into_iter().map(move |row| (row, head))
        });
        for (row, head) in sections {
            let cells: Vec<NodeId> = dom.children(row).filter(|n| matches!(dom.name(*n), "td" | "th")).collect();
            let all_head = cells.len() > 1 && cells.iter().all(|c| dom.name(*c) == "th");
            if (head || all_head) && header_rows == rows.len() {
                header_rows += 1;
            }
            let span = |cell: NodeId, name: &str| {
                dom.attribute(cell, name).and_then(|v| v.trim().parse::<u32>().ok()).unwrap_or(1).clamp(1, 1000)
            };
            rows.push(
                cells
                    .into_iter()
                    .map(|cell| CellText {
                        text: inline_text(dom, cell),
                        row_span: span(cell, "rowspan"),
                        col_span: span(cell, "colspan"),
                    })
                    .collect(),
            );
        }
        self.out.push_table(rows, header_rows, context.place)?;
        Ok(())
    }
}

fn is_block(name: &str) -> bool {
    matches!(
        name,
        "html"
            | "body"
            | "p"
            | "div"
            | "section"
            | "article"
            | "main"
            | "header"
            | "footer"
            | "nav"
            | "aside"
            | "blockquote"
            | "dl"
            | "dt"
            | "figure"
            | "form"
            | "fieldset"
            | "legend"
            | "details"
            | "summary"
            | "address"
            | "table"
            | "thead"
            | "tbody"
            | "tfoot"
            | "tr"
            | "td"
            | "th"
            | "center"
            | "template"
            | "noscript"
            | "select"
            | "option"
            | "textarea"
            | "button"
            | "hgroup"
            | "dialog"
            | "video"
            | "audio"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::HiddenReason;

    fn blocks(source: &str) -> Vec<(String, Layer)> {
        let document = parse(source.as_bytes(), &ParseOptions::default()).unwrap();
        document.check().unwrap();
        document.blocks.iter().map(|b| (document.block_text(b).to_owned(), b.layer)).collect()
    }

    #[test]
    fn boilerplate_is_kept_and_labelled() {
        let seen = blocks(
            "<html><head><title>T</title></head><body><nav><a href=/>Home</a></nav>\
             <main><h1>Head</h1><p>One <b>two</b>\n three.<p>Four<br>five</main>\
             <p style='display: none'>secret</p><p>outside</p><footer>(c)</footer></body></html>",
        );
        let expected = [
            ("Home", Layer::Boilerplate(Boilerplate::Navigation)),
            ("Head", Layer::Body),
            ("One two three.", Layer::Body),
            ("Four\nfive", Layer::Body),
            ("secret", Layer::Hidden(HiddenReason::Marked)),
            ("outside", Layer::Boilerplate(Boilerplate::OutsideMain)),
            ("(c)", Layer::Boilerplate(Boilerplate::Footer)),
        ];
        assert_eq!(seen, expected.map(|(t, l)| (t.to_owned(), l)));
    }

    #[test]
    fn a_page_of_boilerplate_only_is_content() {
        assert_eq!(blocks("<nav>all there is</nav>"), [("all there is".to_owned(), Layer::Body)]);
    }

    #[test]
    fn tables_and_lists() {
        let source = "<table><thead><tr><th>a<th>b</thead><tr><td>1<td>2\n3</table><ul><li>x<ul><li>y</ul><li>z</ul>";
        let document = parse(source.as_bytes(), &ParseOptions::default()).unwrap();
        assert_eq!(document.text, "a\tb\n1\t2 3\n\nx\ny\nz");
        let BlockKind::Table(table) = &document.blocks[0].kind else { panic!("no table") };
        assert_eq!((table.header_rows, table.rows.len()), (1, 2));
    }

    #[test]
    fn depth_is_bounded_and_no_text_is_lost() {
        let source = format!("{}deep{}after", "<div>".repeat(100_000), "</div>".repeat(100_000));
        let seen = blocks(&source);
        let all: String = seen.into_iter().map(|(t, _)| t).collect();
        assert_eq!(all, "deepafter");
    }

    #[test]
    fn charset_declarations() {
        let cases = [
            ("<meta charset=\"ISO-8859-1\">", Some("iso-8859-1")),
            ("<meta http-equiv=x content='text/html; charset=windows-1252'>", Some("windows-1252")),
            ("<?xml version='1.0' encoding='UTF-8'?>", Some("utf-8")),
            ("<p>nothing</p>", None),
        ];
        for (source, expected) in cases {
            assert_eq!(declared_charset(source.as_bytes()).as_deref(), expected);
        }
    }
}
