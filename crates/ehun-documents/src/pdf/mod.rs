//! PDF: the reading order is ours, on top of the objects and fonts that `hayro-syntax` and `hayro-font` read.
//!
//! A file passes through these stages:
//!
//! 1. `content` interprets each page's operators: glyphs with place, size and style, rules, pictures;
//! 2. `fragments` joins glyphs into pieces of lines, in the frame of their direction;
//! 3. `furniture` compares the edges of all pages and finds running headers and footers;
//! 4. `columns` cuts each page into columns, `grid` and `tables` find tables, `paragraphs` paragraphs;
//! 5. `structure` judges by the whole document what each block is, and writes it.
//!
//! What a reader does not see (render mode 3, the colour of the ground, off the page, tiny, in a layer that is off) is
//! kept in blocks of their own. Invisible text over a scan is the exception: where a page shows hardly any other text,
//! it is taken as the page's text, and the document carries a warning and the extra entry `ocr_layer_pages`.

mod annotations;
mod bidi;
mod columns;
mod content;
mod font;
mod fragments;
mod furniture;
mod glyph;
mod grid;
mod layers;
mod lines;
mod lists;
mod metadata;
mod page;
mod paint;
mod paragraphs;
mod state;
mod structure;
mod tables;

use std::panic::{AssertUnwindSafe, catch_unwind};

use hayro_syntax::{DecryptionError, LoadPdfError, Pdf};

use self::font::Fonts;
use self::furniture::PageView;
use self::layers::Layers;
use self::lines::Vocabulary;
use self::page::ReadPage;
use self::structure::Looks;
use crate::{Document, DocumentBuilder, DocumentError, Limits, PageInfo, PageStatus};

const FORMAT: &str = "PDF";
/// More pages than any real document has; the rest is left out, with a warning.
const MAX_PAGES: usize = 50_000;

/// Parses a PDF.
///
/// A document encrypted with an empty user password is opened; with another it is [`DocumentError::Encrypted`]. A
/// broken cross-reference table is rebuilt by scanning. A page that fails is one page that failed: see
/// [`PageInfo::status`].
pub fn parse(bytes: &[u8], limits: &Limits) -> Result<Document, DocumentError> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(DocumentError::Empty);
    }
    let pdf = guarded(|| Pdf::new(bytes.to_vec()))
        .map_err(|reason| DocumentError::malformed(FORMAT, reason))?
        .map_err(|error| match error {
            LoadPdfError::Decryption(DecryptionError::PasswordProtected) => {
                DocumentError::Encrypted { format: FORMAT.to_owned() }
            }
            LoadPdfError::Decryption(DecryptionError::UnsupportedAlgorithm) => {
                DocumentError::unsupported("PDF with an encryption that is not in the standard")
            }
            LoadPdfError::Decryption(_) => DocumentError::malformed(FORMAT, "its encryption dictionary is incomplete"),
            LoadPdfError::Invalid => {
                DocumentError::malformed(FORMAT, "no page tree found, even by scanning all objects")
            }
        })?;
    let mut builder = DocumentBuilder::new("application/pdf", limits);
    metadata::read(&pdf, builder.metadata());
    let (pages, failed) = read_pages(&pdf, limits, &mut builder)?;
    write(pages, failed, &mut builder)?;
    builder.finish()
}

/// Runs what may panic on a malformed file: a page's fault is not the document's.
fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let message = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
        let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
        format!("the parser gave up: {}", message.unwrap_or_default())
    })
}

/// Pages that were read, and those that failed.
type Pages = (Vec<ReadPage>, Vec<PageInfo>);

fn read_pages(pdf: &Pdf, limits: &Limits, builder: &mut DocumentBuilder) -> Result<Pages, DocumentError> {
    let fonts = Fonts::new();
    let layers = guarded(|| Layers::read(pdf.xref())).unwrap_or_default();
    let (mut pages, mut failed) = (Vec::new(), Vec::new());
    let mut text_bytes = 0u64;
    if pdf.pages().len() > MAX_PAGES {
        builder.warn(format!("{} pages: only the first {MAX_PAGES} were read", pdf.pages().len()));
    }
    for (n, page) in pdf.pages().iter().take(MAX_PAGES).enumerate() {
        let number = n as u32 + 1;
        let read = guarded(|| {
            let content = content::read_page(page, &fonts, &layers);
            (content.text.len(), page::analyse(number, &content))
        });
        match read {
            Ok((bytes, page)) => {
                text_bytes += bytes as u64;
                if text_bytes > limits.text_bytes {
                    return Err(DocumentError::LimitExceeded {
                        limit: crate::Limit::TextBytes,
                        value: limits.text_bytes,
                    });
                }
                if let Some(reason) = page.truncated {
                    builder.warn(format!("page {number}: part of it was left out: {reason}"));
                }
                pages.push(page);
            }
            Err(reason) => {
                failed.push(PageInfo { number, width: 0.0, height: 0.0, status: PageStatus::Failed { reason } })
            }
        }
    }
    Ok((pages, failed))
}

fn write(pages: Vec<ReadPage>, failed: Vec<PageInfo>, builder: &mut DocumentBuilder) -> Result<(), DocumentError> {
    let fragments = || pages.iter().flat_map(|page| page.frames.iter()).flat_map(|frame| &frame.fragments);
    let body_size = structure::usual_size(fragments().filter(|f| !f.mono).map(|f| (f.size, f.text.len())));
    let mut vocabulary = Vocabulary::default();
    for fragment in fragments() {
        vocabulary.learn(&fragment.text);
    }
    let views: Vec<PageView<'_>> = pages
        .iter()
        .filter_map(|page| page.frames.first())
        .map(|frame| PageView { fragments: &frame.fragments, frame: frame.page })
        .collect();
    let mut furniture = furniture::find(&views, body_size).into_iter();
    let mut infos = failed;
    let mut heights = Vec::new();
    let mut drafts = Vec::new();
    let mut area = 0;
    let mut ocr_pages = Vec::new();
    for page in pages {
        heights.resize(page.number as usize, 0.0);
        heights[page.number as usize - 1] = page.height;
        infos.push(PageInfo {
            number: page.number,
            width: page.width,
            height: page.height,
            status: page.status.clone(),
        });
        if page.ocr_layer {
            ocr_pages.push(page.number.to_string());
        }
        let edges = if page.frames.is_empty() { None } else { furniture.next() };
        drafts.extend(page.drafts(&edges.unwrap_or_default(), &mut area));
    }
    infos.sort_by_key(|info| info.number);
    for info in infos {
        builder.push_page(info);
    }
    if !ocr_pages.is_empty() {
        builder.warn(format!("text of {} page(s) is an invisible OCR layer over a scan", ocr_pages.len()));
        builder.metadata().extra.insert("ocr_layer_pages".to_owned(), ocr_pages.join(" "));
    }
    let looks = Looks::of(&drafts, body_size);
    structure::write(drafts, &looks, &heights, &vocabulary, builder)
}
