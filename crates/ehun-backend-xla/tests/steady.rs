//! A service on XLA's CPU plugin that has warmed up: random requests compile nothing, leave no handle and no memory behind,
//! and what no bucket holds is refused with the reason.
//!
//! The counters are those of the process, so this file has one test. `cargo xtask soak` runs it with `EHUN_REQUESTS=10000`.
//! `EHUN_MODEL` names the folder of another model than the small golden one, `EHUN_LONGEST` the most tokens of a text.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ehun_backend::{Backend, BucketChoice, Options};
use ehun_backend_xla::compilations;
use ehun_backend_xla::pjrt::live_handles;
use ehun_engine::{Deployment, EngineError, HealthPolicy, Input, Request, Service, ServiceConfig};
use ehun_models::{Checkpoint, LoadOptions, Model};

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % bound
    }
}

fn resident_kib() -> i64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("VmRSS:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

#[test]
fn random_requests_compile_nothing_and_leave_nothing() {
    let Some(backend) = common::backend() else { return };
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<usize>().expect(name));
    let requests = number("EHUN_REQUESTS").unwrap_or(1200);
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens/st-mean");
    let folder = std::env::var_os("EHUN_MODEL").map_or(golden, PathBuf::from);
    let model = Arc::new(Model::load(&Checkpoint::open(folder).unwrap(), &LoadOptions::default()).unwrap());
    let most = number("EHUN_LONGEST").unwrap_or(usize::MAX).min(model.max_tokens());
    assert!(most >= 16, "{most}");
    let held = most - most / 4;
    let handles_at_start = live_handles();
    let options = Options {
        buckets: BucketChoice::List(vec![(1, most / 4), (4, most / 4), (1, held), (4, held)]),
        ..Options::default()
    };
    let backends: Vec<Arc<dyn Backend>> = vec![Arc::new(backend)];
    let deployment = Deployment::of_model(Arc::clone(&model), &backends, &options, HealthPolicy::default()).unwrap();
    let service = Service::start(ServiceConfig::default(), deployment, Vec::new()).unwrap();
    let compiled = compilations();
    assert!(compiled >= 4, "the buckets were compiled before: {compiled}");

    let mut random = Random(11);
    let (mut after_tenth, mut handles_after_tenth) = (0, None);
    let (mut batches, mut rows, mut tokens, mut refused) = (0usize, 0usize, 0usize, 0usize);
    for request in 0..requests {
        if request == requests / 10 {
            (after_tenth, handles_after_tenth) = (resident_kib(), Some(live_handles()));
        }
        let lengths: Vec<usize> = (0..1 + random.below(9)).map(|_| 1 + random.below(most)).collect();
        let inputs =
            lengths.iter().map(|&length| Input::Tokens((0..length).map(|_| 5 + random.below(60) as u32).collect()));
        let answers = service.request_when_room(Request::new(inputs.collect())).unwrap().wait().items;
        let mut reports = Vec::new();
        for (answer, &length) in answers.into_iter().zip(&lengths) {
            match answer {
                Ok(answer) => {
                    assert!(length <= held);
                    let report = answer.output.report;
                    assert!(report.bucket.is_some_and(|bucket| bucket.length >= length));
                    if !reports.iter().any(|known| Arc::ptr_eq(known, &report)) {
                        reports.push(report);
                    }
                }
                Err(EngineError::Unavailable(reasons)) => {
                    assert!(length > held, "{length}: {reasons:?}");
                    let words = format!("a sequence of {length} tokens; the longest bucket has {held}");
                    assert!(reasons.iter().all(|reason| reason.contains(&words)), "{reasons:?}");
                    refused += 1;
                }
                Err(other) => panic!("{other}"),
            }
        }
        batches += reports.len();
        rows += reports.iter().map(|report| report.tokens + report.padding_tokens).sum::<usize>();
        tokens += reports.iter().map(|report| report.tokens).sum::<usize>();
    }
    let grown = resident_kib() - after_tenth;
    println!(
        "{requests} requests, {batches} batches, {tokens} tokens in {rows} rows, {refused} items refused; {} \
         compilations, {grown} KiB more than after the first tenth",
        compilations() - compiled
    );
    assert_eq!(compilations(), compiled, "a request compiled something");
    assert_eq!(Some(live_handles()), handles_after_tenth, "handles were left behind");
    assert!(batches >= requests / 2 && refused > 0);
    // A leak of one batch's buffers, from 10 KiB, would show as 18 MiB after 1,200 requests and 100 MiB after 10,000.
    assert!(grown < (4 << 10) + requests as i64, "{grown} KiB more after {requests} requests");
    drop(service);
    // The service's threads end by themselves, a moment after it.
    for _ in 0..1000 {
        if live_handles() == handles_at_start {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(live_handles(), handles_at_start, "handles outlived the service");
}
