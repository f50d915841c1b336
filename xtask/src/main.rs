//! Set-up, tests and benchmarks of the project, in Rust so that they run wherever it does.

mod bench;
mod command;
mod documents;
mod fetch;
mod floors;
mod fuzz;
mod memory;
mod model;
mod models;
mod product;
mod soak;
mod tests;
mod xla;

use std::process::ExitCode;

use command::Outcome;

struct Task {
    name: &'static str,
    about: &'static str,
    run: fn(&[String]) -> Outcome,
}

const TASKS: &[Task] = &[
    Task {
        name: "demo",
        about: "set up, build, run the main job on examples/documents and search it",
        run: product::demo,
    },
    Task { name: "test", about: "fetch what tests need and run all of them", run: tests::test },
    Task { name: "setup", about: "fetch the embedded model only: all that a build needs", run: model::setup },
    Task { name: "models", about: "fetch the real models that further tests and benchmarks use", run: models::all },
    Task {
        name: "plugins",
        about: "fetch the PJRT plugin for the CPU and ONNX Runtime, which tests run on",
        run: fetch::plugins,
    },
    Task {
        name: "plugins-examples",
        about: "build the attention plug-ins of examples/plugins and run the conformance suite on them",
        run: tests::plugin_examples,
    },
    Task { name: "floors", about: "check that no crate uses one beside or above it", run: floors::check },
    Task {
        name: "bench",
        about: "benchmarks: `bench peers`, `bench quality`, ...; `bench` lists them",
        run: bench::bench,
    },
    Task {
        name: "fuzz",
        about: "`fuzz safetensors|config [SECONDS]`: the readers of what is loaded; `fuzz http [EXAMPLES [SEED]]`: the server",
        run: fuzz::fuzz,
    },
    Task {
        name: "tpu",
        about: "compile models of four shapes for TPUs that are not here, and tabulate what the compiler says",
        run: xla::tpu,
    },
    Task { name: "leaks", about: "valgrind over the foreign interface of the XLA backend", run: xla::leaks },
    Task {
        name: "soak",
        about: "the long suites: `soak kill`, `soak documents DIR...`, `soak memory`, `soak programs`, `soak models`",
        run: soak::soak,
    },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let name = arguments.first().map_or("help", String::as_str);
    let Some(task) = TASKS.iter().find(|task| task.name == name) else {
        println!("usage: cargo xtask TASK\n");
        for task in TASKS {
            println!("  {:8} {}", task.name, task.about);
        }
        return if name == "help" { ExitCode::SUCCESS } else { ExitCode::from(2) };
    };
    match (task.run)(&arguments[1..]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("cargo xtask {name}: {message}");
            ExitCode::FAILURE
        }
    }
}
