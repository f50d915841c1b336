//! The comparison as sections of rows: for the terminal here, for the page in [`crate::page`].

use crate::report::{Comparison, LengthResult};
use crate::stats::Gain;
use crate::verdict::Finding;

/// A heading, a table, and a sentence about it.
pub(crate) struct Section {
    pub(crate) title: String,
    pub(crate) header: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
    pub(crate) note: String,
}

impl Section {
    fn new(title: &str, header: &[&str], note: impl Into<String>) -> Self {
        let header = header.iter().map(|&cell| cell.to_owned()).collect();
        Self { title: title.to_owned(), header, rows: Vec::new(), note: note.into() }
    }
}

/// The comparison as text for a terminal.
pub fn table(found: &Comparison) -> String {
    let mut out = format!(
        "{} against {}\nmodel {}, {} attention operations; {}\n",
        found.candidate.name, found.baseline.name, found.model, found.attention_operations, found.machine
    );
    for side in [&found.baseline, &found.candidate] {
        if !side.runs_on.is_empty() {
            out += &format!("{}: {}\n", side.name, side.runs_on);
        }
    }
    for section in sections(found) {
        out += &format!("\n{}\n", section.title);
        out += &aligned(&section);
        if !section.note.is_empty() {
            out += &format!("  {}\n", section.note);
        }
    }
    out + &format!("\n{}\nrule: {}\n", found.verdict.sentence, found.limits.rule())
}

fn aligned(section: &Section) -> String {
    let all = || std::iter::once(&section.header).chain(&section.rows);
    let width =
        |column: usize| all().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..section.header.len()).map(width).collect();
    let mut out = String::new();
    for row in all() {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(
                |(column, (cell, &width))| {
                    if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
                },
            )
            .collect();
        out += &format!("  {}\n", cells.join("  ").trim_end());
    }
    out
}

/// All that is shown, in order.
pub(crate) fn sections(found: &Comparison) -> Vec<Section> {
    let mut all = Vec::new();
    if !found.paper.is_empty() {
        all.push(paper(found));
    }
    if !found.pipeline.is_empty() {
        all.push(pipeline(found));
        all.push(stages(found));
        all.push(drift(found));
    }
    all.push(cost(found));
    all
}

fn paper(found: &Comparison) -> Section {
    let mut section = Section::new(
        "1. On paper: attention alone",
        &["length", "sequences", "baseline us", "candidate us", "gain (95 %)"],
        "Microseconds of one attention operation for one sequence; gain is the baseline's time over the candidate's.",
    );
    for time in &found.paper {
        let gain = time.refused.clone().unwrap_or_else(|| time.gain.as_ref().map_or_else(String::new, Gain::to_string));
        let (a, b) = (format!("{:.1}", time.baseline_us), format!("{:.1}", time.candidate_us));
        section.rows.push(vec![time.length.to_string(), time.batch.to_string(), a, b, gain]);
    }
    section
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "unknown".to_owned(), |share| format!("{:.1} %", 100.0 * share))
}

fn times(factor: Option<f64>) -> String {
    factor.map_or_else(|| "unknown".to_owned(), |factor| format!("{factor:.3}"))
}

fn pipeline(found: &Comparison) -> Section {
    let first = found.pipeline.first();
    let work = first.map_or_else(String::new, |at| {
        format!(
            "{} documents, {} tokens; {} rounds of four jobs. ",
            at.baseline.documents,
            at.baseline.tokens,
            at.rounds.len()
        )
    });
    let estimated = if found.pipeline.iter().any(|at| at.estimated) {
        " Shares are estimated from attention alone at the mean length: a backend does not take the time of operations."
    } else {
        ""
    };
    let mut section = Section::new(
        "2. In the pipeline: the whole document job",
        &[
            "chunks of",
            "mean",
            "docs/s base",
            "cand",
            "attention",
            "its gain",
            "allowed",
            "at most",
            "measured (95 %)",
            "",
        ],
        format!(
            "{work}Attention: its share of the baseline's job. Allowed: what the job gains if only attention changes (Amdahl); \
             at most: if attention took no time.{estimated}"
        ),
    );
    for at in &found.pipeline {
        section.rows.push(vec![
            at.chunk_tokens.to_string(),
            format!("{:.0}", at.mean_tokens),
            format!("{:.2}", at.baseline.documents_per_second()),
            format!("{:.2}", at.candidate.documents_per_second()),
            percent(at.attention_share),
            times(at.attention_gain),
            times(at.allowed_gain),
            times(at.most_gain),
            at.gain.to_string(),
            word(at.finding).to_owned(),
        ]);
    }
    section
}

fn word(finding: Finding) -> &'static str {
    match finding {
        Finding::Faster => "faster",
        Finding::Slower => "slower",
        Finding::NoDifference => "no difference",
    }
}

fn stages(found: &Comparison) -> Section {
    let mut section = Section::new(
        "   Seconds by stage (the run of median time)",
        &["chunks of, side", "job", "parse", "tokenise", "queue", "run", "attention", "write", "kernels"],
        "Stages run beside each other and do not add up. Parse is of all parsing threads, queue is the mean wait of a chunk.",
    );
    for at in &found.pipeline {
        let LengthResult { chunk_tokens, baseline, candidate, .. } = at;
        for (side, run) in [(&found.baseline.name, baseline), (&found.candidate.name, candidate)] {
            let stages = &run.stages;
            let mut row = vec![format!("{chunk_tokens} {side}")];
            row.extend(
                [run.seconds, stages.parse, stages.tokenize, stages.queue, stages.run].map(|s| format!("{s:.3}")),
            );
            row.push(stages.attention.map_or_else(|| "unknown".to_owned(), |s| format!("{s:.3}")));
            row.push(format!("{:.3}", stages.write));
            row.push(run.kernels());
            section.rows.push(row);
        }
    }
    section
}

fn drift(found: &Comparison) -> Section {
    let mut section = Section::new("3. Drift of the answers", &["", ""], "");
    let mut row = |name: &str, value: String| section.rows.push(vec![name.to_owned(), value]);
    let drift = &found.drift;
    if let Some(cosines) = &drift.cosines {
        row("chunks compared", cosines.compared.to_string());
        row("cosine, median", format!("{:.7}", cosines.median));
        row("cosine, 1 in 100 below", format!("{:.7}", cosines.p1));
        row("cosine, worst", format!("{:.7}", cosines.worst));
    }
    if let Some(queries) = &drift.queries {
        row("queries", queries.count.to_string());
        row("rank correlation, mean", format!("{:.5}", queries.rank_correlation));
        row("rank correlation, worst query", format!("{:.5}", queries.worst_rank_correlation));
        if let (Some(a), Some(b)) = (queries.baseline_ndcg, queries.candidate_ndcg) {
            row("nDCG@10", format!("{a:.4} to {b:.4} ({:+.4})", b - a));
        }
    }
    if let Some(flips) = &drift.flips {
        row("labels that change", format!("{} of {} ({:.2} %)", flips.changed, flips.compared, 100.0 * flips.share()));
    }
    if drift.missing > 0 {
        row("chunks with an answer on one side only", drift.missing.to_string());
    }
    section
}

fn cost(found: &Comparison) -> Section {
    let sides = [&found.baseline.cost, &found.candidate.cost];
    let mut section = Section::new("4. Cost of having it", &["", "baseline", "candidate"], "");
    let mut row = |name: &str, values: [String; 2]| {
        let [a, b] = values;
        section.rows.push(vec![name.to_owned(), a, b]);
    };
    let megabytes = |bytes: f64| format!("{:.1} MB", bytes / 1e6);
    row("compile time", sides.map(|cost| format!("{:.3} s", cost.compile_seconds)));
    row(
        "start to first answer",
        sides.map(|cost| cost.start_seconds.map_or_else(|| "not measured".to_owned(), |s| format!("{s:.3} s"))),
    );
    row("memory grown", sides.map(|cost| megabytes(cost.memory_growth as f64)));
    row("weights", sides.map(|cost| megabytes(cost.weight_bytes as f64)));
    row(
        "largest batch",
        sides.map(|cost| cost.batch_bytes.map_or_else(|| "unknown".to_owned(), |bytes| megabytes(bytes as f64))),
    );
    let list = |items: &[String]| if items.is_empty() { "none".to_owned() } else { items.join("; ") };
    row("libraries loaded for it", sides.map(|cost| list(&cost.libraries)));
    row("refused", sides.map(|cost| list(&cost.refusals)));
    if sides.iter().any(|cost| !cost.notes.is_empty()) {
        row("to know", sides.map(|cost| list(&cost.notes)));
    }
    section
}
