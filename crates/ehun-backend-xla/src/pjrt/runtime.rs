//! A client with its first device, and buffers on it.

use std::collections::HashMap;
use std::ptr;
use std::sync::{Arc, LazyLock, Mutex};

use super::error::{PjrtError, PluginError};
use super::executable::{CompiledFigures, LoadedExecutable};
use super::handles::{self, Kind};
use super::plugin::{Plugin, arguments, call, slice, text};
use super::sys;

/// Type of an element on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element {
    /// IEEE 754 binary32.
    F32,
    /// The upper half of binary32.
    Bf16,
    /// Signed 32-bit integer.
    I32,
}

impl Element {
    /// Size in bytes.
    pub fn size(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::Bf16 => 2,
        }
    }

    fn code(self) -> sys::PJRT_Buffer_Type {
        match self {
            Self::F32 => sys::PJRT_Buffer_Type_F32,
            Self::Bf16 => sys::PJRT_Buffer_Type_BF16,
            Self::I32 => sys::PJRT_Buffer_Type_S32,
        }
    }
}

struct ClientHandle {
    plugin: Arc<Plugin>,
    client: *mut sys::PJRT_Client,
    device: *mut sys::PJRT_Device,
    memory_limit: Option<u64>,
    platform: String,
    device_name: String,
}

// SAFETY: PJRT clients and devices may be used from any thread; the pointers are only handed to the plugin.
unsafe impl Send for ClientHandle {}
// SAFETY: as above.
unsafe impl Sync for ClientHandle {}

impl Drop for ClientHandle {
    fn drop(&mut self) {
        let mut arguments = arguments!(PJRT_Client_Destroy_Args { client: self.client });
        // An error here has nobody to go to, and the handle is gone either way.
        let _ = call!(&self.plugin, PJRT_Client_Destroy, arguments);
    }
}

/// A client of a plugin and its first device. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    handle: Arc<ClientHandle>,
}

/// One client for each plugin: a device that a process can open only once stays usable, and threads are not doubled.
static CLIENTS: LazyLock<Mutex<HashMap<String, Client>>> = LazyLock::new(Mutex::default);

impl Client {
    /// The client of `plugin`, made at the first call and kept for the life of the process.
    pub fn of(plugin: &Arc<Plugin>) -> Result<Self, PluginError> {
        let mut clients = CLIENTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(client) = clients.get(plugin.fingerprint()) {
            return Ok(client.clone());
        }
        let start = |source| PluginError::Start { path: plugin.path().to_owned(), source };
        let client = Self::create(plugin).map_err(start)?;
        clients.insert(plugin.fingerprint().to_owned(), client.clone());
        Ok(client)
    }

    fn create(plugin: &Arc<Plugin>) -> Result<Self, PjrtError> {
        let mut create = arguments!(PJRT_Client_Create_Args {});
        call!(plugin, PJRT_Client_Create, create)?;
        let mut handle = ClientHandle {
            plugin: plugin.clone(),
            client: create.client,
            device: ptr::null_mut(),
            memory_limit: None,
            platform: String::new(),
            device_name: String::new(),
        };
        let mut devices = arguments!(PJRT_Client_AddressableDevices_Args { client: create.client });
        call!(plugin, PJRT_Client_AddressableDevices, devices)?;
        // SAFETY: the plugin returned this array; it lives as long as the client.
        let list = unsafe { slice(devices.addressable_devices, devices.num_addressable_devices) };
        handle.device = *list.first().ok_or(PjrtError {
            call: "PJRT_Client_AddressableDevices",
            code: sys::PJRT_Error_Code_NOT_FOUND,
            message: "the client has no device".to_owned(),
        })?;
        let mut platform = arguments!(PJRT_Client_PlatformVersion_Args { client: create.client });
        call!(plugin, PJRT_Client_PlatformVersion, platform)?;
        // SAFETY: the text lives as long as the client.
        handle.platform = unsafe { text(platform.platform_version, platform.platform_version_size) };
        let mut description = arguments!(PJRT_Device_GetDescription_Args { device: handle.device });
        call!(plugin, PJRT_Device_GetDescription, description)?;
        let mut kind =
            arguments!(PJRT_DeviceDescription_Kind_Args { device_description: description.device_description });
        call!(plugin, PJRT_DeviceDescription_Kind, kind)?;
        // SAFETY: the text lives as long as the device.
        handle.device_name = unsafe { text(kind.device_kind, kind.device_kind_size) };
        let mut memory = arguments!(PJRT_Device_MemoryStats_Args { device: handle.device });
        if call!(plugin, PJRT_Device_MemoryStats, memory).is_ok() && memory.bytes_limit_is_set {
            handle.memory_limit = u64::try_from(memory.bytes_limit).ok();
        }
        Ok(Self { handle: Arc::new(handle) })
    }

    /// The plugin.
    pub fn plugin(&self) -> &Arc<Plugin> {
        &self.handle.plugin
    }

    /// Version of the platform in its own words.
    pub fn platform_version(&self) -> &str {
        &self.handle.platform
    }

    /// Kind of the device: `cpu`, `TPU v5 lite`.
    pub fn device_kind(&self) -> &str {
        &self.handle.device_name
    }

    /// Memory of the device in bytes, where the plugin says it.
    pub fn memory_limit(&self) -> Option<u64> {
        self.handle.memory_limit
    }

    /// Compiles StableHLO text for the device and loads it.
    pub fn compile(&self, program: &str) -> Result<LoadedExecutable, PjrtError> {
        let program = MlirProgram::new(program);
        let options = compile_options();
        let mut arguments = arguments!(PJRT_Client_Compile_Args {
            client: self.handle.client,
            program: &program.arguments,
            compile_options: options.as_ptr().cast(),
            compile_options_size: options.len() as u64,
        });
        call!(self.plugin(), PJRT_Client_Compile, arguments)?;
        Ok(LoadedExecutable::new(self.clone(), arguments.executable))
    }

    /// Loads an executable that [`super::Executable::serialize`] wrote for the same plugin and kind of device.
    pub fn deserialize(&self, bytes: &[u8]) -> Result<LoadedExecutable, PjrtError> {
        let mut arguments = arguments!(PJRT_Executable_DeserializeAndLoad_Args {
            client: self.handle.client,
            serialized_executable: bytes.as_ptr().cast(),
            serialized_executable_size: bytes.len() as u64,
        });
        call!(self.plugin(), PJRT_Executable_DeserializeAndLoad, arguments)?;
        Ok(LoadedExecutable::new(self.clone(), arguments.loaded_executable))
    }

    /// Copies `data`, dense and row-major with the dimensions `dims`, to the device.
    pub fn upload(&self, data: &[u8], element: Element, dims: &[usize]) -> Result<Buffer, PjrtError> {
        let dims: Vec<i64> = dims.iter().map(|&dim| dim as i64).collect();
        let expected = dims.iter().product::<i64>() as usize * element.size();
        if data.len() != expected {
            return Err(PjrtError {
                call: "PJRT_Client_BufferFromHostBuffer",
                code: sys::PJRT_Error_Code_INVALID_ARGUMENT,
                message: format!("{} bytes for a buffer {dims:?} of {expected}", data.len()),
            });
        }
        let mut arguments = arguments!(PJRT_Client_BufferFromHostBuffer_Args {
            client: self.handle.client,
            data: data.as_ptr().cast(),
            type_: element.code(),
            dims: dims.as_ptr(),
            num_dims: dims.len() as u64,
            host_buffer_semantics: sys::PJRT_HostBufferSemantics_kImmutableOnlyDuringCall,
            device: self.handle.device,
        });
        call!(self.plugin(), PJRT_Client_BufferFromHostBuffer, arguments)?;
        let buffer = Buffer::new(self.clone(), arguments.buffer);
        self.plugin().wait(arguments.done_with_host_buffer)?;
        Ok(buffer)
    }
}

/// StableHLO text as the interface takes it; lives as long as the text.
pub(super) struct MlirProgram<'a> {
    pub(super) arguments: sys::PJRT_Program,
    _text: std::marker::PhantomData<&'a str>,
}

impl<'a> MlirProgram<'a> {
    pub(super) fn new(program: &'a str) -> Self {
        let format = "mlir";
        let arguments = arguments!(PJRT_Program {
            code: program.as_ptr().cast_mut().cast(),
            code_size: program.len() as u64,
            format: format.as_ptr().cast(),
            format_size: format.len() as u64,
        });
        Self { arguments, _text: std::marker::PhantomData }
    }
}

/// A `CompileOptionsProto` for one device: `executable_build_options` (field 3) with device ordinal -1 (1), one replica
/// (4) and one partition (5).
pub fn compile_options() -> Vec<u8> {
    let mut build = vec![0x08];
    build.extend([0xff; 9]);
    build.push(0x01);
    build.extend([0x20, 1, 0x28, 1]);
    let mut options = vec![0x1a, build.len() as u8];
    options.extend(build);
    options
}

/// An array on a device; freed when dropped.
pub struct Buffer {
    client: Client,
    buffer: *mut sys::PJRT_Buffer,
}

// SAFETY: PJRT buffers may be used from any thread.
unsafe impl Send for Buffer {}
// SAFETY: as above; buffers are immutable once made.
unsafe impl Sync for Buffer {}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut arguments = arguments!(PJRT_Buffer_Destroy_Args { buffer: self.buffer });
        handles::freed(Kind::Buffer, call!(self.client.plugin(), PJRT_Buffer_Destroy, arguments));
    }
}

impl Buffer {
    pub(super) fn new(client: Client, buffer: *mut sys::PJRT_Buffer) -> Self {
        handles::made(Kind::Buffer);
        Self { client, buffer }
    }

    pub(super) fn raw(&self) -> *mut sys::PJRT_Buffer {
        self.buffer
    }

    /// Copies the array to the host as float32; it must have that type and `dims`.
    pub fn download_f32(&self, dims: &[usize]) -> Result<Vec<f32>, PjrtError> {
        let mut data = vec![0f32; dims.iter().product()];
        if data.is_empty() {
            return Ok(data);
        }
        let minor_to_major: Vec<i64> = (0..dims.len() as i64).rev().collect();
        let tiled = arguments!(PJRT_Buffer_MemoryLayout_Tiled {
            minor_to_major: minor_to_major.as_ptr(),
            minor_to_major_size: minor_to_major.len() as u64,
        });
        let mut layout = arguments!(PJRT_Buffer_MemoryLayout {
            __bindgen_anon_1: sys::PJRT_Buffer_MemoryLayout__bindgen_ty_1 { tiled },
            type_: sys::PJRT_Buffer_MemoryLayout_Type_Tiled,
        });
        let mut size = arguments!(PJRT_Buffer_ToHostBuffer_Args { src: self.buffer, host_layout: &mut layout });
        call!(self.client.plugin(), PJRT_Buffer_ToHostBuffer, size)?;
        let have = data.len() as u64 * 4;
        if size.dst_size != have {
            return Err(PjrtError {
                call: "PJRT_Buffer_ToHostBuffer",
                code: sys::PJRT_Error_Code_INTERNAL,
                message: format!("the result has {} bytes, {have} were expected for {dims:?}", size.dst_size),
            });
        }
        let mut arguments = arguments!(PJRT_Buffer_ToHostBuffer_Args {
            src: self.buffer,
            host_layout: &mut layout,
            dst: data.as_mut_ptr().cast(),
            dst_size: have,
        });
        call!(self.client.plugin(), PJRT_Buffer_ToHostBuffer, arguments)?;
        self.client.plugin().wait(arguments.event)?;
        Ok(data)
    }
}

impl LoadedExecutable {
    /// Runs on the device and waits for the end. `inputs` in the order of the program's parameters.
    pub fn execute(&self, inputs: &[&Buffer]) -> Result<Vec<Buffer>, PjrtError> {
        let client = self.client();
        let raw: Vec<*mut sys::PJRT_Buffer> = inputs.iter().map(|buffer| buffer.raw()).collect();
        let mut results: Vec<*mut sys::PJRT_Buffer> = vec![ptr::null_mut(); self.num_outputs()];
        let argument_lists = [raw.as_ptr()];
        let output_lists = [results.as_mut_ptr()];
        let mut events: [*mut sys::PJRT_Event; 1] = [ptr::null_mut()];
        // Weights are shared by all programs, so no input may be given away.
        let keep: Vec<i64> = (0..raw.len() as i64).collect();
        let mut options = arguments!(PJRT_ExecuteOptions {
            non_donatable_input_indices: keep.as_ptr(),
            num_non_donatable_input_indices: keep.len() as u64,
        });
        let mut arguments = arguments!(PJRT_LoadedExecutable_Execute_Args {
            executable: self.raw(),
            options: &mut options,
            argument_lists: argument_lists.as_ptr(),
            num_devices: 1,
            num_args: raw.len() as u64,
            output_lists: output_lists.as_ptr(),
            device_complete_events: events.as_mut_ptr(),
        });
        call!(client.plugin(), PJRT_LoadedExecutable_Execute, arguments)?;
        let buffers = results.iter().map(|&buffer| Buffer::new(client.clone(), buffer)).collect();
        client.plugin().wait(events[0])?;
        Ok(buffers)
    }

    /// What the compiler says of the program.
    pub fn figures(&self) -> Result<CompiledFigures, PjrtError> {
        self.executable()?.figures()
    }
}
