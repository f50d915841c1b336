//! The conformance suite on ONNX Runtime's CPU provider: everything in the native form, of the fused one what it differs in,
//! and that `auto` is one of the two.

use crate::common;

use ehun_backend::Attention;
use ehun_conformance::{ConformOptions, Group, Profile, conform};

fn judge(attention: Attention, groups: &[Group]) {
    let Some(backend) = common::backend() else { return };
    let options = ConformOptions { attention, profile: Profile::Quick, groups: groups.to_vec(), ..Default::default() };
    let report = conform(&backend, &options);
    println!("{}", report.table());
    assert!(report.passed(), "{}", report.verdict());
}

#[test]
fn native() {
    judge(Attention::Named("native".into()), &[]);
}

#[test]
fn fused() {
    judge(Attention::Named("fused".into()), &[Group::Attention]);
}

#[test]
fn auto() {
    judge(Attention::Auto, &[Group::Honesty, Group::Models]);
}
