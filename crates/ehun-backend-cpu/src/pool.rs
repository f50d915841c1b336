//! A small pool of threads that share the tasks of one job and sleep when there is none.
//!
//! The thread that submits a job works on it too, so a pool of `n` threads owns `n - 1`. Tasks are taken from a counter:
//! a thread that another process delays holds the job up by one task at most. A worker that wakes too late for a job
//! never delays it: the submitter closes the job when its tasks are gone and waits only for workers that joined.
//!
//! Workers sleep on a condition variable. Only while a [`Busy`] guard lives (a batch is running, and the next job comes
//! within microseconds) do they spin, for a bounded time, before they sleep again.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// How often a worker looks for the next job of a running batch before it sleeps: about 50 microseconds.
const SPINS: u32 = 2_000;

/// Low half of [`Shared::gate`]: workers inside the job. The bit above them is set where the job takes no more workers;
/// the upper half counts jobs.
const JOINED: u64 = 0x7fff_ffff;
const CLOSED: u64 = 0x8000_0000;
const EPOCH: u64 = 1 << 32;

/// A pool of threads.
pub struct ThreadPool {
    shared: Arc<Shared>,
    /// Held by the thread whose job runs. Another one that comes meanwhile runs its job alone.
    submit: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    /// The current job's state, see [`JOINED`].
    gate: AtomicU64,
    job: AtomicPtr<Job<'static>>,
    /// How many [`Busy`] guards live.
    busy: AtomicUsize,
    sleepers: AtomicUsize,
    /// Whether the pool is being dropped; the workers sleep on it.
    stop: Mutex<bool>,
    wake: Condvar,
}

struct Job<'a> {
    tasks: usize,
    next: AtomicUsize,
    body: &'a (dyn Fn(usize) + Sync),
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Job<'_> {
    /// Takes and runs tasks until none is left.
    fn work(&self) {
        loop {
            let task = self.next.fetch_add(1, Ordering::Relaxed);
            if task >= self.tasks {
                return;
            }
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (self.body)(task))) {
                self.next.store(self.tasks, Ordering::Relaxed);
                lock(&self.panic).get_or_insert(panic);
                return;
            }
        }
    }
}

/// A poisoned lock is taken all the same: what it guards is valid after any panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While it lives, a batch is running: workers spin shortly between jobs.
pub struct Busy<'a>(&'a ThreadPool);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.shared.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ThreadPool {
    /// A pool of `threads` threads (at least 1), the submitting one among them. Where the system refuses a thread the
    /// pool has fewer: see [`ThreadPool::threads`].
    #[must_use]
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            gate: AtomicU64::new(CLOSED),
            job: AtomicPtr::new(std::ptr::null_mut()),
            busy: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            stop: Mutex::new(false),
            wake: Condvar::new(),
        });
        let workers = (1..threads)
            .map_while(|i| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new().name(format!("ehun-cpu-{i}")).spawn(move || shared.serve()).ok()
            })
            .collect();
        Self { shared, submit: Mutex::new(()), workers }
    }

    /// Threads that work on a job, the submitting one among them.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Says that jobs will follow each other closely until the guard is dropped.
    #[must_use]
    pub fn busy(&self) -> Busy<'_> {
        self.shared.busy.fetch_add(1, Ordering::Relaxed);
        Busy(self)
    }

    /// Runs `body(0)`, ..., `body(tasks - 1)`, in any order, on all threads, and returns when all have ended. A job
    /// submitted while another runs (from another thread, or from inside a task) runs on the submitting thread alone.
    ///
    /// # Panics
    /// With the first panic of a task, after all threads have left the job.
    pub fn run(&self, tasks: usize, body: impl Fn(usize) + Sync) {
        let guard = if tasks > 1 && !self.workers.is_empty() { self.submit.try_lock().ok() } else { None };
        if guard.is_none() {
            return (0..tasks).for_each(body);
        }
        let job = Job { tasks, next: AtomicUsize::new(0), body: &body, panic: Mutex::new(None) };
        self.shared.publish(&job);
        job.work();
        self.shared.close();
        drop(guard);
        if let Some(panic) = lock(&job.panic).take() {
            resume_unwind(panic);
        }
    }

    /// Cuts `data`, whose rows are `width` values long, into blocks of `rows_per_task` rows, and runs
    /// `body(first_row, block)` for each on all threads. The last block may be shorter.
    ///
    /// # Panics
    /// When the length of `data` is no multiple of `width`, and as [`ThreadPool::run`].
    pub fn run_rows<T: Send>(
        &self,
        data: &mut [T],
        width: usize,
        rows_per_task: usize,
        body: impl Fn(usize, &mut [T]) + Sync,
    ) {
        if data.is_empty() {
            return;
        }
        assert_eq!(data.len() % width, 0, "the data is no whole number of rows of {width}");
        let block = width * rows_per_task.max(1);
        let len = data.len();
        let base = SyncPtr(data.as_mut_ptr());
        self.run(len.div_ceil(block), |task| {
            let start = task * block;
            // SAFETY: tasks have distinct numbers, so the blocks are disjoint parts of `data`, which outlives the job.
            let part = unsafe { std::slice::from_raw_parts_mut(base.get().add(start), block.min(len - start)) };
            body(start / width, part);
        });
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        *lock(&self.shared.stop) = true;
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its tasks, so there is no error to pass on.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Opens the gate for a new job and wakes sleeping workers.
    fn publish(&self, job: &Job<'_>) {
        self.job.store(std::ptr::from_ref(job).cast_mut().cast(), Ordering::Relaxed);
        let epoch = self.gate.load(Ordering::Relaxed) & !(JOINED | CLOSED);
        // Sequentially consistent, as are the accesses in `serve`: either the worker sees the open gate before it
        // sleeps, or this thread sees it among the sleepers.
        self.gate.store(epoch.wrapping_add(EPOCH), Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _guard = lock(&self.stop);
            self.wake.notify_all();
        }
    }

    /// Closes the gate and waits for the workers inside.
    fn close(&self) {
        let mut state = self.gate.fetch_or(CLOSED, Ordering::AcqRel) | CLOSED;
        let mut spins = 0u32;
        while state & JOINED != 0 {
            // A worker inside is in its last task; it may have been descheduled, so give the core away after a while.
            spins += 1;
            if spins.is_multiple_of(256) {
                std::thread::yield_now()
            } else {
                std::hint::spin_loop()
            }
            state = self.gate.load(Ordering::Acquire);
        }
    }

    /// Joins the open job, if there is one that this worker has not seen.
    fn join(&self, seen: &mut u64) -> bool {
        let mut state = self.gate.load(Ordering::SeqCst);
        loop {
            let epoch = state & !(JOINED | CLOSED);
            if state & CLOSED != 0 || epoch == *seen {
                return false;
            }
            match self.gate.compare_exchange_weak(state, state + 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    *seen = epoch;
                    return true;
                }
                Err(current) => state = current,
            }
        }
    }

    /// A worker's life.
    fn serve(&self) {
        let mut seen = 0;
        let mut spins = 0;
        loop {
            if self.join(&mut seen) {
                // SAFETY: this worker is counted in the gate, so the submitter waits for it before the job's end; the
                // pointer was stored before the gate was opened.
                let job = unsafe { &*self.job.load(Ordering::Relaxed) };
                job.work();
                self.gate.fetch_sub(1, Ordering::AcqRel);
                spins = 0;
            } else if spins < SPINS && self.busy.load(Ordering::Relaxed) > 0 {
                spins += 1;
                std::hint::spin_loop();
            } else {
                let mut stop = lock(&self.stop);
                self.sleepers.fetch_add(1, Ordering::SeqCst);
                while !*stop && !self.has_job(seen) {
                    stop = self.wake.wait(stop).unwrap_or_else(PoisonError::into_inner);
                }
                self.sleepers.fetch_sub(1, Ordering::SeqCst);
                if *stop {
                    return;
                }
                spins = 0;
            }
        }
    }

    fn has_job(&self, seen: u64) -> bool {
        let state = self.gate.load(Ordering::SeqCst);
        state & CLOSED == 0 && state & !(JOINED | CLOSED) != seen
    }
}

/// A pointer that tasks share; each uses its own part of what it points to.
pub(crate) struct SyncPtr<T>(pub(crate) *mut T);

// SAFETY: whoever makes one sees to it that tasks touch disjoint parts.
unsafe impl<T: Send> Sync for SyncPtr<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for SyncPtr<T> {}

impl<T> SyncPtr<T> {
    /// The pointer. A method, so that closures capture the whole and not the bare pointer.
    #[inline(always)]
    pub(crate) fn get(&self) -> *mut T {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_for_any_number_of_threads_and_tasks() {
        for threads in [1, 2, 3, 8] {
            let pool = ThreadPool::new(threads);
            for tasks in [0usize, 1, 2, 7, 100, 1000] {
                let busy = tasks.is_multiple_of(2).then(|| pool.busy());
                let counts: Vec<_> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, |task| {
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    counts.iter().all(|count| count.load(Ordering::Relaxed) == 1),
                    "{threads} threads, {tasks} tasks"
                );
                drop(busy);
            }
        }
    }

    #[test]
    fn many_short_jobs_in_a_row() {
        let pool = ThreadPool::new(3);
        let total = AtomicUsize::new(0);
        let _busy = pool.busy();
        for _ in 0..5_000 {
            pool.run(4, |task| {
                total.fetch_add(task, Ordering::Relaxed);
            });
        }
        assert_eq!(total.load(Ordering::Relaxed), 5_000 * 6);
    }

    #[test]
    fn jobs_from_several_threads_and_from_inside_a_job() {
        let pool = ThreadPool::new(2);
        let total = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        pool.run(3, |_| {
                            pool.run(2, |_| {
                                total.fetch_add(1, Ordering::Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(total.load(Ordering::Relaxed), 3 * 200 * 6);
    }

    #[test]
    fn a_panic_reaches_the_submitter_and_the_pool_lives_on() {
        let pool = ThreadPool::new(2);
        let caught = catch_unwind(AssertUnwindSafe(|| pool.run(64, |task| assert_ne!(task, 17, "task 17"))));
        assert!(caught.is_err());
        let total = AtomicUsize::new(0);
        pool.run(64, |_| {
            total.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(total.load(Ordering::Relaxed), 64);
    }

    #[test]
    fn rows_are_cut_without_gap_or_overlap() {
        let pool = ThreadPool::new(2);
        let mut data = vec![0usize; 7 * 5];
        pool.run_rows(&mut data, 5, 3, |first, block| {
            for (i, row) in block.chunks_mut(5).enumerate() {
                row.iter_mut().for_each(|value| *value += first + i + 1);
            }
        });
        let expected: Vec<_> = (0..7).flat_map(|row| [row + 1; 5]).collect();
        assert_eq!(data, expected);
    }
}
