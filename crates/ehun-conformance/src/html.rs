//! The report as one HTML page that needs nothing else.

use crate::report::{Check, Group, Outcome, Report};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}\
h1{font-size:1.5rem;margin-bottom:.2rem}h2{font-size:1.1rem;margin:2rem 0 .4rem}\
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.25rem .6rem;border-bottom:1px solid #d7dce1;vertical-align:top}\
th{font-weight:600;color:#57606a}td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}\
.passed{color:#1a7f37}.failed{color:#b3261e;font-weight:700}.refused{color:#8a5a00}\
.verdict{padding:.6rem .9rem;border-left:4px solid;background:#f4f6f8}.note,.place{color:#57606a;font-size:.9em}\
.bar{display:inline-block;width:7rem;height:.6rem;background:#e8ebee;vertical-align:middle}.bar i{display:block;height:100%;background:#3b6fb6}\
.bar i.over{background:#b3261e}dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem}dt{color:#57606a}dd{margin:0}\
@media(prefers-color-scheme:dark){body{background:#15181c;color:#e4e7eb}.verdict{background:#20252b}th,.note,.place,dt{color:#9aa4af}\
th,td{border-color:#343b43}.bar{background:#343b43}.passed{color:#5ac878}.failed{color:#ff8a80}.refused{color:#e2b35a}}";

/// The page of `report`.
pub fn page(report: &Report) -> String {
    let class = if report.passed() { "passed" } else { "failed" };
    let kernels: Vec<String> =
        report.kernels.iter().map(|(name, count)| format!("{name} ({count} sequences)")).collect();
    let threads = report.threads.map_or_else(|| "as many as it takes".to_owned(), |threads| threads.to_string());
    let facts = [
        ("backend", report.backend.clone()),
        ("device", report.device.clone()),
        ("version", report.version.clone()),
        ("precision", report.precision.to_string()),
        ("attention asked for", report.attention.clone()),
        ("attention that ran", kernels.join(", ")),
        ("threads", threads),
        ("profile", format!("{:?}", report.profile).to_lowercase()),
        ("time", format!("{:.1} s", report.seconds)),
    ];
    let facts: String =
        facts.iter().map(|(name, value)| format!("<dt>{name}</dt><dd>{}</dd>", escape(value))).collect();
    let groups: String = Group::ALL.iter().map(|&group| section(report, group)).collect();
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>Conformance of {name}</title><style>{STYLE}</style></head><body>\
         <h1>Conformance of {name}</h1><p class=\"verdict {class}\">{verdict}</p><dl>{facts}</dl>{groups}\
         <p class=\"note\">The ratio is the worst error in units of what the derivation in docs/conformance.md allows; \
         above 1 is a failure.</p></body></html>\n",
        name = escape(&report.backend),
        verdict = escape(&report.verdict()),
    )
}

fn section(report: &Report, group: Group) -> String {
    let rows: String = report.checks.iter().filter(|check| check.group == group).map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    format!(
        "<h2>{}</h2><table><thead><tr><th>check</th><th>outcome</th><th>compared</th><th>worst error</th><th>allowed</th>\
         <th>ratio</th></tr></thead><tbody>{rows}</tbody></table>",
        group.name()
    )
}

fn row(check: &Check) -> String {
    let class = match check.outcome {
        Outcome::Passed => "passed",
        Outcome::Failed => "failed",
        Outcome::Refused => "refused",
    };
    let notes: String = check.notes.iter().map(|note| format!("<div class=\"note\">{}</div>", escape(note))).collect();
    let (place, numbers) = match &check.worst {
        Some(worst) => {
            let ratio = worst.ratio();
            let width = (ratio * 100.0).clamp(0.0, 100.0);
            let over = if ratio > 1.0 { " class=\"over\"" } else { "" };
            (
                format!("<div class=\"place\">worst: {}</div>", escape(&worst.place)),
                format!(
                    "<td class=\"n\">{:.2e}</td><td class=\"n\">{:.2e}</td><td class=\"n\"><span class=\"bar\">\
                     <i{over} style=\"width:{width:.1}%\"></i></span> {ratio:.3}</td>",
                    worst.error, worst.allowed
                ),
            )
        }
        None => (String::new(), "<td></td><td></td><td></td>".to_owned()),
    };
    format!(
        "<tr><td>{}{place}{notes}</td><td class=\"{class}\">{}</td><td class=\"n\">{}</td>{numbers}</tr>",
        escape(&check.name),
        check.outcome.name(),
        check.compared
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
