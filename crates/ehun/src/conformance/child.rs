//! The process that loads what is judged.

use std::io::{BufRead, Write};
use std::process::ExitCode;

use ehun_conformance::{Progress, conform_with};

use super::messages::{Job, Message};
use crate::session::{guarded_registry, registry};

/// The first argument of a process that is a child for conformance.
pub const WORKER_ARGUMENT: &str = "--conformance-worker";

/// Reads a [`Job`] from standard input, runs it, and says what it finds on standard output.
pub fn worker_main() -> ExitCode {
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    let job: Job = match read.map_err(|error| error.to_string()).and_then(|_| parse(&line)) {
        Ok(job) => job,
        Err(error) => {
            eprintln!("ehun: this argument is for processes that ehun starts itself ({error})");
            return ExitCode::from(2);
        }
    };
    end_with_parent();
    let registry = if job.guard { guarded_registry() } else { registry() };
    let backend = match registry.open(&job.backend) {
        Ok(backend) => backend,
        Err(error) => {
            say(&job.mark, &Message::Unavailable(error));
            return ExitCode::SUCCESS;
        }
    };
    let info = backend.info();
    say(&job.mark, &Message::Opened { backend: info.name, device: info.device, version: info.version });
    let report = conform_with(backend.as_ref(), &job.options, &mut |progress| match progress {
        Progress::Begun(group, name) => say(&job.mark, &Message::Begun(group, name.to_owned())),
        Progress::Done(check) => say(&job.mark, &Message::Done(Box::new(check.clone()))),
    });
    say(&job.mark, &Message::Report(Box::new(report)));
    ExitCode::SUCCESS
}

fn parse(line: &str) -> Result<Job, String> {
    serde_json::from_str(line).map_err(|error| error.to_string())
}

/// A line of its own, whatever a plug-in has printed before it.
fn say(mark: &str, message: &Message) {
    let text = serde_json::to_string(message).unwrap_or_default();
    let mut out = std::io::stdout().lock();
    // Nobody listens any more: the parent has ended, and so will this process.
    let _ = write!(out, "\n{mark}{text}\n").and_then(|()| out.flush());
}

/// The parent holds this process's standard input open as long as it lives. A plug-in that hangs must not outlive it.
fn end_with_parent() {
    std::thread::spawn(|| {
        let mut rest = String::new();
        while std::io::stdin().lock().read_line(&mut rest).is_ok_and(|count| count > 0) {}
        std::process::exit(1);
    });
}
