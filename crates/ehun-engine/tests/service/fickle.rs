//! Runners of vectors that misbehave on command: slow, failing, NaN, panicking, hanging, or losing the process behind them.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use ehun_backend::{BackendError, RunOptions};
use ehun_engine::rollout::Candidate;
use ehun_engine::{Deployment, HealthPolicy, ItemOutput, ItemRows, Lane, Prepared, Runner, Shape};

use crate::{Bytes, report, text_of};

pub const WIDTH: usize = 8;

/// What a runner does when it is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    Good,
    Slow,
    Error,
    Nan,
    Panic,
    Hang,
    /// The child process that does the work aborts in the middle.
    Abort,
}

pub const MOODS: [Mood; 7] = [Mood::Good, Mood::Slow, Mood::Error, Mood::Nan, Mood::Panic, Mood::Hang, Mood::Abort];

/// A process behind a runner: says each line back, and aborts when it is told to.
struct Echo {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Echo {
    fn start() -> std::io::Result<Self> {
        let script = "while read -r line; do [ \"$line\" = abort ] && kill -ABRT $$; echo \"$line\"; done";
        let mut child = Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        match (input, output) {
            (Some(input), Some(output)) => Ok(Self { child, input, output: BufReader::new(output) }),
            _ => Err(std::io::Error::other("no pipes")),
        }
    }

    fn say(&mut self, line: &str) -> std::io::Result<String> {
        writeln!(self.input, "{line}")?;
        let mut answer = String::new();
        if self.output.read_line(&mut answer)? == 0 {
            return Err(std::io::Error::other(format!("the child ended: {}", self.child.wait()?)));
        }
        Ok(answer.trim().to_owned())
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Answers each text with [`vector`], turned by `tilt`, in the mood that it is in.
pub struct Fickle {
    name: String,
    tilt: f32,
    width: usize,
    mood: Mutex<Mood>,
    calls: AtomicUsize,
    changed: Condvar,
    child: Mutex<Option<Echo>>,
}

impl Fickle {
    pub fn new(name: &str, tilt: f32) -> Arc<Self> {
        Self::of_width(name, tilt, WIDTH)
    }

    pub fn of_width(name: &str, tilt: f32, width: usize) -> Arc<Self> {
        let (mood, changed, child) = (Mutex::new(Mood::Good), Condvar::new(), Mutex::new(None));
        Arc::new(Self { name: name.to_owned(), tilt, width, mood, calls: AtomicUsize::new(0), changed, child })
    }

    pub fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap_or_else(PoisonError::into_inner) = mood;
        self.changed.notify_all();
    }

    /// How often it was called.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    fn mood(&self) -> Mood {
        *self.mood.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the number of items through the child.
    fn through_child(&self, items: usize) -> Result<(), BackendError> {
        let lost = |error: std::io::Error| BackendError::DeviceLost(error.to_string());
        let mut slot = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() {
            *slot = Some(Echo::start().map_err(lost)?);
        }
        let Some(child) = slot.as_mut() else { return Ok(()) };
        child.say(&items.to_string()).map_err(lost)?;
        let answer = child.say("abort");
        *slot = None;
        answer.map(drop).map_err(lost)
    }
}

/// The right answer to a text: decided by the text alone.
pub fn vector(text: &str, tilt: f32, width: usize) -> Vec<f32> {
    let mut state = text.bytes().fold(7u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3));
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 2f32.powi(23) - 1.0
    };
    let straight: Vec<f32> = (0..width).map(|_| next()).collect();
    straight.iter().map(|x| x + tilt * next()).collect()
}

impl Runner for Fickle {
    fn name(&self) -> &str {
        &self.name
    }

    fn shape(&self) -> Shape {
        Shape::Tokens { max_tokens: 2048, max_items: 16 }
    }

    fn run(&self, items: &[Arc<Prepared>], _: &RunOptions) -> Result<Vec<ItemOutput>, BackendError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let mood = self.mood();
        match mood {
            Mood::Good | Mood::Nan => {}
            Mood::Slow => std::thread::sleep(Duration::from_millis(8)),
            Mood::Error => return Err(BackendError::Failed("planted".into())),
            Mood::Panic => panic!("planted"),
            Mood::Abort => self.through_child(items.len())?,
            Mood::Hang => {
                let guard = self.mood.lock().unwrap_or_else(PoisonError::into_inner);
                let hangs = |mood: &mut Mood| *mood == Mood::Hang;
                drop(self.changed.wait_while(guard, hangs).unwrap_or_else(PoisonError::into_inner));
            }
        }
        let report = Arc::new(report(&self.name, items));
        let output = |item: &Arc<Prepared>| {
            let mut data = vector(text_of(item), self.tilt, self.width);
            if mood == Mood::Nan {
                data[self.width / 2] = f32::NAN;
            }
            let values = vec![ItemRows { name: "embedding".into(), rows: 1, width: self.width, data }];
            ItemOutput { values, report: Arc::clone(&report), attention: "".into() }
        };
        Ok(items.iter().map(output).collect())
    }
}

pub fn deployment(runners: &[Arc<Fickle>], policy: HealthPolicy) -> Arc<Deployment> {
    let lanes = runners.iter().map(|runner| Lane::new(Arc::clone(runner) as Arc<dyn Runner>, policy)).collect();
    Arc::new(Deployment {
        label: "vectors".into(),
        model: None,
        tokenizer: Arc::new(Bytes { max: 600 }),
        lanes,
        left_out: Vec::new(),
    })
}

pub fn candidate(runners: &[Arc<Fickle>], policy: HealthPolicy) -> Candidate {
    let description = runners.iter().map(|runner| runner.name.as_str()).collect::<Vec<_>>().join(",");
    Candidate { deployment: deployment(runners, policy), description }
}
