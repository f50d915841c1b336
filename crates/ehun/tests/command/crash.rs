//! The job is killed again and again at random moments; the dataset in the end is that of an undisturbed run.
//!
//! `EHUN_KILLS` sets the number of kills (20), `EHUN_SEED` the random moments.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{command, table, write_all};

/// A generator for moments (Knuth's MMIX constants); its quality does not matter.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound.max(1)
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

fn corpus(folder: &Path) {
    let words = ["loom", "thread", "warp", "weft", "shuttle", "cloth", "pattern", "dye", "spindle", "wool"];
    for i in 0..40 {
        let mut text = format!("# Document {i}\n\n");
        for sentence in 0..(i % 7) * 6 + 1 {
            let word = |k: usize| words[(i * 7 + sentence * 3 + k) % words.len()];
            text += &format!("The {} meets the {} in row {sentence} of the {}. ", word(0), word(1), word(2));
        }
        write_all(folder, &[(&format!("{}/{i:02}.md", i % 3), text.as_bytes())]);
    }
    write_all(folder, &[("broken.pdf", b"%PDF-1.4\nnothing"), ("empty.txt", b"")]);
}

#[test]
fn killed_at_random_moments() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in");
    corpus(&input);
    let arguments = |out: &Path| {
        let (input, out) = (input.to_str().unwrap().to_owned(), out.to_str().unwrap().to_owned());
        ["process".to_owned(), input, "--out".into(), out, "--part-documents".into(), "3".into(), "-q".into()]
    };
    let start = |out: &Path| {
        let arguments = arguments(out);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let undisturbed = folder.path().join("undisturbed");
    let begun = Instant::now();
    assert_eq!(start(&undisturbed).wait().unwrap().code(), Some(3));
    let whole = begun.elapsed();
    let expected = ["documents", "chunks"].map(|name| table(&undisturbed.join(format!("{name}.parquet"))));
    assert_eq!(expected[0].num_rows(), 42);

    let (kills, seed) = (number("EHUN_KILLS", 20), number("EHUN_SEED", 1));
    println!("{kills} kills, seed {seed}, undisturbed {whole:?}");
    let mut random = Random(seed);
    let (mut killed, mut round) = (0, 0);
    while killed < kills {
        round += 1;
        let out = folder.path().join(format!("round-{round}"));
        // A few kills in each round: one alone tests starting over, many in a row test recovering from recovery.
        for _ in 0..random.below(5) + 1 {
            let mut child = start(&out);
            std::thread::sleep(Duration::from_micros(random.below(whole.as_micros() as u64 + 50_000)));
            if child.try_wait().unwrap().is_none() {
                child.kill().unwrap();
                killed += 1;
            }
            child.wait().unwrap();
        }
        let code = start(&out).wait().unwrap().code();
        assert_eq!(code, Some(3), "round {round}, seed {seed}");
        for (name, expected) in ["documents", "chunks"].iter().zip(&expected) {
            let found = table(&out.join(format!("{name}.parquet")));
            assert_eq!(found.num_rows(), expected.num_rows(), "{name}, round {round}, seed {seed}");
            for row in 0..expected.num_rows() {
                assert_eq!(found.slice(row, 1), expected.slice(row, 1), "{name} row {row}, round {round}, seed {seed}");
            }
        }
        let left: Vec<_> = std::fs::read_dir(out.join(".ehun/parts")).unwrap().collect();
        assert!(left.is_empty(), "parts are left behind: {left:?}");
        std::fs::remove_dir_all(&out).unwrap();
    }
}
