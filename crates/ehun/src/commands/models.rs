//! `ehun models`: models of the Hugging Face Hub, in its own cache layout.

use std::io::IsTerminal;

use clap::{Args, Subcommand};
use ehun_models::hub::{Hub, HubOptions, Pulled};
use indicatif::{ProgressBar, ProgressStyle};

use crate::error::{CommandResult, Outcome};
use crate::output::{json_line, line};

/// Flags of `ehun models`.
#[derive(Debug, Args)]
pub struct Models {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Fetch what is needed of a model; goes on where it was cut off (HF_TOKEN, HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE)
    Pull {
        /// ORG/NAME or ORG/NAME@REVISION
        name: String,
        /// Say nothing but errors
        #[arg(long, short)]
        quiet: bool,
    },
    /// What was pulled
    List {
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Compare every file of a pulled model with its recorded sha256
    Verify {
        /// ORG/NAME or ORG/NAME@REVISION
        name: String,
    },
    /// Delete a pulled model
    Remove {
        /// ORG/NAME
        name: String,
    },
}

/// The hub as the environment says.
pub fn hub() -> Hub {
    Hub::new(HubOptions::from_variables(|name| std::env::var(name).ok()))
}

/// A bar on a terminal, nothing elsewhere.
fn bar(quiet: bool) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = "{bar:30} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left, {msg}";
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}

fn bytes(pulled: &Pulled) -> u64 {
    pulled.files.iter().map(|file| file.size).sum()
}

impl Models {
    /// Does it.
    pub fn run(self) -> CommandResult {
        let hub = hub();
        match self.action {
            Action::Pull { name, quiet } => {
                let bar = bar(quiet);
                let pulled = hub.pull(&name, &mut |progress| {
                    bar.set_length(progress.total);
                    bar.set_position(progress.done);
                    bar.set_message(progress.file.to_owned());
                })?;
                bar.finish_and_clear();
                line(&format!("{}@{}", pulled.model, pulled.commit))?;
                line(&pulled.directory.display().to_string())?;
            }
            Action::List { json } => {
                let all = hub.list()?;
                if all.is_empty() && !json {
                    eprintln!("no model was pulled; `ehun models pull ORG/NAME` fetches one");
                }
                for pulled in all {
                    if json {
                        json_line(&pulled)?;
                    } else {
                        let megabytes = bytes(&pulled) as f64 / 1e6;
                        line(&format!("{}@{}  {megabytes:.1} MB", pulled.model, pulled.commit))?;
                    }
                }
            }
            Action::Verify { name } => {
                let pulled = hub.verify(&name)?;
                line(&format!(
                    "{}@{}: {} files are as they were pulled",
                    pulled.model,
                    pulled.commit,
                    pulled.files.len()
                ))?;
            }
            Action::Remove { name } => hub.remove(&name)?,
        }
        Ok(Outcome::Done)
    }
}
