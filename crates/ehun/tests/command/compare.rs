//! `ehun compare`: what it says, not how fast anything is.

use std::path::Path;

use ehun_compare::Comparison;
use ehun_compare::verdict::Advice;

use crate::common::{Ran, command, ehun, onnxruntime, root, write_all, xla_cpu_plugin};
use crate::server::{Server, free_address};

/// Documents of a few chunks each.
fn documents(folder: &Path) -> String {
    let sentence = "The tide gauge was read every hour, and the harmonic constants were worked out from the readings. ";
    for number in 0..6 {
        let text = format!("Station {number}. {}", sentence.repeat(8 + number));
        write_all(folder, &[(&format!("in/{number}.txt"), text.as_bytes())]);
    }
    folder.join("in").to_string_lossy().into_owned()
}

fn compare(arguments: &[&str]) -> Comparison {
    let mut all = vec!["compare", "--json", "--rounds", "2", "--lengths", "16,64"];
    all.extend(arguments);
    let mut command = command(&all);
    // Backends whose libraries were fetched are found by these.
    command.envs(xla_cpu_plugin().map(|path| ("EHUN_PJRT_PLUGIN_CPU", path)));
    command.envs(onnxruntime().map(|path| ("EHUN_ONNXRUNTIME", path)));
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let ran = Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) };
    serde_json::from_str(&ran.expect(0)).unwrap()
}

#[test]
fn both_kernels_do_the_same_job_and_every_part_of_the_report_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let inputs = documents(folder.path());
    let (page, queries) = (folder.path().join("report.html"), folder.path().join("queries.jsonl"));
    let lines = "{\"query\": \"tide gauge readings\", \"relevant\": {\"3.txt\": 1}}\n\n{\"query\": \"station 5\"}\n";
    std::fs::write(&queries, lines).unwrap();
    let (html, queries) = (page.to_string_lossy().into_owned(), queries.to_string_lossy().into_owned());
    let found = compare(&[
        "--baseline",
        "cpu/naive",
        "--candidate",
        "cpu/flash",
        "--chunk-tokens",
        "64,32",
        "--queries",
        &queries,
        "--html",
        &html,
        &inputs,
    ]);
    assert_eq!(found.attention_operations, 6);
    assert_eq!(found.paper.iter().map(|time| time.length).collect::<Vec<_>>(), [16, 64]);
    assert!(found.paper.iter().all(|time| time.gain.is_some() && time.baseline_us > 0.0 && time.candidate_us > 0.0));
    assert_eq!(found.pipeline.iter().map(|at| at.chunk_tokens).collect::<Vec<_>>(), [32, 64]);
    for at in &found.pipeline {
        assert_eq!((at.baseline.documents, at.candidate.documents), (6, 6));
        assert_eq!(at.baseline.chunks, at.candidate.chunks);
        assert_eq!(at.baseline.kernels.keys().collect::<Vec<_>>(), ["naive"]);
        assert_eq!(at.candidate.kernels.keys().collect::<Vec<_>>(), ["flash"]);
        let (share, allowed, most) = (at.attention_share.unwrap(), at.allowed_gain.unwrap(), at.most_gain.unwrap());
        assert!(share > 0.0 && share < 1.0 && allowed <= most && !at.estimated, "{share} {allowed} {most}");
        assert!(at.gain.low <= at.gain.estimate && at.gain.estimate <= at.gain.high && at.rounds.len() == 2);
        let stages = at.baseline.stages;
        assert!(stages.parse > 0.0 && stages.tokenize > 0.0 && stages.run > 0.0 && stages.write > 0.0, "{stages:?}");
    }
    let (cosines, search) = (found.drift.cosines.unwrap(), found.drift.queries.unwrap());
    assert!(cosines.worst > 0.999_999 && cosines.compared > 12, "{cosines:?}");
    assert!(search.count == 2 && search.rank_correlation > 0.99 && search.baseline_ndcg.is_some());
    assert!(found.candidate.cost.start_seconds.is_some() && found.candidate.cost.weight_bytes > 0);
    assert!(found.verdict.sentence.starts_with("adopt") || found.verdict.sentence.starts_with("leave"));

    let page = std::fs::read_to_string(page).unwrap();
    assert_eq!(page.matches("<svg").count(), 2);
    // The name of the SVG standard is the only address: the page fetches nothing.
    assert!(page.replace("http://www.w3.org/2000/svg", "").matches("http").count() == 0, "the page needs a network");
    assert!(page.contains("cpu/flash against cpu/naive") && !page.contains("NaN"));
}

#[test]
fn what_a_candidate_refuses_is_the_answer() {
    let folder = tempfile::tempdir().unwrap();
    let inputs = documents(folder.path());
    let found = compare(&["--baseline", "cpu", "--candidate", "cpu/bf16", &inputs]);
    assert_eq!(found.verdict.advice, Advice::Leave);
    assert!(found.candidate.cost.refusals.iter().any(|reason| reason.contains("bf16")), "{:?}", found.candidate.cost);
    assert!(found.pipeline.is_empty() && found.verdict.sentence.contains("refuses the model"));

    let ran = ehun(&["compare", "--baseline", "cpu/bf16", "--candidate", "cpu", &inputs]);
    assert!(ran.code == Some(2) && ran.stderr.contains("the baseline cpu/bf16 refuses"), "{}", ran.stderr);
    let ran = ehun(&["compare", "--baseline", "cpu", "--candidate", "warp9", &inputs]);
    assert!(ran.code == Some(1) && ran.stderr.contains("warp9"), "{}", ran.stderr);
}

#[test]
fn labels_of_a_classifier_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let inputs = documents(folder.path());
    let found = compare(&[
        "--model",
        "goldens/bert.sequence-classification",
        "--baseline",
        "cpu/naive",
        "--candidate",
        "cpu/flash",
        "--chunk-tokens",
        "32",
        &inputs,
    ]);
    let flips = found.drift.flips.unwrap();
    assert!(flips.changed == 0 && flips.compared as u64 == found.pipeline[0].baseline.chunks && flips.compared > 6);
}

#[test]
fn other_backends_and_services_elsewhere_are_sides_too() {
    let folder = tempfile::tempdir().unwrap();
    let inputs = documents(folder.path());
    let golden = root().join("goldens/st-mean");
    let golden = golden.to_str().unwrap();
    let server = Server::start(&["--model", golden], free_address());
    let address = |scheme: &str, rest: &str| format!("{scheme}://{}{rest}", server.address);
    let mut sides = vec![address("tei+http", ""), address("openai+http", "/v1#default")];
    for (side, found) in [("xla:cpu/native", xla_cpu_plugin()), ("onnx", onnxruntime())] {
        match found {
            Some(_) => sides.push(side.to_owned()),
            None => println!("not run: {side}, whose library was not fetched (cargo xtask plugins)"),
        }
    }
    for side in &sides {
        let candidate = ["--model", golden, "--baseline", "cpu", "--candidate", side, "--chunk-tokens", "32", &inputs];
        let found = compare(&candidate);
        let (at, cosines) = (&found.pipeline[0], found.drift.cosines.unwrap());
        assert_eq!((at.candidate.documents, at.candidate.chunks), (6, at.baseline.chunks), "{side}");
        assert!(cosines.worst > 0.999_99 && found.drift.missing == 0, "{side}: {cosines:?}");
        assert!(found.candidate.cost.start_seconds.is_some() && found.candidate.name == *side, "{side}");
        // Attention elsewhere cannot be run alone, and what is estimated says so.
        let elsewhere = side.contains("+http");
        assert!(found.paper.iter().all(|time| time.gain.is_some() != time.refused.is_some()), "{side}");
        assert!(found.paper.is_empty() == elsewhere && (!elsewhere || at.attention_share.is_none()), "{side}");
        assert!(found.candidate.runs_on.contains(side.split('/').next().unwrap()), "{}", found.candidate.runs_on);
    }
}
