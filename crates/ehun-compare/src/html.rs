//! The comparison as one HTML page that needs nothing else.

use crate::plot;
use crate::report::Comparison;
use crate::table::{Section, sections};
use crate::verdict::Advice;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}\
h1{font-size:1.5rem;margin-bottom:.2rem}h2{font-size:1.1rem;margin:2rem 0 .4rem}\
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}th,td{text-align:right;padding:.25rem .6rem;border-bottom:1px solid #d7dce1;vertical-align:top}\
th:first-child,td:first-child{text-align:left}th{font-weight:600;color:#57606a}\
.verdict{padding:.6rem .9rem;border-left:4px solid;background:#f4f6f8;font-size:1.05rem}.adopt{color:#1a7f37}.leave{color:#8a5a00}\
.note{color:#57606a;font-size:.9em}svg{max-width:100%;height:auto}.scroll{overflow-x:auto}\
@media(prefers-color-scheme:dark){body{background:#15181c;color:#e4e7eb}.verdict{background:#20252b}th,.note{color:#9aa4af}\
th,td{border-color:#343b43}.adopt{color:#5ac878}.leave{color:#e2b35a}svg{background:#fff}}";

/// The page of `found`.
pub fn page(found: &Comparison) -> String {
    let class = if found.verdict.advice == Advice::Leave { "leave" } else { "adopt" };
    let sides: String = [&found.baseline, &found.candidate]
        .iter()
        .filter(|side| !side.runs_on.is_empty())
        .map(|side| format!("<br><b>{}</b>: {}", escape(&side.name), escape(&side.runs_on)))
        .collect();
    let mut body = String::new();
    for section in sections(found) {
        body += &table(&section);
        let plot = match section.title.as_str() {
            title if title.starts_with("1.") => plot::attention(found),
            title if title.starts_with("2.") => plot::gains(found),
            _ => None,
        };
        body += &plot.unwrap_or_default();
    }
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>{title}</title><style>{STYLE}</style></head><body><h1>{title}</h1>\
         <p class=\"verdict {class}\">{verdict}</p><p>Model {model}, {operations} attention operations; {machine}{sides}</p>{body}\
         <h2>5. The rule</h2><p class=\"note\">{rule}.</p><p class=\"note\">Both sides ran in every round, in the order A B B \
         A. Intervals: bootstrap over rounds. Ehun {version}.</p></body></html>\n",
        title = escape(&format!("{} against {}", found.candidate.name, found.baseline.name)),
        verdict = escape(&found.verdict.sentence),
        model = escape(&found.model),
        operations = found.attention_operations,
        machine = escape(&found.machine),
        rule = escape(&found.limits.rule()),
        version = escape(&found.version),
    )
}

fn table(section: &Section) -> String {
    let row = |cells: &[String], tag: &str| {
        let cells: String = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
        format!("<tr>{cells}</tr>")
    };
    let rows: String = section.rows.iter().map(|cells| row(cells, "td")).collect();
    format!(
        "<h2>{}</h2><div class=\"scroll\"><table><thead>{}</thead><tbody>{rows}</tbody></table></div><p class=\"note\">{}</p>",
        escape(section.title.trim()),
        row(&section.header, "th"),
        escape(&section.note)
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
