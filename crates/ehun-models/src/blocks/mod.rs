//! The pieces that families share. A family is a list of calls to them with the names of its tensors.

mod context;
pub(crate) mod decoder;
pub(crate) mod encoder;
pub(crate) mod heads;
pub(crate) mod rotary;

pub(crate) use context::{Ctx, Dims};
