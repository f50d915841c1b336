//! What one document may cost.

use serde::{Deserialize, Serialize};

/// Bounds on the parsing of one document. A parser that reaches one stops with
/// [`DocumentError::LimitExceeded`](crate::DocumentError::LimitExceeded); the worker process enforces memory, CPU and
/// wall time from outside as well.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Address space of the worker, bytes (`RLIMIT_AS`).
    pub memory_bytes: u64,
    /// Wall time for a small document, seconds.
    pub wall_seconds: f64,
    /// Wall time added for each MiB of input, seconds.
    pub wall_seconds_per_mib: f64,
    /// CPU time as a multiple of the wall time.
    pub cpu_factor: f64,
    /// Input larger than this is refused unread, bytes.
    pub input_bytes: u64,
    /// Text of one document, bytes.
    pub text_bytes: u64,
    /// All children (attachments, archive members) of one document together, bytes.
    pub child_bytes: u64,
    /// Depth of elements, lists, boxes, tables within a document.
    pub nesting: u32,
    /// Entries of one archive or container.
    pub archive_entries: u64,
    /// Bytes unpacked from one archive or container, all entries together.
    pub unpacked_bytes: u64,
    /// Unpacked size over packed size of one entry (only looked at beyond 1 MiB unpacked).
    pub compression_ratio: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            memory_bytes: 1 << 30,
            wall_seconds: 60.0,
            wall_seconds_per_mib: 2.0,
            cpu_factor: 1.0,
            input_bytes: 256 << 20,
            text_bytes: 64 << 20,
            child_bytes: 128 << 20,
            nesting: 256,
            archive_entries: 10_000,
            unpacked_bytes: 512 << 20,
            compression_ratio: 1000,
        }
    }
}

impl Limits {
    /// The largest answer that a worker may give, bytes: follows from the limits on text and children.
    pub fn output_bytes(&self) -> u64 {
        self.text_bytes.saturating_mul(2).saturating_add(self.child_bytes).saturating_add(16 << 20)
    }

    /// Wall time for an input of `bytes` bytes.
    pub fn wall_time(&self, bytes: u64) -> std::time::Duration {
        let mib = bytes as f64 / (1 << 20) as f64;
        let seconds = self.wall_seconds + self.wall_seconds_per_mib * mib;
        // from_secs_f64 panics outside this range; a caller may have set anything.
        std::time::Duration::from_secs_f64(seconds.clamp(0.001, 1.0e9))
    }
}
