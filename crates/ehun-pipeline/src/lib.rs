//! The batch job: sources, journal, sinks; and search over what it wrote.
//!
//! [`process`] reads files and folders and writes two tables, documents and chunks with vectors. It can be stopped or killed
//! at any moment and goes on where it was. [`search`] ranks the chunks of such tables.

mod annotate;
mod counter;
mod dedup;
mod error;
mod export;
mod extra;
mod gate;
mod job;
mod journal;
mod known;
mod merge;
mod parse;
mod parts;
mod rows;
mod run;
mod search;
mod sink;
mod sort;
mod source;
mod store;
mod table;
mod vectors;

pub use annotate::{Classifier, Tagger};
pub use counter::ModelCounter;
pub use error::JobError;
pub use export::Format;
pub use extra::Annotator;
pub use job::{Event, Failure, JobOptions, LISTED_FAILURES, Listener, Output, PartSize, Report, Stages};
pub use rows::Producer;
pub use run::{Tools, process};
pub use search::{Hit, OtherPlace, chunk_tables, search};
pub use store::Shard;
pub use vectors::{ChunkVector, chunk_vectors};
