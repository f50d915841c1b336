//! Devices that programs are compiled for without being here: TPUs by the name that their compiler knows, GPUs by a
//! description of them.
//!
//! The descriptions in `targets/` are OpenXLA's own, under the Apache License 2.0, as its CUDA plugin carries them.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::XlaError;
use crate::pjrt::{PjrtError, Plugin, Topology};

/// The GPUs that are known by name, as texts of OpenXLA's `GpuTargetConfigProto`.
const GPUS: [(&str, &str); 5] = [
    ("a100_sxm_80", include_str!("targets/a100_sxm_80.txtpb")),
    ("a6000", include_str!("targets/a6000.txtpb")),
    ("b200", include_str!("targets/b200.txtpb")),
    ("h100_sxm", include_str!("targets/h100_sxm.txtpb")),
    ("h200", include_str!("targets/h200.txtpb")),
];

/// Memory of a TPU's chip in megabytes by the kind that the compiler names, from the makers' tables.
const CHIP_MEMORY: [(&str, u64); 5] =
    [("v4", 32_700), ("v5e", 16_900), ("v5p", 102_800), ("v6e", 33_500), ("tpu7x", 101_700)];

/// What to compile for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AotTarget {
    /// TPUs by name: `v5e:2x2`.
    Tpu(String),
    /// One GPU.
    Gpu {
        /// Its name here, or the file of its description.
        name: String,
        /// Text of a `GpuTargetConfigProto`.
        description: String,
    },
}

impl AotTarget {
    /// The target `name` of `platform`. A GPU that is not known by name is the file of its description.
    pub fn of(platform: &str, name: &str) -> Result<Self, XlaError> {
        if platform != "cuda" {
            return Ok(Self::Tpu(name.to_owned()));
        }
        let wrong = |reason: String| XlaError::Target { name: name.to_owned(), reason };
        let description = match GPUS.iter().find(|(known, _)| *known == name) {
            Some((_, description)) => (*description).to_owned(),
            None => std::fs::read_to_string(name).map_err(|error| {
                let known = gpu_names().join(", ");
                wrong(format!("no such GPU is known, and it is no file ({error}); there are {known}"))
            })?,
        };
        // The compiler takes a description with gaps, and ends its process later.
        for key in ["cuda_compute_capability", "device_memory_size", "device_description_str", "platform_name"] {
            if field(&description, key).is_none() {
                return Err(wrong(format!(
                    "the description has no `{key}`: it is to be a GpuTargetConfigProto as text"
                )));
            }
        }
        let platform = field(&description, "platform_name").unwrap_or_default();
        if platform != "CUDA" {
            return Err(wrong(format!("it describes a device of the platform {platform}, not CUDA")));
        }
        Ok(Self::Gpu { name: name.to_owned(), description })
    }

    /// `tpu` or `cuda`.
    pub fn platform(&self) -> &'static str {
        match self {
            Self::Tpu(_) => "tpu",
            Self::Gpu { .. } => "cuda",
        }
    }

    /// As it was asked for.
    pub fn name(&self) -> &str {
        match self {
            Self::Tpu(name) | Self::Gpu { name, .. } => name,
        }
    }

    /// A name for files.
    pub(crate) fn file_name(&self) -> String {
        match self {
            Self::Tpu(name) => name.replace(':', "-"),
            Self::Gpu { name, .. } => Path::new(name).file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        }
    }

    /// Memory of one device in bytes, where it is known.
    pub fn memory(&self) -> Option<u64> {
        match self {
            Self::Tpu(name) => {
                let kind = name.split(':').next()?;
                CHIP_MEMORY.iter().find(|(known, _)| *known == kind).map(|(_, megabytes)| megabytes * 1_000_000)
            }
            Self::Gpu { description, .. } => field(description, "device_memory_size")?.parse().ok(),
        }
    }

    /// The devices as the plugin knows them.
    pub(crate) fn topology(&self, plugin: &Arc<Plugin>) -> Result<Topology, PjrtError> {
        match self {
            Self::Tpu(name) => Topology::create(plugin, name),
            Self::Gpu { description, .. } => Topology::described(plugin, description),
        }
    }
}

/// The GPUs that are known by name.
pub fn gpu_names() -> Vec<&'static str> {
    GPUS.iter().map(|(name, _)| *name).collect()
}

/// What stands behind the first `key` of a description: a value without its quotes, or the start of a message.
fn field<'a>(description: &'a str, key: &str) -> Option<&'a str> {
    let value = description.lines().find_map(|line| {
        let rest = line.trim_start().strip_prefix(key)?;
        rest.starts_with([':', ' ', '{']).then_some(rest)
    })?;
    Some(value.trim_start_matches(':').trim().trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_targets_have_what_is_needed() {
        for (name, memory) in [("h100_sxm", 84_942_979_072), ("a6000", 51_041_271_808)] {
            assert_eq!(AotTarget::of("cuda", name).unwrap().memory(), Some(memory), "{name}");
        }
        for (name, description) in GPUS {
            let target = AotTarget::of("cuda", name).unwrap();
            assert!(target.memory().is_some_and(|bytes| bytes > 1 << 34) && target.platform() == "cuda", "{name}");
            assert!(description.contains("Licensed under the Apache License, Version 2.0"), "{name}");
            assert!(field(description, "device_description_str").unwrap().starts_with("NVIDIA "), "{name}");
        }
        let tpu = AotTarget::of("tpu", "v5e:2x2").unwrap();
        assert_eq!((tpu.memory(), tpu.file_name()), (Some(16_900_000_000), "v5e-2x2".to_owned()));
        assert_eq!(AotTarget::of("tpu", "v9:1x1").unwrap().memory(), None);
    }

    #[test]
    fn a_description_is_a_file_or_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.txtpb");
        let of = |text: &str| {
            std::fs::write(&path, text).unwrap();
            AotTarget::of("cuda", path.to_str().unwrap())
        };
        let (_, a6000) = GPUS[1];
        let mine = of(a6000).unwrap();
        assert_eq!((mine.memory(), mine.file_name()), (Some(51_041_271_808), "mine".to_owned()));
        for (text, words) in [
            (String::new(), "no `cuda_compute_capability`"),
            (a6000.replace("device_memory_size", "memory_size"), "no `device_memory_size`"),
            (a6000.replace("platform_name: \"CUDA\"", "platform_name: \"ROCM\""), "the platform ROCM"),
        ] {
            let error = of(&text).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("mine.txtpb"), "{error}");
        }
        let error = AotTarget::of("cuda", "h1000").unwrap_err().to_string();
        assert!(error.contains("`h1000`") && error.contains("a100_sxm_80, a6000, b200, h100_sxm, h200"), "{error}");
    }
}
