//! The files of a job, in one fixed order, found as they are needed.

use std::cmp::Ordering;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::JobError;
use crate::sort::{Sorted, Sorter};

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

/// A name so that the order of bytes is that of [`order`].
fn sort_key(name: &str) -> Vec<u8> {
    name.bytes().map(|byte| if byte == b'/' { 0 } else { byte }).collect()
}

fn name_of_key(mut key: Vec<u8>) -> String {
    key.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b'/');
    String::from_utf8_lossy(&key).into_owned()
}

#[cfg(unix)]
mod path_bytes {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::{Path, PathBuf};

    pub(super) fn of(path: &Path) -> Vec<u8> {
        path.as_os_str().as_bytes().to_vec()
    }

    pub(super) fn path(bytes: Vec<u8>) -> PathBuf {
        OsString::from_vec(bytes).into()
    }
}

/// Elsewhere a name that is not Unicode is not found again: it becomes a row with that error.
#[cfg(not(unix))]
mod path_bytes {
    use std::path::{Path, PathBuf};

    pub(super) fn of(path: &Path) -> Vec<u8> {
        path.to_string_lossy().into_owned().into_bytes()
    }

    pub(super) fn path(bytes: Vec<u8>) -> PathBuf {
        String::from_utf8_lossy(&bytes).into_owned().into()
    }
}

/// Memory for the names of a folder; what is more is sorted in temporary files.
const LISTING_BYTES: usize = 2 << 20;

/// Walks the inputs in the order of [`order`]. Holds some names of one folder for each level that it is inside of. Files and
/// folders whose names begin with a dot are left out, unless they are given as inputs; links to folders are not followed.
pub(crate) struct Walk {
    /// Inputs that are still to come, the next last.
    roots: Vec<(PathBuf, String)>,
    /// What is still to come of the folders that it is inside of, the innermost last.
    open: Vec<Sorted>,
    skip: PathBuf,
    scratch: PathBuf,
    listing_bytes: usize,
}

impl Walk {
    /// A walk over `inputs`, leaving out the folder `skip` (the output, which may lie inside an input), with temporary files in
    /// the folder `scratch`.
    pub(crate) fn new(inputs: &[PathBuf], skip: &Path, scratch: &Path) -> Result<Self, JobError> {
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
        let has_here = open.first().is_some_and(|(_, name)| name.is_empty());
        for (path, name) in open {
            let inside = kept.last().is_some_and(|(_, above)| {
                let here = has_here && !name.starts_with(['/', '.']);
                let below = name.strip_prefix(above.as_str()).is_some_and(|rest| rest.starts_with('/'));
                above == &name || here || (below && !above.is_empty())
            });
            if !inside {
                kept.push((path, name));
            }
        }
        kept.reverse();
        Ok(Self {
            roots: kept,
            open: Vec::new(),
            skip: fs::canonicalize(skip).unwrap_or_else(|_| skip.to_owned()),
            scratch: scratch.to_owned(),
            listing_bytes: LISTING_BYTES,
        })
    }

    fn pop(&mut self) -> Result<Option<(PathBuf, String)>, JobError> {
        while let Some(folder) = self.open.last_mut() {
            if let Some(entry) = folder.next() {
                let (key, path) = entry?;
                return Ok(Some((path_bytes::path(path), name_of_key(key))));
            }
            self.open.pop();
        }
        Ok(self.roots.pop())
    }

    fn step(&mut self) -> Result<Option<SourceFile>, JobError> {
        while let Some((path, name)) = self.pop()? {
            let failed = |path, name, error| Ok(Some(SourceFile { path, name, error: Some(error) }));
            let metadata = match fs::metadata(&path) {
                Ok(metadata) => metadata,
                Err(error) => return failed(path, name, error),
            };
            if !metadata.is_dir() {
                return Ok(Some(SourceFile { path, name, error: None }));
            }
            if fs::canonicalize(&path).is_ok_and(|canonical| canonical == self.skip) {
                continue;
            }
            let mut sorter = Sorter::new(&self.scratch, self.listing_bytes);
            let mut add = |path: &Path, name: &str| sorter.add(&sort_key(name), &path_bytes::of(path));
            match list(&path, &name, &mut add)? {
                Ok(()) => {}
                Err(error) => return failed(path, name, error),
            }
            if name.is_empty() {
                // What lies in the working folder has no name before its own, so the other inputs stand among it.
                for (path, name) in self.roots.drain(..) {
                    add(&path, &name)?;
                }
            }
            self.open.push(sorter.finish()?);
        }
        Ok(None)
    }
}

/// What lies in a folder, each with its name; the inner error is the folder's.
fn list(
    folder: &Path,
    name: &str,
    add: &mut dyn FnMut(&Path, &str) -> Result<(), JobError>,
) -> Result<std::io::Result<()>, JobError> {
    let read = match fs::read_dir(folder) {
        Ok(read) => read,
        Err(error) => return Ok(Err(error)),
    };
    for entry in read {
        let (entry, kind) = match entry.and_then(|entry| entry.file_type().map(|kind| (entry, kind))) {
            Ok(entry) => entry,
            Err(error) => return Ok(Err(error)),
        };
        let path = entry.path();
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        let linked_folder = kind.is_symlink() && path.is_dir();
        let special = !kind.is_dir() && !kind.is_file() && !kind.is_symlink();
        if hidden || linked_folder || special {
            continue;
        }
        let last = entry.file_name().to_string_lossy().into_owned();
        add(&path, &if name.is_empty() { last } else { format!("{name}/{last}") })?;
    }
    Ok(Ok(()))
}

impl Iterator for Walk {
    /// An error ends the job: the walk cannot go on.
    type Item = Result<SourceFile, JobError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step().transpose()
    }
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
        for budget in [0, LISTING_BYTES] {
            let mut walk = Walk::new(&inputs, &root.join("out"), root).unwrap();
            walk.listing_bytes = budget;
            let names: Vec<String> =
                walk.map(|file| file.unwrap().path.strip_prefix(root).unwrap().display().to_string()).collect();
            assert_eq!(names, ["a/x/y.txt", "a/z.txt", "b/1.txt", "b/2.txt", "b.txt"]);
        }
        assert!(matches!(Walk::new(&[root.join("none")], root, root), Err(JobError::NoInput { .. })));
    }

    #[test]
    fn the_working_folder_and_others_come_in_one_order() {
        let folder = tempfile::tempdir().unwrap();
        let inputs = [PathBuf::from("."), PathBuf::from(".."), folder.path().to_owned()];
        fs::write(folder.path().join("x.txt"), "").unwrap();
        let walk = Walk::new(&inputs, &folder.path().join("out"), folder.path()).unwrap();
        let names: Vec<String> = walk.take(200).map(|file| file.unwrap().name).collect();
        assert!(names[0].ends_with("/x.txt") && names[1].starts_with("../"), "{names:?}");
        assert!(names.windows(2).all(|pair| order(&pair[0], &pair[1]).is_lt()), "{names:?}");
    }

    #[test]
    fn names_are_plain() {
        for (path, want) in [("./a/./b/", "a/b"), (".", ""), ("/x/y", "/x/y"), ("../up", "../up")] {
            assert_eq!(name_of(Path::new(path)), want);
        }
    }
}
