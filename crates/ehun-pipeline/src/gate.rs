//! The bound on what is between reading and writing: so many sources, and so many of their bytes.

use std::sync::{Condvar, Mutex, PoisonError};

#[derive(Default)]
struct State {
    sources: usize,
    bytes: u64,
    closed: bool,
}

pub(crate) struct Gate {
    most_sources: usize,
    most_bytes: u64,
    state: Mutex<State>,
    left: Condvar,
}

impl Gate {
    pub(crate) fn new(most_sources: usize, most_bytes: u64) -> Self {
        Self { most_sources, most_bytes, state: Mutex::default(), left: Condvar::new() }
    }

    /// Waits until there is room for a source of `bytes`; one alone always has room. `false` once the gate is closed.
    pub(crate) fn enter(&self, bytes: u64) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if state.closed {
                return false;
            }
            let room = state.sources < self.most_sources && state.bytes + bytes <= self.most_bytes;
            if state.sources == 0 || room {
                state.sources += 1;
                state.bytes += bytes;
                return true;
            }
            state = self.left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn leave(&self, bytes: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.sources -= 1;
        state.bytes -= bytes;
        drop(state);
        self.left.notify_all();
    }

    pub(crate) fn close(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.left.notify_all();
    }
}
