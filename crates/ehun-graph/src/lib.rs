//! The one description of a model that all backends share.
//!
//! A [`Graph`] is a list of operations whose values are matrices. The rows of a value are **tokens** of a ragged
//! batch, **sequences** of it, or **constants** (weights, and what is computed from weights alone). Every operation
//! works row by row, except two:
//!
//! - [`Op::Attention`] mixes the token rows of one sequence, and no others;
//! - [`Op::Pooling`] turns the token rows of one sequence into one sequence row.
//!
//! Hence what one sequence gets cannot depend on what else is in its batch, and a backend is a lowering of the
//! operations in [`Op`], nothing more.
//!
//! This crate knows no model's name and no device's name, and building a graph touches no device. The pieces:
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`graph`] | [`Graph`], [`Node`], [`Op`]: what is computed |
//! | [`builder`] | [`GraphBuilder`]: the only way to make a graph; checks shapes and names the operation in its errors |
//! | [`attention`] | [`AttentionSpec`] with its [`Band`] and [`Bias`] |
//! | [`rotary`] | [`RotarySpec`]: rotary position embedding with its scaling kinds |
//! | [`batch`] | [`RaggedBatch`]: the input |
//! | [`weights`] | [`WeightStore`]: memory-mapped safetensors |

pub mod activation;
pub mod attention;
pub mod batch;
pub mod builder;
pub mod error;
pub mod graph;
pub mod rotary;
pub mod weights;

pub use activation::Activation;
pub use attention::{AttentionSpec, Band, Bias, BucketRule, LogBucketRule};
pub use batch::{RaggedBatch, SequenceInput};
pub use builder::GraphBuilder;
pub use error::GraphError;
pub use graph::{Graph, Index, Node, Op, Output, PoolingMode, Rows, ValueId, WeightId, WeightRef};
pub use rotary::{RotaryLayout, RotaryScaling, RotarySpec};
pub use weights::{DType, TensorView, WeightError, WeightStore};
