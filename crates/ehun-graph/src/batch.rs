//! The input of a graph: sequences of different lengths, packed without padding.

use std::ops::Range;

use crate::error::GraphError;
use crate::graph::{Graph, Index, Op};

/// One tokenised sequence, special tokens included.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SequenceInput {
    /// Token ids.
    pub token_ids: Vec<u32>,
    /// Token types (segments), one for each token; empty means all 0.
    pub token_types: Vec<u32>,
    /// Leading tokens that pooling leaves out (a prompt that the checkpoint excludes).
    pub pooling_start: usize,
}

/// Sequences packed one after the other. Invariants, kept by the constructors: `cu_seqlens` starts at 0, never falls and
/// ends at the number of tokens; each pooling range lies inside its sequence and is empty only where the sequence is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaggedBatch {
    token_ids: Vec<u32>,
    token_types: Vec<u32>,
    cu_seqlens: Vec<usize>,
    pooling: Vec<Range<usize>>,
}

impl RaggedBatch {
    /// Packs `sequences` in their order. Fails where the number of token types is not that of the tokens, or where
    /// pooling would leave out every token.
    pub fn pack<'a>(sequences: impl IntoIterator<Item = &'a SequenceInput>) -> Result<Self, GraphError> {
        let mut batch =
            Self { token_ids: Vec::new(), token_types: Vec::new(), cu_seqlens: vec![0], pooling: Vec::new() };
        for (number, sequence) in sequences.into_iter().enumerate() {
            let len = sequence.token_ids.len();
            let error = |message: String| GraphError::Batch { sequence: number, message };
            if !sequence.token_types.is_empty() && sequence.token_types.len() != len {
                return Err(error(format!("{} token types for {len} tokens", sequence.token_types.len())));
            }
            if sequence.pooling_start > 0 && sequence.pooling_start >= len {
                return Err(error(format!(
                    "pooling would leave out the first {} of {len} tokens, which is all of them",
                    sequence.pooling_start
                )));
            }
            batch.token_ids.extend_from_slice(&sequence.token_ids);
            if sequence.token_types.is_empty() {
                batch.token_types.resize(batch.token_ids.len(), 0);
            } else {
                batch.token_types.extend_from_slice(&sequence.token_types);
            }
            batch.cu_seqlens.push(batch.token_ids.len());
            batch.pooling.push(sequence.pooling_start..len);
        }
        Ok(batch)
    }

    /// Packs plain token ids: all types 0, pooling over everything.
    pub fn from_ids<S: AsRef<[u32]>>(sequences: &[S]) -> Self {
        let mut batch =
            Self { token_ids: Vec::new(), token_types: Vec::new(), cu_seqlens: vec![0], pooling: Vec::new() };
        for ids in sequences {
            batch.token_ids.extend_from_slice(ids.as_ref());
            batch.cu_seqlens.push(batch.token_ids.len());
            batch.pooling.push(0..ids.as_ref().len());
        }
        batch.token_types = vec![0; batch.token_ids.len()];
        batch
    }

    /// Token ids of all sequences, `[num_tokens]`.
    pub fn token_ids(&self) -> &[u32] {
        &self.token_ids
    }

    /// Token types of all sequences, `[num_tokens]`.
    pub fn token_types(&self) -> &[u32] {
        &self.token_types
    }

    /// Cumulative lengths, `[num_sequences + 1]`: sequence `i` has the rows `cu_seqlens[i]..cu_seqlens[i + 1]`.
    pub fn cu_seqlens(&self) -> &[usize] {
        &self.cu_seqlens
    }

    /// The rows that pooling reads of sequence `i`, relative to the start of the sequence.
    pub fn pooling_range(&self, i: usize) -> Range<usize> {
        self.pooling[i].clone()
    }

    /// Number of token rows.
    pub fn num_tokens(&self) -> usize {
        self.token_ids.len()
    }

    /// Number of sequences, empty ones included.
    pub fn num_sequences(&self) -> usize {
        self.cu_seqlens.len() - 1
    }

    /// Rows of sequence `i` in the packed batch.
    pub fn rows(&self, i: usize) -> Range<usize> {
        self.cu_seqlens[i]..self.cu_seqlens[i + 1]
    }

    /// Length of sequence `i` in tokens.
    pub fn len_of(&self, i: usize) -> usize {
        self.rows(i).len()
    }

    /// Lengths of all sequences in tokens.
    pub fn lengths(&self) -> impl Iterator<Item = usize> + '_ {
        self.cu_seqlens.windows(2).map(|w| w[1] - w[0])
    }

    /// Length of the longest sequence, 0 for an empty batch.
    pub fn max_len(&self) -> usize {
        self.lengths().max().unwrap_or(0)
    }

    /// Checks that every token id, type and position has a row in the tables that `graph` looks up. Every backend calls
    /// this before it runs, so that no lookup can read outside a table.
    pub fn check(&self, graph: &Graph) -> Result<(), GraphError> {
        for node in graph.nodes() {
            let Op::Embedding { table, index } = &node.op else { continue };
            let rows = graph.weight(*table).num_rows();
            for sequence in 0..self.num_sequences() {
                let range = self.rows(sequence);
                let worst = match index {
                    Index::TokenId => self.token_ids[range].iter().max().map(|&id| id as usize),
                    Index::TokenType => self.token_types[range].iter().max().map(|&id| id as usize),
                    Index::Position { offset } => range.len().checked_sub(1).map(|last| last + offset),
                };
                if let Some(worst) = worst.filter(|&worst| worst >= rows) {
                    let what = match index {
                        Index::TokenId => format!("token id {worst}, but the vocabulary has {rows} entries"),
                        Index::TokenType => format!("token type {worst}, but the model has {rows} types"),
                        Index::Position { offset } => format!(
                            "{} tokens, but the model has positions for {}",
                            self.len_of(sequence),
                            rows.saturating_sub(*offset)
                        ),
                    };
                    return Err(GraphError::Batch { sequence, message: format!("{what} (`{}`)", node.label) });
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_and_refuses() {
        let sequence = |ids: &[u32], types: &[u32], pooling_start| SequenceInput {
            token_ids: ids.to_vec(),
            token_types: types.to_vec(),
            pooling_start,
        };
        let batch =
            RaggedBatch::pack(&[sequence(&[5, 6], &[], 0), sequence(&[], &[], 0), sequence(&[7, 8, 9], &[0, 0, 1], 1)])
                .unwrap();
        assert_eq!(batch.cu_seqlens(), [0, 2, 2, 5]);
        assert_eq!(batch.token_types(), [0, 0, 0, 0, 1]);
        assert_eq!(batch.pooling_range(2), 1..3);
        assert_eq!(batch.lengths().collect::<Vec<_>>(), [2, 0, 3]);
        assert!(RaggedBatch::pack(&[sequence(&[5, 6], &[1], 0)]).is_err());
        assert!(RaggedBatch::pack(&[sequence(&[5, 6], &[], 2)]).is_err());
    }
}
