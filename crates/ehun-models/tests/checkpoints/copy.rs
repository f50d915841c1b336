//! Copies of golden checkpoints that tests change.

use std::path::{Path, PathBuf};

use ehun_graph::{WeightRef, WeightStore};
use ehun_models::{Checkpoint, LoadOptions, Model, ModelError};
use serde_json::{Map, Value};

/// A tensor: name, shape, elements.
pub type Tensor = (String, Vec<usize>, Vec<f32>);

/// The folder of the golden `name`.
pub fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens").join(name)
}

/// A copy of a golden checkpoint in a folder of its own.
pub struct Copy {
    folder: tempfile::TempDir,
}

impl Copy {
    /// Copies the golden `name`.
    pub fn of(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        copy_folder(&golden(name), folder.path());
        Self { folder }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file.
    pub fn write(&self, file: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.path().join(file), bytes).unwrap();
    }

    /// Removes a file.
    pub fn remove(&self, file: &str) {
        std::fs::remove_file(self.path().join(file)).unwrap();
    }

    /// Changes a JSON object in place.
    pub fn edit(&self, file: &str, change: impl FnOnce(&mut Map<String, Value>)) {
        let mut value: Value = serde_json::from_slice(&std::fs::read(self.path().join(file)).unwrap()).unwrap();
        change(value.as_object_mut().unwrap());
        self.write(file, value.to_string());
    }

    /// Changes the weights.
    pub fn edit_weights(&self, change: impl FnOnce(Vec<Tensor>) -> Vec<Tensor>) {
        let path = self.path().join("model.safetensors");
        let store = WeightStore::open(&[&path]).unwrap();
        let read = |name: &str| {
            let shape = store.shape(name).unwrap().to_vec();
            let elements = store.read_f32(&WeightRef::whole(name, &shape)).unwrap().into_owned();
            (name.to_owned(), shape, elements)
        };
        let tensors: Vec<Tensor> = store.names().map(read).collect();
        let changed = WeightStore::from_tensors(change(tensors)).unwrap();
        self.write("model.safetensors", changed.files().next().unwrap());
    }

    /// Loads it.
    pub fn load(&self) -> Result<Model, ModelError> {
        self.load_with(&LoadOptions::default())
    }

    /// Loads it with options.
    pub fn load_with(&self, options: &LoadOptions) -> Result<Model, ModelError> {
        Model::load(&Checkpoint::open(self.path())?, options)
    }
}

fn copy_folder(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&target).unwrap();
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), &target).unwrap();
        }
    }
}
