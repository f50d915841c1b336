//! One file for each command.

pub mod backends;
pub mod classify;
pub mod compile;
pub mod conform;
pub mod embed;
pub mod explain;
pub mod models;
pub mod process;
pub mod rerank;
pub mod search;
pub mod serve;
pub mod similarity;
pub mod sparse;
pub mod tag;
pub mod tokens;
