//! Services: tokenise, form batches, choose a backend, run, fall back.
//!
//! A [`Service`] has a [`Deployment`]: a model's tokeniser and an ordered list of [`Lane`]s, each a [`Runner`] with its
//! health. A [`Request`] of any number of items goes in, a [`Response`] with one result for each item, in their order,
//! comes out. The engine knows no HTTP, no files and no documents.
//!
//! What it promises:
//!
//! - every item is answered once: with the model's output or with an [`EngineError`];
//! - an item that is wrong, or that breaks a backend, takes no other with it;
//! - a batch that a backend fails is run on the next one, within the deadline;
//! - a backend that cannot be made ready is left out where another is named, with the reason on record ([`LeftOut`]);
//! - an answer that is not a finite number is never given out;
//! - batching, threads and time change no answer: they only decide when it comes (and, where a backend has buckets, in
//!   which bucket; the report names it);
//! - another deployment takes over between two batches and loses nothing: [`rollout`];
//! - a request whose [`Ticket`] or [`Pending`] is dropped leaves the queue.

mod admission;
mod clock;
mod deployment;
mod error;
mod fallback;
mod health;
mod item;
mod lane;
mod local;
mod observe;
mod queue;
mod request;
pub mod rollout;
mod runner;
mod service;
mod shape;
mod shared;
pub mod tasks;

pub use deployment::Deployment;
pub use error::EngineError;
pub use fallback::{LeftOut, NoBackend};
pub use health::{HealthPolicy, HealthReport, HealthState};
pub use item::{Input, ItemOptions, Prepared, Prompt, Tokenize, Tokenized, Truncation};
pub use lane::Lane;
pub use local::DeployError;
pub use observe::{BatchEvent, Observer};
pub use request::{Answer, Callback, ItemResult, Request, Response, Timing};
pub use runner::{ItemOutput, ItemRows, LocalRunner, Runner};
pub use service::{Load, Pending, Service, ServiceConfig, Ticket};
pub use shape::{Shape, companions, split};
