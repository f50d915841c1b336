//! A service elsewhere as one more backend.
//!
//! [`open`] makes an [`ehun_engine::Runner`] of an address, so that a service's list of backends may mix what runs in this
//! process with what runs elsewhere: `backends = ["oip+grpc://host:8001/search", "cpu"]`. Batching, deadlines, health and
//! falling back are the engine's and are the same for both.
//!
//! | address | protocol | tasks |
//! | --- | --- | --- |
//! | `openai+http://host/v1#model` | OpenAI `POST /v1/embeddings` | embed |
//! | `tei+http://host` | text-embeddings-inference | embed, rerank, classify, sparse |
//! | `oip+http://host/model` | Open Inference Protocol v2, JSON | embed, rerank, classify |
//! | `oip+grpc://host/model` | Open Inference Protocol v2, gRPC | embed, rerank, classify |
//!
//! Each also as `https` and `grpcs`. Settings follow a `?`: `timeout_ms`, `items` (most items of a request), `key_env` (the
//! environment variable that holds the API key; a key never stands in an address), `ca` (a file of certificates to trust).
//!
//! The service serves the same model: the one here gives tokeniser, labels and prompts, and its weights are only mapped.
//! What a text is (the prompt, where it is cut) is decided here, so that an answer does not depend on who gave it: to OpenAI's
//! and the Open Inference Protocol a text that is cut goes as the token ids that are left of it.

mod address;
mod error;
mod grpc;
mod http;
mod oip;
mod openai;
pub mod proto;
mod runner;
mod tei;
mod text;

pub use address::{Address, Protocol, is_remote};
pub use error::RemoteError;
pub use runner::open;
