//! The native CPU backend: each of its attention kernels and its own choice among them.

use ehun_backend::{Attention, BackendFactory};
use ehun_backend_cpu::CpuFactory;
use ehun_conformance::{ConformOptions, Profile, conform};

fn judge(attention: Attention, profile: Profile) {
    let backend = CpuFactory.open("cpu").expect("a CPU");
    let options = ConformOptions { profile, attention, threads: Some(2), ..ConformOptions::default() };
    let report = conform(backend.as_ref(), &options);
    println!("{}", report.table());
    assert!(report.passed(), "{}", report.table());
}

#[test]
fn auto_conforms() {
    judge(Attention::Auto, Profile::Quick);
}

#[test]
fn naive_conforms() {
    judge(Attention::Named("naive".into()), Profile::Quick);
}

#[test]
fn flash_conforms() {
    judge(Attention::Named("flash".into()), Profile::Quick);
}

#[test]
#[ignore = "takes minutes; `ehun conform` runs the same"]
fn everything_conforms() {
    for attention in [Attention::Auto, Attention::Named("naive".into()), Attention::Named("flash".into())] {
        judge(attention, Profile::Full);
    }
}
