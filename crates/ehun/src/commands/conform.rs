//! `ehun conform`: the conformance suite on a backend.

use clap::{Args, ValueEnum};
use ehun_backend::{Attention, Precision};
use ehun_conformance::{ConformOptions, Group, Outcome as Found, Profile, conform_with};

use crate::error::{CommandError, CommandResult, Outcome};
use crate::output::{json_line, line};
use crate::session::{program_cache, registry};

/// Flags of `ehun conform`.
#[derive(Debug, Args)]
pub struct Conform {
    /// The backend (`ehun backends` lists them)
    #[arg(long, default_value = "cpu", value_name = "NAME")]
    backend: String,
    /// Attention kernel by name, or a plug-in file; auto is what the backend chooses
    #[arg(long, value_name = "NAME|FILE", default_value = "auto")]
    attention: Attention,
    /// In what the products are computed: f32, bf16, f16, int8
    #[arg(long, default_value = "f32")]
    precision: Precision,
    /// Threads of a backend on the CPU [default: one for each core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Every kind of thing once, instead of everything
    #[arg(long)]
    quick: bool,
    /// Only these groups of checks
    #[arg(long, value_name = "GROUP", value_delimiter = ',')]
    group: Vec<GroupName>,
    /// Stop after the first failure
    #[arg(long)]
    fail_fast: bool,
    /// Also write the report as an HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<std::path::PathBuf>,
    /// The report as one JSON object
    #[arg(long)]
    json: bool,
}

/// A group of checks, as it is written on the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum GroupName {
    Honesty,
    Operations,
    Attention,
    Models,
    Laws,
}

impl From<GroupName> for Group {
    fn from(name: GroupName) -> Self {
        match name {
            GroupName::Honesty => Self::Honesty,
            GroupName::Operations => Self::Operations,
            GroupName::Attention => Self::Attention,
            GroupName::Models => Self::Models,
            GroupName::Laws => Self::Laws,
        }
    }
}

impl Conform {
    /// Runs the suite. A backend that does not conform is a failure.
    pub fn run(self) -> CommandResult {
        let backend = registry().open(&self.backend)?;
        let options = ConformOptions {
            precision: self.precision,
            attention: self.attention,
            threads: self.threads,
            profile: if self.quick { Profile::Quick } else { Profile::Full },
            cache: program_cache(),
            groups: self.group.into_iter().map(Group::from).collect(),
            fail_fast: self.fail_fast,
            ..ConformOptions::default()
        };
        let report = conform_with(backend.as_ref(), &options, &mut |check| {
            if check.outcome == Found::Failed {
                eprintln!("failed: {}: {}", check.group.name(), check.name);
            }
        });
        if let Some(path) = &self.html {
            let page = ehun_conformance::html::page(&report);
            std::fs::write(path, page).map_err(CommandError::io(path.display().to_string()))?;
        }
        if self.json {
            json_line(&report)?;
        } else {
            line(&report.table())?;
            line(&report.verdict())?;
        }
        if report.passed() {
            return Ok(Outcome::Done);
        }
        Err(CommandError::NotConforming(report.verdict()))
    }
}
