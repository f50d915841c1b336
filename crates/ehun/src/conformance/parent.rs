//! The process that starts the child, listens to it, and reports its end, whatever kind of end that is.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use ehun_conformance::{Check, Group, Outcome, Report};

use super::child::WORKER_ARGUMENT;
use super::messages::{Job, Message};
use crate::error::CommandError;

/// How long the child may be silent.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most time of one check.
    pub check: Duration,
}

/// Lines of the child's standard error that are looked at when it ends.
const LAST_LINES: usize = 40;

/// Runs `job` in a child. A crash, an abort or a hang is a failed check of the report, named after what was running.
///
/// # Errors
/// Where the child cannot be started, or the backend is not to be had.
pub fn run(job: &Job, limits: Limits, done: &mut dyn FnMut(&Check)) -> Result<Report, CommandError> {
    let start = Instant::now();
    let name = "the conformance process";
    let program = std::env::current_exe().map_err(CommandError::io(name))?;
    let mut child = Command::new(program)
        .arg(WORKER_ARGUMENT)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(CommandError::io(name))?;
    let text = serde_json::to_string(job).map_err(|error| CommandError::Usage(error.to_string()))?;
    // Kept open: the child ends when it is closed.
    let mut stdin = child.stdin.take();
    if let Some(stdin) = &mut stdin {
        stdin.write_all(format!("{text}\n").as_bytes()).map_err(CommandError::io(name))?;
    }
    let messages = messages(&mut child, &job.mark);
    let errors = last_lines(&mut child);
    let mut heard = Heard::default();
    let end = loop {
        match messages.recv_timeout(limits.check) {
            Ok(Message::Report(report)) => {
                let _ = child.wait();
                return Ok(*report);
            }
            Ok(Message::Unavailable(error)) => {
                let _ = child.wait();
                return Err(error.into());
            }
            Ok(Message::Opened { backend, device, version }) => heard.opened = Some((backend, device, version)),
            Ok(Message::Begun(group, name)) => heard.running = Some((group, name)),
            Ok(Message::Done(check)) => {
                heard.running = None;
                done(&check);
                heard.checks.push(*check);
            }
            Err(RecvTimeoutError::Timeout) => {
                let _ = child.kill();
                let _ = child.wait();
                break format!("it gave no answer for {:.0} s and was ended: it hangs", limits.check.as_secs_f64());
            }
            Err(RecvTimeoutError::Disconnected) => break how_it_ended(child.wait().map_err(CommandError::io(name))?),
        }
    };
    drop(stdin);
    let errors = errors.join().unwrap_or_default();
    let report = heard.report(job, end, &errors, start.elapsed().as_secs_f64());
    report.checks.last().into_iter().for_each(done);
    Ok(report)
}

/// The child's messages. Other lines on its standard output are a plug-in's, and go to standard error.
fn messages(child: &mut Child, mark: &str) -> Receiver<Message> {
    let (send, receive) = channel();
    let (out, mark) = (child.stdout.take(), mark.to_owned());
    std::thread::spawn(move || {
        for line in lines(out) {
            match line.strip_prefix(&mark).map(serde_json::from_str) {
                Some(Ok(message)) => {
                    if send.send(message).is_err() {
                        return;
                    }
                }
                _ if line.is_empty() => {}
                _ => eprintln!("{line}"),
            }
        }
    });
    receive
}

/// Passes on the child's standard error and remembers its end.
fn last_lines(child: &mut Child) -> std::thread::JoinHandle<VecDeque<String>> {
    let errors = child.stderr.take();
    std::thread::spawn(move || {
        let mut last = VecDeque::new();
        for line in lines(errors) {
            eprintln!("{line}");
            if last.len() == LAST_LINES {
                last.pop_front();
            }
            last.push_back(line);
        }
        last
    })
}

/// Lines of a stream, in whatever encoding, until it ends or breaks.
fn lines(stream: Option<impl Read>) -> impl Iterator<Item = String> {
    let split = stream.map(|stream| BufReader::new(stream).split(b'\n'));
    split.into_iter().flatten().map_while(Result::ok).map(|line| String::from_utf8_lossy(&line).into_owned())
}

fn how_it_ended(status: ExitStatus) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        let name = match signal {
            4 => " (SIGILL: an instruction that this machine does not have)",
            6 => " (SIGABRT: it aborted)",
            7 => " (SIGBUS: memory that is not there)",
            8 => " (SIGFPE: a division by zero of integers)",
            9 => " (SIGKILL: ended from outside, for want of memory perhaps)",
            11 => " (SIGSEGV: memory that is not its own)",
            _ => "",
        };
        return format!("the process was ended by signal {signal}{name}");
    }
    format!("the process ended by itself ({status}), before the suite was through")
}

/// What the child had said when it ended.
#[derive(Default)]
struct Heard {
    opened: Option<(String, String, String)>,
    running: Option<(Group, String)>,
    checks: Vec<Check>,
}

impl Heard {
    /// The report of a run that did not come to its end.
    fn report(mut self, job: &Job, end: String, errors: &VecDeque<String>, seconds: f64) -> Report {
        let (group, name) = self.running.unwrap_or_else(|| {
            let after = self.checks.last().map_or("the first check", |check| check.name.as_str());
            (Group::Honesty, format!("between checks, at or after `{after}`"))
        });
        let mut notes = vec![end];
        notes.extend(errors.iter().filter(|line| line.starts_with("ehun: guard page:")).cloned());
        notes.push("the checks after this one were not run".to_owned());
        self.checks.push(Check { group, name, outcome: Outcome::Failed, compared: 0, worst: None, notes });
        let (backend, device, version) =
            self.opened.unwrap_or_else(|| (job.backend.clone(), "not opened".to_owned(), "unknown".to_owned()));
        Report {
            backend,
            device,
            version,
            precision: job.options.precision,
            attention: job.options.attention.to_string(),
            threads: job.options.threads,
            profile: job.options.profile,
            kernels: Default::default(),
            checks: self.checks,
            seconds,
        }
    }
}
