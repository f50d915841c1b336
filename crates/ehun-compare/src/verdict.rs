//! One sentence, by a rule that is written down.

use serde::{Deserialize, Serialize};

use crate::drift::Drift;
use crate::stats::Gain;

/// What the rule goes by.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// A gain or loss of less than this share is none, however surely it is measured.
    pub margin: f64,
    /// Least cosine that 99 of 100 vectors must keep to the baseline's.
    pub least_cosine: f64,
    /// Most nDCG@10 that may be lost, where relevance is known.
    pub most_ndcg_loss: f64,
    /// Most labels that may change, as a share.
    pub most_flips: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { margin: 0.01, least_cosine: 0.99, most_ndcg_loss: 0.01, most_flips: 0.01 }
    }
}

impl Limits {
    /// The rule in words.
    pub fn rule(&self) -> String {
        format!(
            "faster (slower) is a 95 % interval of the measured pipeline gain wholly above {:.3} (below {:.3}); else there is \
             no difference. Adopt what is faster at every length measured; adopt above L what is faster at every length from L up; \
             leave the rest, and whatever drifts: a cosine of {} that 1 in 100 falls below, more than {} nDCG@10 lost, or more than \
             {:.1} % of labels changed",
            1.0 + self.margin,
            1.0 / (1.0 + self.margin),
            self.least_cosine,
            self.most_ndcg_loss,
            100.0 * self.most_flips
        )
    }
}

/// What a gain is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// The candidate takes less time.
    Faster,
    /// It takes more.
    Slower,
    /// Neither was shown.
    NoDifference,
}

/// What `gain` is under `limits`.
pub fn finding(gain: &Gain, limits: &Limits) -> Finding {
    if gain.low > 1.0 + limits.margin {
        Finding::Faster
    } else if gain.high < 1.0 / (1.0 + limits.margin) {
        Finding::Slower
    } else {
        Finding::NoDifference
    }
}

/// What is recommended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Advice {
    /// Use the candidate.
    Adopt,
    /// Use it for chunks of this many tokens and more.
    AdoptFrom(usize),
    /// Stay with the baseline.
    Leave,
}

/// The advice and the sentence that gives it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// What is recommended.
    pub advice: Advice,
    /// One sentence with the figures that it rests on.
    pub sentence: String,
}

/// The verdict on pipeline gains by chunk length, shortest first, and what drifted.
pub fn verdict(gains: &[(usize, Gain)], drift: &Drift, limits: &Limits) -> Verdict {
    let leave = |why: String| Verdict { advice: Advice::Leave, sentence: format!("leave: {why}") };
    if let Some(why) = drifts(drift, limits) {
        return leave(why);
    }
    let findings: Vec<Finding> = gains.iter().map(|(_, gain)| finding(gain, limits)).collect();
    let list = |wanted: &dyn Fn(Finding) -> bool| {
        let chosen = gains.iter().zip(&findings).filter(|(_, finding)| wanted(**finding));
        let one = |((length, gain), _): (&(usize, Gain), &Finding)| format!("{length} tokens: {gain}");
        chosen.map(one).collect::<Vec<_>>().join("; ")
    };
    // The lengths from the end on at which it is faster.
    let faster = findings.iter().rev().take_while(|&&finding| finding == Finding::Faster).count();
    if faster == 0 {
        let slower = findings.contains(&Finding::Slower);
        let what = if slower { "slower" } else { "no difference" };
        let shown = list(&|finding| !slower || finding == Finding::Slower);
        return leave(format!("{what} in the pipeline (gain and 95 % interval, {shown})"));
    }
    let gained = list(&|finding| finding == Finding::Faster);
    if faster == findings.len() {
        return Verdict { advice: Advice::Adopt, sentence: format!("adopt: faster in the pipeline ({gained})") };
    }
    let from = gains[gains.len() - faster].0;
    let rest = list(&|finding| finding != Finding::Faster);
    Verdict {
        advice: Advice::AdoptFrom(from),
        sentence: format!("adopt for chunks of {from} tokens and more ({gained}), not below ({rest})"),
    }
}

/// Why the answers are not the same for the purpose.
fn drifts(drift: &Drift, limits: &Limits) -> Option<String> {
    if drift.missing > 0 {
        return Some(format!("{} chunks have an answer on one side only", drift.missing));
    }
    if let Some(cosines) = drift.cosines.filter(|cosines| cosines.p1 < limits.least_cosine) {
        return Some(format!(
            "the answers drift (1 in 100 vectors has a cosine below {:.4} to the baseline's)",
            cosines.p1
        ));
    }
    if let Some(change) = drift.queries.as_ref().and_then(|queries| queries.ndcg_change())
        && change < -limits.most_ndcg_loss
    {
        return Some(format!("search gets worse (nDCG@10 {change:+.4})"));
    }
    drift
        .flips
        .filter(|flips| flips.share() > limits.most_flips)
        .map(|flips| format!("{} of {} labels change ({:.2} %)", flips.changed, flips.compared, 100.0 * flips.share()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drift::Cosines;
    use crate::stats::tests::simulated;
    use crate::stats::{Random, gain};

    fn of(estimate: f64) -> Gain {
        Gain { estimate, low: estimate - 0.005, high: estimate + 0.005 }
    }

    #[test]
    fn of_a_thing_with_itself_there_is_no_difference() {
        for (noise, rounds) in [(0.005, 8), (0.02, 8), (0.05, 6), (0.02, 20)] {
            let mut random = Random(11);
            let same = (0..200).filter(|_| {
                let gain = gain(&simulated(1.0, noise, rounds, &mut random)).unwrap();
                finding(&gain, &Limits::default()) == Finding::NoDifference
            });
            let same = same.count();
            assert!(same >= 190, "noise {noise}, {rounds} rounds: {same} of 200");
        }
    }

    #[test]
    fn the_advice_follows_the_rule() {
        let (good, bad) = (Drift::default(), Cosines { median: 1.0, p1: 0.95, worst: 0.9, compared: 10 });
        let bad = Drift { cosines: Some(bad), ..Drift::default() };
        let cases: [(&[f64], &Drift, Advice, &str); 7] = [
            (&[1.0], &good, Advice::Leave, "no difference"),
            (&[1.008], &good, Advice::Leave, "no difference"),
            (&[0.9], &good, Advice::Leave, "slower"),
            (&[1.1, 1.2], &good, Advice::Adopt, "faster"),
            (&[0.9, 1.0, 1.2], &good, Advice::AdoptFrom(256), "256 tokens and more"),
            (&[1.2, 1.0], &good, Advice::Leave, "no difference"),
            (&[1.5, 1.5], &bad, Advice::Leave, "0.9500"),
        ];
        for (means, drift, advice, said) in cases {
            let gains: Vec<(usize, Gain)> = means.iter().enumerate().map(|(i, &m)| (64 << i, of(m))).collect();
            let verdict = verdict(&gains, drift, &Limits::default());
            assert_eq!(verdict.advice, advice, "{means:?}: {}", verdict.sentence);
            assert!(verdict.sentence.contains(said), "{}", verdict.sentence);
        }
    }
}
