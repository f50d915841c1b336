//! The conformance suite, on every instruction set that this machine has.

use ehun_backend::{Attention, Precision};
use ehun_backend_cpu::{CpuBackend, simd::Isa};
use ehun_conformance::{ConformOptions, Outcome, Profile, conform};

fn check(isa: Isa, attention: &str, precision: Precision) {
    let backend = CpuBackend::new(isa);
    let attention: Attention = attention.parse().expect("never fails");
    let profile = Profile::Quick;
    let options = ConformOptions { attention, precision, threads: Some(2), profile, ..ConformOptions::default() };
    let report = conform(&backend, &options);
    let failed: Vec<_> = report.checks.iter().filter(|check| check.outcome == Outcome::Failed).collect();
    assert!(failed.is_empty(), "{} {:?}: {failed:#?}", isa.name(), options.attention);
    assert!(report.checks.len() > 50, "{} checks are not the suite", report.checks.len());
}

#[test]
fn naive() {
    check(Isa::best(), "naive", Precision::F32);
}

#[test]
fn flash() {
    check(Isa::best(), "flash", Precision::F32);
}

#[test]
fn auto_on_every_instruction_set() {
    for isa in Isa::available() {
        check(isa, "auto", Precision::F32);
    }
}

#[test]
fn int8_on_every_instruction_set() {
    for isa in Isa::available() {
        check(isa, "auto", Precision::Int8);
    }
}
