//! Swap, shadow and canary: what is put in place, what is refused, what is reported, and that nobody notices.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ehun_engine::rollout::{
    Bounds, CanaryBounds, CanaryPlan, Outcome, Phase, RolloutError, ShadowPlan, Share, SwapPlan, cosine_drift,
    default_probes,
};
use ehun_engine::{HealthPolicy, Pending, Request, Service, ServiceConfig};
use ehun_models::Task;

use crate::fickle::{Fickle, Mood, WIDTH, candidate, deployment, vector};

fn start(baseline: &Arc<Fickle>) -> Service {
    let deployment = deployment(&[Arc::clone(baseline)], HealthPolicy::default());
    Service::start(ServiceConfig::default(), deployment, Vec::new()).unwrap()
}

fn ask(service: &Service, text: &str) -> Pending {
    service.request_when_room(Request::new(vec![text.into()])).unwrap()
}

/// The vector and who gave it.
fn answer(pending: Pending) -> (Vec<f32>, String) {
    let item = pending.wait().items.remove(0).unwrap().output;
    (item.values[0].data.clone(), item.report.backend.clone())
}

fn until(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < end, "{what}: it never comes");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn plan() -> SwapPlan {
    let (bounds, drain) = (Bounds::default(), Duration::from_secs(20));
    SwapPlan { probes: default_probes(Task::Embed), bounds, force: false, drain }
}

fn shadow_all(queue_tokens: usize) -> ShadowPlan {
    ShadowPlan { share: Share::ALL, queue_tokens }
}

fn canary(percent: f64) -> CanaryPlan {
    let bounds = CanaryBounds { min_items: 20, ..CanaryBounds::default() };
    CanaryPlan { share: Share::percent(percent).unwrap(), bounds, queue_tokens: 100_000 }
}

#[test]
fn a_swap_is_made_or_refused_with_figures() {
    let policy = HealthPolicy::default();
    let broken = |mood| {
        let runner = Fickle::new("broken", 0.0);
        runner.set(mood);
        runner
    };
    // Candidate, force, and what the refusal says.
    for (name, runner, force, refusal) in [
        ("the same", Fickle::new("new", 0.0), false, None),
        ("a little off", Fickle::new("new", 0.02), false, None),
        ("far off", Fickle::new("new", 2.0), false, Some("the cosine drift is")),
        ("far off, forced", Fickle::new("new", 2.0), true, None),
        ("another width", Fickle::of_width("new", 0.0, 5), false, Some("another width")),
        ("another width, forced", Fickle::of_width("new", 0.0, 5), true, None),
        ("failing", broken(Mood::Error), false, Some("planted")),
        ("failing, forced", broken(Mood::Error), true, Some("planted")),
        ("panicking", broken(Mood::Panic), false, Some("broken")),
        ("not finite", broken(Mood::Nan), false, Some("finite")),
    ] {
        let service = start(&Fickle::new("old", 0.0));
        let result = service.swap(candidate(&[runner], policy), &SwapPlan { force, ..plan() });
        let last = service.rollout().last.unwrap();
        match (result, refusal) {
            (Ok(report), None) => {
                assert!(report.released, "{name}: {report:?}");
                assert_eq!(answer(ask(&service, "x")).1, "new", "{name}");
                assert_eq!(last.outcome, Outcome::Promoted, "{name}");
            }
            (Err(error), Some(part)) => {
                assert!(matches!(error, RolloutError::Refused(_)), "{name}: {error}");
                assert!(error.to_string().contains(part), "{name}: {error}");
                assert_eq!(answer(ask(&service, "x")).1, "old", "{name}");
                assert!(matches!(last.outcome, Outcome::Refused(_)), "{name}");
            }
            (result, refusal) => panic!("{name}: {result:?}, wanted {refusal:?}"),
        }
        assert_eq!(service.rollout().phase, Phase::Steady);
    }
}

#[test]
fn every_backend_of_a_candidate_is_checked() {
    let service = start(&Fickle::new("old", 0.0));
    let lanes = [Fickle::new("first", 0.0), Fickle::new("second", 2.0)];
    let error = service.swap(candidate(&lanes, HealthPolicy::default()), &plan()).unwrap_err();
    let RolloutError::Refused(lanes) = error else { panic!("{error}") };
    let problems: Vec<bool> = lanes.iter().map(|lane| lane.problem.is_some()).collect();
    assert_eq!(problems, [false, true]);
    assert!(lanes[0].figures.cosine_drift.unwrap().worst < 1e-12 && lanes[0].figures.compared == 8);
}

#[test]
fn without_an_answering_baseline_only_force_swaps() {
    let old = Fickle::new("old", 0.0);
    old.set(Mood::Error);
    let service = start(&old);
    let new = || candidate(&[Fickle::new("new", 0.0)], HealthPolicy::default());
    assert!(matches!(service.swap(new(), &plan()), Err(RolloutError::Baseline(_))));
    assert!(service.swap(new(), &SwapPlan { force: true, drain: Duration::ZERO, ..plan() }).is_ok());
    assert_eq!(answer(ask(&service, "x")).1, "new");
}

#[test]
fn a_shadow_reports_the_drift_of_the_answers_themselves() {
    let service = start(&Fickle::new("old", 0.0));
    let tilted = Fickle::new("tilted", 0.2);
    service.shadow(candidate(&[tilted], HealthPolicy::default()), &shadow_all(usize::MAX)).unwrap();
    assert!(matches!(
        service.swap(candidate(&[Fickle::new("new", 0.0)], HealthPolicy::default()), &plan()),
        Err(RolloutError::Busy(Phase::Shadow))
    ));
    let texts: Vec<String> = (0..500).map(|i| format!("text {i}")).collect();
    for pending in texts.iter().map(|text| ask(&service, text)).collect::<Vec<_>>() {
        assert_eq!(answer(pending).1, "old");
    }
    until("the comparison", || service.rollout().figures.unwrap().compared == 500);
    let mut drifts: Vec<f64> =
        texts.iter().map(|text| cosine_drift(&vector(text, 0.0, WIDTH), &vector(text, 0.2, WIDTH))).collect();
    drifts.sort_by(f64::total_cmp);
    let (ended, released) = service.abort(Duration::from_secs(20)).unwrap();
    let drift = ended.figures.unwrap().cosine_drift.unwrap();
    assert_eq!((drift.median, drift.p99, drift.worst), (drifts[249], drifts[494], drifts[499]));
    assert!(drift.median > 1e-4, "a test that cannot fail");
    assert!(released.released);
    assert!(matches!(service.abort(Duration::ZERO), Err(RolloutError::Nothing)));
}

#[test]
fn a_shadow_that_hangs_or_fails_costs_the_traffic_nothing() {
    let service = start(&Fickle::new("old", 0.0));
    let shadow = Fickle::new("shadow", 0.0);
    shadow.set(Mood::Hang);
    let candidate = candidate(&[Arc::clone(&shadow)], HealthPolicy::default());
    service.shadow(candidate, &shadow_all(200)).unwrap();
    for i in 0..300 {
        assert_eq!(answer(ask(&service, &format!("text {i}"))).1, "old");
    }
    let figures = service.rollout().figures.unwrap();
    assert_eq!((figures.mirrored, figures.compared), (300, 0));
    // Of about 8 tokens each, 200 tokens wait at most.
    assert!(figures.dropped >= 270 && figures.dropped < 300, "{figures:?}");
    shadow.set(Mood::Error);
    until("refusals", || service.rollout().figures.unwrap().refused > 0);
    shadow.set(Mood::Good);
    until("all is accounted for", || {
        let figures = service.rollout().figures.unwrap();
        figures.mirrored == figures.dropped + figures.compared + figures.refused
    });
}

#[test]
fn a_shadow_can_be_promoted() {
    let service = start(&Fickle::new("old", 0.0));
    let plan = ShadowPlan { share: Share::percent(10.0).unwrap(), queue_tokens: 10_000 };
    service.shadow(candidate(&[Fickle::new("new", 0.0)], HealthPolicy::default()), &plan).unwrap();
    assert!((0..200).all(|i| answer(ask(&service, &format!("text {i}"))).1 == "old"));
    let mirrored = service.rollout().figures.unwrap().mirrored;
    assert!((15..=25).contains(&mirrored), "{mirrored} of 200 at 10 %");
    assert!(service.promote(Duration::from_secs(20)).unwrap().released);
    assert_eq!(answer(ask(&service, "x")).1, "new");
}

#[test]
fn a_good_canary_answers_its_share_and_is_promoted() {
    let service = start(&Fickle::new("old", 0.0));
    service.canary(candidate(&[Fickle::new("new", 0.0)], HealthPolicy::default()), &canary(25.0)).unwrap();
    let mut of_new = 0;
    for i in 0..1000 {
        let text = format!("text {i}");
        let (vector_found, by) = answer(ask(&service, &text));
        assert_eq!(vector_found, vector(&text, 0.0, WIDTH));
        of_new += usize::from(by == "new");
    }
    assert!((240..=260).contains(&of_new), "{of_new} of 1000 at 25 %");
    let report = service.rollout();
    assert_eq!((report.phase, report.canary.unwrap().answered), (Phase::Canary, of_new as u64));
    until("comparisons", || service.rollout().figures.unwrap().compared == of_new as u64);
    assert!(service.promote(Duration::from_secs(20)).unwrap().released);
    assert_eq!(answer(ask(&service, "x")).1, "new");
    assert_eq!(service.rollout().last.unwrap().outcome, Outcome::Promoted);
}

#[test]
fn a_bad_canary_goes_back_by_itself_and_every_answer_is_right() {
    for (mood, tilt, reason) in [
        (Mood::Error, 0.0, "planted"),
        (Mood::Nan, 0.0, "finite"),
        (Mood::Panic, 0.0, "panic in the backend"),
        (Mood::Abort, 0.0, "the child ended"),
        (Mood::Slow, 0.0, "median time"),
        (Mood::Good, 0.8, "cosine drift"),
    ] {
        let service = start(&Fickle::new("old", 0.0));
        let bad = Fickle::new("bad", tilt);
        bad.set(mood);
        service.canary(candidate(&[bad], HealthPolicy::default()), &canary(50.0)).unwrap();
        for i in 0.. {
            if service.rollout().phase == Phase::Steady {
                break;
            }
            assert!(i < 20_000, "{mood:?} never goes back");
            let text = format!("text {i}");
            let (found, by) = answer(ask(&service, &text));
            assert_eq!(found, vector(&text, if by == "bad" { tilt } else { 0.0 }, WIDTH), "{mood:?}");
        }
        let last = service.rollout().last.unwrap();
        let Outcome::Returned(found) = &last.outcome else { panic!("{mood:?}: {last:?}") };
        assert!(found.contains(reason), "{mood:?}: {found}");
        assert!((0..20).all(|i| answer(ask(&service, &format!("after {i}"))).1 == "old"), "{mood:?}");
    }
}

#[test]
fn a_canary_that_hangs_holds_up_its_own_share_only() {
    let service = start(&Fickle::new("old", 0.0));
    let hung = Fickle::new("hung", 0.0);
    hung.set(Mood::Hang);
    service.canary(candidate(&[Arc::clone(&hung)], HealthPolicy::default()), &canary(20.0)).unwrap();
    let share = Share::percent(20.0).unwrap();
    let mut all = Vec::new();
    for i in 0..100 {
        all.push(ask(&service, &format!("text {i}")));
        if share.takes(i) && hung.calls() == 0 {
            // The call that hangs: it holds one request, and the others of the share wait behind it.
            until("the call", || hung.calls() == 1);
        }
    }
    // The service is new: its requests are numbered from 0.
    let (held, free): (Vec<_>, Vec<_>) = all.into_iter().enumerate().partition(|(i, _)| share.takes(*i as u64));
    for (i, pending) in free {
        assert_eq!(answer(pending), (vector(&format!("text {i}"), 0.0, WIDTH), "old".to_owned()));
    }
    // What the hung call does not hold goes to the baseline at once; the call itself is answered when it comes back.
    let (ended, released) = service.abort(Duration::ZERO).unwrap();
    assert!(!released.released && ended.outcome == Outcome::Aborted);
    hung.set(Mood::Good);
    let by: Vec<String> = held.into_iter().map(|(_, pending)| answer(pending).1).collect();
    assert!(by.len() >= 18 && by[0] == "hung" && by[1..].iter().all(|by| by == "old"), "{by:?}");
}

#[test]
fn a_service_that_ends_takes_its_canary_with_it() {
    let old = Fickle::new("old", 0.0);
    let new = Fickle::new("new", 0.0);
    let service = start(&old);
    service.canary(candidate(&[Arc::clone(&new)], HealthPolicy::default()), &canary(50.0)).unwrap();
    let pending: Vec<Pending> = (0..50).map(|i| ask(&service, &format!("text {i}"))).collect();
    assert!(service.drain(Duration::from_secs(20)));
    drop(service);
    assert!(pending.into_iter().all(|pending| pending.wait().items[0].is_ok()));
    until("the threads let go", || Arc::strong_count(&old) == 1 && Arc::strong_count(&new) == 1);
}
