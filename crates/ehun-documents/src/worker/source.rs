//! Where a document's bytes come from, and how they get into a worker's pipe.

use std::fs::File;
use std::io::{self, Read, Write};
use std::process::ChildStdin;

/// Bytes of a document that are read and written at a time, below the size from which the allocator maps fresh pages.
const CHUNK: u64 = 64 << 10;

pub(super) const SHORTER: &str = "it became shorter while it was read";

/// A document's bytes, read once from front to end.
pub(super) enum Source<'s> {
    Bytes(&'s [u8]),
    File(File),
}

/// Why not all bytes went into a pipe.
pub(super) enum SendError {
    /// The document could not be read to its end.
    Source(String),
    /// The worker takes no more.
    Pipe,
}

impl Read for Source<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Source::Bytes(bytes) => bytes.read(into),
            Source::File(file) => file.read(into),
        }
    }
}

impl Source<'_> {
    /// Writes the next `left` bytes into a worker's pipe.
    pub fn send(&mut self, pipe: &mut ChildStdin, left: u64) -> Result<(), SendError> {
        let left = match self {
            Source::Bytes(bytes) => {
                let n = left.min(bytes.len() as u64) as usize;
                pipe.write_all(&bytes[..n]).map_err(|_| SendError::Pipe)?;
                *bytes = &bytes[n..];
                left - n as u64
            }
            #[cfg(target_os = "linux")]
            Source::File(file) => splice(file, pipe, left)?,
            #[cfg(not(target_os = "linux"))]
            Source::File(_) => left,
        };
        self.copy(pipe, left)
    }

    fn copy(&mut self, pipe: &mut ChildStdin, mut left: u64) -> Result<(), SendError> {
        let mut buffer = vec![0; left.min(CHUNK) as usize];
        while left > 0 {
            let want = left.min(buffer.len() as u64) as usize;
            match self.read(&mut buffer[..want]) {
                Ok(0) => return Err(SendError::Source(SHORTER.to_owned())),
                Ok(n) => {
                    pipe.write_all(&buffer[..n]).map_err(|_| SendError::Pipe)?;
                    left -= n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(SendError::Source(e.to_string())),
            }
        }
        Ok(())
    }
}

/// Lets the kernel put a file's pages into a pipe, which saves two of three copies. The number of bytes that it did not:
/// none, unless the file ends or is of a kind that cannot be spliced or read; reading it will tell.
#[cfg(target_os = "linux")]
fn splice(file: &File, pipe: &ChildStdin, mut left: u64) -> Result<u64, SendError> {
    use std::os::fd::AsRawFd;
    while left > 0 {
        let (none, most) = (std::ptr::null_mut(), left.min(1 << 30) as usize);
        // SAFETY: both descriptors are open for as long as their owners are borrowed; without offsets no memory is touched.
        let moved = unsafe { libc::splice(file.as_raw_fd(), none, pipe.as_raw_fd(), none, most, 0) };
        match u64::try_from(moved) {
            Ok(0) => break,
            Ok(n) => left -= n.min(left),
            Err(_) => match io::Error::last_os_error().kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::BrokenPipe => return Err(SendError::Pipe),
                _ => break,
            },
        }
    }
    Ok(left)
}
