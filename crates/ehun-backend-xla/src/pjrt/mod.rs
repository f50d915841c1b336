//! Safe Rust around the C interface of PJRT.
//!
//! Every handle is freed when it is dropped, every error carries the plugin's own text, and nothing here knows a graph.
//! A plugin is loaded once for each file and never unloaded: its static state outlives `dlclose`.

mod elf;
mod error;
mod executable;
mod handles;
mod plugin;
mod runtime;
pub mod sys;

pub use error::{PjrtError, PluginError};
pub use executable::{CompiledFigures, Executable, LoadedExecutable, Topology};
pub use handles::{LiveHandles, live_handles};
pub use plugin::Plugin;
pub use runtime::{Buffer, Client, Element, compile_options};
