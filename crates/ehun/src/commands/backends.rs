//! `ehun backends`: what this machine can run on.

use clap::{Args, Subcommand};

use crate::error::CommandResult;
use crate::error::Outcome;
use crate::output::{json_line, line};
use crate::session::registry;

/// Flags of `ehun backends`.
#[derive(Debug, Args)]
pub struct Backends {
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// Also instruction sets and what was not run here
    #[arg(long, short)]
    verbose: bool,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Fetch the plugin or library of a backend by pip, at a pinned version and hash
    Install {
        /// xla:cpu, xla:tpu, xla:cuda or onnx
        name: String,
        /// Accept the licence of a plugin that asks for it
        #[arg(long)]
        accept_licence: bool,
    },
}

impl Backends {
    /// Lists them.
    pub fn run(self) -> CommandResult {
        if let Some(Action::Install { name, accept_licence }) = &self.action {
            let path = if name == "onnx" || name.starts_with("onnx:") {
                ehun_backend_onnx::install(name, None)?
            } else {
                let platform = name.strip_prefix("xla:").unwrap_or(name);
                ehun_backend_xla::install(platform, *accept_licence, None)?
            };
            line(&path.display().to_string())?;
            return Ok(Outcome::Done);
        }
        for status in registry().status() {
            if self.json {
                json_line(&status)?;
                continue;
            }
            let Some(info) = &status.info else {
                line(&format!("{:13} not available: {}", status.name, status.unavailable.unwrap_or_default()))?;
                continue;
            };
            let precisions: Vec<&str> = info.precisions.iter().map(|precision| precision.name()).collect();
            line(&format!("{:13} {} (version {})", status.name, info.device, info.version))?;
            line(&format!("{:13} precision {}", "", precisions.join(", ")))?;
            line(&format!("{:13} attention {}", "", info.attention_kernels.join(", ")))?;
            if self.verbose {
                for note in &info.notes {
                    line(&format!("{:13} {note}", ""))?;
                }
            }
        }
        Ok(Outcome::Done)
    }
}
