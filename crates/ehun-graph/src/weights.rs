//! Weights: memory-mapped safetensors files, one or many, or bytes that are already in memory.
//!
//! A checkpoint is untrusted. The header is validated before anything is taken from it (size, offsets inside the file,
//! no gaps or overlaps, shapes that match the byte ranges: the `safetensors` crate does this), and no memory is taken
//! for the tensors themselves: they are read where they lie in the mapped file.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::{bf16, f16};
use safetensors::SafeTensors;
use serde::{Deserialize, Serialize};

use crate::graph::WeightRef;

/// How a weight is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of binary32.
    Bf16,
}

impl DType {
    /// Size of an element in bytes.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// An error in opening weights. Each message names the file.
#[derive(Debug, thiserror::Error)]
pub enum WeightError {
    /// The file could not be opened or mapped.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not a valid safetensors file.
    #[error("{path}: not a usable safetensors file: {reason}; download it again, it may be cut short")]
    Invalid {
        /// The file, or `embedded` for bytes in memory.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Two files hold a tensor of the same name.
    #[error("{path}: tensor `{name}` is in another shard of the checkpoint too")]
    Duplicate {
        /// The second file.
        path: PathBuf,
        /// The tensor.
        name: String,
    },
    /// A tensor holds NaN or an infinite value.
    #[error("tensor `{name}`: element {element} is {value}; the checkpoint is damaged")]
    NotFinite {
        /// The tensor.
        name: String,
        /// Place of the first such element in row-major order.
        element: usize,
        /// What it is.
        value: f32,
    },
}

enum Source {
    Mapped(memmap2::Mmap),
    Static(&'static [u8]),
    Owned(Vec<u8>),
}

impl Source {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Static(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }
}

struct Entry {
    source: usize,
    start: usize,
    end: usize,
    shape: Vec<usize>,
    stored: safetensors::Dtype,
}

/// A tensor where it lies: storage type, shape and little-endian bytes, row-major.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// How elements are stored.
    pub dtype: DType,
    /// Shape of the tensor.
    pub shape: &'a [usize],
    /// The elements, little-endian, row-major; not necessarily aligned.
    pub bytes: &'a [u8],
}

/// The tensors of a checkpoint by name. Cheap to clone; the files stay mapped while a clone lives.
#[derive(Clone)]
pub struct WeightStore {
    inner: Arc<Inner>,
}

struct Inner {
    sources: Vec<Source>,
    entries: HashMap<String, Entry>,
}

impl std::fmt::Debug for WeightStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WeightStore({} tensors in {} files)", self.inner.entries.len(), self.inner.sources.len())
    }
}

impl WeightStore {
    /// Maps the safetensors files of a checkpoint.
    pub fn open<P: AsRef<Path>>(files: &[P]) -> Result<Self, WeightError> {
        let files: Vec<(&Path, &str)> = files.iter().map(|path| (path.as_ref(), "")).collect();
        Self::open_prefixed(&files)
    }

    /// Maps safetensors files and puts a prefix in front of the tensor names of each, so that files whose tensors have the
    /// same names (the modules beside a model) can be told apart.
    pub fn open_prefixed<P: AsRef<Path>>(files: &[(P, &str)]) -> Result<Self, WeightError> {
        let mut sources = Vec::new();
        for (path, prefix) in files {
            let path = path.as_ref();
            let io = |source| WeightError::Io { path: path.to_owned(), source };
            let file = File::open(path).map_err(io)?;
            // SAFETY: the map is read-only and private. A checkpoint that another process cuts short while it is mapped
            // ends this process with SIGBUS; that is the known price of mapping, which the documentation of `--model`
            // states.
            let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
            sources.push((path.to_owned(), *prefix, Source::Mapped(map)));
        }
        Self::from_sources(sources)
    }

    /// Takes a safetensors file that is part of the program.
    pub fn from_static(bytes: &'static [u8]) -> Result<Self, WeightError> {
        Self::from_static_prefixed(&[("", bytes)])
    }

    /// Takes safetensors files that are part of the program, each with a prefix for its tensor names.
    pub fn from_static_prefixed(files: &[(&str, &'static [u8])]) -> Result<Self, WeightError> {
        let sources = files.iter().map(|(prefix, bytes)| (PathBuf::from("embedded"), *prefix, Source::Static(bytes)));
        Self::from_sources(sources.collect())
    }

    /// Takes a safetensors file in memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, WeightError> {
        Self::from_sources(vec![(PathBuf::from("embedded"), "", Source::Owned(bytes))])
    }

    /// Float32 tensors from memory, `(name, shape, elements)`; for tests and generated models. The number of elements must
    /// be the product of the shape.
    pub fn from_tensors(tensors: Vec<(String, Vec<usize>, Vec<f32>)>) -> Result<Self, WeightError> {
        let views: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
            .into_iter()
            .map(|(name, shape, data)| (name, shape, data.iter().flat_map(|x| x.to_le_bytes()).collect()))
            .collect();
        let invalid = |reason: String| WeightError::Invalid { path: PathBuf::from("generated tensors"), reason };
        let mut list = Vec::new();
        for (name, shape, bytes) in &views {
            let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes)
                .map_err(|e| invalid(format!("`{name}`: {e}")))?;
            list.push((name.as_str(), view));
        }
        let bytes = safetensors::serialize(list, None).map_err(|e| invalid(e.to_string()))?;
        Self::from_bytes(bytes)
    }

    fn from_sources(sources: Vec<(PathBuf, &str, Source)>) -> Result<Self, WeightError> {
        let mut entries: HashMap<String, Entry> = HashMap::new();
        for (number, (path, prefix, source)) in sources.iter().enumerate() {
            let invalid = |reason: String| WeightError::Invalid { path: path.clone(), reason };
            let bytes = source.bytes();
            let (header, metadata) = SafeTensors::read_metadata(bytes).map_err(|e| invalid(e.to_string()))?;
            let data = header + 8;
            for (name, info) in metadata.tensors() {
                let name = format!("{prefix}{name}");
                let (start, end) = (data + info.data_offsets.0, data + info.data_offsets.1);
                if end > bytes.len() {
                    return Err(invalid(format!("tensor `{name}` ends at byte {end}, the file at {}", bytes.len())));
                }
                let entry = Entry { source: number, start, end, shape: info.shape.clone(), stored: info.dtype };
                if entries.insert(name.clone(), entry).is_some() {
                    return Err(WeightError::Duplicate { path: path.clone(), name });
                }
            }
        }
        let sources = sources.into_iter().map(|(_, _, source)| source).collect();
        Ok(Self { inner: Arc::new(Inner { sources, entries }) })
    }

    /// Names of all tensors, in no particular order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.inner.entries.keys().map(String::as_str)
    }

    /// Whether there is a tensor `name`.
    pub fn contains(&self, name: &str) -> bool {
        self.inner.entries.contains_key(name)
    }

    /// Shape of the tensor `name`.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.inner.entries.get(name).map(|entry| entry.shape.as_slice())
    }

    /// Storage type of the tensor `name`; `None` where there is none or it is no floating-point type of [`DType`].
    pub fn dtype(&self, name: &str) -> Option<DType> {
        match self.inner.entries.get(name)?.stored {
            safetensors::Dtype::F32 => Some(DType::F32),
            safetensors::Dtype::F16 => Some(DType::F16),
            safetensors::Dtype::BF16 => Some(DType::Bf16),
            _ => None,
        }
    }

    /// Storage type of the tensor `name` as the file names it.
    pub fn stored_type(&self, name: &str) -> Option<String> {
        self.inner.entries.get(name).map(|entry| format!("{:?}", entry.stored))
    }

    /// The tensor `name` where it lies.
    pub fn view(&self, name: &str) -> Option<TensorView<'_>> {
        let entry = self.inner.entries.get(name)?;
        let bytes = &self.inner.sources[entry.source].bytes()[entry.start..entry.end];
        Some(TensorView { dtype: self.dtype(name)?, shape: &entry.shape, bytes })
    }

    /// The part of a tensor that `weight` refers to, where it lies. `None` where [`crate::Graph::check_weights`] would
    /// have failed.
    pub fn view_ref(&self, weight: &WeightRef) -> Option<TensorView<'_>> {
        let view = self.view(&weight.name)?;
        let Some((start, end)) = weight.rows else { return Some(view) };
        let row = weight.width() * view.dtype.size();
        Some(TensorView { bytes: view.bytes.get(start * row..end * row)?, ..view })
    }

    /// The part of a tensor that `weight` refers to, as float32.
    pub fn read_f32(&self, weight: &WeightRef) -> Option<Cow<'_, [f32]>> {
        Some(self.view_ref(weight)?.to_f32())
    }

    /// Total size of the tensors in bytes.
    pub fn num_bytes(&self) -> usize {
        self.inner.entries.values().map(|entry| entry.end - entry.start).sum()
    }

    /// The bytes of each file, for hashing.
    pub fn files(&self) -> impl Iterator<Item = &[u8]> {
        self.inner.sources.iter().map(Source::bytes)
    }

    /// Reads every floating-point tensor and reports the first NaN or infinite element.
    pub fn check_finite(&self) -> Result<(), WeightError> {
        let mut names: Vec<&str> = self.names().collect();
        names.sort_unstable();
        for name in names {
            let Some(view) = self.view(name) else { continue };
            if let Some((element, value)) = view.first_not_finite() {
                return Err(WeightError::NotFinite { name: name.to_owned(), element, value });
            }
        }
        Ok(())
    }
}

impl<'a> TensorView<'a> {
    /// The elements as float32: borrowed where they are stored so and aligned, else converted.
    pub fn to_f32(&self) -> Cow<'a, [f32]> {
        match self.dtype {
            DType::F32 => match aligned_f32(self.bytes) {
                Some(elements) => Cow::Borrowed(elements),
                None => Cow::Owned(
                    self.bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
                ),
            },
            DType::F16 => {
                Cow::Owned(self.bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect())
            }
            DType::Bf16 => {
                Cow::Owned(self.bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect())
            }
        }
    }

    fn first_not_finite(&self) -> Option<(usize, f32)> {
        // The exponent bits are all ones exactly for NaN and infinity, so no conversion is needed to look.
        let found = match self.dtype {
            DType::F32 => self.bytes.chunks_exact(4).position(|b| b[3] & 0x7f == 0x7f && b[2] & 0x80 == 0x80),
            DType::F16 => self.bytes.chunks_exact(2).position(|b| b[1] & 0x7c == 0x7c),
            DType::Bf16 => self.bytes.chunks_exact(2).position(|b| b[1] & 0x7f == 0x7f && b[0] & 0x80 == 0x80),
        }?;
        let size = self.dtype.size();
        let one = TensorView { bytes: &self.bytes[found * size..(found + 1) * size], ..*self };
        Some((found, one.to_f32()[0]))
    }
}

fn aligned_f32(bytes: &[u8]) -> Option<&[f32]> {
    if cfg!(target_endian = "big") {
        return None;
    }
    // SAFETY: every bit pattern is a valid f32, and `align_to` yields only the aligned middle part.
    let (before, middle, after) = unsafe { bytes.align_to::<f32>() };
    (before.is_empty() && after.is_empty()).then_some(middle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> WeightStore {
        WeightStore::from_tensors(vec![
            ("a".into(), vec![3, 2], vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0]),
            ("b".into(), vec![2], vec![7.0, f32::NAN]),
        ])
        .unwrap()
    }

    #[test]
    fn slices_are_rows() {
        let store = store();
        let weight = WeightRef::slice("a", &[3, 2], 1, 3);
        assert_eq!(store.read_f32(&weight).unwrap().as_ref(), [2.0, 3.0, 4.0, 5.0]);
        assert_eq!(store.read_f32(&WeightRef::whole("b", &[2])).unwrap()[0], 7.0);
    }

    #[test]
    fn nan_is_named() {
        let message = store().check_finite().unwrap_err().to_string();
        assert!(message.contains("`b`") && message.contains("element 1"), "{message}");
    }

    #[test]
    fn claims_beyond_the_file_are_refused() {
        let mut huge = (4u64 << 30).to_le_bytes().to_vec();
        huge.extend_from_slice(b"{}");
        let cases: Vec<(&str, Vec<u8>)> = vec![
            ("empty file", vec![]),
            ("4 GB header", huge),
            ("no JSON", [8u64.to_le_bytes().as_slice(), b"nonsense"].concat()),
            ("tensor beyond the end", {
                let header = br#"{"x":{"dtype":"F32","shape":[25000000000],"data_offsets":[0,100000000000]}}"#;
                [(header.len() as u64).to_le_bytes().as_slice(), header].concat()
            }),
            ("shape that does not match its bytes", {
                let header = br#"{"x":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#;
                [(header.len() as u64).to_le_bytes().as_slice(), header, &[0; 8]].concat()
            }),
        ];
        for (what, bytes) in cases {
            assert!(WeightStore::from_bytes(bytes).is_err(), "{what}");
        }
    }

    #[test]
    fn a_truncated_file_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let whole: Vec<u8> = store().files().next().unwrap().to_vec();
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        let message = WeightStore::open(&[&path]).unwrap_err().to_string();
        assert!(message.contains("model.safetensors"), "{message}");
    }
}
