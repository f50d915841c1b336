//! ZIP containers, bounded: entries, unpacked bytes, compression ratio.

use std::collections::HashMap;
use std::io::{Cursor, Read};

use zip::ZipArchive;
use zip::result::ZipError;

use crate::error::{DocumentError, Limit};
use crate::limits::Limits;

/// Unpacked sizes below this are not looked at for their ratio: a few kilobytes of zeros harm nobody.
const RATIO_FROM: u64 = 1 << 20;

/// A ZIP file in memory.
pub(crate) struct Container<'c> {
    archive: ZipArchive<Cursor<&'c [u8]>>,
    format: &'static str,
    limits: &'c Limits,
    unpacked: u64,
    /// Index by name, in lower case with forward slashes.
    names: HashMap<String, usize>,
}

/// Name and kind of an entry.
pub(crate) struct Entry {
    pub name: String,
    pub is_dir: bool,
}

impl<'c> Container<'c> {
    /// Reads the directory; `format` names the document in errors.
    pub fn open(bytes: &'c [u8], format: &'static str, limits: &'c Limits) -> Result<Self, DocumentError> {
        let archive = ZipArchive::new(Cursor::new(bytes)).map_err(|e| DocumentError::malformed(format, e))?;
        if archive.len() as u64 > limits.archive_entries {
            return Err(DocumentError::LimitExceeded { limit: Limit::ArchiveEntries, value: limits.archive_entries });
        }
        let name = |i| archive.name_for_index(i).and_then(Result::ok).map(|name| (plain(&name), i));
        let names = (0..archive.len()).filter_map(name).collect();
        Ok(Container { archive, format, limits, unpacked: 0, names })
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.archive.len()
    }

    /// What the directory says about an entry.
    pub fn entry(&mut self, index: usize) -> Result<Entry, DocumentError> {
        let format = self.format;
        let file = self.archive.by_index_raw(index).map_err(|e| DocumentError::malformed(format, e))?;
        let name = file.name().map_err(|e| DocumentError::malformed(format, e))?.into_owned();
        Ok(Entry { is_dir: name.ends_with('/'), name })
    }

    /// Unpacks an entry by name, `None` if there is none. A leading slash does not count, nor does case.
    pub fn read(&mut self, name: &str) -> Result<Option<Vec<u8>>, DocumentError> {
        let index = self.names.get(&plain(name)).copied();
        index.map(|i| self.read_index(i)).transpose()
    }

    /// Unpacks an entry.
    pub fn read_index(&mut self, index: usize) -> Result<Vec<u8>, DocumentError> {
        let format = self.format;
        let limits = self.limits;
        let file = self.archive.by_index(index).map_err(|e| match e {
            ZipError::InvalidPassword => DocumentError::Encrypted { format: format.to_owned() },
            ZipError::UnsupportedArchive(ZipError::PASSWORD_REQUIRED) => {
                DocumentError::Encrypted { format: format.to_owned() }
            }
            e => DocumentError::malformed(format, e),
        })?;
        let packed = file.compressed_size().max(1);
        let by_ratio = packed.saturating_mul(limits.compression_ratio).max(RATIO_FROM);
        let left = limits.unpacked_bytes.saturating_sub(self.unpacked);
        let mut bytes = Vec::new();
        // Sizes in the directory are claims; what counts is what comes out.
        let outcome = file.take(left.min(by_ratio).saturating_add(1)).read_to_end(&mut bytes);
        let size = bytes.len() as u64;
        if size > by_ratio {
            return Err(DocumentError::LimitExceeded {
                limit: Limit::CompressionRatio,
                value: limits.compression_ratio,
            });
        }
        if size > left {
            return Err(DocumentError::LimitExceeded { limit: Limit::UnpackedBytes, value: limits.unpacked_bytes });
        }
        // A damaged end does not take away what came before it; the caller's parser decides whether that is enough.
        if outcome.is_err() && bytes.is_empty() {
            return Err(DocumentError::malformed(format, "an entry cannot be unpacked"));
        }
        self.unpacked += size;
        Ok(bytes)
    }
}

/// A name as it is looked up: writers differ in slashes and in case.
fn plain(name: &str) -> String {
    name.replace('\\', "/").trim_start_matches('/').to_lowercase()
}
