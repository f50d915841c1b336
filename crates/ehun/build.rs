//! Checks that the embedded model is there before the compiler says so in less helpful words.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_EMBEDDED_MODEL").is_none() {
        return;
    }
    let weights = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/model/model.safetensors");
    println!("cargo::rerun-if-changed={}", weights.display());
    if !weights.is_file() {
        println!(
            "cargo::error=the embedded model is not there: run `cargo xtask setup` first, or build without it: --no-default-features"
        );
        std::process::exit(1);
    }
}
