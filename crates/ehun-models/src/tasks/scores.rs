//! Labels and relevance: what the logits of a sequence mean.

use serde::Serialize;

use crate::error::{ModelError, Result};
use crate::model::{Model, Task};

/// A label with its score.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LabelScore {
    /// The checkpoint's name of the label.
    pub label: String,
    /// Probability, or the logit where raw scores were asked for.
    pub score: f32,
}

/// `logits` as probabilities that sum to 1. Computed in float64, from the largest, so that nothing overflows.
pub fn softmax(logits: &[f32]) -> Vec<f32> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exps: Vec<f64> = logits.iter().map(|&x| f64::from(x - largest).exp()).collect();
    let sum: f64 = exps.iter().sum();
    exps.into_iter().map(|e| (e / sum) as f32).collect()
}

/// `1 / (1 + exp(-x))` in float64.
pub fn sigmoid(x: f32) -> f32 {
    (1.0 / (1.0 + (-f64::from(x)).exp())) as f32
}

impl Model {
    /// The probability of each label, in the checkpoint's order: by a sigmoid where there is one label or where labels do not
    /// exclude each other (`problem_type`), else by softmax, as the text-classification pipeline of transformers has it. The
    /// values of a regression stay as they are.
    pub fn probabilities(&self, logits: &[f32]) -> Vec<f32> {
        if self.regression() {
            return logits.to_vec();
        }
        if logits.len() == 1 || self.multi_label() {
            logits.iter().copied().map(sigmoid).collect()
        } else {
            softmax(logits)
        }
    }

    /// The labels with their scores, the highest first; `top_k` of them where it is given. `raw` leaves the logits as they
    /// are. Fails where the number of logits is not that of the labels.
    pub fn label_scores(&self, logits: &[f32], raw: bool, top_k: Option<usize>) -> Result<Vec<LabelScore>> {
        let labels = self.labels();
        if labels.len() != logits.len() {
            let (logits, labels) = (logits.len(), labels.len());
            return Err(ModelError::Request(format!("{logits} logits for the {labels} labels of `{}`", self.name())));
        }
        let scores = if raw { logits.to_vec() } else { self.probabilities(logits) };
        let mut all: Vec<LabelScore> =
            labels.iter().zip(scores).map(|(label, score)| LabelScore { label: label.clone(), score }).collect();
        all.sort_by(|a, b| b.score.total_cmp(&a.score));
        all.truncate(top_k.unwrap_or(usize::MAX));
        Ok(all)
    }

    /// The scores of a cross-encoder by the activation that its checkpoint states; `raw` leaves the logits as they are.
    pub fn rerank_scores(&self, logits: &[f32], raw: bool) -> Vec<f32> {
        match self.score_activation().filter(|_| !raw) {
            Some(activation) => logits.iter().map(|&x| activation.eval(f64::from(x)) as f32).collect(),
            None => logits.to_vec(),
        }
    }

    /// The one score of a cross-encoder. Fails where the model has several labels: it cannot rank by one number then.
    pub fn rerank_score(&self, logits: &[f32], raw: bool) -> Result<f32> {
        match self.rerank_scores(logits, raw).as_slice() {
            [score] => Ok(*score),
            scores => Err(ModelError::Task {
                checkpoint: self.name().to_owned(),
                task: Task::Rerank.to_string(),
                reason: format!(
                    "it gives {} numbers for a pair, so it cannot rank by one; use it to classify",
                    scores.len()
                ),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softmax_of_large_logits_is_finite_and_sums_to_one() {
        for logits in [vec![1000.0, 1000.0], vec![-1e30, 0.0, 1e30], vec![0.1, 0.2, 0.3]] {
            let probabilities = softmax(&logits);
            assert!(probabilities.iter().all(|p| p.is_finite()));
            assert!((probabilities.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        }
        assert_eq!(softmax(&[1000.0, 1000.0]), [0.5, 0.5]);
        assert_eq!((sigmoid(0.0), sigmoid(-1e30), sigmoid(1e30)), (0.5, 0.0, 1.0));
    }
}
