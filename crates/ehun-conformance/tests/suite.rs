//! The suite on the best that float32 can be: it must pass, and its report must be usable.

use ehun_conformance::{ConformOptions, KernelBackend, Outcome, Profile, Report, conform};

#[test]
fn the_ideal_passes() {
    let options = ConformOptions { profile: Profile::Quick, ..ConformOptions::default() };
    let report = conform(&KernelBackend::ideal(), &options);
    let table = report.table();
    println!("{table}");
    assert!(report.passed(), "{table}");
    assert_eq!(report.count(Outcome::Refused), 0, "{table}");
    let text = serde_json::to_string(&report).expect("JSON");
    let again: Report = serde_json::from_str(&text).expect("a report");
    assert!(again.checks.iter().map(|check| &check.name).eq(report.checks.iter().map(|check| &check.name)));
    assert_eq!((again.passed(), again.verdict()), (report.passed(), report.verdict()));
    let page = ehun_conformance::html::page(&report);
    for check in &report.checks {
        assert!(page.contains(&check.name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")));
    }
    assert!(!page.contains("src=") && !page.contains("href="), "the page needs nothing else");
}
