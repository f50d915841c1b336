//! Attention kernels from shared libraries with the C interface of `include/ehun_attention.h`.
//!
//! A plug-in gets one sequence a call, on one thread, with scratch of its own. So it needs no threads, and what it
//! computes for a sequence cannot depend on the rest of the batch unless it keeps state, which the conformance suite
//! would find.

mod abi;
mod memory;

use std::ffi::{CStr, c_char};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ehun_backend::{BackendError, Refusal};
use ehun_graph::{AttentionSpec, Bias};
use libloading::Library;

use crate::exec::{AttentionKernel, Call, Guard};
use crate::pool::{SyncPtr, ThreadPool};
use memory::{Rows, Scratch};

/// Room for the reasons and errors that a plug-in writes.
const TEXT: usize = 4096;

/// A loaded plug-in.
pub(crate) struct Plugin {
    path: PathBuf,
    name: String,
    guard: Guard,
    supports: abi::SupportsFn,
    plan: abi::PlanFn,
    run: abi::RunFn,
    /// The functions above are in it: it stays loaded as long as they are.
    _library: Library,
}

impl Plugin {
    /// Loads the library at `path`. Its initialisers run: a file that is not trusted is opened in a process of its own.
    pub(crate) fn open(path: &Path, guard: Guard) -> Result<Self, Refusal> {
        let refuse = |reason: String| Refusal::new("options", format!("attention from `{}`: {reason}", path.display()));
        // A bare name would be looked for where the system keeps libraries.
        let file = path.canonicalize().map_err(|error| refuse(error.to_string()))?;
        // SAFETY: running what the file holds is what was asked for with `--attention FILE`.
        let library = unsafe { Library::new(&file) }.map_err(|error| refuse(error.to_string()))?;
        let missing = |name: &str, error: &libloading::Error| {
            refuse(format!("no function `{name}` ({error}); see include/ehun_attention.h"))
        };
        macro_rules! function {
            ($name:literal, $kind:ty) => {
                // SAFETY: the header gives the function of this name this type.
                *unsafe { library.get::<$kind>(concat!($name, "\0").as_bytes()) }
                    .map_err(|error| missing($name, &error))?
            };
        }
        let version = function!("ehun_attention_abi", abi::AbiFn);
        // SAFETY: takes nothing and returns a number.
        let version = unsafe { version() };
        if version != abi::ABI {
            return Err(refuse(format!("it has version {version} of the interface, this program has {}", abi::ABI)));
        }
        let describe = function!("ehun_attention_describe", abi::DescribeFn);
        // SAFETY: takes nothing.
        let text = unsafe { describe() };
        if text.is_null() {
            return Err(refuse("it has no name".to_owned()));
        }
        // SAFETY: not null, and by the interface ended by a zero and valid while the library is loaded.
        let name = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        let supports = function!("ehun_attention_supports", abi::SupportsFn);
        let plan = function!("ehun_attention_plan", abi::PlanFn);
        let run = function!("ehun_attention_run", abi::RunFn);
        Ok(Self { path: path.to_owned(), name, guard, supports, plan, run, _library: library })
    }
}

/// Text that a plug-in wrote.
fn text(buffer: &[u8]) -> String {
    let end = buffer.iter().position(|&byte| byte == 0).unwrap_or(buffer.len());
    String::from_utf8_lossy(&buffer[..end]).trim().to_owned()
}

/// The specification without its tables.
fn describe(spec: &AttentionSpec) -> abi::Spec {
    let side = |side: Option<u32>| side.map_or(-1, i64::from);
    let (bias_kind, table_rows) = match &spec.bias {
        Bias::None => (abi::BIAS_NONE, 0),
        Bias::Alibi { .. } => (abi::BIAS_ALIBI, 0),
        Bias::Bucketed { rule, .. } => (abi::BIAS_BUCKETED, rule.num_buckets),
        Bias::Disentangled { rule, .. } => (abi::BIAS_DISENTANGLED, 2 * rule.span),
    };
    abi::Spec {
        struct_size: size_of::<abi::Spec>() as u32,
        num_heads: spec.num_heads as u32,
        num_kv_heads: spec.num_kv_heads as u32,
        head_dim: spec.head_dim as u32,
        value_dim: spec.value_dim as u32,
        bias_kind,
        scale: spec.scale,
        soft_cap: spec.soft_cap.unwrap_or(0.0),
        left: side(spec.band.left),
        right: side(spec.band.right),
        slopes: std::ptr::null(),
        bucket_table: std::ptr::null(),
        key_positions: std::ptr::null(),
        query_positions: std::ptr::null(),
        table_rows,
    }
}

/// The table row of each relative position `key - query` in `-(longest - 1)..longest`; empty where the bias has no table.
fn relative_rows(bias: &Bias, longest: usize) -> Vec<u32> {
    let reach = longest as i64;
    let relative = 1 - reach..reach;
    match bias {
        Bias::None | Bias::Alibi { .. } => Vec::new(),
        Bias::Bucketed { rule, .. } => relative.map(|relative| rule.bucket(relative) as u32).collect(),
        Bias::Disentangled { rule, .. } => relative.map(|relative| rule.row(-relative) as u32).collect(),
    }
}

fn pointer<T>(elements: &[T]) -> *const T {
    if elements.is_empty() { std::ptr::null() } else { elements.as_ptr() }
}

impl AttentionKernel for Plugin {
    fn describe(&self) -> String {
        self.name.clone()
    }

    fn reason(&self) -> String {
        format!("the plug-in `{}`", self.path.display())
    }

    fn supports(&self, operation: &str, spec: &AttentionSpec) -> Vec<Refusal> {
        let spec = describe(spec);
        let mut buffer = vec![0u8; TEXT];
        // SAFETY: both pointers are valid for what the interface says; the last byte stays a zero.
        let count = unsafe { (self.supports)(&spec, buffer.as_mut_ptr().cast::<c_char>(), TEXT - 1) };
        if count == 0 {
            return Vec::new();
        }
        let text = text(&buffer);
        let reasons: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        if reasons.is_empty() {
            return vec![Refusal::new(operation, format!("`{}` refuses it and gives no reason", self.name))];
        }
        reasons.into_iter().map(|reason| Refusal::new(operation, reason)).collect()
    }

    fn name_for(&self, _: usize) -> &str {
        &self.name
    }

    fn scratch_bytes(&self, spec: &AttentionSpec, longest: usize) -> usize {
        // SAFETY: the specification is valid for the call.
        unsafe { (self.plan)(&describe(spec), longest as u64) as usize }
    }

    fn run(&self, pool: &ThreadPool, mut call: Call<'_>) -> Result<(), BackendError> {
        let rows = Rows::new(relative_rows(&call.spec.bias, call.batch.max_len()), self.guard)?;
        let origin = call.batch.max_len() as i64 - 1;
        let tables = call.bias;
        let mut spec = describe(call.spec);
        if let Bias::Alibi { slopes } = &call.spec.bias {
            spec.slopes = pointer(slopes);
        }
        spec.bucket_table = pointer(tables.buckets);
        spec.key_positions = pointer(tables.key_positions);
        spec.query_positions = pointer(tables.query_positions);
        let spec = &spec;
        let out = SyncPtr(call.out.as_mut_ptr());
        let out_stride = call.out.stride();
        let failure: Mutex<Option<BackendError>> = Mutex::new(None);
        let note = |error| {
            failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        };
        pool.run(call.batch.num_sequences(), |sequence| {
            let range = call.batch.rows(sequence);
            if range.is_empty() {
                return;
            }
            let bytes = self.scratch_bytes(call.spec, range.len());
            let mut scratch = match Scratch::new(bytes, self.guard) {
                Ok(scratch) => scratch,
                Err(error) => return note(error),
            };
            let cu_seqlens = [0, range.len() as u64];
            let first = range.start;
            let batch = abi::Batch {
                struct_size: size_of::<abi::Batch>() as u32,
                num_sequences: 1,
                cu_seqlens: cu_seqlens.as_ptr(),
                // SAFETY: as for the result.
                q: unsafe { call.q.as_ptr().add(first * call.q.stride()) },
                // SAFETY: as for the result.
                k: unsafe { call.k.as_ptr().add(first * call.k.stride()) },
                // SAFETY: as for the result.
                v: unsafe { call.v.as_ptr().add(first * call.v.stride()) },
                // SAFETY: the row is one of the result's.
                out: unsafe { out.get().add(first * out_stride) },
                q_stride: call.q.stride() as u64,
                k_stride: call.k.stride() as u64,
                v_stride: call.v.stride() as u64,
                out_stride: out_stride as u64,
                relative_rows: rows.pointer(),
                relative_origin: origin,
                scratch: scratch.pointer(),
            };
            let mut buffer = vec![0u8; TEXT];
            // SAFETY: everything that the interface promises is there and outlives the call, and the rows of a sequence
            // are written by its own task alone. What the library does beyond that is what was asked for by loading it.
            let code = unsafe { (self.run)(spec, &batch, buffer.as_mut_ptr().cast::<c_char>(), TEXT - 1) };
            if code != 0 {
                let message = format!("attention plug-in `{}`: error {code}: {}", self.name, text(&buffer));
                note(BackendError::Failed(message));
            } else if !scratch.intact() {
                let message = format!(
                    "attention plug-in `{}`: it wrote outside the {bytes} bytes of scratch that it asked for",
                    self.name
                );
                note(BackendError::Failed(message));
            }
        });
        failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}
