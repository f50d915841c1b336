//! What must hold whatever the numbers are.

use ehun_graph::{Band, Graph, RaggedBatch, SequenceInput, WeightStore};

use super::Suite;
use super::attention::expect_same;
use super::data::{Pattern, QkvRows, qkv};
use super::models::{Model, encoder, sequences};
use super::runner::{Runner, SequenceRows};
use super::spec::{SpecPlan, attention_graph};
use crate::judge::Judge;
use crate::random::Random;
use crate::report::{Group, Tally};

const LENGTHS: [usize; 5] = [2, 17, 64, 65, 129];

pub(super) fn run(suite: &mut Suite<'_>) {
    let model = match encoder() {
        Ok(model) => model,
        Err(error) => return suite.broken(Group::Laws, "encoder", error),
    };
    let laws: [fn(&mut Suite<'_>, &Model); 4] = [same_alone, again, many_threads, thread_counts];
    for law in laws {
        if !suite.stopped() {
            law(suite, &model);
        }
    }
    let laws: [fn(&mut Suite<'_>); 3] = [permuted_keys, shifted_scores, wide_window];
    for law in laws {
        if !suite.stopped() {
            law(suite);
        }
    }
}

/// Alone, in any batch, at any place, beside sequences of the same length and of others.
fn same_alone(suite: &mut Suite<'_>, model: &Model) {
    let name = "encoder: same bits whatever the batch, the order and the place";
    let Some((runner, mut tally)) = suite.compile(Tally::new(Group::Laws, name), &model.graph, &model.weights, 129)
    else {
        return;
    };
    let mut random = Random::named(name);
    let mut lengths = vec![1, 2, 3, 7, 16, 16, 16, 16, 63, 64, 64, 64, 64, 65, 127, 128, 129, 129];
    if suite.full() {
        lengths.extend([16; 24]);
        lengths.extend([100, 33, 90, 64, 31, 5]);
    }
    let inputs = sequences(&lengths, &mut random);
    let alone: Result<Vec<SequenceRows>, String> =
        inputs.iter().map(|input| runner.run(&[input]).map(|mut rows| rows.remove(0))).collect();
    let place = |i: usize| move |e: usize| format!("sequence {i}, element {e}");
    match alone {
        Ok(alone) => {
            for turn in 0..4 {
                let order = match turn {
                    0 => (0..inputs.len()).collect(),
                    1 => (0..inputs.len()).rev().collect(),
                    _ => random.permutation(inputs.len()),
                };
                let batch: Vec<&SequenceInput> = order.iter().map(|&i| &inputs[i]).collect();
                match runner.run(&batch) {
                    Ok(found) => {
                        for (found, &i) in found.iter().zip(&order) {
                            expect_same(found, &alone[i], &mut tally, place(i));
                        }
                    }
                    Err(error) => tally.fail(error),
                }
            }
            // The same sequence many times over.
            for i in [0, 4, 9] {
                match runner.run(&[&inputs[i]; 9]) {
                    Ok(found) => found.iter().for_each(|rows| expect_same(rows, &alone[i], &mut tally, place(i))),
                    Err(error) => tally.fail(error),
                }
            }
        }
        Err(error) => tally.fail(error),
    }
    suite.add(tally.done());
}

/// The same batch twice, and once more compiled anew.
fn again(suite: &mut Suite<'_>, model: &Model) {
    let name = "encoder: same bits on a second run and when compiled again";
    let Some((first, tally)) = suite.compile(Tally::new(Group::Laws, name), &model.graph, &model.weights, 129) else {
        return;
    };
    let Some((second, mut tally)) = suite.compile(tally, &model.graph, &model.weights, 129) else { return };
    let inputs = sequences(&LENGTHS, &mut Random::named(name));
    let inputs: Vec<&SequenceInput> = inputs.iter().collect();
    match (first.run(&inputs), first.run(&inputs), second.run(&inputs)) {
        (Ok(a), Ok(b), Ok(c)) => {
            for (a, (b, c)) in a.iter().zip(b.iter().zip(&c)) {
                expect_same(b, a, &mut tally, |e| format!("second run, element {e}"));
                expect_same(c, a, &mut tally, |e| format!("compiled again, element {e}"));
            }
        }
        (a, b, c) => [a, b, c].into_iter().filter_map(Result::err).for_each(|error| tally.fail(error)),
    }
    suite.add(tally.done());
}

/// One executable, used by many threads at once, each with its own batch.
fn many_threads(suite: &mut Suite<'_>, model: &Model) {
    let name = "encoder: same bits when many threads use it at once";
    let Some((runner, mut tally)) = suite.compile(Tally::new(Group::Laws, name), &model.graph, &model.weights, 129)
    else {
        return;
    };
    let mut random = Random::named(name);
    let batches: Vec<Vec<SequenceInput>> = (0..8)
        .map(|_| {
            let lengths: Vec<usize> = (0..4).map(|_| LENGTHS[random.below(LENGTHS.len())]).collect();
            sequences(&lengths, &mut random)
        })
        .collect();
    let run = |batch: &Vec<SequenceInput>| runner.run(&batch.iter().collect::<Vec<_>>());
    let before: Vec<_> = batches.iter().map(run).collect();
    let rounds = if suite.full() { 8 } else { 3 };
    let found: Vec<Vec<_>> = std::thread::scope(|scope| {
        let handles: Vec<_> =
            batches.iter().map(|batch| scope.spawn(move || (0..rounds).map(|_| run(batch)).collect())).collect();
        handles.into_iter().map(|handle| handle.join().unwrap_or_default()).collect()
    });
    for (number, (before, found)) in before.iter().zip(&found).enumerate() {
        if found.len() != rounds {
            tally.fail(format!("thread {number} panicked"));
        }
        for found in found {
            match (before, found) {
                (Ok(before), Ok(found)) => {
                    for (before, found) in before.iter().zip(found) {
                        expect_same(found, before, &mut tally, |e| format!("thread {number}, element {e}"));
                    }
                }
                (Err(error), _) | (_, Err(error)) => tally.fail(error),
            }
        }
    }
    suite.add(tally.done());
}

/// One thread, two and five: a promise of backends without static shapes.
fn thread_counts(suite: &mut Suite<'_>, model: &Model) {
    let name = "encoder: same bits with any number of threads";
    let inputs = sequences(&[129, 3, 64, 17, 128, 65, 1], &mut Random::named(name));
    let inputs: Vec<&SequenceInput> = inputs.iter().collect();
    let mut tally = Tally::new(Group::Laws, name);
    let mut first: Option<Vec<SequenceRows>> = None;
    for threads in [1, 2, 5] {
        let options = ehun_backend::Options { threads: Some(threads), ..suite.backend_options(129) };
        let Some((runner, open)) = suite.compile_with(tally, &model.graph, &model.weights, &options) else { return };
        tally = open;
        if runner.has_buckets() {
            tally.note("static shapes: not promised, not compared");
            break;
        }
        match runner.run(&inputs) {
            Ok(found) => {
                let want = first.get_or_insert_with(|| found.clone());
                for (found, want) in found.iter().zip(want) {
                    expect_same(found, want, &mut tally, |e| format!("{threads} threads, element {e}"));
                }
            }
            Err(error) => tally.fail(error),
        }
    }
    suite.add(tally.done());
}

/// Two attention graphs, or one with two inputs, that must give the same up to what each may be off by.
struct Pair<'a> {
    graphs: [&'a Graph; 2],
    weights: [&'a WeightStore; 2],
    inputs: [Vec<SequenceInput>; 2],
}

fn compare_pair(suite: &mut Suite<'_>, mut tally: Tally, pair: &Pair<'_>) {
    let numerics = suite.numerics();
    let mut results = Vec::new();
    for side in 0..2 {
        let compiled = suite.compile(tally, pair.graphs[side], pair.weights[side], 129);
        let Some((runner, open)) = compiled else { return };
        tally = open;
        results.push(side_results(&runner, pair, side, numerics));
    }
    let mut results = results.into_iter();
    match (results.next(), results.next()) {
        (Some(Ok(a)), Some(Ok(b))) => {
            for ((found_a, errors_a), (found_b, errors_b)) in a.iter().zip(&b) {
                let want: Vec<f64> = found_a.iter().map(|&x| f64::from(x)).collect();
                let allowed: Vec<f64> = errors_a.iter().zip(errors_b).map(|(a, b)| a + b).collect();
                tally.compare(found_b, &want, &allowed, |e| format!("element {e} of {}", want.len()));
            }
        }
        (a, b) => [a, b].into_iter().flatten().filter_map(Result::err).for_each(|error| tally.fail(error)),
    }
    suite.add(tally.done());
}

/// For each sequence what was found, and what each element may be off by.
type Found = Vec<(Vec<f32>, Vec<f64>)>;

fn side_results(runner: &Runner, pair: &Pair<'_>, side: usize, n: crate::judge::Numerics) -> Result<Found, String> {
    let judge = Judge::new(pair.graphs[side], pair.weights[side], n).map_err(|e| e.to_string())?;
    let inputs: Vec<&SequenceInput> = pair.inputs[side].iter().collect();
    let found = runner.run(&inputs)?;
    let one = |(input, mut rows): (&&SequenceInput, SequenceRows)| {
        let judged = RaggedBatch::pack([*input]).and_then(|batch| judge.outputs(&batch)).map_err(|e| e.to_string())?;
        Ok((rows.outputs.swap_remove(0), judged[0].error.clone()))
    };
    inputs.iter().zip(found).map(one).collect()
}

fn plan() -> SpecPlan {
    let mut plan = SpecPlan::full("law", 4, 16);
    plan.num_kv_heads = 2;
    plan
}

fn law_rows(plan: &SpecPlan) -> (QkvRows, Vec<SequenceInput>) {
    let mut random = Random::named("laws");
    let mut rows = QkvRows::default();
    let mut inputs = Vec::new();
    let mut start = 0;
    for length in LENGTHS {
        let part = qkv(Pattern::Normal, length, plan.widths(), plan.head_dim, plan.scale(), &mut random);
        rows.q.extend(part.q);
        rows.k.extend(part.k);
        rows.v.extend(part.v);
        let ids: Vec<u32> = (start..start + length as u32).collect();
        start += length as u32;
        inputs.push(SequenceInput { token_ids: ids.clone(), token_types: ids, pooling_start: 0 });
    }
    (rows, inputs)
}

/// Under a full mask without position bias the order of the keys does not matter.
fn permuted_keys(suite: &mut Suite<'_>) {
    let name = "keys and values in another order give the same, under a full mask";
    let plan = plan();
    debug_assert!(plan.ignores_positions());
    let (rows, inputs) = law_rows(&plan);
    let (graph, weights) = match attention_graph(&plan, (rows.q, rows.k, rows.v), &mut Random::new(4)) {
        Ok(built) => built,
        Err(error) => return suite.broken(Group::Laws, name, error),
    };
    let mut random = Random::named(name);
    let permuted = inputs
        .iter()
        .map(|input| {
            let order = random.permutation(input.token_types.len());
            SequenceInput { token_types: order.iter().map(|&i| input.token_types[i]).collect(), ..input.clone() }
        })
        .collect();
    let pair = Pair { graphs: [&graph, &graph], weights: [&weights, &weights], inputs: [inputs, permuted] };
    compare_pair(suite, Tally::new(Group::Laws, name), &pair);
}

/// A vector added to every key adds the same to every score of a row.
fn shifted_scores(suite: &mut Suite<'_>) {
    let name = "the same number added to all scores of a row changes nothing";
    let plan = plan();
    let (rows, inputs) = law_rows(&plan);
    let shift = Random::named(name).normals(plan.widths().1, 6.0);
    let mut shifted = rows.k.clone();
    for row in shifted.chunks_exact_mut(shift.len()) {
        row.iter_mut().zip(&shift).for_each(|(x, s)| *x += s);
    }
    // Adding in float32 rounds; taking the sum back makes the pair exact: k = shifted - shift.
    let exact: Vec<f32> = shifted
        .chunks_exact(shift.len())
        .flat_map(|row| row.iter().zip(&shift).map(|(x, s)| x - s).collect::<Vec<_>>())
        .collect();
    let graph = |k: Vec<f32>| attention_graph(&plan, (rows.q.clone(), k, rows.v.clone()), &mut Random::new(4));
    match (graph(exact), graph(shifted)) {
        (Ok((a, wa)), Ok((b, wb))) => {
            let pair = Pair { graphs: [&a, &b], weights: [&wa, &wb], inputs: [inputs.clone(), inputs] };
            compare_pair(suite, Tally::new(Group::Laws, name), &pair);
        }
        (Err(error), _) | (_, Err(error)) => suite.broken(Group::Laws, name, error),
    }
}

/// A window at least as wide as the sequence is no window.
fn wide_window(suite: &mut Suite<'_>) {
    let name = "a window as long as the sequence is the full mask";
    let full = plan();
    let (rows, inputs) = law_rows(&full);
    let window = SpecPlan { band: Band::window(128), ..plan() };
    let graph =
        |plan: &SpecPlan| attention_graph(plan, (rows.q.clone(), rows.k.clone(), rows.v.clone()), &mut Random::new(4));
    match (graph(&full), graph(&window)) {
        (Ok((a, wa)), Ok((b, wb))) => {
            let pair = Pair { graphs: [&a, &b], weights: [&wa, &wb], inputs: [inputs.clone(), inputs] };
            compare_pair(suite, Tally::new(Group::Laws, name), &pair);
        }
        (Err(error), _) | (_, Err(error)) => suite.broken(Group::Laws, name, error),
    }
}
