//! Compound files (OLE 2): the office formats before 2007, and Outlook's messages.

mod compressed_rtf;
mod doc;
mod doc_format;
mod msg;
mod ppt;
mod xls_records;

use std::io::{Cursor, Read};

use cfb::CompoundFile;

pub(crate) use self::doc::parse as parse_doc;
pub(crate) use self::msg::parse as parse_msg;
pub(crate) use self::ppt::parse as parse_ppt;
pub(crate) use self::xls_records::beside as xls_beside;
use crate::builder::DocumentBuilder;
use crate::error::DocumentError;
use crate::limits::Limits;

/// The first bytes of every compound file.
pub(crate) const MAGIC: &[u8] = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1";

/// What a compound file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Doc,
    Ppt,
    Xls,
    Msg,
    /// OOXML with a password.
    EncryptedPackage,
    Other,
}

/// A compound file in memory.
pub(crate) struct Ole<'o> {
    file: CompoundFile<Cursor<&'o [u8]>>,
    limits: &'o Limits,
}

impl<'o> Ole<'o> {
    pub fn open(bytes: &'o [u8], limits: &'o Limits) -> Result<Self, DocumentError> {
        let file = CompoundFile::open(Cursor::new(bytes)).map_err(|e| DocumentError::malformed("compound file", e))?;
        Ok(Ole { file, limits })
    }

    pub fn kind(&self) -> Kind {
        let kinds = [
            ("EncryptedPackage", Kind::EncryptedPackage),
            ("WordDocument", Kind::Doc),
            ("PowerPoint Document", Kind::Ppt),
            ("Workbook", Kind::Xls),
            ("Book", Kind::Xls),
            ("__properties_version1.0", Kind::Msg),
        ];
        let found = kinds.into_iter().find(|(name, _)| self.file.is_stream(name));
        found.map_or(Kind::Other, |(_, kind)| kind)
    }

    /// A stream's bytes, `None` if there is none of the name or it cannot be read.
    pub fn stream(&mut self, path: &str) -> Option<Vec<u8>> {
        let mut stream = self.file.open_stream(path).ok()?;
        if stream.len() > self.limits.unpacked_bytes {
            return None;
        }
        let mut bytes = Vec::new();
        // What came before a broken sector is kept.
        let _ = stream.read_to_end(&mut bytes);
        Some(bytes)
    }

    /// Names of what is directly in a storage.
    pub fn names(&self, storage: &str) -> Vec<String> {
        let entries = self.file.read_storage(storage);
        entries.map(|entries| entries.map(|e| e.name().to_owned()).collect()).unwrap_or_default()
    }

    /// Paths of all that is below a storage, storages before what is in them, and whether each is one.
    pub fn below(&self, storage: &str) -> Vec<(String, bool)> {
        let entries = self.file.walk_storage(storage).into_iter().flatten().filter(|e| !e.is_root());
        let path = |e: &cfb::Entry| e.path().to_string_lossy().into_owned();
        let all = entries.map(|e| (path(&e), e.is_storage()));
        all.filter(|(path, _)| path != storage.trim_end_matches('/')).take(10_000).collect()
    }

    /// Title, subject, author and keywords of the summary stream.
    pub fn properties(&mut self, out: &mut DocumentBuilder) {
        let Some(bytes) = self.stream("\u{5}SummaryInformation") else { return };
        let number = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?) as usize);
        let read = || -> Option<Vec<(usize, String)>> {
            let section = number(44)?;
            let count = number(section + 4)?.min(100);
            let mut found = Vec::new();
            for n in 0..count {
                let (id, offset) = (number(section + 8 + n * 8)?, number(section + 12 + n * 8)?);
                let at = section.checked_add(offset)?;
                // 30: a string in the code page of the system that wrote it.
                if number(at)? == 30 {
                    let value = bytes.get(at + 8..(at + 8).checked_add(number(at + 4)?)?)?;
                    let value = crate::formats::encoding::decode(value, None).text;
                    found.push((id, value.trim_end_matches('\0').trim().to_owned()));
                }
            }
            Some(found)
        };
        let metadata = out.metadata();
        for (id, value) in read().unwrap_or_default() {
            match id {
                _ if value.is_empty() => {}
                2 => metadata.title = Some(value),
                3 => metadata.subject = Some(value),
                4 => metadata.authors = vec![value],
                5 => metadata.keywords = vec![value],
                _ => {}
            }
        }
    }
}

/// A little-endian number, 0 past the end.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at.saturating_add(2)).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]))
}

/// A little-endian number, 0 past the end.
fn u32_at(bytes: &[u8], at: usize) -> usize {
    bytes.get(at..at.saturating_add(4)).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize)
}

fn utf16(bytes: &[u8]) -> String {
    let units = bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
}

fn windows_1252(bytes: &[u8]) -> String {
    encoding_rs::WINDOWS_1252.decode_without_bom_handling(bytes).0.into_owned()
}
