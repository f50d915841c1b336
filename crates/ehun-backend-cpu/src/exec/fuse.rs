//! Several operations become one step, where that saves passes over memory. No pass changes a bit of any result: the
//! kernels compute the fused form with the same operations in the same order, and the tests compare both.
//!
//! | pass | saves |
//! | --- | --- |
//! | [`sum_embeddings`] | a write and two reads of the token rows for each table added |
//! | [`gate_linears`] | writing and reading both products |
//! | [`linear_epilogues`] | writing and reading the product before its activation or its residual |
//! | [`max_of_linears`] | ever holding tokens x vocabulary |
//! | [`share_operands`] | reading the operand once for Q, K and V, not thrice |

use ehun_graph::{Activation, PoolingMode, Rows};

use super::ir::{Ir, IrOp, Matrices, Matrix, Step, Term, Value};

/// All passes.
pub(crate) fn fuse(ir: &mut Ir) {
    sum_embeddings(ir);
    gate_linears(ir);
    linear_epilogues(ir);
    max_of_linears(ir);
    share_operands(ir);
}

/// Who makes a value and how often it is read, kept while a pass rewrites.
struct Readers {
    uses: Vec<usize>,
    makers: Vec<Option<usize>>,
}

impl Readers {
    fn of(ir: &Ir) -> Self {
        Self { uses: ir.uses(), makers: ir.makers() }
    }

    /// The place of the step that makes `value`, where `value` is no view and is read once.
    fn single(&self, ir: &Ir, value: Value) -> Option<usize> {
        let alone = self.uses[value] == 1 && ir.values[value].view.is_none();
        if alone { self.makers[value] } else { None }
    }

    /// As [`Self::single`], where the step is a linear of one matrix without activation or residual.
    fn single_linear(&self, ir: &Ir, value: Value) -> Option<(usize, Value, Matrix)> {
        let place = self.single(ir, value)?;
        let (x, matrix) = plain_linear(&ir.steps[place].op)?;
        Some((place, x, matrix))
    }
}

/// Operand and matrix of a linear of one matrix without activation or residual.
fn plain_linear(op: &IrOp) -> Option<(Value, Matrix)> {
    match op {
        IrOp::Linear { x, matrices: Matrices::SideBySide(list), activation: None, residual: None } => {
            match list.as_slice() {
                [matrix] => Some((*x, *matrix)),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Goes through the steps in order; where `rewrite` gives places, those steps are dropped once all are seen.
fn rewrite_steps(ir: &mut Ir, mut rewrite: impl FnMut(&mut Ir, &mut Readers, usize) -> Vec<usize>) {
    let mut readers = Readers::of(ir);
    let mut dropped = vec![false; ir.steps.len()];
    for place in 0..ir.steps.len() {
        for gone in rewrite(ir, &mut readers, place) {
            dropped[gone] = true;
        }
    }
    let mut dropped = dropped.into_iter();
    ir.steps.retain(|_| !dropped.next().unwrap_or(false));
}

/// `add(embedding, embedding)` and `add(embedding, constant row)` become one sum.
fn sum_embeddings(ir: &mut Ir) {
    rewrite_steps(ir, |ir, readers, place| {
        let IrOp::Add { a, b } = ir.steps[place].op else { return Vec::new() };
        let terms = |value: Value| {
            let maker = readers.single(ir, value)?;
            match &ir.steps[maker].op {
                IrOp::Embed { terms } => Some((maker, terms.clone())),
                _ => None,
            }
        };
        let constant_row = ir.values[b].rows == Rows::Constant(1) && ir.values[b].view.is_none();
        let (terms, gone) = match (terms(a), terms(b)) {
            (Some((maker, mut sum)), None) if constant_row => {
                sum.push(Term::Row(b));
                (sum, vec![maker])
            }
            // Sums of floats do not associate: one side must be a single term, which is then added to the other.
            (Some((one, mut sum)), Some((other, terms))) if terms.len() == 1 => {
                sum.extend(terms);
                (sum, vec![one, other])
            }
            (Some((one, terms)), Some((other, mut sum))) if terms.len() == 1 => {
                sum.extend(terms);
                (sum, vec![one, other])
            }
            _ => return Vec::new(),
        };
        ir.steps[place].op = IrOp::Embed { terms };
        gone
    });
}

/// `gate(linear(x), linear(x))` becomes one product of both matrices, column by column side by side.
fn gate_linears(ir: &mut Ir) {
    rewrite_steps(ir, |ir, readers, place| {
        let IrOp::Gate { gate, up, function } = ir.steps[place].op else { return Vec::new() };
        let (Some((one, x, gate)), Some((other, y, up))) =
            (readers.single_linear(ir, gate), readers.single_linear(ir, up))
        else {
            return Vec::new();
        };
        if x != y {
            return Vec::new();
        }
        let matrices = Matrices::Gated { gate, up };
        ir.steps[place].op = IrOp::Linear { x, matrices, activation: Some(function), residual: None };
        vec![one, other]
    });
}

/// `activation(linear)` and `linear + value` become part of the linear.
fn linear_epilogues(ir: &mut Ir) {
    rewrite_steps(ir, |ir, readers, place| {
        if let IrOp::Activation { x: value, function } = ir.steps[place].op {
            let Some((maker, x, matrix)) = readers.single_linear(ir, value) else { return Vec::new() };
            let matrices = Matrices::SideBySide(vec![matrix]);
            ir.steps[place].op = IrOp::Linear { x, matrices, activation: Some(function), residual: None };
            return vec![maker];
        }
        let IrOp::Add { a, b } = ir.steps[place].op else { return Vec::new() };
        if ir.values[a].rows != ir.values[b].rows {
            return Vec::new();
        }
        let linear = |value: Value, other: Value| {
            let maker = readers.single(ir, value)?;
            match &ir.steps[maker].op {
                IrOp::Linear { x, matrices: matrices @ Matrices::SideBySide(_), activation, residual: None } => {
                    let residual = Some(other);
                    Some((maker, IrOp::Linear { x: *x, matrices: matrices.clone(), activation: *activation, residual }))
                }
                _ => None,
            }
        };
        match linear(b, a).or_else(|| linear(a, b)) {
            Some((maker, op)) => {
                ir.steps[place].op = op;
                vec![maker]
            }
            None => Vec::new(),
        }
    });
}

/// Whether `max_i f(x_i) = f(max_i x_i)`.
fn rises(function: Option<Activation>) -> bool {
    match function {
        None | Some(Activation::Relu | Activation::Tanh | Activation::Sigmoid | Activation::Log1pRelu) => true,
        Some(Activation::Gelu | Activation::GeluTanh | Activation::QuickGelu | Activation::Silu) => false,
    }
}

/// Max pooling of a linear that is wider than what it reads: the vocabulary of SPLADE. The activation, which rises, is
/// applied to the maximum.
fn max_of_linears(ir: &mut Ir) {
    rewrite_steps(ir, |ir, readers, place| {
        let IrOp::Pooling { x: value, mode: PoolingMode::Max } = ir.steps[place].op else { return Vec::new() };
        let Some(maker) = readers.single(ir, value) else { return Vec::new() };
        let IrOp::Linear { x, matrices: Matrices::SideBySide(list), activation, residual: None } = &ir.steps[maker].op
        else {
            return Vec::new();
        };
        let (x, activation) = (*x, *activation);
        let ([matrix], true) = (list.as_slice(), rises(activation)) else { return Vec::new() };
        if ir.values[value].width <= 2 * ir.values[x].width {
            return Vec::new();
        }
        ir.steps[place].op = IrOp::MaxOfLinear { x, matrix: *matrix, activation };
        vec![maker]
    });
}

/// Linears of the same operand become one product, and their results views of it.
fn share_operands(ir: &mut Ir) {
    let mut place = 0;
    while place < ir.steps.len() {
        if let Some((x, first)) = plain_linear(&ir.steps[place].op) {
            let others: Vec<(usize, Matrix)> = (place + 1..ir.steps.len())
                .filter_map(|other| match plain_linear(&ir.steps[other].op) {
                    Some((y, matrix)) if y == x => Some((other, matrix)),
                    _ => None,
                })
                .collect();
            if !others.is_empty() {
                merge(ir, place, x, first, &others);
            }
        }
        place += 1;
    }
}

fn merge(ir: &mut Ir, place: usize, x: Value, first: Matrix, others: &[(usize, Matrix)]) {
    let parts: Vec<Value> =
        std::iter::once(place).chain(others.iter().map(|(other, _)| *other)).map(|p| ir.steps[p].out).collect();
    let width = parts.iter().map(|part| ir.values[*part].width).sum();
    let out = ir.add_value(ir.values[x].rows, width);
    let mut start = 0;
    for part in parts {
        // What was a view of the part is now a view of the whole.
        for value in 0..ir.values.len() {
            if let Some((root, offset)) = ir.values[value].view
                && root == part
            {
                ir.values[value].view = Some((out, start + offset));
            }
        }
        ir.values[part].view = Some((out, start));
        start += ir.values[part].width;
    }
    let list = std::iter::once(first).chain(others.iter().map(|(_, matrix)| *matrix)).collect();
    let op = IrOp::Linear { x, matrices: Matrices::SideBySide(list), activation: None, residual: None };
    ir.steps[place] = Step { op, out };
    for (other, _) in others.iter().rev() {
        ir.steps.remove(*other);
    }
}
