//! Compiled programs, loaded on a device or not, and the compiler's figures of them.

use std::ffi::c_void;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::error::PjrtError;
use super::handles::{self, Kind};
use super::plugin::{Plugin, arguments, call, slice, text};
use super::runtime::{Client, MlirProgram, compile_options};
use super::sys;

/// The compiler's own figures of a program. They are estimates; nothing here was measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CompiledFigures {
    /// Memory of the arguments, weights included, in bytes.
    pub argument_bytes: u64,
    /// Memory of the results in bytes.
    pub output_bytes: u64,
    /// Memory for what lies between, in bytes.
    pub temp_bytes: u64,
    /// Size of the machine code in bytes.
    pub code_bytes: u64,
    /// Floating-point operations; `None` where the platform does not say. As the platform
    /// gives it, a loop's body counts once; [`crate::choice::whole_loops`] sets that right.
    pub flops: Option<f64>,
    /// Bytes moved between memory and compute units; as above.
    pub bytes_accessed: Option<f64>,
    /// Estimated time in seconds of the operations that the compiler can cost; as above.
    pub optimal_seconds: Option<f64>,
    /// Operations that the compiler cannot cost.
    pub uncosted: u32,
}

impl CompiledFigures {
    /// Device memory that a run needs, weights included.
    pub fn total_bytes(&self) -> u64 {
        self.argument_bytes + self.output_bytes + self.temp_bytes + self.code_bytes
    }
}

/// A compiled program that is not loaded on a device.
pub struct Executable {
    plugin: Arc<Plugin>,
    executable: *mut sys::PJRT_Executable,
    /// The loaded program that this one is a view of, which some plugins do not keep alive themselves.
    _loaded: Option<LoadedExecutable>,
}

// SAFETY: PJRT executables may be used from any thread.
unsafe impl Send for Executable {}
// SAFETY: as above.
unsafe impl Sync for Executable {}

impl Drop for Executable {
    fn drop(&mut self) {
        let mut arguments = arguments!(PJRT_Executable_Destroy_Args { executable: self.executable });
        handles::freed(Kind::Executable, call!(&self.plugin, PJRT_Executable_Destroy, arguments));
    }
}

impl Executable {
    /// Memory and cost. Cost is left out where the platform has no such function.
    pub fn figures(&self) -> Result<CompiledFigures, PjrtError> {
        let mut memory = arguments!(PJRT_Executable_GetCompiledMemoryStats_Args { executable: self.executable });
        call!(&self.plugin, PJRT_Executable_GetCompiledMemoryStats, memory)?;
        let bytes = |n: i64| u64::try_from(n).unwrap_or(0);
        let mut figures = CompiledFigures {
            argument_bytes: bytes(memory.argument_size_in_bytes),
            output_bytes: bytes(memory.output_size_in_bytes),
            temp_bytes: bytes(memory.temp_size_in_bytes),
            code_bytes: bytes(memory.generated_code_size_in_bytes),
            ..CompiledFigures::default()
        };
        let mut cost = arguments!(PJRT_Executable_GetCostAnalysis_Args { executable: self.executable });
        if call!(&self.plugin, PJRT_Executable_GetCostAnalysis, cost).is_ok() {
            // SAFETY: the plugin returned this array; it lives as long as the executable.
            for property in unsafe { slice(cost.properties, cost.num_properties) } {
                if property.type_ != sys::PJRT_NamedValue_kFloat {
                    continue;
                }
                // SAFETY: the type field says which member of the union is set; the name lives as long as the executable.
                let (name, value) = unsafe {
                    (text(property.name, property.name_size), f64::from(property.__bindgen_anon_1.float_value))
                };
                match name.as_str() {
                    "flops" => figures.flops = Some(value),
                    "bytes accessed" => figures.bytes_accessed = Some(value),
                    "optimal_seconds" => {
                        // libtpu takes a second off for every operation that it cannot cost.
                        let uncosted = (-value).ceil().max(0.0);
                        figures.uncosted = uncosted as u32;
                        figures.optimal_seconds = Some(value + uncosted);
                    }
                    _ => {}
                }
            }
        }
        Ok(figures)
    }

    /// The program in the form that [`Client::deserialize`] reads.
    pub fn serialize(&self) -> Result<Vec<u8>, PjrtError> {
        let mut arguments = arguments!(PJRT_Executable_Serialize_Args { executable: self.executable });
        call!(&self.plugin, PJRT_Executable_Serialize, arguments)?;
        // SAFETY: the plugin returned these bytes; they live until the deleter below is called, once.
        let bytes = unsafe {
            let bytes = slice(arguments.serialized_bytes.cast::<u8>(), arguments.serialized_bytes_size).to_vec();
            if let Some(delete) = arguments.serialized_executable_deleter {
                delete(arguments.serialized_executable);
            }
            bytes
        };
        Ok(bytes)
    }
}

struct LoadedHandle {
    client: Client,
    executable: *mut sys::PJRT_LoadedExecutable,
    num_outputs: usize,
}

// SAFETY: PJRT executables may be run from any thread.
unsafe impl Send for LoadedHandle {}
// SAFETY: as above.
unsafe impl Sync for LoadedHandle {}

impl Drop for LoadedHandle {
    fn drop(&mut self) {
        let mut arguments = arguments!(PJRT_LoadedExecutable_Destroy_Args { executable: self.executable });
        let freed = call!(self.client.plugin(), PJRT_LoadedExecutable_Destroy, arguments);
        handles::freed(Kind::Loaded, freed);
    }
}

/// A program on a device, ready to run. Cheap to clone.
#[derive(Clone)]
pub struct LoadedExecutable {
    handle: Arc<LoadedHandle>,
}

impl LoadedExecutable {
    pub(super) fn new(client: Client, executable: *mut sys::PJRT_LoadedExecutable) -> Self {
        handles::made(Kind::Loaded);
        let mut loaded = Self { handle: Arc::new(LoadedHandle { client, executable, num_outputs: 0 }) };
        let num_outputs = loaded.executable().and_then(|executable| {
            let mut arguments = arguments!(PJRT_Executable_NumOutputs_Args { executable: executable.executable });
            call!(&executable.plugin, PJRT_Executable_NumOutputs, arguments)?;
            Ok(arguments.num_outputs as usize)
        });
        // Nobody else has a handle yet.
        if let (Some(handle), Ok(number)) = (Arc::get_mut(&mut loaded.handle), num_outputs) {
            handle.num_outputs = number;
        }
        loaded
    }

    pub(super) fn raw(&self) -> *mut sys::PJRT_LoadedExecutable {
        self.handle.executable
    }

    pub(super) fn client(&self) -> &Client {
        &self.handle.client
    }

    /// Number of results.
    pub fn num_outputs(&self) -> usize {
        self.handle.num_outputs
    }

    /// The program without its device: for its figures and for writing it down.
    pub fn executable(&self) -> Result<Executable, PjrtError> {
        let plugin = self.client().plugin().clone();
        let mut arguments =
            arguments!(PJRT_LoadedExecutable_GetExecutable_Args { loaded_executable: self.handle.executable });
        call!(&plugin, PJRT_LoadedExecutable_GetExecutable, arguments)?;
        handles::made(Kind::Executable);
        Ok(Executable { plugin, executable: arguments.executable, _loaded: Some(self.clone()) })
    }
}

/// Devices by name, without the devices: what a plugin compiles for ahead of time.
pub struct Topology {
    plugin: Arc<Plugin>,
    topology: *mut sys::PJRT_TopologyDescription,
}

impl Drop for Topology {
    fn drop(&mut self) {
        let mut arguments = arguments!(PJRT_TopologyDescription_Destroy_Args { topology: self.topology });
        handles::freed(Kind::Topology, call!(&self.plugin, PJRT_TopologyDescription_Destroy, arguments));
    }
}

impl Topology {
    /// The topology `name` (`v5e:2x2`). A single chip (`v5e:1x1`) needs to be told that its host has one chip.
    pub fn create(plugin: &Arc<Plugin>, name: &str) -> Result<Self, PjrtError> {
        let option = "chips_per_host_bounds";
        let bounds: [i64; 3] = [1, 1, 1];
        let chips = name
            .rsplit_once(':')
            .map_or(0, |(_, shape)| shape.split('x').map(|side| side.parse::<usize>().unwrap_or(0)).product());
        let options = [arguments!(PJRT_NamedValue {
            name: option.as_ptr().cast(),
            name_size: option.len() as u64,
            type_: sys::PJRT_NamedValue_kInt64List,
            __bindgen_anon_1: sys::PJRT_NamedValue__bindgen_ty_1 { int64_array_value: bounds.as_ptr() },
            value_size: bounds.len() as u64,
        })];
        Self::with(plugin, name, if chips == 1 { &options } else { &[] })
    }

    /// One GPU of this description, the text of a `GpuTargetConfigProto`.
    pub fn described(plugin: &Arc<Plugin>, description: &str) -> Result<Self, PjrtError> {
        // Partitions, hosts of each, devices of each.
        let options = [("target_config", description), ("topology", "1x1x1")].map(|(name, value)| {
            arguments!(PJRT_NamedValue {
                name: name.as_ptr().cast(),
                name_size: name.len() as u64,
                type_: sys::PJRT_NamedValue_kString,
                __bindgen_anon_1: sys::PJRT_NamedValue__bindgen_ty_1 { string_value: value.as_ptr().cast() },
                value_size: value.len() as u64,
            })
        });
        Self::with(plugin, "", &options)
    }

    fn with(plugin: &Arc<Plugin>, name: &str, options: &[sys::PJRT_NamedValue]) -> Result<Self, PjrtError> {
        let mut arguments = arguments!(PJRT_TopologyDescription_Create_Args {
            topology_name: name.as_ptr().cast(),
            topology_name_size: name.len() as u64,
            create_options: options.as_ptr(),
            num_options: options.len() as u64,
        });
        call!(plugin, PJRT_TopologyDescription_Create, arguments)?;
        handles::made(Kind::Topology);
        Ok(Self { plugin: plugin.clone(), topology: arguments.topology })
    }

    /// Kind of its devices: `TPU v5 lite`.
    pub fn device_kind(&self) -> Result<String, PjrtError> {
        let mut list = arguments!(PJRT_TopologyDescription_GetDeviceDescriptions_Args { topology: self.topology });
        call!(&self.plugin, PJRT_TopologyDescription_GetDeviceDescriptions, list)?;
        // SAFETY: the plugin returned this array; it lives as long as the topology.
        let Some(&first) = unsafe { slice(list.descriptions, list.num_descriptions) }.first() else {
            return Ok(String::new());
        };
        let mut kind = arguments!(PJRT_DeviceDescription_Kind_Args { device_description: first });
        call!(&self.plugin, PJRT_DeviceDescription_Kind, kind)?;
        // SAFETY: the text lives as long as the topology.
        Ok(unsafe { text(kind.device_kind, kind.device_kind_size) })
    }

    /// Compiles StableHLO text for one device of the topology.
    pub fn compile(&self, program: &str) -> Result<Executable, PjrtError> {
        let program = MlirProgram::new(program);
        let options = compile_options();
        let mut arguments = arguments!(PJRT_Compile_Args {
            topology: self.topology,
            program: &program.arguments,
            compile_options: options.as_ptr().cast(),
            compile_options_size: options.len() as u64,
        });
        call!(&self.plugin, PJRT_Compile, arguments)?;
        handles::made(Kind::Executable);
        Ok(Executable { plugin: self.plugin.clone(), executable: arguments.executable, _loaded: None })
    }
}

const _: () = assert!(size_of::<*const c_void>() == size_of::<u64>(), "the generated interface is of 64-bit machines");
