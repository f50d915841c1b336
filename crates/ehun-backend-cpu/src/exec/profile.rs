//! Where the time goes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ehun_backend::OpTime;

use super::program::RunStep;

/// Time and work of each step of one run.
pub(crate) struct Profile {
    /// Nanoseconds of all threads together.
    busy: Vec<AtomicU64>,
    /// Wall time in seconds.
    seconds: Vec<f64>,
    flops: Vec<u64>,
}

impl Profile {
    pub(crate) fn new(steps: usize) -> Self {
        Self { busy: (0..steps).map(|_| AtomicU64::new(0)).collect(), seconds: vec![0.0; steps], flops: vec![0; steps] }
    }

    /// A thread was in `step` for so long.
    pub(crate) fn add_busy(&self, step: usize, nanoseconds: u64) {
        self.busy[step].fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// The steps of a stage took so long by the clock, which is shared out by how long the threads were in each.
    pub(crate) fn finish_stage(&mut self, steps: &[usize], elapsed: Duration) {
        let busy = |step: &usize| self.busy[*step].load(Ordering::Relaxed) as f64;
        let all: f64 = steps.iter().map(busy).sum();
        let shares: Vec<f64> =
            steps.iter().map(|step| if all > 0.0 { busy(step) / all } else { 1.0 / steps.len() as f64 }).collect();
        for (step, share) in steps.iter().zip(shares) {
            self.seconds[*step] += elapsed.as_secs_f64() * share;
        }
    }

    /// Counts the work of a step.
    pub(crate) fn add_flops(&mut self, step: usize, flops: u64) {
        self.flops[step] += flops;
    }

    /// By name, in the order in which names first come.
    pub(crate) fn by_operation(&self, steps: &[RunStep]) -> Vec<OpTime> {
        let mut list: Vec<OpTime> = Vec::new();
        for (number, step) in steps.iter().enumerate() {
            let place = list.iter().position(|known| known.operation == step.name).unwrap_or_else(|| {
                list.push(OpTime { operation: step.name.clone(), count: 0, seconds: 0.0, flops: 0 });
                list.len() - 1
            });
            list[place].count += 1;
            list[place].seconds += self.seconds[number];
            list[place].flops += self.flops[number];
        }
        list
    }
}
