//! Pooling that reads one row of a sequence (cls, last token) needs only that row of what the last block computes.
//!
//! Row operations commute with the choice of a row: `pool(f(x)) = f(pool(x))`, bit for bit. So the choice moves up
//! through them, as far as attention, and everything below is computed for one row of each sequence. What the law leaves
//! out is the empty sequence, which pools to zeros: where the pooling stood, its row is cleared.

use std::collections::HashMap;

use ehun_graph::{PoolingMode, Rows};

use super::ir::{Ir, IrOp, Step, Value};

/// Which token rows of a value are read.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Needed {
    Nothing,
    Only(PoolingMode),
    All,
}

impl Needed {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Nothing, needed) | (needed, Self::Nothing) => needed,
            (a, b) if a == b => a,
            _ => Self::All,
        }
    }
}

fn picks_a_row(mode: PoolingMode) -> bool {
    matches!(mode, PoolingMode::Cls | PoolingMode::LastToken)
}

/// Whether a row of the result depends on the same row of the operands alone: not on its position, not on other rows.
fn commutes(op: &IrOp) -> bool {
    match op {
        IrOp::Linear { .. }
        | IrOp::LayerNorm { .. }
        | IrOp::RmsNorm { .. }
        | IrOp::Activation { .. }
        | IrOp::Gate { .. }
        | IrOp::Add { .. }
        | IrOp::Multiply { .. }
        | IrOp::Scale { .. }
        | IrOp::Concat { .. }
        | IrOp::L2Normalize { .. } => true,
        IrOp::Embed { .. }
        | IrOp::Constant { .. }
        | IrOp::MaxOfLinear { .. }
        | IrOp::Rotary { .. }
        | IrOp::Attention { .. }
        | IrOp::Pooling { .. }
        | IrOp::ClearEmpty { .. } => false,
    }
}

/// Moves the choice of rows up.
pub(crate) fn select_rows(ir: &mut Ir) {
    let mut needed = vec![Needed::Nothing; ir.values.len()];
    for &output in &ir.outputs {
        let (root, _) = ir.root(output);
        needed[root] = Needed::All;
    }
    for step in ir.steps.iter().rev() {
        let of_operands = match &step.op {
            IrOp::Pooling { mode, .. } if picks_a_row(*mode) => Needed::Only(*mode),
            op if commutes(op) && ir.values[step.out].rows == Rows::Tokens => needed[step.out],
            _ => Needed::All,
        };
        for operand in step.op.operands() {
            let (root, _) = ir.root(operand);
            needed[root] = needed[root].and(of_operands);
        }
    }

    // A value shrinks where only such rows of it are read and its operation commutes.
    let mut shrinks: Vec<Option<PoolingMode>> = vec![None; ir.values.len()];
    for step in &ir.steps {
        if let (Needed::Only(mode), Rows::Tokens, true) =
            (needed[step.out], ir.values[step.out].rows, commutes(&step.op))
        {
            shrinks[step.out] = Some(mode);
        }
    }
    if shrinks.iter().all(Option::is_none) {
        return;
    }
    for value in 0..ir.values.len() {
        if shrinks[ir.root(value).0].is_some() {
            ir.values[value].rows = Rows::Sequences;
        }
    }

    let mut picked: HashMap<(Value, PoolingMode), Value> = HashMap::new();
    let mut steps = Vec::with_capacity(ir.steps.len());
    for mut step in std::mem::take(&mut ir.steps) {
        if let IrOp::Pooling { x, .. } = step.op
            && shrinks[ir.root(x).0].is_some()
        {
            steps.push(Step { op: IrOp::ClearEmpty { x }, out: step.out });
            continue;
        }
        if let Some(mode) = shrinks[step.out] {
            step.op.for_operands(|operand| {
                if ir.values[*operand].rows == Rows::Tokens {
                    let width = ir.values[*operand].width;
                    *operand = *picked.entry((*operand, mode)).or_insert_with_key(|(x, mode)| {
                        let out = ir.add_value(Rows::Sequences, width);
                        steps.push(Step { op: IrOp::Pooling { x: *x, mode: *mode }, out });
                        out
                    });
                }
            });
        }
        steps.push(step);
    }
    ir.steps = steps;
}
