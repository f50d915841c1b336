//! The library: loaded once, kept for the life of the process.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use ort_sys::{OrtApi, OrtApiBase, OrtEnv, OrtErrorCode, OrtLoggingLevel, OrtStatusPtr};

use super::{OrtError, call};

/// Why there is no runtime.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeError {
    /// No library was named or found.
    #[error(
        "no ONNX Runtime library: `ehun backends install onnx` puts one into {folder}, or name one (libonnxruntime.so) in \
         {variable}", folder = .folder.display()
    )]
    NotFound {
        /// Where it was looked for.
        folder: PathBuf,
        /// The environment variable that can name it.
        variable: &'static str,
    },
    /// The file cannot be loaded.
    #[error("{path}: not loaded: {reason}", path = .path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// What the system's loader said.
        reason: String,
    },
    /// The library is too old.
    #[error(
        "{path} is ONNX Runtime {version}, which has no interface version {needed}; 1.{needed} or later is needed",
        path = .path.display()
    )]
    TooOld {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: String,
        /// The interface version that is used here.
        needed: u32,
    },
    /// The library's environment could not be made.
    #[error("{path}: {source}", path = .path.display())]
    Start {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: OrtError,
    },
}

/// A loaded ONNX Runtime with its environment.
#[derive(Debug)]
pub struct Runtime {
    api: &'static OrtApi,
    env: *mut OrtEnv,
    path: PathBuf,
    version: String,
}

// SAFETY: the table is constant after loading, and the functions on the environment may be called from any thread.
unsafe impl Send for Runtime {}
// SAFETY: as above.
unsafe impl Sync for Runtime {}

static LOADED: LazyLock<Mutex<HashMap<PathBuf, Arc<Runtime>>>> = LazyLock::new(Mutex::default);

impl Runtime {
    /// Loads the library at `path`, or returns it where it is loaded already.
    pub fn load(path: &Path) -> Result<Arc<Self>, RuntimeError> {
        let failed = |reason: String| RuntimeError::Load { path: path.to_owned(), reason };
        let whole = path.canonicalize().map_err(|error| failed(error.to_string()))?;
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = loaded.get(&whole) {
            return Ok(runtime.clone());
        }
        let runtime = Arc::new(Self::open(&whole)?);
        loaded.insert(whole, runtime.clone());
        Ok(runtime)
    }

    fn open(path: &Path) -> Result<Self, RuntimeError> {
        let failed = |reason: String| RuntimeError::Load { path: path.to_owned(), reason };
        // SAFETY: loading runs the library's initialisers. The user named the file as a library to be run.
        let library = unsafe { libloading::Library::new(path) }.map_err(|error| failed(error.to_string()))?;
        // The library stays loaded: its threads and static state outlive `dlclose`.
        let library = ManuallyDrop::new(library);
        type GetBase = unsafe extern "system" fn() -> *const OrtApiBase;
        // SAFETY: by the interface the symbol has this type.
        let get: libloading::Symbol<'_, GetBase> = unsafe { library.get(b"OrtGetApiBase\0") }
            .map_err(|_| failed("it has no symbol OrtGetApiBase, so it is not ONNX Runtime".to_owned()))?;
        // SAFETY: the function takes nothing and returns a table that lives as long as the library, or null.
        let base = unsafe { get().as_ref() }.ok_or_else(|| failed("OrtGetApiBase returned nothing".to_owned()))?;
        // SAFETY: the version is a constant string of the library.
        let version = unsafe { text((base.GetVersionString)()) };
        let needed = ort_sys::ORT_API_VERSION;
        // SAFETY: null for a version that the library does not have, else a table of at least that version's functions,
        // which lives as long as the library.
        let api = unsafe { (base.GetApi)(needed).as_ref() };
        let api =
            api.ok_or_else(|| RuntimeError::TooOld { path: path.to_owned(), version: version.clone(), needed })?;
        let mut runtime = Self { api, env: ptr::null_mut(), path: path.to_owned(), version };
        let mut env = ptr::null_mut();
        // Errors come back as statuses; what is logged beside them goes to the standard error, so only what is fatal.
        let level = OrtLoggingLevel::ORT_LOGGING_LEVEL_FATAL;
        call!(&runtime, CreateEnv(level, c"ehun".as_ptr(), &mut env))
            .map_err(|source| RuntimeError::Start { path: path.to_owned(), source })?;
        runtime.env = env;
        Ok(runtime)
    }

    pub(super) fn api(&self) -> &'static OrtApi {
        self.api
    }

    pub(super) fn env(&self) -> *mut OrtEnv {
        self.env
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The library's version: `1.32.0`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The execution providers that the library was built with, the preferred first.
    pub fn providers(&self) -> Result<Vec<String>, OrtError> {
        let (mut names, mut count): (*mut *mut c_char, c_int) = (ptr::null_mut(), 0);
        call!(self, GetAvailableProviders(&mut names, &mut count))?;
        let count_of = usize::try_from(count).unwrap_or(0);
        // SAFETY: the function wrote an array of so many strings, which live until they are released below.
        let list = (0..count_of).map(|i| unsafe { text(*names.add(i)) }).collect();
        call!(self, ReleaseAvailableProviders(names, count))?;
        Ok(list)
    }

    pub(super) fn check(&self, call: &'static str, status: OrtStatusPtr) -> Result<(), OrtError> {
        if status.0.is_null() {
            return Ok(());
        }
        // SAFETY: a status that is not null is valid until it is released, which is done here and once.
        let (code, message) = unsafe {
            let code: OrtErrorCode = (self.api.GetErrorCode)(status.0);
            let message = text((self.api.GetErrorMessage)(status.0));
            (self.api.ReleaseStatus)(status.0);
            (code, message)
        };
        Err(OrtError { call, code, message })
    }
}

/// # Safety
///
/// `pointer` is null or a string that ends with a zero.
pub(super) unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: by the function's own condition.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}
