//! Office formats.

mod docx;
mod opc;

pub(crate) use docx::parse as parse_docx;
