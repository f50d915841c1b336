//! The suites that take too long for every change.

use crate::command::{Outcome, cargo, run};
use crate::{documents, memory, model, models, xla};

/// The long suites by name.
pub fn soak(arguments: &[String]) -> Outcome {
    let (name, rest) = arguments.split_first().map_or(("", &[][..]), |(name, rest)| (name.as_str(), rest));
    match name {
        "kill" => kill(),
        "documents" => documents::soak(rest),
        "memory" => memory::soak(rest),
        "programs" => xla::soak(),
        "models" => large_models(),
        _ => Err(
            "there are `soak kill` (the job is killed at 200 random moments and compared with an undisturbed run), \
                  `soak documents DIR...` (the job over trees of hard files: what came of them, and its memory), \
                  `soak memory [DOCUMENTS...]` (the job over 10,000 and 100,000 small files, or as many as are said: its memory must \
                  not tell them apart), \
                  `soak programs` (10,000 requests to a model on XLA: no compilation, no growth) and \
                  `soak models` (the large real models beside transformers)"
                .to_owned(),
        ),
    }
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

/// The job is killed at 200 moments instead of a few.
fn kill() -> Outcome {
    model::setup(&[])?;
    let mut command =
        cargo(&["test", "--release", "--locked", "--package", "ehun", "--test", "command", "--", "crash"]);
    run(command.env("EHUN_KILLS", "200"))
}
