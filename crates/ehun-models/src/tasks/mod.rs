//! What is done with the rows that a backend gives back. Plain slices in, plain values out: nothing here knows a backend.

pub mod embed;
pub mod scores;
pub mod sparse;
pub mod tag;
