//! How many handles of plugins are alive: counted up when one is made, and down when the plugin has confirmed that it freed
//! it. A leak of this side of the interface is a count that does not come back.

use std::sync::atomic::{AtomicI64, Ordering};

/// Handles that are alive in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveHandles {
    /// Arrays on devices.
    pub buffers: i64,
    /// Programs on devices.
    pub loaded: i64,
    /// Programs without a device, and views of those on one.
    pub executables: i64,
    /// Devices by name.
    pub topologies: i64,
    /// Events that are waited for.
    pub events: i64,
}

/// A kind of handle.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Buffer,
    Loaded,
    Executable,
    Topology,
    Event,
}

static LIVE: [AtomicI64; 5] = [const { AtomicI64::new(0) }; 5];

/// A handle of `kind` was made.
pub(super) fn made(kind: Kind) {
    LIVE[kind as usize].fetch_add(1, Ordering::Relaxed);
}

/// The plugin answered `result` to freeing a handle of `kind`. An error has nobody to go to, but stays in the count.
pub(super) fn freed<E>(kind: Kind, result: Result<(), E>) {
    if result.is_ok() {
        LIVE[kind as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// What is alive now.
pub fn live_handles() -> LiveHandles {
    let [buffers, loaded, executables, topologies, events] = [0, 1, 2, 3, 4].map(|i| LIVE[i].load(Ordering::Relaxed));
    LiveHandles { buffers, loaded, executables, topologies, events }
}
