//! What a job shows while it runs: a bar on a terminal, plain lines in a pipe, events as JSON, or nothing.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use ehun_pipeline::{Event, Listener};
use indicatif::{ProgressBar, ProgressStyle};

use crate::output::json_line;

/// Time between two plain lines.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// What is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    Quiet,
    /// Events, one a line, on standard output.
    Json,
    /// A bar or lines on standard error.
    Human,
}

enum Shown {
    Nothing,
    Json,
    Bar(ProgressBar),
    Lines(Arc<Mutex<Lines>>),
}

struct Lines {
    start: Instant,
    last: Instant,
    total: Option<u64>,
    done: u64,
    skipped: u64,
    chunks: u64,
}

/// Shows a job.
pub struct Progress(Shown);

impl Progress {
    /// A display for `mode`.
    pub fn new(mode: Mode) -> Self {
        Self(match mode {
            Mode::Quiet => Shown::Nothing,
            Mode::Json => Shown::Json,
            Mode::Human if std::io::stderr().is_terminal() => {
                let bar = ProgressBar::new_spinner();
                bar.set_style(style("{spinner} {pos} files, {per_sec}, {msg}"));
                bar.enable_steady_tick(Duration::from_millis(120));
                Shown::Bar(bar)
            }
            Mode::Human => {
                let now = Instant::now();
                let lines = Lines { start: now, last: now, total: None, done: 0, skipped: 0, chunks: 0 };
                let lines = Arc::new(Mutex::new(lines));
                let heard = Arc::downgrade(&lines);
                // Without the thread the lines come with the files alone.
                drop(std::thread::Builder::new().name("ehun-progress".into()).spawn(move || beat(&heard)));
                Shown::Lines(lines)
            }
        })
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Shown::Bar(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// A file may take longer than the time between two lines: one comes all the same, until the display is gone.
fn beat(lines: &Weak<Mutex<Lines>>) {
    loop {
        std::thread::sleep(LINE_EVERY);
        let Some(lines) = lines.upgrade() else { return };
        lines.lock().unwrap_or_else(PoisonError::into_inner).show();
    }
}

impl Lines {
    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Counted { sources } => self.total = Some(*sources),
            Event::Skipped => self.skipped += 1,
            Event::Source { chunks, .. } => {
                self.done += 1;
                self.chunks += chunks;
            }
            // Failures are listed at the end.
            Event::Failed { .. } | Event::Publishing => return,
        }
        self.show();
    }

    /// A line, where the last one is long enough ago.
    fn show(&mut self) {
        if self.last.elapsed() < LINE_EVERY {
            return;
        }
        self.last = Instant::now();
        let rate = self.done as f64 / self.start.elapsed().as_secs_f64();
        let all = self.done + self.skipped;
        let of = self.total.map_or_else(String::new, |total| format!("/{total}"));
        let left = match self.total.map(|total| total.saturating_sub(all)) {
            Some(left) if rate > 0.0 => format!(", {} left", clock(left as f64 / rate)),
            _ => String::new(),
        };
        eprintln!("{all}{of} files, {} chunks, {rate:.1} files/s{left}", self.chunks);
    }
}

/// Seconds as `1:02:03` or `2:03`.
fn clock(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

impl Listener for Progress {
    fn event(&self, event: &Event<'_>) {
        match &self.0 {
            Shown::Nothing => {}
            // Standard output that is gone is noticed when the job writes its last line.
            Shown::Json => drop(json_line(event)),
            Shown::Lines(lines) => lines.lock().unwrap_or_else(PoisonError::into_inner).event(event),
            Shown::Bar(bar) => match event {
                Event::Counted { sources } => {
                    bar.set_length(*sources);
                    bar.set_style(style("{bar:30} {pos}/{len} files, {per_sec}, {eta} left, {msg}"));
                }
                Event::Skipped => bar.inc(1),
                Event::Source { path, .. } => {
                    bar.inc(1);
                    bar.set_message(crate::output::snippet(path, 50));
                }
                Event::Failed { .. } => {}
                Event::Publishing => bar.set_message("writing the tables"),
            },
        }
    }
}
