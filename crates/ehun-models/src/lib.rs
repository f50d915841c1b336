//! Checkpoint directories become graphs.
//!
//! ```no_run
//! use ehun_models::{Checkpoint, LoadOptions, Model};
//!
//! let checkpoint = Checkpoint::open("all-MiniLM-L6-v2")?;
//! let model = Model::load(&checkpoint, &LoadOptions::default())?;
//! let input = model.embed_input("Woven cloth.", None)?;
//! // A backend runs `model.graph()` with `model.weights()` on `input`.
//! # Ok::<(), ehun_models::ModelError>(())
//! ```
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`checkpoint`] | [`Checkpoint`]: the files, untrusted |
//! | [`config`] | [`Config`]: a configuration in which every key must be understood |
//! | [`tokenizer`] | [`Tokenizer`]: texts and pairs to token ids, types and offsets, with truncation |
//! | [`modules`] | the sentence-transformers modules of an embedder, both generations of files |
//! | [`model`] | [`Model`]: graph, weights, tokenizer, prompts, labels and limits of a checkpoint |
//! | `hub` | with the feature of that name: models from the Hugging Face Hub |
//! | [`tasks`] | what is done with the rows that a backend gives back |
//! | `families` | one file for each model family; the only place where a family's name appears |
//! | `blocks` | the pieces that families share: embeddings, encoder blocks, heads |
//!
//! A family knows no device, and a backend no family: what they share is [`ehun_graph::Graph`].

pub mod checkpoint;
pub mod config;
pub mod error;
#[cfg(feature = "hub")]
pub mod hub;
pub mod model;
pub mod modules;
pub mod tasks;
pub mod tokenizer;

mod blocks;
mod families;
mod load;
mod well_formed;

pub use checkpoint::Checkpoint;
pub use config::Config;
pub use error::ModelError;
pub use families::model_types;
pub use model::{LoadOptions, Model, Outline, Task};
pub use tokenizer::{Side, TextInput, Tokenized, Tokenizer};
