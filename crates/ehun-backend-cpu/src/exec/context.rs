//! What row operations need to know of a batch beside the rows: ids, types, positions, rotary tables.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use ehun_graph::{Index, RaggedBatch, RotaryScaling, RotarySpec};

/// Cosines and sines of the positions from 0, `[len, rotary_dim / 2]` each.
#[derive(Debug)]
pub(crate) struct Tables {
    len: usize,
    half: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Tables {
    fn new(spec: &RotarySpec, len: usize) -> Self {
        let (cos, sin) = spec.tables(len);
        Self { len, half: spec.rotary_dim / 2, cos, sin }
    }

    /// Cosines and sines of position `p`.
    pub(crate) fn at(&self, p: usize) -> (&[f32], &[f32]) {
        (&self.cos[p * self.half..][..self.half], &self.sin[p * self.half..][..self.half])
    }
}

/// The tables of one specification, kept from batch to batch and made longer when a longer sequence comes.
pub(crate) struct RotaryCache {
    spec: RotarySpec,
    tables: RwLock<Arc<Tables>>,
}

impl RotaryCache {
    pub(crate) fn new(spec: RotarySpec) -> Self {
        let tables = RwLock::new(Arc::new(Tables::new(&spec, 0)));
        Self { spec, tables }
    }

    /// The specification.
    pub(crate) fn spec(&self) -> &RotarySpec {
        &self.spec
    }

    /// Tables of at least `len` positions.
    fn shared(&self, len: usize) -> Arc<Tables> {
        let known = Arc::clone(&self.tables.read().unwrap_or_else(PoisonError::into_inner));
        if known.len >= len {
            return known;
        }
        // A longer table begins with the shorter one, so it does not matter which a sequence reads.
        let longer = Arc::new(Tables::new(&self.spec, len.next_power_of_two()));
        *self.tables.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&longer);
        longer
    }

    /// The tables of each sequence of a batch.
    fn of_batch(&self, batch: &RaggedBatch) -> BatchTables {
        // Dynamic NTK changes frequencies with the length of the sequence, from the length that it was trained on.
        let bound = match self.spec.scaling {
            RotaryScaling::DynamicNtk { original_max_position, .. } => original_max_position as usize,
            _ => usize::MAX,
        };
        let within = batch.lengths().filter(|len| *len <= bound).max().unwrap_or(0);
        let shared = if bound == usize::MAX { self.shared(within) } else { Arc::new(Tables::new(&self.spec, within)) };
        let mut longer: HashMap<usize, Arc<Tables>> = HashMap::new();
        for len in batch.lengths().filter(|len| *len > bound) {
            longer.entry(len).or_insert_with(|| Arc::new(Tables::new(&self.spec, len)));
        }
        BatchTables { shared, longer }
    }
}

/// Tables for the sequences of a batch.
struct BatchTables {
    shared: Arc<Tables>,
    /// By length, where the tables depend on it.
    longer: HashMap<usize, Arc<Tables>>,
}

/// A batch, and what follows from it.
pub(crate) struct Context<'a> {
    pub(crate) batch: &'a RaggedBatch,
    /// Position in its sequence, and number of the sequence, of each token row.
    tokens: Vec<(u32, u32)>,
    rotaries: Vec<BatchTables>,
}

impl<'a> Context<'a> {
    pub(crate) fn new(batch: &'a RaggedBatch, rotaries: &[RotaryCache]) -> Self {
        let mut tokens = Vec::with_capacity(batch.num_tokens());
        for (sequence, len) in batch.lengths().enumerate() {
            tokens.extend((0..len).map(|position| (position as u32, sequence as u32)));
        }
        let rotaries = rotaries.iter().map(|cache| cache.of_batch(batch)).collect();
        Self { batch, tokens, rotaries }
    }

    /// The table row that a token row looks up.
    pub(crate) fn index(&self, row: usize, index: Index) -> usize {
        match index {
            Index::TokenId => self.batch.token_ids()[row] as usize,
            Index::TokenType => self.batch.token_types()[row] as usize,
            Index::Position { offset } => self.tokens[row].0 as usize + offset,
        }
    }

    /// Cosines and sines of a token row.
    pub(crate) fn rotary(&self, row: usize, tables: usize) -> (&[f32], &[f32]) {
        let (position, sequence) = self.tokens[row];
        let of_batch = &self.rotaries[tables];
        let tables = match of_batch.longer.is_empty() {
            true => &of_batch.shared,
            false => of_batch.longer.get(&self.batch.len_of(sequence as usize)).unwrap_or(&of_batch.shared),
        };
        tables.at(position as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sequence_turns_by_the_tables_of_its_own_length() {
        let mut spec = RotarySpec::plain(8, 10_000.0);
        spec.scaling = RotaryScaling::DynamicNtk { factor: 2.0, original_max_position: 4 };
        let cache = [RotaryCache::new(spec.clone())];
        let batch = RaggedBatch::from_ids(&[vec![0; 3], vec![0; 9], vec![0; 4]]);
        let context = Context::new(&batch, &cache);
        for sequence in 0..3 {
            let (cos, sin) = spec.tables(batch.len_of(sequence));
            for (position, row) in batch.rows(sequence).enumerate() {
                let got = context.rotary(row, 0);
                assert_eq!(got, (&cos[position * 4..][..4], &sin[position * 4..][..4]), "{sequence} {position}");
            }
        }
    }

    #[test]
    fn a_longer_sequence_extends_the_tables() {
        let spec = RotarySpec::plain(4, 100.0);
        let cache = RotaryCache::new(spec.clone());
        let short = cache.shared(3).at(2).0.to_vec();
        assert_eq!(cache.shared(100).at(2).0, short);
        assert_eq!(cache.shared(1).at(99).1, &spec.tables(100).1[198..]);
    }
}
