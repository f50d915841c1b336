//! A thread takes a block of rows through the steps of a stage.

use std::ops::Range;
use std::time::Instant;

use ehun_graph::{Rows, WeightStore};

use super::context::{Context, RotaryCache};
use super::embedding::{Put, lookup};
use super::program::{ConstantRows, Loc, RunOp, RunStep, RunTerm};
use super::schedule::Place;
use crate::aligned::Aligned;
use crate::gemm::{MatMut, MatRef, Residual};
use crate::pool::ThreadPool;
use crate::rows;
use crate::simd::Isa;

/// The smallest length of a row in [`RunOp::L2Normalize`], as in PyTorch's `normalize`.
const L2_EPS: f32 = 1e-12;

/// What all blocks of a stage share.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a> {
    pub(crate) isa: Isa,
    pub(crate) pool: &'a ThreadPool,
    pub(crate) weights: &'a WeightStore,
    pub(crate) constants: &'a [Option<ConstantRows>],
    /// Slots of the arena that the stage reads; those that it writes are empty.
    pub(crate) arena: &'a [Aligned<f32>],
    pub(crate) context: &'a Context<'a>,
    pub(crate) rotaries: &'a [RotaryCache],
}

/// A block of rows.
pub(crate) struct Block<'a> {
    pub(crate) shared: Shared<'a>,
    /// What the rows are.
    pub(crate) kind: Rows,
    pub(crate) rows: Range<usize>,
    /// The block's rows of the slots of the arena that the stage writes, by slot; empty while a step writes one.
    pub(crate) written: Vec<(usize, &'a mut [f32])>,
    /// The thread's scratch.
    pub(crate) local: &'a mut [Aligned<f32>],
}

/// The memory of a result, taken out of the block while operands are read.
enum Taken<'a> {
    Written(usize, &'a mut [f32]),
    Local(usize, Aligned<f32>),
}

impl Taken<'_> {
    fn data(&mut self, len: usize) -> &mut [f32] {
        match self {
            Self::Written(_, data) => &mut data[..len],
            Self::Local(_, data) => data.at_least(len),
        }
    }
}

/// Rows to write. Rows never overlap: each is `width` long, and the next starts `stride` on.
struct OutRows<'a> {
    data: &'a mut [f32],
    width: usize,
    stride: usize,
}

impl OutRows<'_> {
    fn each(&mut self, mut f: impl FnMut(usize, &mut [f32])) {
        let width = self.width;
        self.data.chunks_mut(self.stride.max(1)).enumerate().for_each(|(i, row)| f(i, &mut row[..width]));
    }

    /// Writes `x` and then does `f` to each row; `None` is the memory's own rows.
    fn from(&mut self, x: Option<MatRef<'_>>, mut f: impl FnMut(usize, &mut [f32])) {
        self.each(|i, row| {
            if let Some(x) = x {
                row.copy_from_slice(x.row(i));
            }
            f(i, row);
        });
    }

    fn as_mat(&mut self, rows: usize) -> MatMut<'_> {
        MatMut::new(self.data, rows, self.width, self.stride)
    }
}

impl<'a> Block<'a> {
    /// Runs the steps, and gives `timed` the number of each in the list with the time that it took, in nanoseconds.
    pub(crate) fn run<'s>(
        &mut self,
        steps: impl Iterator<Item = &'s RunStep>,
        mut timed: Option<&mut dyn FnMut(usize, u64)>,
    ) {
        for (number, step) in steps.enumerate() {
            let started = timed.is_some().then(Instant::now);
            self.step(step);
            if let (Some(timed), Some(started)) = (timed.as_mut(), started) {
                timed(number, started.elapsed().as_nanos() as u64);
            }
        }
    }

    fn take(&mut self, out: &Loc) -> Taken<'a> {
        match out.place {
            Place::Arena(slot) => match self.written.iter_mut().find(|(written, _)| *written == slot) {
                Some((_, data)) => Taken::Written(slot, std::mem::take(data)),
                None => unreachable!("a stage is given the slots that it writes"),
            },
            Place::Local(slot) => Taken::Local(slot, std::mem::replace(&mut self.local[slot], Aligned::empty())),
            Place::None | Place::Constant => unreachable!("a step's result has memory"),
        }
    }

    fn put(&mut self, taken: Taken<'a>) {
        match taken {
            Taken::Written(slot, data) => {
                if let Some(entry) = self.written.iter_mut().find(|(written, _)| *written == slot) {
                    entry.1 = data;
                }
            }
            Taken::Local(slot, data) => self.local[slot] = data,
        }
    }

    /// The block's rows of an operand; all rows of one whose rows are of another kind, which are constant.
    fn operand(&self, loc: &Loc) -> MatRef<'_> {
        let (first, rows) = match loc.rows {
            kind if kind == self.kind => (self.rows.start, self.rows.len()),
            Rows::Constant(rows) => (0, rows),
            Rows::Tokens | Rows::Sequences => unreachable!("token rows and sequence rows meet in pooling alone"),
        };
        let (data, first) = match loc.place {
            Place::Local(slot) => (self.local[slot].as_slice(), 0),
            Place::Arena(slot) => match self.written.iter().find(|(written, _)| *written == slot) {
                Some((_, data)) => (&**data, 0),
                None => (self.shared.arena[slot].as_slice(), first),
            },
            Place::Constant => {
                let constant = self.shared.constants.get(loc.root).and_then(Option::as_ref);
                (constant.map_or(&[][..], |constant| constant.data.as_slice()), 0)
            }
            Place::None => unreachable!("an operand has memory"),
        };
        MatRef::new(&data[first * loc.stride + loc.start..], rows, loc.width, loc.stride)
    }

    fn step(&mut self, step: &RunStep) {
        let mut taken = self.take(&step.out);
        let (width, stride) = (step.out.width, step.out.stride);
        let count = self.rows.len();
        let data = taken.data(count * stride);
        self.compute(&step.op, &step.out, OutRows { data, width, stride });
        self.put(taken);
    }

    /// `None` where the operand lies in the memory of the result.
    fn unless_in_place(&self, x: &Loc, out: &Loc) -> Option<MatRef<'_>> {
        if x.place == out.place { None } else { Some(self.operand(x)) }
    }

    fn compute(&self, op: &RunOp, at: &Loc, mut out: OutRows<'_>) {
        let isa = self.shared.isa;
        let width = out.width;
        match op {
            RunOp::Embed { terms } => self.embed(terms, &mut out),
            RunOp::Constant { weight } => {
                if let Some(values) = self.shared.weights.read_f32(weight) {
                    let first = self.rows.start;
                    out.each(|i, row| row.copy_from_slice(&values[(first + i) * width..][..width]));
                }
            }
            RunOp::Linear { x, product, activation, residual } => {
                let residual = residual.map_or(Residual::None, |loc| Residual::Matrix(self.operand(&loc)));
                let (x, out) = (self.operand(x), out.as_mat(self.rows.len()));
                product.multiply(self.shared.pool, x, *activation, residual, out);
            }
            RunOp::LayerNorm { x, weight, bias, eps } => {
                let norm = rows::LayerNorm { width, weight: weight.as_deref(), bias: bias.as_deref(), eps: *eps };
                out.from(self.unless_in_place(x, at), |_, row| rows::layer_norm_in_place(isa, &norm, row));
            }
            RunOp::RmsNorm { x, weight, offset, group, eps } => {
                let norm = rows::RmsNorm { group: *group, weight: weight.as_deref(), offset: *offset, eps: *eps };
                out.from(self.unless_in_place(x, at), |_, row| rows::rms_norm_in_place(isa, &norm, row));
            }
            RunOp::Activation { x, function } => {
                out.from(self.unless_in_place(x, at), |_, row| rows::activation_in_place(isa, *function, row));
            }
            RunOp::Gate { gate, up, function } => {
                let up = self.operand(up);
                out.from(self.unless_in_place(gate, at), |i, row| {
                    rows::gate_in_place(isa, *function, row, up.row(i));
                });
            }
            RunOp::Add { a, b } => {
                let b = Broadcast(self.operand(b));
                out.from(self.unless_in_place(a, at), |i, row| rows::add_in_place(isa, row, b.row(i)));
            }
            RunOp::Multiply { a, b } => {
                let b = Broadcast(self.operand(b));
                out.from(self.unless_in_place(a, at), |i, row| rows::multiply_in_place(isa, row, b.row(i)));
            }
            RunOp::Scale { x, by } => {
                out.from(self.unless_in_place(x, at), |_, row| rows::scale_in_place(isa, *by, row));
            }
            RunOp::Rotary { x, tables } => {
                let spec = self.shared.rotaries[*tables].spec();
                let first = self.rows.start;
                out.from(self.unless_in_place(x, at), |i, row| {
                    let (cos, sin) = self.shared.context.rotary(first + i, *tables);
                    let rotary = rows::Rotary {
                        heads: width / spec.head_dim,
                        head_dim: spec.head_dim,
                        rotary_dim: spec.rotary_dim,
                        layout: spec.layout,
                        cos,
                        sin,
                    };
                    rows::rotary_in_place(isa, &rotary, row, width, &[0]);
                });
            }
            RunOp::Concat { parts } => {
                let mut start = 0;
                for part in parts {
                    let x = self.operand(part);
                    out.each(|i, row| row[start..start + part.width].copy_from_slice(x.row(i)));
                    start += part.width;
                }
            }
            RunOp::L2Normalize { x } => {
                out.from(self.unless_in_place(x, at), |_, row| {
                    rows::l2_normalize_in_place(isa, row, width, L2_EPS);
                });
            }
            RunOp::ClearEmpty { x } => {
                let (first, batch) = (self.rows.start, self.shared.context.batch);
                out.from(self.unless_in_place(x, at), |i, row| {
                    if batch.len_of(first + i) == 0 {
                        row.fill(0.0);
                    }
                });
            }
            RunOp::Attention { .. } | RunOp::Pooling { .. } | RunOp::MaxOfLinear { .. } => {
                unreachable!("rows meet in {:?}", at.place)
            }
        }
    }

    fn embed(&self, terms: &[RunTerm], out: &mut OutRows<'_>) {
        let first = self.rows.start;
        for (number, term) in terms.iter().enumerate() {
            let put = if number == 0 { Put::Write } else { Put::Add };
            match term {
                RunTerm::Lookup { table, index } => {
                    let Some(view) = self.shared.weights.view_ref(table) else { continue };
                    out.each(|i, row| lookup(&view, self.shared.context.index(first + i, *index), row, put));
                }
                RunTerm::Row(constant) => {
                    out.each(|_, row| rows::add_in_place(self.shared.isa, row, constant));
                }
            }
        }
    }
}

/// Rows, or one row that stands for all.
struct Broadcast<'a>(MatRef<'a>);

impl<'a> Broadcast<'a> {
    fn row(&self, i: usize) -> &'a [f32] {
        self.0.row(if self.0.rows() == 1 { 0 } else { i })
    }
}
