//! EPUB: the chapters in the order of the spine, each a page.

use crate::builder::DocumentBuilder;
use crate::error::DocumentError;
use crate::formats::container::Container;
use crate::formats::encoding::decode;
use crate::formats::xml::Tree;
use crate::formats::{ParseOptions, html};
use crate::model::{Document, PageInfo, PageStatus};

/// Parses a book.
pub(crate) fn parse(bytes: &[u8], options: &ParseOptions) -> Result<Document, DocumentError> {
    let limits = &options.limits;
    let mut container = Container::open(bytes, "EPUB", limits)?;
    let mut out = DocumentBuilder::new("application/epub+zip", limits);
    let missing = |what: &str| DocumentError::malformed("EPUB", format!("there is no {what}"));
    let index = container.read("META-INF/container.xml")?.ok_or_else(|| missing("META-INF/container.xml"))?;
    let tree = Tree::parse(&index, limits)?;
    let root = tree.descendants(0).find(|n| tree.name(*n) == "rootfile");
    let package = root.and_then(|n| tree.attribute(n, "full-path")).ok_or_else(|| missing("package"))?.to_owned();
    let bytes = container.read(&package)?.ok_or_else(|| missing(&package))?;
    let tree = Tree::parse(&bytes, limits)?;
    let folder = package.rsplit_once('/').map_or("", |(folder, _)| folder);
    let root = tree.child(0, "package").unwrap_or(0);

    if let Some(meta) = tree.child(root, "metadata") {
        let metadata = out.metadata();
        for node in tree.children(meta) {
            let value = tree.all_text(node).trim().to_owned();
            match tree.name(node) {
                _ if value.is_empty() => {}
                "title" if metadata.title.is_none() => metadata.title = Some(value),
                "creator" => metadata.authors.push(value),
                "subject" => metadata.keywords.push(value),
                "description" => metadata.subject = Some(value),
                "language" => metadata.language = Some(value),
                "date" => metadata.created = Some(value),
                _ => {}
            }
        }
    }
    let items: std::collections::HashMap<&str, &str> = tree
        .child(root, "manifest")
        .into_iter()
        .flat_map(|m| tree.all(m, "item"))
        .filter_map(|n| Some((tree.attribute(n, "id")?, tree.attribute(n, "href")?)))
        .collect();
    let spine = tree.child(root, "spine").into_iter().flat_map(|s| tree.all(s, "itemref"));
    let chapters: Vec<String> = spine
        .filter_map(|n| items.get(tree.attribute(n, "idref")?))
        .map(|href| {
            let href = percent_decoded(href.split('#').next().unwrap_or(href));
            if folder.is_empty() { href } else { format!("{folder}/{href}") }
        })
        .collect();
    for (name, number) in chapters.iter().zip(1u32..) {
        let status = match container.read(name) {
            Err(e @ DocumentError::LimitExceeded { .. }) => return Err(e),
            Err(e) => PageStatus::Failed { reason: e.to_string() },
            Ok(None) => PageStatus::Failed { reason: format!("there is no {name}") },
            Ok(Some(bytes)) => {
                let decoded = decode(&bytes, html::declared_charset(&bytes).as_deref());
                let before = out.text_len();
                html::push_page(&mut out, &html::dom::parse(&decoded.text), Some(number))?;
                if out.text_len() > before { PageStatus::Text } else { PageStatus::Empty }
            }
        };
        out.push_page(PageInfo { number, width: 0.0, height: 0.0, status });
    }
    out.finish()
}

fn percent_decoded(href: &str) -> String {
    let mut bytes = Vec::with_capacity(href.len());
    let mut rest = href.as_bytes();
    while let [first, tail @ ..] = rest {
        let code = (*first == b'%').then(|| tail.get(..2)).flatten();
        let code = code.and_then(|h| std::str::from_utf8(h).ok()).and_then(|h| u8::from_str_radix(h, 16).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
