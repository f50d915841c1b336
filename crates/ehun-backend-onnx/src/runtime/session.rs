//! A session: a model that is loaded on providers and ready to run.

use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::Arc;

use ort_sys::{
    GraphOptimizationLevel, ONNXTensorElementDataType, OrtAllocatorType, OrtErrorCode, OrtMemType, OrtMemoryInfo,
    OrtSession, OrtSessionOptions, OrtTensorTypeAndShapeInfo, OrtValue,
};

use super::library::text;
use super::{OrtError, Runtime, call};
use crate::provider::{Append, Provider};

/// A node of the model with the provider that it runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// The provider, as the runtime names it: `CPUExecutionProvider`.
    pub provider: String,
    /// The operator.
    pub operator: String,
}

/// What a session is made of.
pub struct SessionRequest<'a> {
    /// The model's bytes.
    pub model: &'a [u8],
    /// Bytes that the model has outside of it, by the names of the files in which it says they are. Read while the session
    /// is made and not after.
    pub files: &'a [(String, &'a [u8])],
    /// Where it runs.
    pub provider: &'static Provider,
    /// Threads of one operation; `None` is the runtime's choice, one for each core.
    pub threads: Option<usize>,
}

/// A model that is ready to run. `run` may be called from any number of threads at once.
pub struct Session {
    runtime: Arc<Runtime>,
    session: *mut OrtSession,
    memory: *mut OrtMemoryInfo,
}

// SAFETY: ONNX Runtime's sessions and memory descriptions may be used and released from any thread.
unsafe impl Send for Session {}
// SAFETY: `Run` is documented as safe to call from many threads on one session.
unsafe impl Sync for Session {}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("runtime", &self.runtime).finish_non_exhaustive()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: both were made by this runtime, are released here alone, and null is allowed.
        unsafe {
            (self.runtime.api().ReleaseSession)(self.session);
            (self.runtime.api().ReleaseMemoryInfo)(self.memory);
        }
    }
}

/// Session options that are released.
struct SessionOptions<'a> {
    runtime: &'a Runtime,
    options: *mut OrtSessionOptions,
}

impl Drop for SessionOptions<'_> {
    fn drop(&mut self) {
        // SAFETY: made by this runtime, released here alone.
        unsafe { (self.runtime.api().ReleaseSessionOptions)(self.options) };
    }
}

impl Session {
    /// Loads a model.
    pub fn new(runtime: &Arc<Runtime>, request: &SessionRequest<'_>) -> Result<Self, OrtError> {
        let mut options = SessionOptions { runtime, options: ptr::null_mut() };
        call!(runtime, CreateSessionOptions(&mut options.options))?;
        let raw = options.options;
        call!(runtime, SetSessionGraphOptimizationLevel(raw, GraphOptimizationLevel::ORT_ENABLE_ALL))?;
        let threads = i32::try_from(request.threads.unwrap_or(0)).unwrap_or(0);
        call!(runtime, SetIntraOpNumThreads(raw, threads))?;
        call!(runtime, SetInterOpNumThreads(raw, 1))?;
        let record = c"session.record_ep_graph_assignment_info";
        call!(runtime, AddSessionConfigEntry(raw, record.as_ptr(), c"1".as_ptr()))?;
        append(runtime, raw, request.provider)?;
        let names = request.files.iter().map(|(name, _)| c_string(name)).collect::<Result<Vec<CString>, _>>()?;
        let name_pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
        let buffers: Vec<*mut c_char> =
            request.files.iter().map(|(_, bytes)| bytes.as_ptr().cast_mut().cast()).collect();
        let lengths: Vec<usize> = request.files.iter().map(|(_, bytes)| bytes.len()).collect();
        if !names.is_empty() {
            // The buffers are only read: the interface has no const there.
            call!(
                runtime,
                AddExternalInitializersFromMemory(
                    raw,
                    name_pointers.as_ptr(),
                    buffers.as_ptr(),
                    lengths.as_ptr(),
                    names.len()
                )
            )?;
        }
        let mut session = Self { runtime: runtime.clone(), session: ptr::null_mut(), memory: ptr::null_mut() };
        let (bytes, length) = (request.model.as_ptr().cast::<c_void>(), request.model.len());
        call!(runtime, CreateSessionFromArray(runtime.env(), bytes, length, raw, &mut session.session))?;
        let (kind, memory) = (OrtAllocatorType::OrtDeviceAllocator, OrtMemType::OrtMemTypeDefault);
        call!(runtime, CreateCpuMemoryInfo(kind, memory, &mut session.memory))?;
        Ok(session)
    }

    /// The nodes of the model as the runtime has optimised it, with their providers.
    pub fn placement(&self) -> Result<Vec<Placed>, OrtError> {
        let runtime = &self.runtime;
        let (mut graphs, mut count) = (ptr::null(), 0usize);
        call!(runtime, Session_GetEpGraphAssignmentInfo(self.session, &mut graphs, &mut count))?;
        let mut placed = Vec::new();
        for i in 0..count {
            // SAFETY: the function wrote an array of so many pointers that live as long as the session.
            let graph = unsafe { *graphs.add(i) };
            let mut name = ptr::null();
            call!(runtime, EpAssignedSubgraph_GetEpName(graph, &mut name))?;
            // SAFETY: a string that lives as long as the session.
            let provider = unsafe { text(name) };
            let (mut nodes, mut node_count) = (ptr::null(), 0usize);
            call!(runtime, EpAssignedSubgraph_GetNodes(graph, &mut nodes, &mut node_count))?;
            for j in 0..node_count {
                // SAFETY: as above.
                let node = unsafe { *nodes.add(j) };
                let mut operator = ptr::null();
                call!(runtime, EpAssignedNode_GetOperatorType(node, &mut operator))?;
                // SAFETY: as above.
                placed.push(Placed { provider: provider.clone(), operator: unsafe { text(operator) } });
            }
        }
        Ok(placed)
    }

    /// Runs the model on `inputs` (name, elements, shape) and gives the outputs `names`, float32, to `take` in their order.
    pub fn run(
        &self,
        inputs: &[(&str, &[i64], Vec<i64>)],
        names: &[String],
        take: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), OrtError> {
        let runtime = &self.runtime;
        let mut values = Values { runtime, values: Vec::new() };
        let mut input_names = Vec::new();
        for (name, elements, shape) in inputs {
            input_names.push(c_string(name)?);
            let mut value = ptr::null_mut();
            let kind = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
            // The elements outlive the run and are only read in it.
            let (data, bytes) = (elements.as_ptr().cast_mut().cast::<c_void>(), size_of_val(*elements));
            call!(
                runtime,
                CreateTensorWithDataAsOrtValue(self.memory, data, bytes, shape.as_ptr(), shape.len(), kind, &mut value)
            )?;
            values.values.push(value);
        }
        let output_names = names.iter().map(|name| c_string(name)).collect::<Result<Vec<CString>, _>>()?;
        let input_pointers: Vec<*const c_char> = input_names.iter().map(|name| name.as_ptr()).collect();
        let output_pointers: Vec<*const c_char> = output_names.iter().map(|name| name.as_ptr()).collect();
        let mut results = Values { runtime, values: vec![ptr::null_mut(); names.len()] };
        call!(
            runtime,
            Run(
                self.session,
                ptr::null(),
                input_pointers.as_ptr(),
                values.values.as_ptr().cast(),
                values.values.len(),
                output_pointers.as_ptr(),
                output_pointers.len(),
                results.values.as_mut_ptr()
            )
        )?;
        for (place, &value) in results.values.iter().enumerate() {
            let (mut info, mut count, mut data) =
                (ptr::null_mut::<OrtTensorTypeAndShapeInfo>(), 0usize, ptr::null_mut());
            call!(runtime, GetTensorTypeAndShape(value, &mut info))?;
            let counted = call!(runtime, GetTensorShapeElementCount(info, &mut count));
            // SAFETY: made by the call above, released here alone.
            unsafe { (runtime.api().ReleaseTensorTypeAndShapeInfo)(info) };
            counted?;
            call!(runtime, GetTensorMutableData(value, &mut data))?;
            if count == 0 {
                take(place, &[]);
                continue;
            }
            // SAFETY: a float32 tensor of so many elements, by the model's own outputs; it lives until `results` goes.
            take(place, unsafe { std::slice::from_raw_parts(data.cast::<f32>(), count) });
        }
        Ok(())
    }
}

/// Values that are released.
struct Values<'a> {
    runtime: &'a Runtime,
    values: Vec<*mut OrtValue>,
}

impl Drop for Values<'_> {
    fn drop(&mut self) {
        for &value in &self.values {
            // SAFETY: made by this runtime, released here alone; null is allowed.
            unsafe { (self.runtime.api().ReleaseValue)(value) };
        }
    }
}

fn append(runtime: &Runtime, options: *mut OrtSessionOptions, provider: &Provider) -> Result<(), OrtError> {
    let pairs: Vec<(CString, CString)> = provider
        .options
        .iter()
        .map(|(key, value)| Ok((c_string(key)?, c_string(value)?)))
        .collect::<Result<_, OrtError>>()?;
    let keys: Vec<*const c_char> = pairs.iter().map(|(key, _)| key.as_ptr()).collect();
    let values: Vec<*const c_char> = pairs.iter().map(|(_, value)| value.as_ptr()).collect();
    let (keys, values, count) = (keys.as_ptr(), values.as_ptr(), pairs.len());
    match provider.append {
        Append::Nothing => Ok(()),
        Append::Cuda => {
            let mut cuda = ptr::null_mut();
            call!(runtime, CreateCUDAProviderOptions(&mut cuda))?;
            let result = call!(runtime, UpdateCUDAProviderOptions(cuda, keys, values, count))
                .and_then(|()| call!(runtime, SessionOptionsAppendExecutionProvider_CUDA_V2(options, cuda)));
            // SAFETY: made above, released here alone.
            unsafe { (runtime.api().ReleaseCUDAProviderOptions)(cuda) };
            result
        }
        Append::TensorRt => {
            let mut tensorrt = ptr::null_mut();
            call!(runtime, CreateTensorRTProviderOptions(&mut tensorrt))?;
            let result = call!(runtime, UpdateTensorRTProviderOptions(tensorrt, keys, values, count))
                .and_then(|()| call!(runtime, SessionOptionsAppendExecutionProvider_TensorRT_V2(options, tensorrt)));
            // SAFETY: made above, released here alone.
            unsafe { (runtime.api().ReleaseTensorRTProviderOptions)(tensorrt) };
            result
        }
        Append::Named(name) => {
            let name = c_string(name)?;
            call!(runtime, SessionOptionsAppendExecutionProvider(options, name.as_ptr(), keys, values, count))
        }
    }
}

fn c_string(text: &str) -> Result<CString, OrtError> {
    CString::new(text).map_err(|_| OrtError {
        call: "a name",
        code: OrtErrorCode::ORT_INVALID_ARGUMENT,
        message: format!("`{}` has a zero in it", text.escape_debug()),
    })
}
