//! Conformance runs in a child of this program, because what it judges may crash or hang; and what passed is remembered.

mod child;
mod messages;
mod parent;
pub mod passed;

pub use child::{WORKER_ARGUMENT, worker_main};
pub use messages::Job;
pub use parent::{Limits, run};
