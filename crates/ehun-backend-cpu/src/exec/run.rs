//! Runs a program on a batch: stage after stage, blocks of rows on all threads.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use ehun_backend::BackendError;
use ehun_graph::{Rows, WeightStore};

use super::attention::{AttentionKernel, Call};
use super::block::{Block, Shared};
use super::context::{Context, RotaryCache};
use super::pooling::{MaxOfLinear, pool_rows};
use super::profile::Profile;
use super::program::{Loc, Program, RunOp, RunStep};
use super::schedule::{Place, Stage, count};
use crate::aligned::Aligned;
use crate::gemm::{MatMut, MatRef};
use crate::pool::ThreadPool;
use crate::simd::Isa;

/// Up to so many rows for each thread, a stage is one block and the products are cut by their channels instead: every
/// thread then reads its part of the weights once, where blocks would have each read all of them.
const FEW_ROWS: usize = 16;
/// Bytes of scratch that a block may have: a half of the second-level cache, which the weights stream through.
const BLOCK_BYTES: usize = 512 << 10;
/// Bounds of the rows of a block.
const BLOCK_ROWS: std::ops::RangeInclusive<usize> = 28..=224;

thread_local! {
    /// The scratch of the block that this thread works on.
    static SCRATCH: RefCell<Vec<Aligned<f32>>> = const { RefCell::new(Vec::new()) };
}

/// Memory of the values that stages hand on, kept from run to run.
#[derive(Default)]
pub(crate) struct Arena(Vec<Aligned<f32>>);

/// What a run needs beside the program.
pub(crate) struct Runner<'a> {
    pub(crate) isa: Isa,
    pub(crate) pool: &'a ThreadPool,
    pub(crate) weights: &'a WeightStore,
    pub(crate) rotaries: &'a [RotaryCache],
    pub(crate) context: &'a Context<'a>,
    pub(crate) attention: &'a dyn AttentionKernel,
    pub(crate) deadline: Option<Instant>,
}

impl Runner<'_> {
    /// Runs `program` and returns its outputs, packed.
    pub(crate) fn run(
        &self,
        program: &Program,
        arena: &mut Arena,
        mut profile: Option<&mut Profile>,
    ) -> Result<Vec<Vec<f32>>, BackendError> {
        let _busy = self.pool.busy();
        arena.0.resize_with(program.schedule.arena.len().max(arena.0.len()), Aligned::empty);
        for (number, stage) in program.schedule.stages.iter().enumerate() {
            if self.expired() {
                return Err(BackendError::Deadline);
            }
            let started = Instant::now();
            match stage {
                Stage::Rows { rows, steps } => {
                    self.row_stage(program, number, *rows, steps, arena, profile.as_deref())?;
                }
                Stage::Meeting(step) => self.meeting(program, &program.steps[*step], arena)?,
            }
            if let Some(profile) = profile.as_deref_mut() {
                profile.finish_stage(stage.steps(), started.elapsed());
                for &place in stage.steps() {
                    profile.add_flops(place, self.flops(&program.steps[place]));
                }
            }
        }
        Ok(program.outputs.iter().map(|output| self.output(program, output, arena)).collect())
    }

    fn expired(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    fn count(&self, rows: Rows) -> usize {
        count(rows, self.context.batch.num_tokens(), self.context.batch.num_sequences())
    }

    fn flops(&self, step: &RunStep) -> u64 {
        match &step.op {
            RunOp::Attention { spec, .. } => {
                self.context.batch.lengths().map(|len| super::attention::flops(spec, len)).sum()
            }
            RunOp::MaxOfLinear { .. } => step.flops_per_row * self.context.batch.num_tokens() as u64,
            _ => step.flops_per_row * self.count(step.out.rows) as u64,
        }
    }

    fn row_stage(
        &self,
        program: &Program,
        number: usize,
        kind: Rows,
        places: &[usize],
        arena: &mut Arena,
        profile: Option<&Profile>,
    ) -> Result<(), BackendError> {
        let rows = self.count(kind);
        if rows == 0 {
            return Ok(());
        }
        let block_rows = self.block_rows(rows, program.schedule.local_width(number));
        // The slots that the stage writes are taken out of the arena, so that its other slots can be read meanwhile.
        let mut written: Vec<(Loc, Aligned<f32>)> = Vec::new();
        for &place in places {
            let out = program.steps[place].out;
            if let Place::Arena(slot) = out.place {
                let mut data = std::mem::replace(&mut arena.0[slot], Aligned::empty());
                data.at_least(rows * out.stride);
                written.push((out, data));
            }
        }
        let mut blocks: Vec<Vec<(usize, &mut [f32])>> = (0..rows.div_ceil(block_rows)).map(|_| Vec::new()).collect();
        for (out, data) in &mut written {
            let Place::Arena(slot) = out.place else { continue };
            let data = data.at_least(rows * out.stride);
            for (block, part) in blocks.iter_mut().zip(data.chunks_mut(block_rows * out.stride)) {
                block.push((slot, part));
            }
        }
        let shared = Shared {
            isa: self.isa,
            pool: self.pool,
            weights: self.weights,
            constants: &program.constants,
            arena: &arena.0,
            context: self.context,
            rotaries: self.rotaries,
        };
        let late = AtomicBool::new(false);
        let slots = program.schedule.local[number].len();
        let blocks: Vec<_> = blocks.into_iter().map(Mutex::new).collect();
        let work = |task: usize| {
            if late.load(Ordering::Relaxed) || self.expired() {
                late.store(true, Ordering::Relaxed);
                return;
            }
            let written = std::mem::take(&mut *blocks[task].lock().unwrap_or_else(PoisonError::into_inner));
            SCRATCH.with_borrow_mut(|scratch| {
                scratch.resize_with(slots.max(scratch.len()), Aligned::empty);
                let first = task * block_rows;
                let mut block =
                    Block { shared, kind, rows: first..(first + block_rows).min(rows), written, local: scratch };
                let steps = places.iter().map(|place| &program.steps[*place]);
                match profile {
                    Some(profile) => {
                        let mut timed = |number: usize, time| profile.add_busy(places[number], time);
                        block.run(steps, Some(&mut timed));
                    }
                    None => block.run(steps, None),
                }
            });
        };
        match blocks.len() {
            // Not a task of the pool: the products inside are.
            1 => work(0),
            tasks => self.pool.run(tasks, work),
        }
        drop(blocks);
        for (out, data) in written {
            if let Place::Arena(slot) = out.place {
                arena.0[slot] = data;
            }
        }
        if late.into_inner() { Err(BackendError::Deadline) } else { Ok(()) }
    }

    /// Rows of a block, of `rows` with `width` values of scratch each. It changes no bits.
    fn block_rows(&self, rows: usize, width: usize) -> usize {
        let threads = self.pool.threads();
        if rows <= FEW_ROWS * threads {
            return rows;
        }
        let fit = BLOCK_BYTES / (width.max(1) * size_of::<f32>());
        let most = fit.clamp(*BLOCK_ROWS.start(), *BLOCK_ROWS.end());
        // A whole number of blocks for each thread, all of one size.
        let blocks = rows.div_ceil(most).next_multiple_of(threads);
        rows.div_ceil(blocks)
    }

    /// Attention and pooling.
    fn meeting(&self, program: &Program, step: &RunStep, arena: &mut Arena) -> Result<(), BackendError> {
        let Place::Arena(slot) = step.out.place else { return Ok(()) };
        let rows = self.count(step.out.rows);
        let mut data = std::mem::replace(&mut arena.0[slot], Aligned::empty());
        let out = data.at_least(rows * step.out.stride);
        let batch = self.context.batch;
        let mut done = Ok(());
        match &step.op {
            RunOp::Attention { q, k, v, spec, bias } => {
                let [q, k, v] = [q, k, v].map(|loc| self.operand(program, loc, arena));
                let out = MatMut::new(out, rows, step.out.width, step.out.stride);
                done = self.attention.run(self.pool, Call { spec, bias: bias.tables(), batch, q, k, v, out });
            }
            RunOp::Pooling { x, mode } => {
                let x = self.operand(program, x, arena);
                pool_rows(self.pool, batch, *mode, x, out, step.out.stride);
            }
            RunOp::MaxOfLinear { x, chunks, activation } => {
                let data = match x.place {
                    Place::Arena(slot) => &arena.0[slot].as_slice()[x.start.min(arena.0[slot].as_slice().len())..],
                    _ => &[],
                };
                let pooled = MaxOfLinear {
                    isa: self.isa,
                    pool: self.pool,
                    batch,
                    x: data,
                    width: x.width,
                    stride: x.stride,
                    activation: *activation,
                };
                pooled.run(chunks, out, step.out.stride);
            }
            _ => unreachable!("`{}` works row by row", step.name),
        }
        arena.0[slot] = data;
        done
    }

    /// All rows of an operand.
    fn operand<'a>(&self, program: &'a Program, loc: &Loc, arena: &'a Arena) -> MatRef<'a> {
        let data = match loc.place {
            Place::Arena(slot) => arena.0[slot].as_slice(),
            Place::Constant => {
                program.constants.get(loc.root).and_then(Option::as_ref).map_or(&[][..], |rows| rows.data.as_slice())
            }
            Place::Local(_) | Place::None => unreachable!("what another stage reads is in the arena"),
        };
        let rows = self.count(loc.rows);
        MatRef::new(&data[loc.start.min(data.len())..], rows, loc.width, loc.stride)
    }

    fn output(&self, program: &Program, loc: &Loc, arena: &Arena) -> Vec<f32> {
        let x = self.operand(program, loc, arena);
        let mut packed = Vec::with_capacity(x.rows() * x.cols());
        (0..x.rows()).for_each(|i| packed.extend_from_slice(x.row(i)));
        packed
    }
}
