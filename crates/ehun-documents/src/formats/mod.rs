//! One parser for each format, chosen by what the bytes are.
//!
//! Everything in here runs on untrusted bytes and therefore in a worker process; see [`crate::worker`].

mod container;
pub(crate) mod encoding;
mod html;
mod mail;
mod markdown;
mod office;
mod sniff;
mod text;
mod xml;

use serde::{Deserialize, Serialize};

pub use self::sniff::Format;
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
    let format = sniff::sniff(bytes, options.file_name.as_deref());
    let mut document = match format {
        Format::Pdf => crate::pdf::parse(bytes, &options.limits)?,
        Format::Html => html::parse(bytes, options)?,
        Format::Markdown => markdown::parse(bytes, options)?,
        Format::Text => text::parse(bytes, options)?,
        Format::Code(language) => text::parse_code(bytes, language, options)?,
        Format::Docx => office::parse_docx(bytes, options)?,
        Format::Mail => mail::parse(bytes, options)?,
        Format::Mbox => mail::parse_mbox(bytes, options)?,
        Format::Image(name) => return Err(DocumentError::NeedsOcr { format: name }),
        Format::Other(name) => return Err(DocumentError::unsupported(&name)),
    };
    if document.blocks.is_empty() && document.children.is_empty() && document.pages.is_empty() {
        return Err(DocumentError::Empty);
    }
    document.metadata.bytes = size;
    document.metadata.hash = blake3::hash(bytes).to_hex().to_string();
    Ok(document)
}
