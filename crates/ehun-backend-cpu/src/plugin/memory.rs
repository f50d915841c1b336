//! What a plug-in is handed beside the rows: its scratch, and the rows of tables by relative position.

use std::ffi::c_void;

use ehun_backend::BackendError;

use crate::exec::Guard;
#[cfg(unix)]
use crate::guard::{Guarded, Place};

/// A line of cache: what scratch is aligned to.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Line(#[expect(dead_code, reason = "only its size and alignment count")] [u8; 64]);

/// Scratch of a call, aligned to 64 bytes.
pub(super) enum Scratch {
    Plain(Vec<Line>),
    #[cfg(unix)]
    Guarded(Option<Guarded>),
}

impl Scratch {
    pub(super) fn new(bytes: usize, guard: Guard) -> Result<Self, BackendError> {
        match guard {
            Guard::Off => Ok(Self::Plain(vec![Line([0; 64]); bytes.div_ceil(size_of::<Line>())])),
            #[cfg(unix)]
            Guard::On if bytes == 0 => Ok(Self::Guarded(None)),
            #[cfg(unix)]
            Guard::On => {
                let memory = Guarded::new("scratch", bytes.div_ceil(4), Place::Last, size_of::<Line>());
                Ok(Self::Guarded(Some(memory.map_err(BackendError::Failed)?)))
            }
        }
    }

    /// Null where there is none.
    pub(super) fn pointer(&mut self) -> *mut c_void {
        match self {
            Self::Plain(lines) if lines.is_empty() => std::ptr::null_mut(),
            Self::Plain(lines) => lines.as_mut_ptr().cast(),
            #[cfg(unix)]
            Self::Guarded(memory) => memory.as_mut().map_or(std::ptr::null_mut(), |memory| memory.as_mut_ptr().cast()),
        }
    }

    /// Whether nothing around it was written, as far as that is watched.
    pub(super) fn intact(&self) -> bool {
        match self {
            Self::Plain(_) => true,
            #[cfg(unix)]
            Self::Guarded(memory) => memory.as_ref().is_none_or(Guarded::intact),
        }
    }
}

/// The table row of each relative position.
pub(super) enum Rows {
    Plain(Vec<u32>),
    #[cfg(unix)]
    Guarded(Guarded),
}

impl Rows {
    pub(super) fn new(rows: Vec<u32>, guard: Guard) -> Result<Self, BackendError> {
        match guard {
            #[cfg(unix)]
            Guard::On if !rows.is_empty() => {
                let mut memory =
                    Guarded::new("relative_rows", rows.len(), Place::Last, 4).map_err(BackendError::Failed)?;
                memory.words_mut().copy_from_slice(&rows);
                memory.freeze();
                Ok(Self::Guarded(memory))
            }
            _ => Ok(Self::Plain(rows)),
        }
    }

    /// Null where the bias has no table.
    pub(super) fn pointer(&self) -> *const u32 {
        match self {
            Self::Plain(rows) if rows.is_empty() => std::ptr::null(),
            Self::Plain(rows) => rows.as_ptr(),
            #[cfg(unix)]
            Self::Guarded(memory) => memory.words().as_ptr(),
        }
    }
}
