//! Kills workers that pass their deadline.

use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The thread looks at all deadlines at least this often, which also bounds how long it outlives its pool.
const LOOK_IN: Duration = Duration::from_millis(500);

/// A lock whose data is sound even if a holder panicked: every change below is one assignment or one push.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One thread that looks at all deadlines of a pool. It ends when the pool is dropped.
#[derive(Debug)]
pub(super) struct Watchdog {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    watched: Mutex<Vec<Watched>>,
    changed: Condvar,
}

#[derive(Debug)]
struct Watched {
    deadline: Instant,
    child: Arc<Mutex<Child>>,
    fired: Arc<AtomicBool>,
}

/// Ends the watch when it is dropped.
pub(super) struct Watch<'w> {
    shared: &'w Shared,
    fired: Arc<AtomicBool>,
}

impl Watch<'_> {
    /// True if the deadline passed and the process was killed.
    pub fn fired(&self) -> bool {
        self.fired.load(Ordering::SeqCst)
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        lock(&self.shared.watched).retain(|w| !Arc::ptr_eq(&w.fired, &self.fired));
    }
}

impl Watchdog {
    pub fn start() -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let weak = Arc::downgrade(&shared);
        std::thread::Builder::new().name("parse-watchdog".to_owned()).spawn(move || run(&weak))?;
        Ok(Watchdog { shared })
    }

    /// From now until the watch is dropped, the process is killed if the deadline passes.
    pub fn watch(&self, child: &Arc<Mutex<Child>>, deadline: Instant) -> Watch<'_> {
        let fired = Arc::new(AtomicBool::new(false));
        let watched = Watched { deadline, child: Arc::clone(child), fired: Arc::clone(&fired) };
        lock(&self.shared.watched).push(watched);
        // A later deadline is seen when the thread looks in; waking it for each document costs as much as a small one.
        if deadline.saturating_duration_since(Instant::now()) <= LOOK_IN {
            self.shared.changed.notify_one();
        }
        Watch { shared: &self.shared, fired }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.changed.notify_one();
    }
}

fn run(shared: &Weak<Shared>) {
    while let Some(shared) = shared.upgrade() {
        let mut watched = lock(&shared.watched);
        let now = Instant::now();
        watched.retain(|w| {
            let alive = w.deadline > now;
            if !alive {
                w.fired.store(true, Ordering::SeqCst);
                // A process that has ended already cannot be killed, and need not be.
                let _ = lock(&w.child).kill();
            }
            alive
        });
        let next = watched.iter().map(|w| w.deadline.saturating_duration_since(now)).min();
        let wait = next.unwrap_or(LOOK_IN).min(LOOK_IN);
        drop(shared.changed.wait_timeout(watched, wait));
    }
}
