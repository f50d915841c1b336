//! Whether a backend does what it says, says what it does, and gives a reason for what it does not.

use std::sync::PoisonError;

use ehun_backend::{Attention, BackendError, Options, Precision, ShapePolicy};
use ehun_graph::{RaggedBatch, SequenceInput};

use super::Suite;
use super::models::{Model, encoder, sequences};
use super::runner::{NoRunner, Runner};
use crate::random::Random;
use crate::report::{Group, Tally};

pub(super) fn run(suite: &mut Suite<'_>) {
    let model = match encoder() {
        Ok(model) => model,
        Err(error) => return suite.broken(Group::Honesty, "encoder", error),
    };
    capabilities(suite, &model);
    unknown_kernel(suite, &model);
    precisions(suite, &model);
    kernels(suite, &model);
    input(suite, &model);
}

fn capabilities(suite: &mut Suite<'_>, model: &Model) {
    let mut tally = Tally::new(Group::Honesty, "capabilities describe what is asked for");
    let options = suite.backend_options(129);
    let info = suite.backend.info();
    let said = suite.backend.capabilities(&model.graph, &options);
    let mut expect = |holds: bool, wrong: String| {
        if !holds {
            tally.fail(wrong);
        }
    };
    expect(!info.name.is_empty() && !info.device.is_empty(), "a backend has a name and a device".into());
    expect(said.backend == info.name, format!("capabilities name `{}`, the backend is `{}`", said.backend, info.name));
    expect(
        said.precision == options.precision || !said.refusals.is_empty(),
        format!("{} was asked for, capabilities say {}", options.precision, said.precision),
    );
    for refusal in &said.refusals {
        let empty = refusal.operation.trim().is_empty() || refusal.reason.trim().is_empty();
        expect(!empty, "a refusal without an operation or a reason".into());
    }
    if said.refusals.is_empty() {
        for (label, _) in model.graph.attentions() {
            let choices = said.attention.iter().filter(|choice| choice.operation == label).count();
            expect(choices == 1, format!("`{label}` has {choices} attention choices, one is needed"));
        }
        expect(said.weight_bytes > 0, "a model with weights takes memory".into());
    }
    expect(
        info.precisions.contains(&options.precision) || !said.refusals.is_empty(),
        format!("{} is not among the backend's precisions, and is not refused", options.precision),
    );
    suite.add(tally.done());
}

/// `options` must be refused, with a reason.
fn must_refuse(suite: &Suite<'_>, model: &Model, options: &Options, what: &str, tally: &mut Tally) {
    match Runner::compile(suite.backend, &model.graph, &model.weights, options, suite.watch.clone()) {
        Err(NoRunner::Refused(_)) => {}
        Ok(_) => tally.fail(format!("{what} is accepted")),
        Err(NoRunner::Broken(error)) => tally.fail(format!("{what}: {error}")),
    }
}

fn unknown_kernel(suite: &mut Suite<'_>, model: &Model) {
    let mut tally = Tally::new(Group::Honesty, "an unknown attention kernel is refused");
    let options = Options { attention: Attention::Named("no-such-kernel".into()), ..suite.backend_options(129) };
    must_refuse(suite, model, &options, "the attention kernel `no-such-kernel`", &mut tally);
    suite.add(tally.done());
}

fn precisions(suite: &mut Suite<'_>, model: &Model) {
    let mut tally = Tally::new(Group::Honesty, "precisions that it does not have are refused");
    let has = suite.backend.info().precisions;
    for precision in [Precision::F32, Precision::Bf16, Precision::F16, Precision::Int8] {
        if !has.contains(&precision) {
            let options = Options { precision, ..suite.backend_options(129) };
            must_refuse(suite, model, &options, precision.name(), &mut tally);
        }
    }
    suite.add(tally.done());
}

fn kernels(suite: &mut Suite<'_>, model: &Model) {
    let inputs = sequences(&[5, 64, 17], &mut Random::new(3));
    for kernel in suite.backend.info().attention_kernels {
        let tally = Tally::new(Group::Honesty, format!("the kernel `{kernel}` runs where it is asked for"));
        let options = Options { attention: Attention::Named(kernel.clone()), ..suite.backend_options(129) };
        let Some((runner, mut tally)) = suite.compile_with(tally, &model.graph, &model.weights, &options) else {
            continue;
        };
        let outputs = RaggedBatch::pack(&inputs[..2]).map_err(BackendError::from).and_then(|batch| runner.raw(&batch));
        match outputs {
            Ok(outputs) if outputs.report.attention.keys().eq([&kernel]) => {}
            Ok(outputs) => tally.fail(format!("the report says {:?}", outputs.report.attention)),
            Err(error) => tally.fail(error.to_string()),
        }
        suite.add(tally.done());
    }
}

fn input(suite: &mut Suite<'_>, model: &Model) {
    let tally = Tally::new(Group::Honesty, "bad input is refused, and the next batch runs");
    let Some((runner, mut tally)) = suite.compile(tally, &model.graph, &model.weights, 129) else { return };
    let ids = |ids: Vec<u32>, types: Vec<u32>| SequenceInput { token_ids: ids, token_types: types, pooling_start: 0 };
    let good = ids(vec![1, 2, 3], vec![]);
    let before = runner.run(&[&good]);
    let bad = [
        ("a token id outside the vocabulary", ids(vec![1, u32::MAX], vec![])),
        ("a token type that there is not", ids(vec![1, 2], vec![0, 2])),
        ("more tokens than positions", ids(vec![1; 1101], vec![])),
    ];
    for (what, sequence) in bad {
        let outcome = RaggedBatch::pack([&good, &sequence]).map_err(BackendError::from).and_then(|b| runner.raw(&b));
        match outcome {
            Err(BackendError::InvalidInput(_) | BackendError::Refused(_)) => {}
            Ok(_) => tally.fail(format!("{what} is accepted")),
            Err(error) => tally.fail(format!("{what}: {error}")),
        }
        if runner.run(&[&good]) != before {
            tally.fail(format!("after {what} a good batch does not give what it gave before"));
        }
    }
    match &runner.executable().shape_policy() {
        ShapePolicy::Buckets(buckets) if buckets.is_empty() => tally.fail("the shape policy has no bucket"),
        ShapePolicy::Ragged { max_tokens: 0 } => tally.fail("the shape policy takes no token"),
        _ => {}
    }
    for (what, batch) in [
        ("a batch without sequences", RaggedBatch::from_ids::<Vec<u32>>(&[])),
        ("a batch of two empty sequences", RaggedBatch::from_ids(&[vec![], vec![]])),
    ] {
        match runner.raw(&batch) {
            Ok(outputs) => {
                let zeros = outputs.values.iter().all(|value| value.data.iter().all(|&x| x == 0.0));
                let sizes = outputs.values.iter().all(|value| {
                    let rows = if value.rows == ehun_graph::Rows::Tokens { 0 } else { batch.num_sequences() };
                    value.data.len() == rows * value.width
                });
                if !(zeros && sizes) {
                    tally.fail(format!("{what} gives something other than zeros of the right size"));
                }
            }
            Err(error) => tally.fail(format!("{what}: {error}")),
        }
    }
    suite.add(tally.done());
}

/// What the reports of all runs said.
pub(super) fn reports(suite: &mut Suite<'_>) {
    let mut tally = Tally::new(Group::Honesty, "run reports name what ran");
    {
        let watch = suite.watch.lock().unwrap_or_else(PoisonError::into_inner);
        for lie in &watch.lies {
            tally.fail(lie);
        }
        tally.note(format!("{} runs looked at", watch.runs));
    }
    suite.add(tally.done());
}
