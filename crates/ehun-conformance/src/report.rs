//! What a run of the suite found.

use std::collections::BTreeMap;

use ehun_backend::Precision;
use serde::{Deserialize, Serialize};

use crate::suite::Profile;

/// What a check is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// One operation of the graph, against the interpreter.
    Operations,
    /// One attention specification, against the interpreter.
    Attention,
    /// A small model, against the interpreter.
    Models,
    /// What must hold whatever the numbers are.
    Laws,
    /// Whether the backend does what it says and says what it does.
    Honesty,
}

impl Group {
    /// All groups in the order of the report.
    pub const ALL: [Self; 5] = [Self::Honesty, Self::Operations, Self::Attention, Self::Models, Self::Laws];

    /// Heading in the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Operations => "operations",
            Self::Attention => "attention",
            Self::Models => "models",
            Self::Laws => "laws",
            Self::Honesty => "honesty",
        }
    }
}

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It holds.
    Passed,
    /// It does not.
    Failed,
    /// The backend said beforehand that it cannot, with a reason.
    Refused,
}

impl Outcome {
    /// The word in the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
            Self::Refused => "refused",
        }
    }
}

/// The element that came closest to its bound, or went furthest beyond it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Worst {
    /// Distance to the interpreter; the largest number there is for a result that is no number.
    pub error: f64,
    /// What the derivation allows.
    pub allowed: f64,
    /// Where: sequence, row, column.
    pub place: String,
}

impl Worst {
    /// The error in units of what is allowed.
    pub fn ratio(&self) -> f64 {
        if self.error == 0.0 { 0.0 } else { self.error / self.allowed.max(f64::MIN_POSITIVE) }
    }
}

/// One check.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// What it is about.
    pub group: Group,
    /// Which one.
    pub name: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Numbers compared.
    pub compared: u64,
    /// The worst of them.
    pub worst: Option<Worst>,
    /// Failures and refusals in words, the first few of each.
    pub notes: Vec<String>,
}

/// The result of the suite.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The backend's name.
    pub backend: String,
    /// The device.
    pub device: String,
    /// Version of the runtime.
    pub version: String,
    /// The precision that was asked for.
    pub precision: Precision,
    /// The attention implementation that was asked for.
    pub attention: String,
    /// Threads that were asked for.
    pub threads: Option<usize>,
    /// How much was tried.
    pub profile: Profile,
    /// How many sequences each attention kernel computed, by the backend's own reports.
    pub kernels: BTreeMap<String, usize>,
    /// The checks in the order in which they ran.
    pub checks: Vec<Check>,
    /// Time of the run in seconds.
    pub seconds: f64,
}

impl Report {
    /// Whether nothing failed. What was refused is not conformance for it, only honesty.
    pub fn passed(&self) -> bool {
        self.count(Outcome::Failed) == 0
    }

    /// How many checks ended so.
    pub fn count(&self, outcome: Outcome) -> usize {
        self.checks.iter().filter(|check| check.outcome == outcome).count()
    }

    /// The checks that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| check.outcome == Outcome::Failed)
    }

    /// One sentence.
    pub fn verdict(&self) -> String {
        let word = if self.passed() { "conforms" } else { "does NOT conform" };
        format!(
            "{} with attention {} in {} {word}: {} checks passed, {} failed, {} refused with a reason",
            self.backend,
            self.attention,
            self.precision,
            self.count(Outcome::Passed),
            self.count(Outcome::Failed),
            self.count(Outcome::Refused)
        )
    }

    /// The report as a table for a terminal.
    pub fn table(&self) -> String {
        let mut out = format!("{} ({}), version {}\n", self.backend, self.device, self.version);
        for group in Group::ALL {
            let checks: Vec<&Check> = self.checks.iter().filter(|check| check.group == group).collect();
            if checks.is_empty() {
                continue;
            }
            out += &format!(
                "\n{:<72} {:<8} {:>9}  {:>9}  {:>9}  {:>6}\n",
                group.name(),
                "",
                "compared",
                "worst",
                "allowed",
                "ratio"
            );
            for check in checks {
                out += &format!("  {:<70} {:<8} {:>9}", check.name, check.outcome.name(), check.compared);
                if let Some(worst) = &check.worst {
                    out += &format!("  {:>9.1e}  {:>9.1e}  {:>6.3}", worst.error, worst.allowed, worst.ratio());
                    out += &format!("  {}", worst.place);
                }
                out.push('\n');
                for note in &check.notes {
                    out += &format!("      {note}\n");
                }
            }
        }
        let kernels: Vec<String> = self.kernels.iter().map(|(name, count)| format!("{name} {count}")).collect();
        out += &format!("\nattention kernels that ran (sequences): {}\n", kernels.join(", "));
        out += &format!("{} ({:.1} s)\n", self.verdict(), self.seconds);
        out
    }
}

/// A check in the making.
#[derive(Debug)]
pub(crate) struct Tally {
    check: Check,
    failures: usize,
}

impl Tally {
    pub(crate) fn new(group: Group, name: impl Into<String>) -> Self {
        let check =
            Check { group, name: name.into(), outcome: Outcome::Passed, compared: 0, worst: None, notes: Vec::new() };
        Self { check, failures: 0 }
    }

    /// Something is wrong.
    pub(crate) fn fail(&mut self, note: impl Into<String>) {
        self.check.outcome = Outcome::Failed;
        self.failures += 1;
        if self.failures <= 3 {
            self.check.notes.push(note.into());
        }
    }

    /// Something that a reader should know.
    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.check.notes.push(note.into());
    }

    pub(crate) fn group(&self) -> Group {
        self.check.group
    }

    pub(crate) fn name(&self) -> &str {
        &self.check.name
    }

    pub(crate) fn failed(&self) -> bool {
        self.failures > 0
    }

    /// Compares numbers with what they should be; `place(i)` says where element `i` is.
    pub(crate) fn compare(&mut self, found: &[f32], want: &[f64], allowed: &[f64], place: impl Fn(usize) -> String) {
        if found.len() != want.len() {
            self.fail(format!("{}: {} numbers, {} expected", place(0), found.len(), want.len()));
            return;
        }
        let mut wrong = 0usize;
        let mut first = None;
        for (i, ((&found, &want), &allowed)) in found.iter().zip(want).zip(allowed).enumerate() {
            let distance = (f64::from(found) - want).abs();
            let error = if distance.is_finite() { distance } else { f64::MAX };
            let candidate = || Worst { error, allowed, place: place(i) };
            let ratio = if error == 0.0 { 0.0 } else { error / allowed.max(f64::MIN_POSITIVE) };
            if self.check.worst.as_ref().is_none_or(|worst| ratio > worst.ratio()) {
                self.check.worst = Some(candidate());
            }
            if error > allowed {
                wrong += 1;
                first
                    .get_or_insert_with(|| format!("{}: {found:e}, should be {want:e} within {allowed:.1e}", place(i)));
            }
        }
        self.check.compared += found.len() as u64;
        if let Some(first) = first {
            self.fail(format!("{first}; {wrong} of {} wrong", found.len()));
        }
    }

    /// Compares bits.
    pub(crate) fn same_bits(&mut self, found: &[f32], want: &[f32], place: impl Fn(usize) -> String) {
        if found.len() != want.len() {
            self.fail(format!("{}: {} numbers, {} expected", place(0), found.len(), want.len()));
            return;
        }
        self.check.compared += found.len() as u64;
        let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
        let wrong = found.iter().zip(want).filter(|&(a, b)| differs((a, b))).count();
        if let Some(i) = found.iter().zip(want).position(differs) {
            self.fail(format!("{}: {:e} and {:e}; {wrong} of {} differ", place(i), found[i], want[i], found.len()));
        }
    }

    pub(crate) fn refused(mut self, reasons: Vec<String>) -> Check {
        self.check.outcome = Outcome::Refused;
        self.check.notes = reasons;
        self.check
    }

    pub(crate) fn done(mut self) -> Check {
        if self.failures > 3 {
            self.check.notes.push(format!("and {} more", self.failures - 3));
        }
        self.check
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_is_never_within_bounds() {
        let mut tally = Tally::new(Group::Laws, "x");
        tally.compare(&[1.0, f32::NAN], &[1.0, 1.0], &[0.0, f64::MAX / 2.0], |i| i.to_string());
        let check = tally.done();
        assert_eq!(check.outcome, Outcome::Failed);
        assert_eq!(check.worst.map(|worst| worst.place), Some("1".to_owned()));
    }

    #[test]
    fn reports_survive_json() {
        let mut tally = Tally::new(Group::Laws, "x");
        tally.compare(&[1.0, f32::INFINITY], &[1.0, 1.0], &[1e-6, 1e-6], |i| i.to_string());
        let check = tally.done();
        let text = serde_json::to_string(&check).expect("JSON");
        assert_eq!(serde_json::from_str::<Check>(&text).expect("a check"), check);
    }
}
