//! Bytes become a [`Document`]: one text, and blocks that say what each part of it is and where it came from.
//!
//! The promise of this crate is provenance that holds. A block's range in the text *is* the block, because text and
//! blocks are written by the same [`DocumentBuilder`]; nothing is searched for afterwards. Text is never dropped:
//! what is invisible, boilerplate or without a place is kept and labelled.

mod builder;
mod chunk;
mod error;
mod formats;
mod limits;
mod model;
mod ocr;
pub mod pdf;
pub mod worker;

pub use builder::{CellText, DocumentBuilder, Place};
pub use chunk::{Chunk, ChunkError, ChunkOptions, TokenCounter, chunk};
pub use error::{DocumentError, Limit};
pub use formats::{ParseOptions, parse};
pub use limits::Limits;
pub use model::{
    BBox, Block, BlockKind, Boilerplate, Cell, CharIndex, Child, Document, HiddenReason, Layer, Metadata, PageInfo,
    PageStatus, Row, Table,
};
pub use ocr::{Ocr, OcrBlock, OcrPage, OcrRefusal, OcrText};
pub use worker::{PoolOptions, PoolStats, WORKER_ARG, WorkerPool, worker_main};
