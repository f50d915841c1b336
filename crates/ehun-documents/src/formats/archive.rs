//! Archives: every member is a child document, nothing is written to disk.

use std::io::Read;

use flate2::read::MultiGzDecoder;

use crate::builder::DocumentBuilder;
use crate::error::{DocumentError, Limit};
use crate::formats::ParseOptions;
use crate::formats::container::Container;
use crate::limits::Limits;
use crate::model::{Child, Document};

/// ZIP.
pub(crate) fn parse_zip(bytes: &[u8], options: &ParseOptions) -> Result<Document, DocumentError> {
    let limits = &options.limits;
    let mut container = Container::open(bytes, "ZIP archive", limits)?;
    let mut out = DocumentBuilder::new("application/zip", limits);
    for index in 0..container.len() {
        let entry = container.entry(index)?;
        if entry.is_dir || is_clutter(&entry.name) {
            continue;
        }
        match container.read_index(index) {
            Ok(bytes) if bytes.is_empty() => {}
            Ok(bytes) => out.push_child(Child { name: entry.name, media_type: None, bytes })?,
            Err(e @ DocumentError::LimitExceeded { .. }) => return Err(e),
            // One member that is encrypted or damaged does not take the others with it.
            Err(e) => out.warn(format!("{}: {e}", entry.name)),
        }
    }
    out.finish()
}

/// TAR.
pub(crate) fn parse_tar(bytes: &[u8], options: &ParseOptions) -> Result<Document, DocumentError> {
    let limits = &options.limits;
    let mut out = DocumentBuilder::new("application/x-tar", limits);
    let mut archive = tar::Archive::new(bytes);
    let malformed = |e: std::io::Error| DocumentError::malformed("TAR archive", e);
    let mut entries = 0;
    for entry in archive.entries().map_err(malformed)? {
        entries += 1;
        if entries > limits.archive_entries {
            return Err(DocumentError::LimitExceeded { limit: Limit::ArchiveEntries, value: limits.archive_entries });
        }
        let mut entry = match entry {
            Ok(entry) => entry,
            // After a damaged header nothing else can be found; what came before stands.
            Err(e) => {
                out.warn(format!("the archive is damaged ({e}); members after that are missing"));
                break;
            }
        };
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        if !entry.header().entry_type().is_file() || is_clutter(&name) {
            continue;
        }
        let mut bytes = Vec::new();
        // A sparse member claims more than the archive has; the limit on children holds for what is read.
        entry.by_ref().take(limits.child_bytes.saturating_add(1)).read_to_end(&mut bytes).map_err(malformed)?;
        if !bytes.is_empty() {
            out.push_child(Child { name, media_type: None, bytes })?;
        }
    }
    out.finish()
}

/// GZIP: a TAR within is read through, anything else is the only child.
pub(crate) fn parse_gzip(bytes: &[u8], options: &ParseOptions) -> Result<Document, DocumentError> {
    let unpacked = gunzip(bytes, &options.limits)?;
    if is_tar(&unpacked) {
        return parse_tar(&unpacked, options);
    }
    let mut out = DocumentBuilder::new("application/gzip", &options.limits);
    let name = options.file_name.as_deref().unwrap_or("content");
    let name = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".GZ")).unwrap_or(name).to_owned();
    out.push_child(Child { name, media_type: None, bytes: unpacked })?;
    out.finish()
}

fn gunzip(bytes: &[u8], limits: &Limits) -> Result<Vec<u8>, DocumentError> {
    let by_ratio = (bytes.len() as u64).saturating_mul(limits.compression_ratio);
    let most = by_ratio.min(limits.unpacked_bytes);
    let mut unpacked = Vec::new();
    let outcome = MultiGzDecoder::new(bytes).take(most.saturating_add(1)).read_to_end(&mut unpacked);
    if unpacked.len() as u64 > most {
        return Err(match by_ratio < limits.unpacked_bytes {
            true => DocumentError::LimitExceeded { limit: Limit::CompressionRatio, value: limits.compression_ratio },
            false => DocumentError::LimitExceeded { limit: Limit::UnpackedBytes, value: limits.unpacked_bytes },
        });
    }
    match outcome {
        Err(e) if unpacked.is_empty() => Err(DocumentError::malformed("GZIP file", e)),
        _ => Ok(unpacked),
    }
}

/// The mark of POSIX and GNU archives.
pub(crate) fn is_tar(bytes: &[u8]) -> bool {
    bytes.get(257..262) == Some(b"ustar")
}

/// What file managers leave behind.
fn is_clutter(name: &str) -> bool {
    name.starts_with("__MACOSX/") || name.ends_with(".DS_Store") || name.ends_with("Thumbs.db")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zip(members: &[(&str, &[u8])]) -> Vec<u8> {
        let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
        for (name, bytes) in members {
            writer.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
            writer.write_all(bytes).unwrap();
        }
        writer.finish().unwrap().into_inner()
    }

    fn names(document: &Document) -> Vec<&str> {
        document.children.iter().map(|c| c.name.as_str()).collect()
    }

    #[test]
    fn members_are_children() {
        let options = ParseOptions::default();
        let document = parse_zip(&zip(&[("a/b.txt", b"one"), ("empty", b""), ("__MACOSX/x", b"y")]), &options).unwrap();
        assert_eq!(names(&document), ["a/b.txt"]);
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_ustar();
        header.set_size(3);
        tar.append_data(&mut header, "c.txt", b"two".as_slice()).unwrap();
        let tar = tar.into_inner().unwrap();
        assert_eq!(names(&parse_tar(&tar, &options).unwrap()), ["c.txt"]);
        assert_eq!(names(&parse_gzip(&gzip(&tar), &options).unwrap()), ["c.txt"]);
        let named = ParseOptions { file_name: Some("d.txt.gz".to_owned()), ..options };
        assert_eq!(names(&parse_gzip(&gzip(b"three"), &named).unwrap()), ["d.txt"]);
    }

    #[test]
    fn bombs_are_defused() {
        let zeros = vec![0; 64 << 20];
        let options = ParseOptions::default();
        for error in [
            parse_gzip(&gzip(&zeros), &options).unwrap_err(),
            parse_zip(&zip(&[("bomb", &zeros)]), &options).unwrap_err(),
        ] {
            let limit = Limit::CompressionRatio;
            assert_eq!(error, DocumentError::LimitExceeded { limit, value: options.limits.compression_ratio });
        }
        let mut few = ParseOptions::default();
        few.limits.archive_entries = 1;
        let error = parse_zip(&zip(&[("a", b"1"), ("b", b"2")]), &few).unwrap_err();
        assert_eq!(error, DocumentError::LimitExceeded { limit: Limit::ArchiveEntries, value: 1 });
    }
}
