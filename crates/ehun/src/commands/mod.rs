//! One file for each command.

pub mod backends;
pub mod classify;
pub mod compare;
pub mod compile;
pub mod conform;
pub mod ctl;
pub mod embed;
pub mod explain;
pub mod export;
pub mod models;
pub mod process;
pub mod programs;
pub mod rerank;
pub mod search;
pub mod serve;
pub mod similarity;
pub mod sparse;
pub mod tag;
pub mod tokens;
