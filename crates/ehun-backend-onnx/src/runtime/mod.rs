//! Safe Rust around the part of ONNX Runtime's C interface that a backend needs.
//!
//! The functions come from the library's table `OrtApi`, whose layout the crate `ort-sys` has; nothing is linked. The safe
//! crate above it, `ort`, is not used: its session runs through `&mut self`, which would put a lock around a session that
//! ONNX Runtime itself lets any number of threads use.

mod library;
mod session;

pub use library::{Runtime, RuntimeError};
pub use session::{Placed, Session, SessionRequest};

/// An error that the runtime reported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("ONNX Runtime, {call}: {message}")]
pub struct OrtError {
    /// The function that failed.
    pub call: &'static str,
    /// Its kind.
    pub code: ort_sys::OrtErrorCode,
    /// What the runtime said.
    pub message: String,
}

impl OrtError {
    /// The error of a run on `device`, by what the engine does next.
    pub fn on_device(self, device: &str) -> ehun_backend::BackendError {
        use ehun_backend::BackendError;
        let words = self.message.to_lowercase();
        if words.contains("bad_alloc") || words.contains("allocate memory") || words.contains("out of memory") {
            return BackendError::OutOfMemory { device: device.to_owned(), message: self.message };
        }
        match self.code {
            ort_sys::OrtErrorCode::ORT_DEVICE_RESET => BackendError::DeviceLost(self.to_string()),
            _ => BackendError::Failed(self.to_string()),
        }
    }
}

/// Calls a function of the table and turns the status that it returns into a `Result`.
macro_rules! call {
    ($runtime:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        let runtime: &$crate::runtime::Runtime = $runtime;
        // SAFETY: the function belongs to this library's table; the caller of the macro vouches for its arguments.
        let status = unsafe { (runtime.api().$function)($($argument),*) };
        runtime.check(stringify!($function), status)
    }};
}

pub(crate) use call;
