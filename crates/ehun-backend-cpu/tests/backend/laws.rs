//! The vector of a sequence is the same bits alone, in any batch, at any place in it, on any number of threads.

use crate::common::{Bert, Random, bert, compile, norm, run, sequences, weights};
use ehun_backend::Executable;
use ehun_graph::{Graph, GraphBuilder, PoolingMode, SequenceInput};
use proptest::prelude::*;

/// A small BERT with its token rows and a vector of each pooling mode as results.
fn model() -> Graph {
    let mut b = GraphBuilder::new();
    let x = bert(&mut b, &Bert::SMALL).expect("a graph");
    let x = norm(&mut b, x, "last.LayerNorm", 1e-12).expect("a norm");
    b.output("tokens", x);
    for (name, mode) in [
        ("cls", PoolingMode::Cls),
        ("last", PoolingMode::LastToken),
        ("max", PoolingMode::Max),
        ("mean", PoolingMode::Mean),
        ("weighted", PoolingMode::WeightedMean),
    ] {
        let pooled = b.pooling(name, x, mode).expect("pooling");
        let unit = b.l2_normalize(name, pooled).expect("a norm");
        b.output(name, unit);
    }
    b.finish().expect("a graph")
}

/// For each sequence of a batch, the bits of all that came out for it.
fn bits(executable: &dyn Executable, batch: &[SequenceInput]) -> Vec<Vec<u32>> {
    let outputs = run(executable, batch);
    let mut start = 0;
    let mut all = Vec::new();
    for (number, sequence) in batch.iter().enumerate() {
        let end = start + sequence.token_ids.len();
        let tokens = &outputs.values[0];
        let mut bits: Vec<u32> = (start..end).flat_map(|row| tokens.row(row)).map(|x| x.to_bits()).collect();
        bits.extend(outputs.values[1..].iter().flat_map(|value| value.row(number)).map(|x| x.to_bits()));
        all.push(bits);
        start = end;
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(12) })]

    #[test]
    fn a_sequence_depends_on_nothing_but_itself(
        mut lengths in prop::collection::vec(prop_oneof![0usize..40, 60usize..140], 63),
        long in 200usize..400,
        seed in any::<u64>(),
    ) {
        lengths.push(long);
        let graph = model();
        let weights = weights(&graph, 7);
        let batch = sequences(&lengths, Bert::SMALL.vocabulary, seed);
        for attention in ["auto", "naive", "flash"] {
            let [one, two] = [1, 2].map(|threads| compile(&graph, &weights, threads, attention));
            let whole = bits(&*two, &batch);
            prop_assert_eq!(&whole, &bits(&*one, &batch), "threads, {}", attention);
            let mut order: Vec<usize> = (0..batch.len()).collect();
            let mut random = Random::new(seed);
            (1..order.len()).rev().for_each(|i| order.swap(i, random.below(i + 1)));
            let shuffled: Vec<SequenceInput> = order.iter().map(|i| batch[*i].clone()).collect();
            for (place, bits) in bits(&*two, &shuffled).iter().enumerate() {
                prop_assert_eq!(bits, &whole[order[place]], "place {}, {}", place, attention);
            }
            for (number, sequence) in batch.iter().enumerate().step_by(7).chain([(63, &batch[63])]) {
                let alone = bits(&*two, std::slice::from_ref(sequence));
                prop_assert_eq!(&alone[0], &whole[number], "sequence {} alone, {}", number, attention);
            }
        }
    }
}

#[test]
fn runs_at_the_same_time_do_not_meet() {
    let graph = model();
    let weights = weights(&graph, 8);
    let executable = compile(&graph, &weights, 2, "auto");
    let batches: Vec<_> = (0..4).map(|seed| sequences(&[9, 70, 1, 33], Bert::SMALL.vocabulary, seed)).collect();
    let wanted: Vec<_> = batches.iter().map(|batch| bits(&*executable, batch)).collect();
    std::thread::scope(|scope| {
        for (batch, wanted) in batches.iter().zip(&wanted) {
            let executable = &*executable;
            scope.spawn(move || (0..5).for_each(|_| assert_eq!(&bits(executable, batch), wanted)));
        }
    });
}
