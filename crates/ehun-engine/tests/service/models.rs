//! Shadows on real backends: what they report is what comparing the answers afterwards gives.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ehun_backend::{BackendFactory, Options, Precision};
use ehun_backend_cpu::CpuFactory;
use ehun_engine::rollout::{Candidate, Figures, ShadowPlan, Share};
use ehun_engine::{Deployment, HealthPolicy, Input, Request, Service, ServiceConfig, tasks};
use ehun_models::{Checkpoint, LoadOptions, Model};

type Any = Box<dyn Error>;

fn deployment(golden: &str, precision: Precision) -> Result<Arc<Deployment>, Any> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens").join(golden);
    let model = Arc::new(Model::load(&Checkpoint::open(directory)?, &LoadOptions::default())?);
    let options = Options { precision, threads: Some(1), ..Options::default() };
    Ok(Deployment::of_model(model, &[CpuFactory.open("cpu")?], &options, HealthPolicy::default())?)
}

fn texts(count: usize) -> Result<Vec<String>, Any> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/paragraphs.json");
    let mut texts: Vec<String> = serde_json::from_slice(&std::fs::read(file)?)?;
    texts.truncate(count);
    Ok(texts)
}

/// The rows that a deployment gives, without any shadow.
fn offline(golden: &str, precision: Precision, inputs: &[Input]) -> Result<Vec<Vec<f32>>, Any> {
    let service = Service::start(ServiceConfig::default(), deployment(golden, precision)?, Vec::new())?;
    let mut rows = Vec::new();
    for item in service.request_when_room(Request::new(inputs.to_vec()))?.wait().items {
        rows.push(tasks::row(item?)?);
    }
    Ok(rows)
}

/// What a shadow in int8 behind float32 reports for requests of `size` items.
fn shadowed(golden: &str, inputs: &[Input], size: usize) -> Result<Figures, Any> {
    let service = Service::start(ServiceConfig::default(), deployment(golden, Precision::F32)?, Vec::new())?;
    let candidate = Candidate { deployment: deployment(golden, Precision::Int8)?, description: "int8".into() };
    service.shadow(candidate, &ShadowPlan { share: Share::ALL, queue_tokens: usize::MAX })?;
    for part in inputs.chunks(size) {
        assert!(service.request_when_room(Request::new(part.to_vec()))?.wait().items.iter().all(Result::is_ok));
    }
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let figures = service.rollout().figures.ok_or("no figures")?;
        if figures.compared == inputs.len() as u64 {
            return Ok(figures);
        }
        assert!(Instant::now() < end && figures.dropped + figures.refused == 0, "{figures:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn same(found: f64, want: f64, what: &str) {
    assert!((found - want).abs() <= 5e-4 * want.abs(), "{what}: {found}, offline {want}");
}

#[test]
fn the_drift_of_a_shadow_is_that_of_the_offline_comparison() -> Result<(), Any> {
    let inputs: Vec<Input> = texts(300)?.into_iter().map(Input::from).collect();
    let figures = shadowed("st-mean", &inputs, 7)?;
    let (f32, int8) = (offline("st-mean", Precision::F32, &inputs)?, offline("st-mean", Precision::Int8, &inputs)?);
    let unit = |row: &[f32]| -> Vec<f64> {
        let length = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        row.iter().map(|&x| f64::from(x) / length).collect()
    };
    let drift = |(a, b): (&Vec<f32>, &Vec<f32>)| -> f64 {
        // 1 - cos is half the squared distance of the unit vectors.
        unit(a).iter().zip(unit(b)).map(|(a, b)| (a - b).powi(2)).sum::<f64>() / 2.0
    };
    let mut drifts: Vec<f64> = f32.iter().zip(&int8).map(drift).collect();
    drifts.sort_by(f64::total_cmp);
    let found = figures.cosine_drift.ok_or("no drift")?;
    println!("median {:.3e}, p99 {:.3e}, worst {:.3e}", found.median, found.p99, found.worst);
    assert!(found.median > 1e-7, "int8 is not f32");
    same(found.median, drifts[149], "median");
    same(found.p99, drifts[296], "p99");
    same(found.worst, drifts[299], "worst");
    assert!(figures.latency_ratio.is_some_and(|ratio| ratio > 0.0));
    Ok(())
}

#[test]
fn label_flips_of_a_shadow_are_those_of_the_offline_comparison() -> Result<(), Any> {
    let golden = "bert.sequence-classification";
    let inputs: Vec<Input> = texts(200)?.into_iter().map(Input::from).collect();
    let figures = shadowed(golden, &inputs, 5)?;
    let (f32, int8) = (offline(golden, Precision::F32, &inputs)?, offline(golden, Precision::Int8, &inputs)?);
    let label = |row: &Vec<f32>| row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(i, _)| i);
    let flips = f32.iter().zip(&int8).filter(|(a, b)| label(a) != label(b)).count();
    println!("{flips} of 200 labels flip");
    assert_eq!((figures.labels, figures.label_flips), (200, flips as u64));
    let change =
        |(a, b): (&Vec<f32>, &Vec<f32>)| a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
    let worst = f32.iter().zip(&int8).map(change).fold(0.0, f64::max);
    same(figures.score_change.ok_or("no change of scores")?.worst, worst, "score change");
    Ok(())
}

#[test]
fn the_rank_correlation_of_a_shadow_is_that_of_the_offline_comparison() -> Result<(), Any> {
    // 16 items are tokenised together, so that a request that finds the service idle is one batch, and its list is whole.
    const LIST: usize = 16;
    let texts: Vec<String> = texts(LIST)?.iter().map(|text| text.chars().take(200).collect()).collect();
    let queries: Vec<String> = texts.iter().map(|text| text.chars().take(30).collect()).collect();
    let pair = |query: &str, text: &String| Input::Pair(query.into(), text.as_str().into());
    let inputs: Vec<Input> = queries.iter().flat_map(|query| texts.iter().map(|text| pair(query, text))).collect();
    let figures = shadowed("ce-roberta", &inputs, LIST)?;
    let of = |precision| offline("ce-roberta", precision, &inputs);
    let (f32, int8) = (of(Precision::F32)?, of(Precision::Int8)?);
    let tau = |(a, b): (&[Vec<f32>], &[Vec<f32>])| -> f64 {
        let (mut concordant, mut discordant) = (0i32, 0i32);
        for i in 0..LIST {
            for j in 0..i {
                let product = (a[i][0] - a[j][0]) * (b[i][0] - b[j][0]);
                concordant += i32::from(product > 0.0);
                discordant += i32::from(product < 0.0);
            }
        }
        f64::from(concordant - discordant) / (LIST * (LIST - 1) / 2) as f64
    };
    let want = f32.chunks(LIST).zip(int8.chunks(LIST)).map(tau).sum::<f64>() / queries.len() as f64;
    println!("rank correlation {want:.4}");
    assert_eq!(figures.ranked_lists, queries.len() as u64);
    same(figures.rank_correlation.ok_or("no correlation")?, want, "rank correlation");
    Ok(())
}
