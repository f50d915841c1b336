//! The files of a job, in one fixed order, found as they are needed.

use std::cmp::Ordering;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::JobError;

/// A file of the job, or a folder that could not be read.
#[derive(Debug)]
pub(crate) struct SourceFile {
    /// Where it is.
    pub(crate) path: PathBuf,
    /// Its path as text, with `/` between the parts: what the output names it by.
    pub(crate) name: String,
    /// Why it cannot be read, where that is known already.
    pub(crate) error: Option<std::io::Error>,
}

/// The order of sources in every output: part by part of the path, so that the files of a folder stand together.
pub(crate) fn order(a: &str, b: &str) -> Ordering {
    a.split('/').cmp(b.split('/'))
}

/// A short name of a source: 16 bytes of the blake3 of its path.
pub(crate) fn key(name: &str) -> [u8; 16] {
    truncated(&blake3::hash(name.as_bytes()))
}

pub(crate) fn truncated(hash: &blake3::Hash) -> [u8; 16] {
    let mut short = [0; 16];
    short.copy_from_slice(&hash.as_bytes()[..16]);
    short
}

/// Walks the inputs in the order of [`order`]. Holds one folder's names for each level that it is inside of. Files and
/// folders whose names begin with a dot are left out, unless they are given as inputs; links to folders are not followed.
pub(crate) struct Walk {
    /// What is still to come, the next last.
    open: Vec<(PathBuf, String)>,
    skip: PathBuf,
}

impl Walk {
    /// A walk over `inputs`, leaving out the folder `skip` (the output, which may lie inside an input).
    pub(crate) fn new(inputs: &[PathBuf], skip: &Path) -> Result<Self, JobError> {
        let mut open = Vec::new();
        for input in inputs {
            if fs::symlink_metadata(input).is_err() {
                return Err(JobError::NoInput { path: input.clone() });
            }
            open.push((input.clone(), name_of(input)));
        }
        open.sort_by(|a, b| order(&a.1, &b.1));
        // An input inside another one would be walked twice.
        let mut kept: Vec<(PathBuf, String)> = Vec::new();
        for (path, name) in open {
            let inside = kept.last().is_some_and(|(_, above)| {
                let here = above.is_empty() && !name.starts_with(['/', '.']);
                above == &name || here || name.strip_prefix(above.as_str()).is_some_and(|rest| rest.starts_with('/'))
            });
            if !inside {
                kept.push((path, name));
            }
        }
        kept.reverse();
        Ok(Self { open: kept, skip: fs::canonicalize(skip).unwrap_or_else(|_| skip.to_owned()) })
    }
}

impl Iterator for Walk {
    type Item = SourceFile;

    fn next(&mut self) -> Option<SourceFile> {
        loop {
            let (path, name) = self.open.pop()?;
            let failed = |path, name, error| Some(SourceFile { path, name, error: Some(error) });
            let metadata = match fs::metadata(&path) {
                Ok(metadata) => metadata,
                Err(error) => return failed(path, name, error),
            };
            if !metadata.is_dir() {
                return Some(SourceFile { path, name, error: None });
            }
            if fs::canonicalize(&path).is_ok_and(|canonical| canonical == self.skip) {
                continue;
            }
            match entries(&path, &name) {
                Ok(entries) => self.open.extend(entries.into_iter().rev()),
                Err(error) => return failed(path, name, error),
            }
        }
    }
}

fn entries(folder: &Path, name: &str) -> std::io::Result<Vec<(PathBuf, String)>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let path = entry.path();
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        let linked_folder = kind.is_symlink() && path.is_dir();
        let special = !kind.is_dir() && !kind.is_file() && !kind.is_symlink();
        if hidden || linked_folder || special {
            continue;
        }
        let last = entry.file_name().to_string_lossy().into_owned();
        entries.push((path, if name.is_empty() { last } else { format!("{name}/{last}") }));
    }
    entries.sort_by(|a, b| order(&a.1, &b.1));
    Ok(entries)
}

/// The path as text, without `.` in it and without a slash at its end.
fn name_of(path: &Path) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut root = "";
    for component in path.components() {
        match component {
            std::path::Component::CurDir => {}
            std::path::Component::RootDir => root = "/",
            other => parts.push(other.as_os_str().to_string_lossy().into_owned()),
        }
    }
    format!("{root}{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_in_order_each_once() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for file in ["b/2.txt", "b/1.txt", "b.txt", "a/x/y.txt", "a/z.txt", ".hidden/h.txt", "b/.h.txt", "out/part.txt"]
        {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let inputs = [root.join("b"), root.to_owned(), root.join("a/x/y.txt")];
        let names: Vec<String> = Walk::new(&inputs, &root.join("out"))
            .unwrap()
            .map(|file| file.path.strip_prefix(root).unwrap().display().to_string())
            .collect();
        assert_eq!(names, ["a/x/y.txt", "a/z.txt", "b/1.txt", "b/2.txt", "b.txt"]);
        assert!(matches!(Walk::new(&[root.join("none")], root), Err(JobError::NoInput { .. })));
    }

    #[test]
    fn names_are_plain() {
        for (path, want) in [("./a/./b/", "a/b"), (".", ""), ("/x/y", "/x/y"), ("../up", "../up")] {
            assert_eq!(name_of(Path::new(path)), want);
        }
    }
}
