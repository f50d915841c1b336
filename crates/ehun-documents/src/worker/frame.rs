//! What goes over the pipes: frames of a length, a checksum and a payload.
//!
//! ```text
//! b"EHUNdoc1"  length u64 LE  first 8 bytes of blake3(payload)  payload
//! ```
//! A worker that prints on the pipe, or that died in the middle of an answer, is noticed by the magic, the length or
//! the checksum. The document's bytes follow a request's frame bare: their length is in the request.

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::DocumentError;
use crate::formats::ParseOptions;
use crate::model::Document;

const MAGIC: &[u8; 8] = b"EHUNdoc1";
/// Bytes before the payload.
const HEAD: usize = 24;
/// Bytes that are made room for before any of them has come.
const TRUSTED: u64 = 1 << 20;

/// Main process to worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub options: ParseOptions,
    /// Bytes of the document, which follow the frame.
    pub bytes: u64,
}

/// Worker to main process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Response {
    pub result: Result<Document, DocumentError>,
    /// Time that the parser took, nanoseconds.
    pub parse_nanos: u64,
    /// The worker must not be used again: its parser panicked.
    pub spent: bool,
}

/// What came instead of a frame.
#[derive(Debug)]
pub(super) enum FrameError {
    /// The other side is gone.
    Closed,
    /// Something else than a frame.
    Garbage(String),
    /// A longer frame than allowed.
    TooLong,
}

/// One frame as bytes.
pub(super) fn encode<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    let mut frame = postcard::to_extend(value, vec![0; HEAD]).map_err(io::Error::other)?;
    let (head, payload) = frame.split_at_mut(HEAD);
    head[..8].copy_from_slice(MAGIC);
    head[8..16].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    head[16..].copy_from_slice(&blake3::hash(payload).as_bytes()[..8]);
    Ok(frame)
}

/// Writes one frame, in one piece: the other side is to wake up once.
pub(super) fn write<T: Serialize>(out: &mut impl Write, value: &T) -> io::Result<()> {
    out.write_all(&encode(value)?)?;
    out.flush()
}

/// Reads one frame of at most `limit` bytes.
pub(super) fn read<T: DeserializeOwned>(input: &mut impl Read, limit: u64) -> Result<T, FrameError> {
    let mut head = [0; HEAD];
    let mut have = 0;
    while have < head.len() {
        match input.read(&mut head[have..]) {
            Ok(0) if have == 0 => return Err(FrameError::Closed),
            Ok(0) => return Err(FrameError::Garbage(format!("a frame of {have} bytes"))),
            Ok(n) => have += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(FrameError::Closed),
        }
        let magic = have.min(8);
        if head[..magic] != MAGIC[..magic] {
            return Err(FrameError::Garbage("no frame where one should begin".to_owned()));
        }
    }
    let [length, sum] = [8, 16].map(|at| u64::from_le_bytes(std::array::from_fn(|i| head[at + i])));
    if length > limit {
        return Err(FrameError::TooLong);
    }
    // Grows with what arrives: a wrong length costs little memory.
    let mut payload = Vec::with_capacity(length.min(TRUSTED) as usize);
    input.take(length).read_to_end(&mut payload).map_err(|_| FrameError::Closed)?;
    if payload.len() as u64 != length {
        return Err(FrameError::Garbage("the answer ends early".to_owned()));
    }
    if blake3::hash(&payload).as_bytes()[..8] != sum.to_le_bytes() {
        return Err(FrameError::Garbage("the checksum of the answer is wrong".to_owned()));
    }
    postcard::from_bytes(&payload).map_err(|e| FrameError::Garbage(format!("the answer cannot be read: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame() -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out, &Request { options: ParseOptions::default(), bytes: 7 }).unwrap();
        out
    }

    #[test]
    fn a_frame_comes_back() {
        let request: Request = read(&mut frame().as_slice(), 1 << 20).unwrap();
        assert_eq!(request.bytes, 7);
    }

    #[test]
    fn any_damage_is_noticed() {
        let sound = frame();
        for at in 0..sound.len() {
            let mut bad = sound.clone();
            bad[at] ^= 0x40;
            assert!(read::<Request>(&mut bad.as_slice(), 1 << 20).is_err(), "byte {at}");
            assert!(read::<Request>(&mut &sound[..at], 1 << 20).is_err(), "cut at {at}");
        }
        assert!(matches!(read::<Request>(&mut sound.as_slice(), 3), Err(FrameError::TooLong)));
    }
}
