//! The place for an OCR part: what it is asked, what it answers, and where its text goes.
//!
//! Nothing in this workspace reads pictures. A program that can implements [`Ocr`] and starts its workers with
//! [`serve_with_ocr`](crate::worker::serve_with_ocr); pages without text are then given to it in the worker that parsed the
//! document, because a picture is as little to be trusted as the file that it stands in.

use crate::builder::{DocumentBuilder, Place};
use crate::error::{DocumentError, Limit};
use crate::formats::{self, ParseOptions};
use crate::limits::Limits;
use crate::model::{BBox, BlockKind, Document, Layer, PageInfo, PageStatus};

/// Reads what stands in pictures.
///
/// It is asked in a worker process: files, network and other programs are out of reach, and the worker's limits on memory,
/// CPU and wall time hold for parser and OCR together. Weights are therefore read before the worker begins to serve. A panic,
/// an abort or an endless loop costs the document that it happened at.
pub trait Ocr: Send {
    /// Name and version, for the page's entry.
    fn name(&self) -> &str;

    /// Reads one page.
    ///
    /// # Errors
    /// Why it does not: the page stays one that needs OCR, and the rest of the document stands.
    fn read(&self, page: &OcrPage<'_>, limits: &Limits) -> Result<OcrText, OcrRefusal>;
}

/// A page that has pictures and no text to speak of. The pictures are in the document's bytes, which the OCR part opens itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OcrPage<'a> {
    /// The whole document: a file with pages, or an image, which is one page.
    pub bytes: &'a [u8],
    /// MIME type of the bytes.
    pub media_type: &'a str,
    /// 1-based.
    pub number: u32,
    /// Width and height as the page is shown, points; `None` for an image.
    pub size: Option<(f32, f32)>,
}

/// What a page says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OcrText {
    /// Width and height that the boxes count in: of an image the OCR part decides (a pixel as a point, say), of a page its size.
    pub size: (f32, f32),
    /// In reading order; none for a picture without words.
    pub blocks: Vec<OcrBlock>,
}

/// A contiguous part of a page's text.
#[derive(Debug, Clone, PartialEq)]
pub struct OcrBlock {
    /// What it is.
    pub kind: BlockKind,
    /// Its text.
    pub text: String,
    /// Where it stands; the origin is the top left corner of the page as it is shown.
    pub bbox: Option<BBox>,
}

/// Why a page was not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OcrRefusal {
    /// In words, for the document's warnings.
    pub reason: String,
}

/// Lets `ocr` read what a parser could not.
pub(crate) fn complete(
    ocr: &dyn Ocr,
    bytes: &[u8],
    options: &ParseOptions,
    parsed: Result<Document, DocumentError>,
) -> Result<Document, DocumentError> {
    let mut document = match parsed {
        Err(DocumentError::NeedsOcr { format }) => return image(ocr, bytes, options, &format),
        parsed => parsed?,
    };
    for n in 0..document.pages.len() {
        let PageInfo { number, width, height, status: PageStatus::NeedsOcr } = document.pages[n] else { continue };
        let media_type = document.metadata.media_type.clone();
        let page = OcrPage { bytes, media_type: &media_type, number, size: Some((width, height)) };
        match ocr.read(&page, &options.limits) {
            Ok(text) => {
                document.pages[n].status = PageStatus::Recognised { by: ocr.name().to_owned() };
                let written = written(&text, number, &media_type, &options.limits)?;
                let later = |b: &crate::Block| b.layer == Layer::Unplaced || b.page.is_some_and(|page| page > number);
                let at = document.blocks.iter().position(later).unwrap_or(document.blocks.len());
                insert(&mut document, at, written);
                if document.text.len() as u64 > options.limits.text_bytes {
                    return Err(DocumentError::LimitExceeded {
                        limit: Limit::TextBytes,
                        value: options.limits.text_bytes,
                    });
                }
            }
            Err(OcrRefusal { reason }) => {
                document.warnings.push(format!("{} did not read page {number}: {reason}", ocr.name()));
            }
        }
    }
    Ok(formats::described(document, bytes))
}

/// An image file: one page.
fn image(ocr: &dyn Ocr, bytes: &[u8], options: &ParseOptions, format: &str) -> Result<Document, DocumentError> {
    let media_type = formats::media_type(bytes);
    let page = OcrPage { bytes, media_type: &media_type, number: 1, size: None };
    let text = ocr.read(&page, &options.limits).map_err(|refusal| {
        let format = format!("{format} ({} did not read it: {})", ocr.name(), refusal.reason);
        DocumentError::NeedsOcr { format }
    })?;
    let mut document = written(&text, 1, &media_type, &options.limits)?;
    let (width, height) = text.size;
    let status = PageStatus::Recognised { by: ocr.name().to_owned() };
    document.pages.push(PageInfo { number: 1, width, height, status });
    Ok(formats::described(document, bytes))
}

/// A page's text as a document.
fn written(text: &OcrText, page: u32, media_type: &str, limits: &Limits) -> Result<Document, DocumentError> {
    let mut out = DocumentBuilder::new(media_type, limits);
    for block in &text.blocks {
        out.push_at(block.kind.clone(), &block.text, Place::on_page(page, block.bbox))?;
    }
    out.finish()
}

/// Puts the blocks of `part`, which are in the body, before block `at`: whatever comes later moves on.
fn insert(document: &mut Document, at: usize, part: Document) {
    if part.blocks.is_empty() {
        return;
    }
    let start = document.blocks.get(at).map_or(document.text.len(), |block| block.range.start);
    let (before, after) = match at < document.blocks.len() {
        true => ("", "\n\n"),
        false if start == 0 => ("", ""),
        false => ("\n\n", ""),
    };
    let added = [before, &part.text, after].concat();
    let (moved, blocks) = (added.len(), part.blocks.len() as u32);
    for block in &mut document.blocks[at..] {
        shift(block, moved);
        block.heading = block.heading.map(|heading| if heading as usize >= at { heading + blocks } else { heading });
    }
    let above = at.checked_sub(1).and_then(|last| {
        let block = &document.blocks[last];
        let is_heading = matches!(block.kind, BlockKind::Title | BlockKind::Heading { .. });
        if is_heading && block.layer == Layer::Body { Some(last as u32) } else { block.heading }
    });
    document.text.insert_str(start, &added);
    let inserted = part.blocks.into_iter().map(|mut block| {
        shift(&mut block, start + before.len());
        block.heading = block.heading.map(|heading| heading + at as u32).or(above);
        block
    });
    document.blocks.splice(at..at, inserted);
}

fn shift(block: &mut crate::Block, by: usize) {
    let on = |range: &mut std::ops::Range<usize>| *range = range.start + by..range.end + by;
    on(&mut block.range);
    if let BlockKind::Table(table) = &mut block.kind {
        for row in &mut table.rows {
            on(&mut row.range);
            row.cells.iter_mut().for_each(|cell| on(&mut cell.range));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says what it was asked, and refuses even pages.
    struct Fake;

    impl Ocr for Fake {
        fn name(&self) -> &str {
            "fake 1"
        }

        fn read(&self, page: &OcrPage<'_>, _: &Limits) -> Result<OcrText, OcrRefusal> {
            if page.number.is_multiple_of(2) {
                return Err(OcrRefusal { reason: "even".to_owned() });
            }
            let bbox = Some(BBox { x0: 1.0, y0: 2.0, x1: 3.0, y1: 4.0 });
            let heading = OcrBlock { kind: BlockKind::Heading { level: 2 }, text: "Seen".to_owned(), bbox: None };
            let text = format!("{} of {} bytes, page {}", page.media_type, page.bytes.len(), page.number);
            let blocks = vec![heading, OcrBlock { kind: BlockKind::Paragraph, text, bbox }];
            Ok(OcrText { size: page.size.unwrap_or((8.0, 9.0)), blocks })
        }
    }

    /// Pages by status: `t` has a heading, a table and a hidden text, `o` needs OCR.
    fn document(pages: &str) -> Document {
        let mut out = DocumentBuilder::new("test/pages", &Limits::default());
        for (status, number) in pages.chars().zip(1..) {
            let place = Place::on_page(number, None);
            if status == 't' {
                out.push_at(BlockKind::Heading { level: 1 }, &format!("Page {number}"), place).unwrap();
                let rows = vec![vec!["a".into(), "b".into()], vec!["c".into(), format!("on {number}").as_str().into()]];
                out.push_table(rows, 1, place).unwrap();
                out.push_at(BlockKind::Paragraph, "aside", place.in_layer(Layer::Unplaced)).unwrap();
            }
            let status = if status == 't' { PageStatus::Text } else { PageStatus::NeedsOcr };
            out.push_page(PageInfo { number, width: 10.0, height: 20.0, status });
        }
        out.finish().unwrap()
    }

    #[test]
    fn text_goes_where_its_page_is() {
        let seen = |document: &Document| -> Vec<String> {
            let path = |b| document.heading_path(b).join("/");
            document.blocks.iter().map(|b| format!("{}>{}", path(b), document.block_text(b))).collect()
        };
        let read = |page: u32| [">Seen".to_owned(), format!("Seen>test/pages of 4 bytes, page {page}")];
        let page = |page: u32| [format!(">Page {page}"), format!("Page {page}>a\tb\nc\ton {page}")];
        let under = |page: u32, lines: [String; 2]| {
            lines.map(|line| format!("Page {page}{}{line}", if line.starts_with('>') { "" } else { "/" }))
        };
        let aside = || ">aside".to_owned();
        let cases: [(&str, Vec<String>); 4] = [
            ("o", read(1).to_vec()),
            ("ot", [&read(1)[..], &page(2), &[aside()]].concat()),
            ("tto", [&page(1)[..], &page(2), &under(2, read(3)), &[aside(), aside()]].concat()),
            ("toott", [&page(1)[..], &under(1, read(3)), &page(4), &page(5), &[aside(), aside(), aside()]].concat()),
        ];
        for (pages, expected) in cases {
            let document = complete(&Fake, b"1234", &ParseOptions::default(), Ok(document(pages))).unwrap();
            document.check().unwrap();
            assert_eq!(seen(&document), expected, "{pages}");
            let refused = pages.chars().zip(1..).filter(|(status, n)| *status == 'o' && n % 2 == 0).count();
            let needing = document.pages.iter().filter(|page| page.status == PageStatus::NeedsOcr).count();
            assert_eq!((document.warnings.len(), needing), (refused, refused), "{pages}: {:?}", document.warnings);
        }
    }

    #[test]
    fn an_image_is_one_page() {
        let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR";
        let options = ParseOptions::default();
        let parsed = formats::parse(png, &options);
        assert_eq!(parsed.as_ref().map_err(DocumentError::code), Err("needs_ocr"));
        let document = complete(&Fake, png, &options, parsed).unwrap();
        assert_eq!(document.text, "Seen\n\nimage/png of 16 bytes, page 1");
        assert_eq!(document.metadata.bytes, 16);
        let status = PageStatus::Recognised { by: "fake 1".to_owned() };
        assert_eq!(document.pages, [PageInfo { number: 1, width: 8.0, height: 9.0, status }]);
        assert_eq!(document.blocks[1].bbox, Some(BBox { x0: 1.0, y0: 2.0, x1: 3.0, y1: 4.0 }));
    }

    #[test]
    fn what_it_reads_is_bounded() {
        let limits = Limits { text_bytes: 40, ..Limits::default() };
        let options = ParseOptions { limits, ..ParseOptions::default() };
        let error = complete(&Fake, b"1234", &options, Ok(document("oot"))).unwrap_err();
        assert_eq!(error, DocumentError::LimitExceeded { limit: Limit::TextBytes, value: 40 });
    }
}
