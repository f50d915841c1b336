//! `ehun conform`: the conformance suite on a backend.

use clap::{Args, ValueEnum};
use ehun_backend::{Attention, Precision};
use ehun_conformance::{ConformOptions, Group, Outcome as Found, Profile};

use crate::conformance::{Job, Limits, passed};
use crate::error::{CommandError, CommandResult, Outcome};
use crate::output::{json_line, line};
use crate::session::program_cache;

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
    /// Only checks whose name contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Most time of one check in seconds; beyond it what is judged hangs
    #[arg(long, value_name = "S", default_value_t = 300.0)]
    time_limit: f64,
    /// Leave out the guard pages around what attention on the CPU reads and writes
    #[arg(long)]
    no_guard: bool,
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
    /// Runs the suite in a child process. A backend that does not conform is a failure, and so is one that ends the child.
    pub fn run(self) -> CommandResult {
        let check = std::time::Duration::try_from_secs_f64(self.time_limit).ok().filter(|limit| !limit.is_zero());
        let Some(check) = check else {
            return Err(CommandError::Usage("--time-limit must be a number of seconds above 0".into()));
        };
        let options = ConformOptions {
            precision: self.precision,
            attention: self.attention,
            threads: self.threads,
            profile: if self.quick { Profile::Quick } else { Profile::Full },
            cache: program_cache(),
            groups: self.group.into_iter().map(Group::from).collect(),
            only: self.only,
            fail_fast: self.fail_fast,
        };
        let now = format!("{} {:?}", std::process::id(), std::time::Instant::now());
        let mark = format!("{}:", &blake3::hash(now.as_bytes()).to_hex()[..16]);
        let job = Job { backend: self.backend, options, guard: !self.no_guard, mark };
        let report = crate::conformance::run(&job, Limits { check }, &mut |check| {
            if check.outcome == Found::Failed {
                eprintln!("failed: {}: {}", check.group.name(), check.name);
            }
        })?;
        let recorded = passed::record(&job.backend, &job.options, &report)?;
        if let Some(path) = &self.html {
            let page = ehun_conformance::html::page(&report);
            std::fs::write(path, page).map_err(CommandError::io(path.display().to_string()))?;
        }
        if self.json {
            json_line(&report)?;
        } else {
            line(&report.table())?;
            if let Some(place) = recorded {
                line(&format!("remembered for `ehun serve` and `ehun process`: {}", place.display()))?;
            }
        }
        if report.passed() {
            return Ok(Outcome::Done);
        }
        Err(CommandError::NotConforming(report.verdict()))
    }
}
