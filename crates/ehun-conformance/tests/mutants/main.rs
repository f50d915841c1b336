//! Planted faults: the suite must find every one of them, and nothing in the code that they were planted in.

mod kernel;
mod operations;

use ehun_conformance::{ConformOptions, Group, KernelBackend, Profile, Report, conform};
use kernel::{Fault, Kernel};

const GROUPS: [Group; 3] = [Group::Attention, Group::Models, Group::Laws];

fn judge(backend: &KernelBackend, groups: &[Group], only: Option<&str>, fail_fast: bool) -> Report {
    let options = ConformOptions {
        profile: Profile::Quick,
        groups: groups.to_vec(),
        only: only.map(str::to_owned),
        fail_fast,
        ..ConformOptions::default()
    };
    conform(backend, &options)
}

/// Each fault with the part of the suite that is to find it: the whole would, but that takes long for so many.
fn attention_faults() -> Vec<(Fault, &'static str)> {
    use Fault::*;
    vec![
        (OwnScale, "factor 1"),
        (ScaleByWholeRow, "full"),
        (ScaleForgotten, "full"),
        (WindowOneTooWideLeft, "window"),
        (WindowOneTooWideRight, "window"),
        (WindowOneTooNarrow, "window"),
        (CausalFlipped, "causal"),
        (CausalByTiles, "causal"),
        (CausalExcludesItself, "causal"),
        (MissingLastKey, "full"),
        (MissingLastPartialTile, "full"),
        (OneKeyTooMany, "full"),
        (StaleMaximum, "full"),
        (StaleSum, "full"),
        (NoMaximum, "full"),
        (MaximumOfFirstTile, "full"),
        (MaximumOverPreviousSequence, "full"),
        (Bf16Sums, "full"),
        (Bf16Weights, "full"),
        (Bf16Scores, "full"),
        (ProductsOverflowInF16, "full"),
        (SmallWeightsDropped, "full"),
        (ScoresClamped, "full"),
        (FastExp, "full"),
        (SumOverHiddenKeys, "causal"),
        (UninitialisedTail, "full"),
        (LastRowOverwritten, "full"),
        (NeighboursWeighedByZero, "full"),
        (KvHeadModulo, "6 heads on 2"),
        (KvHeadAlwaysFirst, "full"),
        (SoftCapBeforeScale, "soft cap"),
        (SoftCapForgotten, "soft cap"),
        (SoftCapAfterBias, "soft cap"),
        (AlibiSigned, "alibi"),
        (AlibiHeadsReversed, "alibi"),
        (AlibiBeforeScale, "alibi"),
        (BucketSignFlipped, "bucketed"),
        (BucketTableTransposed, "bucketed"),
        (BucketsInOneDirectionOnly, "bucketed"),
        (C2pAndP2cSwapped, "disentangled"),
        (P2cTransposed, "disentangled"),
        (C2pForgotten, "disentangled"),
        (P2cForgotten, "disentangled"),
        (DisentangledNotScaled, "disentangled"),
        (PositionsClampedTooSoon, "disentangled"),
        (TileChosenByBatch, "full"),
        (OrderOfSequencesMatters, "full"),
        (NotTheSameTwice, "full"),
        (HeadsSwapped, "full"),
        (ValueOfPreviousKey, "full"),
        (MaskDroppedForEqualLengths, "encoder"),
        (MaskDroppedForOneLength, "encoder"),
        (ScratchSharedByThreads, "many threads"),
    ]
}

#[test]
fn the_kernel_without_a_fault_passes() {
    let report = judge(&KernelBackend::new("tiled", Kernel::new(Fault::Nothing)), &GROUPS, None, false);
    assert!(report.passed(), "{}", report.table());
}

#[test]
fn every_fault_of_attention_is_found() {
    let mut missed = Vec::new();
    for (fault, only) in attention_faults() {
        let report = judge(&KernelBackend::new("mutant", Kernel::new(fault)), &GROUPS, Some(only), true);
        match report.failures().next() {
            Some(check) => {
                println!("{fault:?}: found by {:?} `{}`: {:?}", check.group, check.name, check.notes.first())
            }
            None => missed.push(fault),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

#[test]
fn the_operations_without_a_fault_pass() {
    let report = judge(&KernelBackend::replacing("plain", |_| None), &[Group::Operations], None, false);
    assert!(report.passed(), "{}", report.table());
}

#[test]
fn every_fault_of_an_operation_is_found() {
    let mut missed = Vec::new();
    for (name, only, replacement) in operations::faults() {
        let report = judge(&KernelBackend::replacing("mutant", replacement), &[Group::Operations], Some(only), true);
        match report.failures().next() {
            Some(check) => println!("{name}: found by `{}`: {:?}", check.name, check.notes.first()),
            None => missed.push(name),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
