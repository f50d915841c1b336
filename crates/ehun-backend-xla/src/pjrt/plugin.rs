//! A plugin: a shared library with the symbol `GetPjrtApi`.

use std::collections::HashMap;
use std::ffi::c_char;
use std::mem::{ManuallyDrop, offset_of};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};

use super::error::{PjrtError, PluginError};
use super::handles::{self, Kind};
use super::{elf, sys};

/// The least minor version whose functions are all used here.
const LEAST_MINOR: i32 = 72;

/// Makes an argument structure with its own size in it and all other fields zero.
macro_rules! arguments {
    ($name:ident { $($field:ident : $value:expr),* $(,)? }) => {
        $crate::pjrt::sys::$name {
            struct_size: std::mem::size_of::<$crate::pjrt::sys::$name>() as u64,
            $($field: $value,)*
            ..Default::default()
        }
    };
}

/// Calls a function of the plugin and turns what it returns into a `Result`.
macro_rules! call {
    ($plugin:expr, $function:ident, $arguments:expr) => {{
        let plugin: &$crate::pjrt::Plugin = $plugin;
        match plugin.api().$function {
            // SAFETY: the function belongs to this plugin, the argument structure is the one that the interface names for
            // it, carries its size, and lives until the call returns.
            Some(function) => plugin.check(stringify!($function), unsafe { function(&mut $arguments) }),
            None => Err($crate::pjrt::PjrtError {
                call: stringify!($function),
                code: $crate::pjrt::sys::PJRT_Error_Code_UNIMPLEMENTED,
                message: "the plugin does not have this function".to_owned(),
            }),
        }
    }};
}

pub(super) use {arguments, call};

/// A loaded plugin. Kept for the life of the process.
#[derive(Debug)]
pub struct Plugin {
    api: *const sys::PJRT_Api,
    path: PathBuf,
    fingerprint: String,
}

// SAFETY: the table of functions is constant after loading, and PJRT's functions may be called from any thread.
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}

static LOADED: LazyLock<Mutex<HashMap<PathBuf, Arc<Plugin>>>> = LazyLock::new(Mutex::default);

impl Plugin {
    /// Loads and initialises the plugin at `path`, or returns the one that is loaded already.
    pub fn load(path: &Path) -> Result<Arc<Self>, PluginError> {
        elf::check(path)?;
        let unreadable =
            |error: std::io::Error| PluginError::Unreadable { path: path.to_owned(), reason: error.to_string() };
        let whole = path.canonicalize().map_err(unreadable)?;
        let mut loaded = LOADED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(plugin) = loaded.get(&whole) {
            return Ok(plugin.clone());
        }
        let plugin = Arc::new(Self::open(&whole)?);
        loaded.insert(whole, plugin.clone());
        Ok(plugin)
    }

    fn open(path: &Path) -> Result<Self, PluginError> {
        let not_a_plugin = |reason: String| PluginError::NotAPlugin { path: path.to_owned(), reason };
        // SAFETY: loading runs the library's initialisers. The user named the file as a plugin, which is code by its nature.
        let library = unsafe { libloading::Library::new(path) }
            .map_err(|error| PluginError::Load { path: path.to_owned(), reason: error.to_string() })?;
        // The library stays loaded: its threads and static state outlive `dlclose`.
        let library = ManuallyDrop::new(library);
        type GetApi = unsafe extern "C" fn() -> *const sys::PJRT_Api;
        // SAFETY: by the interface the symbol has this type.
        let get: libloading::Symbol<'_, GetApi> = unsafe { library.get(b"GetPjrtApi\0") }
            .map_err(|_| not_a_plugin("it has no symbol GetPjrtApi".to_owned()))?;
        // SAFETY: the function takes nothing and returns a table that lives as long as the library.
        let api = unsafe { get() };
        if api.is_null() {
            return Err(not_a_plugin("GetPjrtApi returned nothing".to_owned()));
        }
        // SAFETY: every version of the table begins with its size and version, and it is not null.
        let (size, version) = unsafe { ((*api).struct_size, (*api).pjrt_api_version) };
        let needed_size = offset_of!(sys::PJRT_Api, PJRT_Memory_Kind_Id) as u64;
        if version.major_version != 0 || version.minor_version < LEAST_MINOR || size < needed_size {
            return Err(PluginError::TooOld {
                path: path.to_owned(),
                found: format!("{}.{}", version.major_version, version.minor_version),
                needed: LEAST_MINOR,
            });
        }
        let fingerprint = fingerprint(path, version);
        let plugin = Self { api, path: path.to_owned(), fingerprint };
        let mut arguments = arguments!(PJRT_Plugin_Initialize_Args {});
        call!(&plugin, PJRT_Plugin_Initialize, arguments)
            .map_err(|source| PluginError::Start { path: path.to_owned(), source })?;
        Ok(plugin)
    }

    pub(super) fn api(&self) -> &sys::PJRT_Api {
        // SAFETY: not null, valid for the life of the process, and at least as large as all fields that are read here
        // (checked in `open`; the fields are those before `PJRT_Memory_Kind_Id`).
        unsafe { &*self.api }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Version of its interface: `0.115`.
    pub fn interface_version(&self) -> String {
        let version = self.api().pjrt_api_version;
        format!("{}.{}", version.major_version, version.minor_version)
    }

    /// Changes whenever the plugin's file does; part of the key of cached programs.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Turns an error handle into an error and frees it.
    pub(super) fn check(&self, call: &'static str, error: *mut sys::PJRT_Error) -> Result<(), PjrtError> {
        if error.is_null() {
            return Ok(());
        }
        let mut message = arguments!(PJRT_Error_Message_Args { error: error });
        let mut code = arguments!(PJRT_Error_GetCode_Args { error: error });
        let mut destroy = arguments!(PJRT_Error_Destroy_Args { error: error });
        // SAFETY: the error is a live handle of this plugin; the text is copied before the handle is freed, and the
        // handle is not used after.
        let text = unsafe {
            if let Some(function) = self.api().PJRT_Error_Message {
                function(&mut message);
            }
            if let Some(function) = self.api().PJRT_Error_GetCode {
                function(&mut code);
            }
            let text = text(message.message, message.message_size);
            if let Some(function) = self.api().PJRT_Error_Destroy {
                function(&mut destroy);
            }
            text
        };
        Err(PjrtError { call, code: code.code, message: text })
    }

    /// Waits for an event and frees it. A null event is one that has happened.
    pub(super) fn wait(&self, event: *mut sys::PJRT_Event) -> Result<(), PjrtError> {
        if event.is_null() {
            return Ok(());
        }
        handles::made(Kind::Event);
        let mut wait = arguments!(PJRT_Event_Await_Args { event: event });
        let result = call!(self, PJRT_Event_Await, wait);
        let mut destroy = arguments!(PJRT_Event_Destroy_Args { event: event });
        handles::freed(Kind::Event, call!(self, PJRT_Event_Destroy, destroy));
        result
    }

    /// What the plugin says of itself: `(name, value)`.
    pub fn attributes(&self) -> Vec<(String, String)> {
        let mut arguments = arguments!(PJRT_Plugin_Attributes_Args {});
        if call!(self, PJRT_Plugin_Attributes, arguments).is_err() {
            return Vec::new();
        }
        // SAFETY: the plugin returned this array, which lives as long as the process.
        let values = unsafe { slice(arguments.attributes, arguments.num_attributes) };
        values.iter().map(named_value).collect()
    }
}

/// Copies `size` bytes at `start` as text.
///
/// # Safety
/// `start` is null or valid for reads of `size` bytes.
pub(super) unsafe fn text(start: *const c_char, size: u64) -> String {
    // SAFETY: as the caller promises.
    String::from_utf8_lossy(unsafe { slice(start.cast::<u8>(), size) }).into_owned()
}

/// A slice that may be null when empty.
///
/// # Safety
/// `start` is null or valid for reads of `size` elements for the lifetime that the caller gives.
pub(super) unsafe fn slice<'a, T>(start: *const T, size: u64) -> &'a [T] {
    if start.is_null() || size == 0 {
        return &[];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts(start, size as usize) }
}

/// A named value as text.
pub(super) fn named_value(value: &sys::PJRT_NamedValue) -> (String, String) {
    // SAFETY: the plugin fills name and value as the type field says.
    unsafe {
        let name = text(value.name, value.name_size);
        let shown = match value.type_ {
            sys::PJRT_NamedValue_kString => text(value.__bindgen_anon_1.string_value, value.value_size),
            sys::PJRT_NamedValue_kInt64 => value.__bindgen_anon_1.int64_value.to_string(),
            sys::PJRT_NamedValue_kInt64List => {
                format!("{:?}", slice(value.__bindgen_anon_1.int64_array_value, value.value_size))
            }
            sys::PJRT_NamedValue_kFloat => value.__bindgen_anon_1.float_value.to_string(),
            _ => value.__bindgen_anon_1.bool_value.to_string(),
        };
        (name, shown)
    }
}

fn fingerprint(path: &Path, version: sys::PJRT_Api_Version) -> String {
    // Hashing hundreds of megabytes at every start would cost more than the cache saves.
    let facts = std::fs::metadata(path).ok().map(|meta| (meta.len(), meta.modified().ok()));
    let text = format!("{path:?} {facts:?} {}.{}", version.major_version, version.minor_version);
    blake3::hash(text.as_bytes()).to_hex()[..16].to_owned()
}
