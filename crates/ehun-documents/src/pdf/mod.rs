//! PDF.

use crate::{Document, DocumentError, Limits};

/// Parses a PDF.
pub fn parse(_bytes: &[u8], _limits: &Limits) -> Result<Document, DocumentError> {
    Err(DocumentError::unsupported("PDF"))
}
