//! Keeps deadlines: a request whose time is up is answered then, wherever its items are.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Condvar, Mutex, PoisonError, Weak};
use std::time::Instant;

use crate::request::Group;

#[derive(Default)]
struct Alarms {
    heap: BinaryHeap<Reverse<(Instant, u64)>>,
    groups: std::collections::HashMap<u64, Weak<Group>>,
    closed: bool,
}

/// The deadlines of the requests that are open.
#[derive(Default)]
pub(crate) struct Clock {
    alarms: Mutex<Alarms>,
    changed: Condvar,
}

impl Clock {
    pub(crate) fn add(&self, deadline: Instant, group: Weak<Group>, number: u64) {
        let mut alarms = self.alarms.lock().unwrap_or_else(PoisonError::into_inner);
        alarms.heap.push(Reverse((deadline, number)));
        alarms.groups.insert(number, group);
        drop(alarms);
        self.changed.notify_one();
    }

    /// Waits for the next deadline to pass; `None` once closed.
    pub(crate) fn next(&self) -> Option<Weak<Group>> {
        let mut alarms = self.alarms.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if alarms.closed {
                return None;
            }
            let now = Instant::now();
            match alarms.heap.peek() {
                None => alarms = self.changed.wait(alarms).unwrap_or_else(PoisonError::into_inner),
                Some(&Reverse((deadline, number))) if deadline <= now => {
                    alarms.heap.pop();
                    if let Some(group) = alarms.groups.remove(&number) {
                        return Some(group);
                    }
                }
                Some(Reverse((deadline, _))) => {
                    let left = deadline.saturating_duration_since(now);
                    alarms = self.changed.wait_timeout(alarms, left).unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    pub(crate) fn close(&self) {
        self.alarms.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.changed.notify_all();
    }
}
