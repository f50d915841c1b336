//! The conformance suite, on every instruction set that this machine has and on the emulated one.

use ehun_backend::Attention;
use ehun_backend_cpu::{CpuBackend, simd::Isa};
use ehun_conformance::{ConformOptions, Outcome, Profile, conform};

fn check(isa: Isa, attention: &str) {
    let backend = CpuBackend::new(isa);
    let attention: Attention = attention.parse().expect("never fails");
    let options = ConformOptions { attention, threads: Some(2), profile: Profile::Quick, ..ConformOptions::default() };
    let report = conform(&backend, &options);
    let failed: Vec<_> = report.checks.iter().filter(|check| check.outcome == Outcome::Failed).collect();
    assert!(failed.is_empty(), "{} {:?}: {failed:#?}", isa.name(), options.attention);
    assert!(report.checks.len() > 50, "{} checks are not the suite", report.checks.len());
}

#[test]
fn naive() {
    check(Isa::best(), "naive");
}

#[test]
fn flash() {
    check(Isa::best(), "flash");
}

#[test]
fn auto_on_every_instruction_set() {
    let emulated = Isa::from_name("emulated16").expect("it is everywhere");
    for isa in Isa::available().into_iter().chain([emulated]) {
        check(isa, "auto");
    }
}
