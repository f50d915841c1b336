//! One parser for each format, chosen by what the bytes are.
//!
//! Everything in here runs on untrusted bytes and therefore in a worker process; see [`crate::worker`].

mod archive;
mod container;
mod data;
pub(crate) mod encoding;
mod epub;
mod html;
mod mail;
mod markdown;
mod office;
mod ole;
mod rtf;
mod sniff;
mod text;
mod xml;

use serde::{Deserialize, Serialize};

use self::sniff::Format;
use crate::error::DocumentError;
use crate::limits::Limits;
use crate::model::Document;

/// What a caller may say about a document.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ParseOptions {
    /// Name of the file: decides between formats that look alike in their bytes (Markdown, source code, CSV).
    pub file_name: Option<String>,
    /// The field of JSON objects that holds their text; all strings if `None`.
    pub text_field: Option<String>,
    /// Bounds on what it may cost.
    pub limits: Limits,
}

/// Parses bytes of any supported format, in this process. For bytes that are not trusted use
/// [`WorkerPool::parse`](crate::WorkerPool::parse).
///
/// # Errors
/// See [`DocumentError`]; a document whose blocks hold no text at all, no children and no pages is
/// [`DocumentError::Empty`].
pub fn parse(bytes: &[u8], options: &ParseOptions) -> Result<Document, DocumentError> {
    let size = bytes.len() as u64;
    if size > options.limits.input_bytes {
        return Err(DocumentError::TooLarge { bytes: size, limit: options.limits.input_bytes });
    }
    if bytes.is_empty() {
        return Err(DocumentError::Empty);
    }
    let format = sniff::sniff(bytes, options.file_name.as_deref(), &options.limits);
    let document = match format {
        Format::Pdf => crate::pdf::parse(bytes, &options.limits)?,
        Format::Html => html::parse(bytes, options)?,
        Format::Markdown => markdown::parse(bytes, options)?,
        Format::Text => text::parse(bytes, options)?,
        Format::Code(language) => text::parse_code(bytes, language, options)?,
        Format::Docx => office::parse_docx(bytes, options)?,
        Format::Pptx => office::parse_pptx(bytes, options)?,
        Format::Xlsx => office::parse_sheets(bytes, office::XLSX, options)?,
        Format::Odt => office::parse_odf(bytes, office::ODT, options)?,
        Format::Odp => office::parse_odf(bytes, office::ODP, options)?,
        Format::Ods => office::parse_sheets(bytes, office::ODS, options)?,
        Format::Doc => ole::parse_doc(bytes, options)?,
        Format::Ppt => ole::parse_ppt(bytes, options)?,
        Format::Xls => office::parse_sheets(bytes, office::XLS, options)?,
        Format::Msg => ole::parse_msg(bytes, options)?,
        Format::Rtf => rtf::parse(bytes, options)?,
        Format::Epub => epub::parse(bytes, options)?,
        Format::Csv => data::parse_csv(bytes, options)?,
        // What begins like JSON and is none is text all the same.
        Format::Json => data::parse_json(bytes, options).unwrap_or_else(|| text::parse(bytes, options))?,
        Format::Xml => data::parse_xml(bytes, options)?,
        Format::Mail => mail::parse(bytes, options)?,
        Format::Mbox => mail::parse_mbox(bytes, options)?,
        Format::Zip => archive::parse_zip(bytes, options)?,
        Format::Tar => archive::parse_tar(bytes, options)?,
        Format::Gzip => archive::parse_gzip(bytes, options)?,
        Format::Image(name) => return Err(DocumentError::NeedsOcr { format: name }),
        Format::Encrypted(name) => return Err(DocumentError::Encrypted { format: name.to_owned() }),
        Format::Other(name) => return Err(DocumentError::unsupported(&name)),
    };
    if document.blocks.is_empty() && document.children.is_empty() && document.pages.is_empty() {
        return Err(DocumentError::Empty);
    }
    Ok(described(document, bytes))
}

/// Adds what is known of any document: its language, if it does not say so itself, and size and hash of its bytes.
pub(crate) fn described(mut document: Document, bytes: &[u8]) -> Document {
    if document.metadata.language.is_none() {
        document.metadata.language = language(&document);
    }
    document.metadata.bytes = bytes.len() as u64;
    document.metadata.hash = blake3::hash(bytes).to_hex().to_string();
    document
}

/// MIME type of an image.
pub(crate) fn media_type(bytes: &[u8]) -> String {
    file_format::FileFormat::from_bytes(bytes).media_type().to_owned()
}

/// The language of the first 8 KiB of content, as an ISO 639-3 code, if it is plain to see.
fn language(document: &Document) -> Option<String> {
    let mut sample = String::new();
    for block in document.blocks.iter().filter(|b| b.is_content()) {
        sample.extend(document.block_text(block).chars().take(8192usize.saturating_sub(sample.len())));
        sample.push(' ');
        if sample.len() >= 8192 {
            break;
        }
    }
    let info = whatlang::detect(&sample)?;
    info.is_reliable().then(|| info.lang().code().to_owned())
}
