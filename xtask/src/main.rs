//! Set-up, tests and benchmarks of the project: `cargo xtask help`.

fn main() {
    println!("cargo xtask help");
}
