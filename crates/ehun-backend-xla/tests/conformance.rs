//! The conformance suite on XLA's CPU plugin, every attention form, f32 and bf16.

mod common;

use std::path::PathBuf;

use ehun_backend::{Attention, Precision};
use ehun_conformance::{ConformOptions, Group, Profile, conform};

/// Everything in the native form; of the others what they differ in.
fn judge(precision: Precision, attention: Attention, groups: &[Group]) {
    let Some(backend) = common::backend() else { return };
    let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("programs");
    let options = ConformOptions {
        precision,
        attention,
        profile: Profile::Quick,
        cache: Some(cache),
        groups: groups.to_vec(),
        ..Default::default()
    };
    let report = conform(&backend, &options);
    println!("{}", report.table());
    assert!(report.passed(), "{}", report.verdict());
}

#[test]
fn native_f32() {
    judge(Precision::F32, Attention::Named("native".into()), &[]);
}

#[test]
fn blocked_f32() {
    judge(Precision::F32, Attention::Named("blocked".into()), &[Group::Attention]);
}

#[test]
fn flash_f32() {
    judge(Precision::F32, Attention::Named("flash".into()), &[Group::Attention]);
}

#[test]
fn auto_bf16() {
    judge(Precision::Bf16, Attention::Auto, &[Group::Operations, Group::Attention, Group::Models]);
}

#[test]
fn blocked_bf16() {
    judge(Precision::Bf16, Attention::Named("blocked".into()), &[Group::Attention]);
}

#[test]
fn flash_bf16() {
    judge(Precision::Bf16, Attention::Named("flash".into()), &[Group::Attention]);
}
