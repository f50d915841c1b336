//! Paper against pipeline: two ways of running a model, compared on the whole document job.
//!
//! A kernel that is twice as fast alone may change nothing in a job that spends a tenth of its time in it. [`compare()`] runs
//! the same job both ways, alternating, and gives a [`Comparison`]: attention alone by length ([`AttentionTime`]), the gain that
//! its share allows and the gain that was measured with its interval ([`stats`]), what the answers drifted ([`drift`]), what
//! the candidate costs to have ([`Cost`]), and one sentence by a written rule ([`verdict`]).
//!
//! A [`Side`] is anything that the engine can deploy: a backend with a kernel and a precision, a plug-in, a service elsewhere.

mod classify;
mod compare;
pub mod drift;
mod error;
mod html;
mod job;
mod paper;
mod plot;
mod report;
mod side;
pub mod stats;
mod table;
pub mod verdict;

pub use compare::{Plan, Query, Tools, compare, refused};
pub use error::CompareError;
pub use html::page;
pub use job::{JobRun, StageSeconds};
pub use paper::AttentionTime;
pub use report::{Comparison, LengthResult, SideReport};
pub use side::{Cost, Local, Side, loaded};
pub use table::table;
