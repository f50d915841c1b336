//! The server: the wire formats of the field in front of the engine's services.
//!
//! It translates and holds no logic: a request becomes an [`ehun_engine::Request`], its answer becomes JSON in the form
//! that the client's library expects. What is batched, which backend answers and what happens when one fails is the
//! engine's.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`app`] | [`App`]: services, limits, keys, metrics |
//! | [`services`] | the services by name: which are loaded, which are idle |
//! | [`host`] | [`Host`]: swap, shadow, canary, reload, idle services |
//! | [`admin`] | the administration's own listener |
//! | [`audit`] | the log of changes |
//! | [`config`] | `ehun.toml` |
//! | [`fault`] | [`Fault`]: what can go wrong, and how each wire format says it |
//! | [`call`] | a request to the engine, awaited; dropping it cancels the work |
//! | [`metrics`] | OpenMetrics text |
//! | [`auth`] | API keys |
//! | `wire` | one file for each wire format |
//! | [`listen`] | sockets, graceful end |
//! | [`tls`] | TLS in front of them |
//! | [`trace`], [`otlp`] | a line and spans for each request |

pub mod admin;
pub mod app;
pub mod audit;
pub mod auth;
pub mod call;
pub mod config;
pub mod fault;
pub mod host;
pub mod listen;
pub mod metrics;
pub mod otlp;
pub mod services;
pub mod tls;
pub mod trace;

mod accept;
mod body;
mod starting;
mod wire;

pub use app::{App, Limits, Served};
pub use audit::Audit;
pub use config::{Config, ConfigError};
pub use fault::{Fault, Kind};
pub use host::{Host, HostError, Loaded, Loader};
pub use listen::{ServerError, hangups, serve, terminated};
pub use metrics::Metrics;
pub use tls::{Tls, TlsError, TlsFiles};
