//! Every attention specification: numbers against the interpreter, and the laws that can be seen on the same results.

use ehun_graph::{Index, Op, RaggedBatch, SequenceInput, ValueId};

use super::Suite;
use super::data::Pattern;
use super::runner::{Runner, SequenceRows};
use super::spec::{AttentionCase, CaseSequence, SpecPlan, attention_case, plans};
use crate::interpreter::attention::{AttentionInputs, BiasTables};
use crate::interpreter::{Interpreter, rows};
use crate::judge::{Numerics, UNIT, judge_row};
use crate::random::Random;
use crate::report::{Group, Tally};

const LENGTHS: [usize; 12] = [0, 1, 2, 3, 7, 16, 63, 64, 65, 127, 128, 129];

pub(super) fn run(suite: &mut Suite<'_>) {
    for plan in plans(suite.options.profile) {
        if suite.stopped() {
            return;
        }
        if suite.wants(&plan.name) {
            one(suite, &plan);
        }
    }
}

fn sequences(plan: &SpecPlan, full: bool) -> Vec<(Pattern, usize)> {
    if plan.longest > 129 {
        let lengths = [129, 1000, 4096].into_iter().filter(|&length| length <= plan.longest);
        return lengths
            .flat_map(|length| [Pattern::Normal, Pattern::Rising, Pattern::Ones].map(|p| (p, length)))
            .collect();
    }
    let mut all: Vec<(Pattern, usize)> = LENGTHS.iter().map(|&length| (Pattern::Normal, length)).collect();
    for pattern in Pattern::JUDGED.into_iter().filter(|&pattern| pattern != Pattern::Normal) {
        let lengths: &[usize] = if full { &LENGTHS[1..] } else { &[3, 65, 129] };
        all.extend(lengths.iter().map(|&length| (pattern, length)));
    }
    all
}

fn one(suite: &mut Suite<'_>, plan: &SpecPlan) {
    let case = match attention_case(plan, &sequences(plan, suite.full())) {
        Ok(case) => case,
        Err(error) => return suite.broken(Group::Attention, &plan.name, error),
    };
    let tally = Tally::new(Group::Attention, &plan.name);
    let Some((runner, mut tally)) = suite.compile(tally, &case.graph, &case.weights, plan.longest) else { return };

    let alone = numbers(&case, suite.numerics(), suite.full(), &runner, &mut tally);
    let failed = tally.failed();
    suite.add(tally.done());
    if failed {
        return;
    }
    let mut law = Tally::new(Group::Laws, format!("{}: rows of the softmax sum to one", plan.name));
    sums(&case, suite.numerics(), &alone, &mut law);
    suite.add(law.done());
    let mut law = Tally::new(Group::Laws, format!("{}: same bits alone and in a batch", plan.name));
    together(&case, &runner, &alone, &mut law);
    suite.add(law.done());
    let mut law = Tally::new(Group::Laws, format!("{}: poisoned neighbours are not seen", plan.name));
    poisoned(&case, &runner, &alone, &mut law);
    suite.add(law.done());
}

/// Runs each sequence alone and compares it with the interpreter; ends at the first that is wrong.
fn numbers(case: &AttentionCase, n: Numerics, full: bool, runner: &Runner, tally: &mut Tally) -> Vec<SequenceRows> {
    let mut alone = Vec::new();
    let interpreter = match Interpreter::new(&case.graph, &case.weights) {
        Ok(interpreter) => interpreter,
        Err(error) => {
            tally.fail(format!("the case itself is wrong: {error}"));
            return alone;
        }
    };
    for sequence in &case.sequences {
        match runner.run(&[&sequence.input]) {
            Ok(results) => {
                for found in &results {
                    judge(&interpreter, sequence, n, full, &found.outputs[0], tally);
                }
                alone.extend(results);
            }
            Err(error) => tally.fail(error),
        }
        if tally.failed() {
            break;
        }
    }
    alone
}

fn place<'a>(sequence: &'a CaseSequence, width: usize) -> impl Fn(usize) -> String + 'a {
    let length = sequence.input.token_ids.len();
    move |i| format!("{}, length {length}, row {}, column {}", sequence.pattern.name(), i / width, i % width)
}

/// The rows of a sequence that are judged: all of a short one; of a longer one its ends, the borders of tiles, and some.
fn judged_rows(length: usize, more: usize, random: &mut Random) -> Vec<usize> {
    if length <= 16 {
        return (0..length).collect();
    }
    let borders = [0, 1, 15, 16, 31, 32, 33, 62, 63, 64, 65, 126, 127, 128, 129, 255, 256, 1023, 1024];
    let mut rows: Vec<usize> = borders.into_iter().filter(|&row| row < length).collect();
    rows.extend([length - 2, length - 1]);
    rows.extend((0..more).map(|_| random.below(length)));
    rows.sort_unstable();
    rows.dedup();
    rows
}

fn judge(
    interpreter: &Interpreter,
    sequence: &CaseSequence,
    n: Numerics,
    full: bool,
    found: &[f32],
    tally: &mut Tally,
) {
    let graph = interpreter.graph();
    let batch = RaggedBatch::from_ids(&[&sequence.input.token_ids]);
    let length = batch.num_tokens();
    let Some(Op::Attention { q, k, v, spec }) = graph.nodes().last().map(|node| &node.op) else {
        return tally.fail("the case itself is wrong: no attention");
    };
    let weight = |id: ValueId| match &graph.node(id).op {
        Op::Embedding { table, .. } | Op::Constant { weight: table } => interpreter.weight(*table),
        _ => &[],
    };
    let lookup = |id: ValueId| rows::embedding(weight(id), graph.node(id).width, Index::TokenId, &batch);
    let (q, k, v) = (lookup(*q), lookup(*k), lookup(*v));
    let tables: Vec<&[f64]> = spec.bias_values().into_iter().map(weight).collect();
    let inputs = AttentionInputs { spec, q: &q, k: &k, v: &v, bias: BiasTables::new(&spec.bias, &tables) };
    let width = spec.num_heads * spec.value_dim;
    if found.len() != length * width {
        return tally.fail(format!("length {length}: {} numbers, {} expected", found.len(), length * width));
    }
    let place = place(sequence, width);
    let mut random = Random::new(length as u64);
    for i in judged_rows(length, if full { 12 } else { 3 }, &mut random) {
        for head in 0..spec.num_heads {
            let row = judge_row(n, &inputs, None, 0..length, i, head);
            let start = i * width + head * spec.value_dim;
            tally.compare(&found[start..start + spec.value_dim], &row.value, &row.error, |c| place(start + c));
        }
    }
    if let Some(i) = found.iter().position(|x| !x.is_finite()) {
        tally.fail(format!("{}: {}", place(i), found[i]));
    }
}

/// With values of 1 every element of every row is a sum of weights.
fn sums(case: &AttentionCase, n: Numerics, found: &[SequenceRows], tally: &mut Tally) {
    for (sequence, found) in case.sequences.iter().zip(found) {
        if sequence.pattern == Pattern::Ones {
            let found = &found.outputs[0];
            let keys = sequence.input.token_ids.len();
            let allowed = 2.0 * n.accumulation(keys + 8) + 4.0 * n.attention_operand() + 4.0 * UNIT;
            let place = |i: usize| format!("length {keys}, element {i}");
            tally.compare(found, &vec![1.0; found.len()], &vec![allowed; found.len()], place);
        }
    }
}

/// Bits must be the same wherever the shape is; between static shapes nothing is promised.
pub(super) fn expect_same(
    found: &SequenceRows,
    want: &SequenceRows,
    tally: &mut Tally,
    place: impl Fn(usize) -> String,
) {
    if found.bucket == want.bucket {
        for (found, want) in found.outputs.iter().zip(&want.outputs) {
            tally.same_bits(found, want, &place);
        }
    }
}

fn together(case: &AttentionCase, runner: &Runner, alone: &[SequenceRows], tally: &mut Tally) {
    let mut random = Random::new(2);
    for turn in 0..2 {
        let mut order = random.permutation(case.sequences.len());
        if turn == 1 {
            order.reverse();
        }
        let inputs: Vec<&SequenceInput> = order.iter().map(|&i| &case.sequences[i].input).collect();
        match runner.run(&inputs) {
            Ok(found) => {
                for (found, &i) in found.iter().zip(&order) {
                    let sequence = &case.sequences[i];
                    let width = found.outputs[0].len() / sequence.input.token_ids.len().max(1);
                    expect_same(found, &alone[i], tally, place(sequence, width.max(1)));
                }
            }
            Err(error) => tally.fail(error),
        }
    }
    if runner.has_buckets() {
        tally.note("static shapes: compared where the shape was the same");
    }
}

fn poisoned(case: &AttentionCase, runner: &Runner, alone: &[SequenceRows], tally: &mut Tally) {
    for (i, sequence) in case.sequences.iter().enumerate() {
        if sequence.pattern != Pattern::Normal || sequence.input.token_ids.len() > 129 {
            continue;
        }
        let width = alone[i].outputs[0].len() / sequence.input.token_ids.len().max(1);
        let place = place(sequence, width.max(1));
        let [before, between, after] = case.poison.as_slice() else {
            return tally.fail("the case itself is wrong: three poisoned sequences are needed");
        };
        match runner.run(&[before, &sequence.input, between, after]) {
            Ok(found) => {
                expect_same(&found[1], &alone[i], tally, &place);
                if found[1].outputs[0].iter().any(|x| x.is_nan()) {
                    tally.fail(format!("{}: NaN from a neighbour", place(0)));
                }
            }
            Err(error) => tally.fail(error),
        }
        // Buffers that held NaN a moment ago are used again: what is not written shows.
        match runner.run(&[&sequence.input]) {
            Ok(found) => expect_same(&found[0], &alone[i], tally, &place),
            Err(error) => tally.fail(error),
        }
    }
}
