//! Sparse vectors: weights of the vocabulary's terms (SPLADE; Formal et al. 2021).

use serde::Serialize;

use crate::model::Model;

/// A term of the vocabulary with its weight.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Term {
    /// Token id.
    pub index: u32,
    /// The token as the vocabulary has it.
    pub token: String,
    /// Weight, above 0.
    pub value: f32,
}

impl Model {
    /// The terms of a row as wide as the vocabulary whose weight is above 0, by token id.
    pub fn sparse_terms(&self, weights: &[f32]) -> Vec<Term> {
        (0u32..)
            .zip(weights)
            .filter(|(_, value)| **value > 0.0)
            .map(|(index, &value)| Term { index, token: self.tokenizer().token(index).unwrap_or_default(), value })
            .collect()
    }
}

/// The inner product of two sparse vectors, each ordered by index.
pub fn dot(a: &[Term], b: &[Term]) -> f32 {
    let (mut i, mut j, mut sum) = (0, 0, 0.0f64);
    while i < a.len() && j < b.len() {
        match a[i].index.cmp(&b[j].index) {
            std::cmp::Ordering::Less => i += 1,
            std::cmp::Ordering::Greater => j += 1,
            std::cmp::Ordering::Equal => {
                sum += f64::from(a[i].value) * f64::from(b[j].value);
                (i, j) = (i + 1, j + 1);
            }
        }
    }
    sum as f32
}

/// Late interaction (ColBERT; Khattab and Zaharia 2020): the sum over the query's token rows of their largest inner product
/// with a token row of the document. Both are row-major with rows of `width`.
pub fn max_sim(query: &[f32], document: &[f32], width: usize) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum::<f64>();
    let best = |q: &[f32]| document.chunks_exact(width).map(|d| dot(q, d)).fold(f64::NEG_INFINITY, f64::max);
    if width == 0 || document.is_empty() {
        return 0.0;
    }
    query.chunks_exact(width).map(best).sum::<f64>() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products() {
        let term = |index, value| Term { index, token: String::new(), value };
        assert_eq!(dot(&[term(1, 2.0), term(5, 3.0)], &[term(2, 9.0), term(5, 4.0)]), 12.0);
        // Rows (1,0), (0,2) against (3,1), (-1,1): 3 + 2.
        assert_eq!(max_sim(&[1.0, 0.0, 0.0, 2.0], &[3.0, 1.0, -1.0, 1.0], 2), 5.0);
        assert_eq!(max_sim(&[1.0], &[], 1), 0.0);
    }
}
