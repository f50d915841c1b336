//! The suites that take too long for every change.

use crate::command::{Outcome, cargo, program, root, run, text};
use crate::product::{build, ehun};
use crate::{documents, memory, model, models, tests, xla};

/// The long suites by name.
pub fn soak(arguments: &[String]) -> Outcome {
    let (name, rest) = arguments.split_first().map_or(("", &[][..]), |(name, rest)| (name.as_str(), rest));
    match name {
        "kill" => kill(),
        "documents" => documents::soak(rest),
        "memory" => memory::soak(rest),
        "programs" => xla::soak(),
        "models" => large_models(),
        "properties" => properties(rest),
        "serve" => serve(rest),
        _ => Err(
            "there are `soak kill` (the job is killed at 200 random moments and compared with an undisturbed run), \
                  `soak documents DIR...` (the job over trees of hard files: what came of them, and its memory), \
                  `soak memory [DOCUMENTS...]` (the job over 10,000 and 100,000 small files, or as many as are said: its memory must \
                  not tell them apart), \
                  `soak serve [MINUTES]` (mixed load on the server: every answer as at first, no growth of memory, handles \
                  and threads), \
                  `soak properties [ROUNDS]` (all tests of the crates, their property tests with cases of another seed each time), \
                  `soak programs` (10,000 requests to a model on XLA: no compilation, no growth) and \
                  `soak models` (the large real models beside transformers)"
                .to_owned(),
        ),
    }
}

/// The server under mixed load.
fn serve(rest: &[String]) -> Outcome {
    build()?;
    run(program("python3", &[text(root().join("tests/python/soak_serve.py")), text(ehun())]).args(rest))
}

/// The real models that are too large for the tests of every change.
fn large_models() -> Outcome {
    models::all(&[])?;
    run(&mut cargo(&[
        "test",
        "--release",
        "--locked",
        "--package",
        "ehun-models",
        "--test",
        "real",
        "--",
        "--nocapture",
    ]))
}

/// Property tests with cases that no run before had.
fn properties(rest: &[String]) -> Outcome {
    let rounds: u64 = match rest.first() {
        Some(rounds) => rounds.parse().map_err(|e| format!("{rounds}: {e}"))?,
        None => 10,
    };
    model::setup(&[])?;
    models::small()?;
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().map_err(|e| e.to_string())?;
    for seed in (since.as_secs()..).take(rounds as usize) {
        println!("seed {seed}; {}={seed} repeats it", tests::SEED);
        // A round that fails is worth more with the faults of all suites.
        run(tests::crates().arg("--no-fail-fast").env(tests::SEED, seed.to_string()))?;
    }
    Ok(())
}

/// The job is killed at 200 moments instead of a few.
fn kill() -> Outcome {
    model::setup(&[])?;
    let mut command =
        cargo(&["test", "--release", "--locked", "--package", "ehun", "--test", "command", "--", "crash"]);
    run(command.env("EHUN_KILLS", "200"))
}
