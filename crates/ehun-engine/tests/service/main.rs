//! A service with runners that misbehave on command: what is promised holds whatever the backends do.

mod chaos;
mod fickle;
mod models;
mod rollout;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ehun_backend::{BackendError, Precision, RunOptions, RunReport};
use ehun_engine::{
    Deployment, EngineError, HealthPolicy, HealthState, Input, ItemOptions, ItemOutput, ItemRows, Lane, Prepared,
    Request, Runner, Service, ServiceConfig, Shape, Tokenize, Tokenized, Truncation,
};
use ehun_graph::{GraphError, SequenceInput};
use proptest::prelude::*;

/// A token for each byte.
struct Bytes {
    max: usize,
}

impl Tokenize for Bytes {
    fn tokenize(&self, input: &Input, options: &ItemOptions) -> Result<Tokenized, EngineError> {
        let Input::Text(text) = input else { return Err(EngineError::invalid("only text")) };
        assert!(!text.contains("panic tokeniser"), "planted");
        let mut ids: Vec<u32> = text.bytes().map(u32::from).collect();
        let truncated = ids.len() > self.max;
        if truncated && options.truncation == Truncation::Refuse {
            return Err(EngineError::invalid(format!("{} tokens, the model takes {}", ids.len(), self.max)));
        }
        ids.truncate(self.max);
        Ok(Tokenized { sequence: SequenceInput { token_ids: ids, ..SequenceInput::default() }, truncated })
    }

    fn max_sequence(&self) -> usize {
        self.max
    }
}

/// What a runner says of a batch that it ran.
fn report(backend: &str, items: &[Arc<Prepared>]) -> RunReport {
    RunReport {
        backend: backend.to_owned(),
        device: "test".into(),
        precision: Precision::F32,
        sequences: items.len(),
        tokens: items.iter().map(|item| item.num_tokens()).sum(),
        ..RunReport::default()
    }
}

type Behaviour = Box<dyn Fn(&[Arc<Prepared>]) -> Result<Option<f32>, BackendError> + Send + Sync>;

/// Answers with the sum of the bytes, after `behave`, which may fail, sleep, panic, or give a value to answer instead.
struct Sum {
    name: &'static str,
    shape: Shape,
    behave: Behaviour,
    calls: AtomicUsize,
    largest: AtomicUsize,
}

impl Sum {
    fn new(name: &'static str, behave: Behaviour) -> Arc<Self> {
        let shape = Shape::Tokens { max_tokens: 256, max_items: 64 };
        Arc::new(Self { name, shape, behave, calls: AtomicUsize::new(0), largest: AtomicUsize::new(0) })
    }

    fn good(name: &'static str) -> Arc<Self> {
        Self::new(name, Box::new(|_| Ok(None)))
    }
}

fn text_of(item: &Prepared) -> &str {
    match &item.input {
        Input::Text(text) => text,
        _ => "",
    }
}

fn sum(text: &str) -> f32 {
    text.bytes().map(f32::from).sum()
}

impl Runner for Sum {
    fn name(&self) -> &str {
        self.name
    }

    fn shape(&self) -> Shape {
        self.shape.clone()
    }

    fn run(&self, items: &[Arc<Prepared>], _: &RunOptions) -> Result<Vec<ItemOutput>, BackendError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.largest.fetch_max(items.len(), Ordering::SeqCst);
        let instead = (self.behave)(items)?;
        let report = Arc::new(report(self.name, items));
        let output = |item: &Arc<Prepared>| {
            let nan = text_of(item).contains("nan");
            let value = if nan { f32::NAN } else { instead.unwrap_or_else(|| sum(text_of(item))) };
            let values = vec![ItemRows { name: "sum".into(), rows: 1, width: 1, data: vec![value] }];
            ItemOutput { values, report: Arc::clone(&report), attention: "".into() }
        };
        Ok(items.iter().map(output).collect())
    }
}

fn deployment(runners: &[Arc<Sum>], policy: HealthPolicy) -> Arc<Deployment> {
    let lanes = runners.iter().map(|runner| Lane::new(Arc::clone(runner) as Arc<dyn Runner>, policy)).collect();
    Arc::new(Deployment {
        label: "sum".into(),
        model: None,
        tokenizer: Arc::new(Bytes { max: 200 }),
        lanes,
        left_out: Vec::new(),
    })
}

fn service(runners: &[Arc<Sum>], policy: HealthPolicy) -> Service {
    Service::start(ServiceConfig::default(), deployment(runners, policy), Vec::new()).unwrap()
}

fn texts(texts: &[&str]) -> Request {
    Request::new(texts.iter().map(|&text| text.into()).collect())
}

fn values(service: &Service, request: Request) -> Vec<Result<f32, EngineError>> {
    let response = service.request_when_room(request).unwrap().wait();
    response.items.into_iter().map(|item| item.map(|answer| answer.output.values[0].data[0])).collect()
}

fn failed(message: &str) -> BackendError {
    BackendError::Failed(message.to_owned())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn answers_come_in_the_order_of_the_request(
        lengths in proptest::collection::vec(0usize..250, 0..120),
        workers in 1usize..4,
        tokenizer_threads in 1usize..4,
    ) {
        let config = ServiceConfig { workers, tokenizer_threads, queue_tokens: 500, ..ServiceConfig::default() };
        let runner = Sum::good("a");
        let service =
            Service::start(config, deployment(&[Arc::clone(&runner)], HealthPolicy::default()), Vec::new()).unwrap();
        let all: Vec<String> = lengths.iter().enumerate().map(|(i, &n)| "abcdefg"[i % 7..][..1].repeat(n)).collect();
        // Several requests at once, each larger or smaller than what the queue holds.
        let pending: Vec<_> = all
            .chunks(17)
            .map(|part| {
                let inputs = part.iter().map(|text| text.as_str().into()).collect();
                service.request_when_room(Request::new(inputs)).unwrap()
            })
            .collect();
        let answers: Vec<_> = pending.into_iter().flat_map(|pending| pending.wait().items).collect();
        prop_assert_eq!(answers.len(), all.len());
        for (answer, text) in answers.into_iter().zip(&all) {
            let answer = answer.unwrap();
            prop_assert_eq!(answer.output.values[0].data[0], sum(text));
            prop_assert_eq!(answer.truncated, text.len() > 200);
            prop_assert!(answer.output.report.tokens <= 256);
        }
        prop_assert_eq!(service.load().tokens, 0);
    }
}

#[test]
fn a_bad_item_fails_alone() {
    let poison = |error: fn(usize) -> BackendError| -> Behaviour {
        Box::new(move |items| match items.iter().position(|item| text_of(item).contains("poison")) {
            Some(place) => Err(error(place)),
            None => Ok(None),
        })
    };
    let invalid = |sequence| BackendError::InvalidInput(GraphError::Batch { sequence, message: "bad token".into() });
    let cases: Vec<(&str, Behaviour, &str)> = vec![
        ("named by the backend", poison(invalid), "invalid"),
        ("not named", poison(|_| failed("it broke")), "unavailable"),
        (
            "panic",
            Box::new(|items| {
                assert!(!items.iter().any(|item| text_of(item).contains("poison")), "planted");
                Ok(None)
            }),
            "unavailable",
        ),
    ];
    for (what, behave, code) in cases {
        let service = service(&[Sum::new("a", behave)], HealthPolicy::default());
        let mut all: Vec<String> = (0..60).map(|i| format!("text number {i}")).collect();
        for at in [0, 31, 59] {
            all[at] = "poison".into();
        }
        all[7] = "nan".into();
        all[8] = "panic tokeniser".into();
        let inputs: Vec<Input> = all.iter().map(|text| text.as_str().into()).collect();
        let answers = values(&service, Request::new(inputs));
        for (i, (text, answer)) in all.iter().zip(answers).enumerate() {
            match text.as_str() {
                "poison" => assert_eq!(answer.unwrap_err().code(), code, "{what}: {i}"),
                "nan" => assert_eq!(answer.unwrap_err().code(), "not_finite", "{what}: {i}"),
                "panic tokeniser" => assert_eq!(answer.unwrap_err().code(), "invalid", "{what}: {i}"),
                text => assert_eq!(answer, Ok(sum(text)), "{what}: {i}"),
            }
        }
    }
}

#[test]
fn a_failing_backend_is_replaced_rested_and_tried_again() {
    let broken = Arc::new(Mutex::new(true));
    let state = Arc::clone(&broken);
    let first =
        Sum::new("first", Box::new(move |_| if *state.lock().unwrap() { Err(failed("no power")) } else { Ok(None) }));
    let policy = HealthPolicy { cooldown: Duration::from_millis(40), ..HealthPolicy::default() };
    let service = service(&[Arc::clone(&first), Sum::good("second")], policy);
    let ask = || {
        let response = service.request(texts(&["hello"])).unwrap().wait();
        response.items[0].as_ref().unwrap().output.report.backend.clone()
    };
    for _ in 0..20 {
        assert_eq!(ask(), "second");
    }
    let health = service.deployment().lanes[0].health();
    assert!(health.failures >= 3 && health.last_error.as_deref() == Some("no power"), "{health:?}");
    assert!(first.calls.load(Ordering::SeqCst) < 20, "it was not asked while it rested");
    *broken.lock().unwrap() = false;
    let end = Instant::now() + Duration::from_secs(20);
    while ask() != "first" {
        assert!(Instant::now() < end, "it never came back");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(service.deployment().lanes[0].health().state, HealthState::Closed);
}

#[test]
fn all_values_wrong_goes_to_the_next_backend() {
    let service =
        service(&[Sum::new("nan", Box::new(|_| Ok(Some(f32::INFINITY)))), Sum::good("good")], HealthPolicy::default());
    assert_eq!(values(&service, texts(&["a", "b"])), [Ok(97.0), Ok(98.0)]);
}

#[test]
fn a_hung_backend_costs_its_limit_and_nothing_else() {
    let hang: Behaviour = Box::new(|_| {
        std::thread::sleep(Duration::from_secs(600));
        Ok(None)
    });
    let policy = HealthPolicy {
        latency_limit: Some(Duration::from_millis(50)),
        cooldown: Duration::from_secs(600),
        max_cooldown: Duration::from_secs(600),
        ..HealthPolicy::default()
    };
    let hung = Sum::new("hung", hang);
    let service = service(&[Arc::clone(&hung), Sum::good("good")], policy);
    for _ in 0..5 {
        assert_eq!(values(&service, texts(&["a"])), [Ok(97.0)]);
    }
    assert_eq!(hung.calls.load(Ordering::SeqCst), 1, "a hung backend rests after the first time");
}

#[test]
fn deadlines_are_kept_while_a_backend_hangs_and_in_the_queue() {
    let hang: Behaviour = Box::new(|_| {
        std::thread::sleep(Duration::from_secs(600));
        Ok(None)
    });
    let service = service(&[Sum::new("hung", hang)], HealthPolicy::default());
    let soon = || Some(Instant::now() + Duration::from_millis(60));
    let running = service.request(Request { deadline: soon(), ..texts(&["a"]) }).unwrap();
    let waiting = service.request(Request { deadline: soon(), ..texts(&["bb", "cc"]) }).unwrap();
    assert_eq!(running.wait().items[0].as_ref().unwrap_err(), &EngineError::Deadline);
    assert!(waiting.wait().items.iter().all(|item| matches!(item, Err(EngineError::Deadline))));
    assert_eq!(service.load().tokens, 0);
}

#[test]
fn a_full_queue_turns_away_and_dropped_requests_leave_it() {
    let (open, gate) = std::sync::mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let runner = Sum::new(
        "gated",
        Box::new(move |_| {
            let _ = gate.lock().unwrap().recv();
            Ok(None)
        }),
    );
    let config = ServiceConfig { queue_tokens: 40, batch_tokens: 10, ..ServiceConfig::default() };
    let service =
        Service::start(config, deployment(&[Arc::clone(&runner)], HealthPolicy::default()), Vec::new()).unwrap();
    let first = service.request(texts(&["aaaaaaaaaa"])).unwrap();
    while runner.calls.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    let waiting = service.request(texts(&["bbbbbbbbbbbbbbb", "ccccccccccccccc"])).unwrap();
    while service.load().waiting_items < 2 {
        std::thread::yield_now();
    }
    assert!(matches!(service.request(texts(&["dddddd"])), Err(EngineError::QueueFull { limit: 40, .. })));
    drop(waiting);
    assert_eq!(service.load().waiting_items, 0);
    let third = service.request(texts(&["dddddd"])).unwrap();
    drop(open);
    assert!(first.wait().items[0].is_ok() && third.wait().items[0].is_ok());
    assert_eq!(runner.calls.load(Ordering::SeqCst), 2, "what was dropped was not run");
}

#[test]
fn a_swap_under_load_answers_everything_once() {
    let service = Arc::new(service(&[Sum::good("old")], HealthPolicy::default()));
    let clients: Vec<_> = (0..4)
        .map(|client| {
            let service = Arc::clone(&service);
            std::thread::spawn(move || {
                for i in 0..100 {
                    let text = format!("client {client} request {i}");
                    assert_eq!(values(&service, texts(&[&text])), [Ok(sum(&text))]);
                }
            })
        })
        .collect();
    for name in ["a", "b", "c", "d"] {
        std::thread::sleep(Duration::from_millis(3));
        let old = service.deploy(deployment(&[Sum::good(name)], HealthPolicy::default()));
        let end = Instant::now() + Duration::from_secs(20);
        // The old deployment is let go once its batches are done; answers that clients still hold may keep it.
        while Arc::strong_count(&old) > 1 {
            assert!(Instant::now() < end, "the old deployment is never released");
            std::thread::yield_now();
        }
    }
    clients.into_iter().for_each(|client| client.join().unwrap());
}

#[test]
fn shutting_down_answers_what_waits() {
    let service_a = service(&[Sum::good("a")], HealthPolicy::default());
    assert!(service_a.drain(Duration::from_secs(10)));
    assert!(matches!(service_a.request(texts(&["x"])), Err(EngineError::ShuttingDown)));

    let slow: Behaviour = Box::new(|_| {
        std::thread::sleep(Duration::from_millis(30));
        Ok(None)
    });
    let service_b = service(&[Sum::new("slow", slow)], HealthPolicy::default());
    let pending: Vec<_> = (0..50).map(|_| service_b.request(texts(&["some text that waits"])).unwrap()).collect();
    drop(service_b);
    for answer in pending.into_iter().map(|pending| pending.wait().items.remove(0)) {
        assert!(matches!(answer, Ok(_) | Err(EngineError::ShuttingDown)), "{answer:?}");
    }
}

#[test]
fn an_empty_request_is_answered() {
    assert!(values(&service(&[Sum::good("a")], HealthPolicy::default()), texts(&[])).is_empty());
}
