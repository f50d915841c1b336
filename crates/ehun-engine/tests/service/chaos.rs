//! 20,000 requests while backends break and come back and ten swaps happen: each is answered once, and right.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ehun_engine::rollout::{Bounds, SwapPlan, default_probes};
use ehun_engine::{EngineError, HealthPolicy, Observer, Request, Response, Service, ServiceConfig};
use ehun_models::Task;

use crate::fickle::{Fickle, MOODS, Mood, WIDTH, candidate, deployment, vector};

/// Counts the batches that a backend failed.
#[derive(Default)]
struct Failures(AtomicUsize);

impl Observer for Failures {
    fn failure(&self, _: &str, _: &str, _: &str) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

const REQUESTS: usize = 20_000;
const CLIENTS: usize = 4;
const SWAPS: usize = 10;

/// Two that will misbehave before one that does not.
fn runners(generation: usize) -> Vec<Arc<Fickle>> {
    ["a", "b", "good"].iter().map(|name| Fickle::new(&format!("{name}{generation}"), 0.0)).collect()
}

fn text(client: usize, request: usize, item: usize) -> String {
    format!("client {client} asks {request} item {item} {}", "and more ".repeat(request % 7))
}

#[test]
fn twenty_thousand_requests_through_breaking_backends_and_ten_swaps() {
    let policy = HealthPolicy {
        failures_to_open: 2,
        cooldown: Duration::from_millis(5),
        max_cooldown: Duration::from_millis(20),
        latency_limit: Some(Duration::from_millis(25)),
    };
    let first = runners(0);
    let config = ServiceConfig { workers: 2, queue_tokens: 40_000, ..ServiceConfig::default() };
    let failures = Arc::new(Failures::default());
    let observers = vec![Arc::clone(&failures) as Arc<dyn Observer>];
    let service = Service::start(config, deployment(&first, policy), observers).unwrap();
    let current = Mutex::new(first);
    // How often each request was answered.
    let answered: Vec<AtomicUsize> = (0..REQUESTS).map(|_| AtomicUsize::new(0)).collect();
    let answered = Arc::new(answered);
    let (right, over) = (Arc::new(AtomicUsize::new(0)), AtomicBool::new(false));
    let done = |count: &AtomicUsize| count.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        let chaos = scope.spawn(|| {
            let mut moods = 0usize;
            while !over.load(Ordering::SeqCst) {
                for runner in &current.lock().unwrap()[..2] {
                    // Steps that no two of the runners and generations share.
                    moods += 3;
                    runner.set(MOODS[moods % MOODS.len()]);
                }
                std::thread::sleep(Duration::from_millis(3));
            }
            current.lock().unwrap().iter().for_each(|runner| runner.set(Mood::Good));
            moods / 3
        });
        let swaps = scope.spawn(|| {
            for generation in 1..=SWAPS {
                let due = REQUESTS * generation / (SWAPS + 1);
                while done(&right) < due {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let new = runners(generation);
                let probes = default_probes(Task::Embed);
                let plan = SwapPlan { probes, bounds: Bounds::default(), force: false, drain: Duration::from_secs(20) };
                // The old ones hang no more once they are replaced: what hangs for ever is never given back.
                let old = std::mem::replace(&mut *current.lock().unwrap(), new.clone());
                old.iter().for_each(|runner| runner.set(Mood::Good));
                drop(old);
                new.iter().for_each(|runner| runner.set(Mood::Good));
                let report = loop {
                    // Chaos may have come over the new ones before the probes did.
                    match service.swap(candidate(&new, policy), &plan) {
                        Ok(report) => break report,
                        Err(error) => assert!(error.to_string().starts_with("refused"), "{error}"),
                    }
                };
                assert!(report.released, "{report:?}");
            }
        });
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (service, answered, right) = (&service, &answered, &right);
                scope.spawn(move || {
                    for request in 0..REQUESTS / CLIENTS {
                        let texts: Vec<String> = (0..1 + request % 3).map(|item| text(client, request, item)).collect();
                        let inputs = texts.iter().map(|text| text.as_str().into()).collect();
                        let (answered, right) = (Arc::clone(answered), Arc::clone(right));
                        let count = move |response: Response| {
                            answered[client * (REQUESTS / CLIENTS) + request].fetch_add(1, Ordering::SeqCst);
                            assert_eq!(response.items.len(), texts.len());
                            let is_right = response.items.iter().zip(&texts).all(|(item, text)| {
                                item.as_ref().is_ok_and(|a| a.output.values[0].data == vector(text, 0.0, WIDTH))
                            });
                            right.fetch_add(usize::from(is_right), Ordering::SeqCst);
                        };
                        loop {
                            // Turned away where the queue is full: then the client asks again.
                            let request = Request::new(Vec::clone(&inputs));
                            match service.submit(request, Box::new(count.clone())) {
                                Ok(ticket) => break ticket.detach(),
                                Err(_) => std::thread::sleep(Duration::from_millis(1)),
                            }
                        }
                    }
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        swaps.join().unwrap();
        assert!(service.drain(Duration::from_secs(60)), "nothing is left behind");
        over.store(true, Ordering::SeqCst);
        println!("{} moods", chaos.join().unwrap());
    });
    println!("{} batches failed", done(&failures.0));
    assert!(done(&failures.0) > 0, "chaos that breaks nothing shows nothing");
    let wrong_count = answered.iter().filter(|count| done(count) != 1).count();
    assert_eq!((wrong_count, done(&right)), (0, REQUESTS), "requests not answered once, and right ones");
    assert_eq!(service.deployment().lanes[2].name(), format!("good{SWAPS}"));
}

#[test]
fn ten_times_too_much_is_turned_away_at_once_and_what_was_taken_is_answered() {
    const LIMIT: usize = 4_000;
    let slow = Fickle::new("slow", 0.0);
    slow.set(Mood::Slow);
    let config = ServiceConfig { queue_tokens: LIMIT, ..ServiceConfig::default() };
    let service = Service::start(config, deployment(&[slow], HealthPolicy::default()), Vec::new()).unwrap();
    let (mut taken, mut away) = (Vec::new(), 0);
    // About 40 tokens each: ten times what the queue holds.
    for i in 0..1000 {
        let text = format!("request number {i} of those that are too many");
        match service.request(Request::new(vec![text.as_str().into()])) {
            Ok(pending) => taken.push((text, pending)),
            Err(error) => {
                assert!(matches!(error, EngineError::QueueFull { limit: LIMIT, .. }), "{error}");
                away += 1;
            }
        }
        // Until it is tokenised, a text counts as a token for four bytes; here every byte is one.
        assert!(service.load().tokens <= 4 * LIMIT + 50, "{} tokens are in", service.load().tokens);
    }
    assert!(away > 500 && !taken.is_empty(), "{away} of 1000 were turned away");
    for (text, pending) in taken {
        let answer = pending.wait().items.remove(0).unwrap();
        assert_eq!(answer.output.values[0].data, vector(&text, 0.0, WIDTH));
    }
    assert_eq!(service.load().tokens, 0);
}
