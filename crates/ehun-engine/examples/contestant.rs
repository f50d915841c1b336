//! The engine as a contestant of `tools/bench/peers.py`: loads a model, says `ready`, and answers each line `run` (all texts)
//! or `one` (a short text) with the seconds that it took.

use std::error::Error;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Instant;

use ehun_backend::{BackendFactory, Options};
use ehun_backend_cpu::CpuFactory;
use ehun_engine::{Deployment, HealthPolicy, Input, Request, Service, ServiceConfig};
use ehun_models::{Checkpoint, LoadOptions, Model};

const SHORT: &str = "how do slender wings behave at low speed near the ground";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    // The last of a name counts.
    let value = |name: &str| arguments.iter().rposition(|a| a == name).and_then(|i| arguments.get(i + 1));
    let model = value("--model").ok_or("--model DIRECTORY is needed")?;
    let texts: Vec<String> =
        serde_json::from_slice(&std::fs::read(value("--texts").ok_or("--texts FILE is needed")?)?)?;
    let mut options = Options { threads: value("--threads").map(|n| n.parse()).transpose()?, ..Options::default() };
    if let Some(precision) = value("--precision") {
        options.precision = precision.parse()?;
    }
    if let Some(attention) = value("--attention") {
        options.attention = attention.parse()?;
    }
    let model = Arc::new(Model::load(&Checkpoint::open(model)?, &LoadOptions::default())?);
    let backend = CpuFactory.open("cpu")?;
    let deployment = Deployment::of_model(model, &[backend], &options, HealthPolicy::default())?;
    let config = ServiceConfig { queue_tokens: usize::MAX, ..ServiceConfig::default() };
    let service = Service::start(config, deployment, Vec::new())?;

    let run = |inputs: Vec<Input>| -> Result<f64, Box<dyn Error>> {
        let start = Instant::now();
        let response = service.request(Request::new(inputs))?.wait();
        let seconds = start.elapsed().as_secs_f64();
        for item in response.items {
            item?;
        }
        Ok(seconds)
    };
    let all = || texts.iter().map(|text| Input::from(text.as_str())).collect::<Vec<_>>();
    run(all().into_iter().take(64).collect())?;
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let inputs = if line?.trim() == "one" { vec![SHORT.into()] } else { all() };
        println!("{}", run(inputs)?);
        std::io::stdout().flush()?;
    }
    Ok(())
}
