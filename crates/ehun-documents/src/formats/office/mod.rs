//! Office formats of today: OOXML and OpenDocument.

mod beside;
mod colours;
mod docx;
mod docx_styles;
mod odf;
mod odp;
mod ods;
mod opc;
mod placeholders;
mod pptx;
mod sheets;
mod slide_order;
mod xlsb;

pub(crate) use beside::{Beside, without_codes};
pub(crate) use docx::parse as parse_docx;
pub(crate) use odf::parse as parse_odf;
pub(crate) use pptx::parse as parse_pptx;
pub(crate) use sheets::parse as parse_sheets;

/// OpenDocument text.
pub(crate) const ODT: &str = "application/vnd.oasis.opendocument.text";
/// OpenDocument presentation.
pub(crate) const ODP: &str = "application/vnd.oasis.opendocument.presentation";
/// OpenDocument spreadsheet.
pub(crate) const ODS: &str = "application/vnd.oasis.opendocument.spreadsheet";
/// Excel, 2007 and later.
pub(crate) const XLSX: &str = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet";
/// Excel before 2007.
pub(crate) const XLS: &str = "application/vnd.ms-excel";

#[cfg(test)]
mod tests;
