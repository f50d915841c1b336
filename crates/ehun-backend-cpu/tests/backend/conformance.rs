//! The conformance suite, on every instruction set that this machine has.

use ehun_backend::{Attention, Precision};
use ehun_backend_cpu::{CpuBackend, gemm::Products, simd::Isa};
use ehun_conformance::{ConformOptions, Outcome, Profile, conform};

fn check(isa: Isa, attention: &str, precision: Precision) {
    check_backend(isa, &CpuBackend::new(isa), attention, precision);
}

fn check_backend(isa: Isa, backend: &CpuBackend, attention: &str, precision: Precision) {
    let attention: Attention = attention.parse().expect("never fails");
    let profile = Profile::Quick;
    let options = ConformOptions { attention, precision, threads: Some(2), profile, ..ConformOptions::default() };
    let report = conform(backend, &options);
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
fn products_of_another_crate() {
    let backend = CpuBackend::new(Isa::best()).with_products(Products::Matrixmultiply);
    check_backend(Isa::best(), &backend, "auto", Precision::F32);
}

#[test]
fn int8_on_every_instruction_set() {
    for isa in Isa::available() {
        check(isa, "auto", Precision::Int8);
    }
}
