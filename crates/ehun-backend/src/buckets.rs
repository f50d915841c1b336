//! Which static shapes a backend has that needs them, and which one a batch gets.

use crate::{Bucket, BucketChoice, Refusal};

/// Most programs that are chosen without being listed.
pub const MAX_PROGRAMS: usize = 24;
/// Different lengths among them; the rest are programs for one sequence, so that a single query does not pay for a batch.
const LENGTHS: usize = 16;
/// Lengths are multiples of this, the rows of a register on every accelerator so far.
const STEP: usize = 8;
/// Most sequences in a bucket.
const MAX_BATCH: usize = 256;

/// The buckets for sequences of up to `longest` tokens and programs of about `tokens` tokens, in rising order.
pub fn choose(choice: &BucketChoice, longest: usize, tokens: usize) -> Result<Vec<Bucket>, Refusal> {
    let refused = |reason: String| Err(Refusal::new("options", reason));
    if longest == 0 {
        return refused("the longest sequence is 0 tokens, at least 1 is needed".into());
    }
    let mut buckets: Vec<Bucket> = match choice {
        BucketChoice::List(list) if list.is_empty() => return refused("the list of buckets is empty".into()),
        BucketChoice::List(list) => {
            if let Some((batch, length)) = list.iter().find(|(batch, length)| *batch == 0 || *length == 0) {
                return refused(format!("bucket {batch}x{length} holds nothing; batch and length are from 1"));
            }
            list.iter().map(|&(batch, length)| Bucket { batch, length }).collect()
        }
        BucketChoice::Sample(lengths) => from_lengths(lengths, longest, tokens),
        BucketChoice::Default => from_lengths(&default_lengths(longest), longest, tokens),
    };
    buckets.sort_unstable_by_key(|bucket| (bucket.length, bucket.batch));
    buckets.dedup();
    Ok(buckets)
}

/// Lengths spread evenly over their logarithm: no length is favoured, short ones are as frequent as long ones in octaves.
fn default_lengths(longest: usize) -> Vec<usize> {
    let count = 512;
    let octaves = (longest as f64 / 4.0).max(1.0).ln();
    (0..=count).map(|i| (4.0 * (octaves * f64::from(i) / f64::from(count)).exp()).round() as usize).collect()
}

fn from_lengths(lengths: &[usize], longest: usize, tokens: usize) -> Vec<Bucket> {
    let edges = edges(lengths, longest);
    let full = |length: usize| (tokens / length).clamp(1, MAX_BATCH);
    let mut buckets: Vec<Bucket> = edges.iter().map(|&length| Bucket { batch: full(length), length }).collect();
    let candidates: Vec<usize> = edges.into_iter().filter(|&length| full(length) > 1).collect();
    let singles = (MAX_PROGRAMS - buckets.len()).min(candidates.len());
    // Every so many lengths from the longest down, so that each single sequence has a program of its own kind.
    for place in 0..singles {
        let at = candidates.len() - 1 - place * candidates.len() / singles;
        buckets.push(Bucket { batch: 1, length: candidates[at] });
    }
    buckets
}

/// The bucket lengths, at most [`LENGTHS`] with `longest` as the last, that waste the fewest rows on `lengths`: dynamic
/// programming over all multiples of [`STEP`].
fn edges(lengths: &[usize], longest: usize) -> Vec<usize> {
    let slots = longest.div_ceil(STEP);
    let mut count = vec![0u64; slots + 1];
    for &length in lengths {
        count[length.clamp(1, longest).div_ceil(STEP)] += 1;
    }
    let mut up_to = vec![0u64; slots + 1];
    for slot in 1..=slots {
        up_to[slot] = up_to[slot - 1] + count[slot];
    }
    // cost[n][slot]: fewest rows for all lengths up to `slot` with n edges, the last of them at `slot`.
    let rows = |from: usize, to: usize| (up_to[to] - up_to[from]) * to as u64;
    let mut cost: Vec<u64> = (0..=slots).map(|slot| rows(0, slot)).collect();
    let mut before: Vec<Vec<usize>> = Vec::new();
    for _ in 1..LENGTHS {
        let mut next = cost.clone();
        let mut from = vec![0; slots + 1];
        for slot in 1..=slots {
            for (earlier, before) in cost.iter().enumerate().take(slot).skip(1) {
                let with = before + rows(earlier, slot);
                if with < next[slot] {
                    next[slot] = with;
                    from[slot] = earlier;
                }
            }
        }
        before.push(from);
        cost = next;
    }
    let mut edges = vec![longest];
    let mut slot = slots;
    for from in before.iter().rev() {
        // 0 means that another edge did not help here.
        if from[slot] > 0 {
            slot = from[slot];
            edges.push(slot * STEP);
        }
    }
    edges.reverse();
    edges
}

/// The place in `buckets` that computes `sequences` sequences of up to `length` tokens with the fewest rows, in several
/// runs where it holds fewer; `None` where every bucket is too short.
pub fn pick(buckets: &[Bucket], sequences: usize, length: usize) -> Option<usize> {
    let fitting = buckets.iter().enumerate().filter(|(_, bucket)| bucket.length >= length);
    fitting
        .min_by_key(|(_, bucket)| {
            let runs = sequences.div_ceil(bucket.batch).max(1);
            (runs * bucket.batch * bucket.length, runs)
        })
        .map(|(place, _)| place)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Padding share when sequences are put into the buckets of their length, `batch` at a time.
    fn padding(lengths: &[usize], buckets: &[Bucket]) -> f64 {
        let mut by_length: std::collections::BTreeMap<usize, Vec<usize>> = Default::default();
        for &length in lengths {
            let edge = buckets.iter().map(|b| b.length).filter(|&edge| edge >= length).min().unwrap();
            by_length.entry(edge).or_default().push(length);
        }
        let (mut rows, mut tokens) = (0, 0);
        for (edge, members) in by_length {
            let largest = buckets.iter().filter(|b| b.length == edge).map(|b| b.batch).max().unwrap();
            for group in members.chunks(largest) {
                let bucket = buckets[pick(buckets, group.len(), edge).unwrap()];
                rows += group.len().div_ceil(bucket.batch) * bucket.batch * bucket.length;
                tokens += group.iter().sum::<usize>();
            }
        }
        1.0 - tokens as f64 / rows as f64
    }

    #[test]
    fn a_sample_of_chunks_pads_less_than_a_tenth() {
        // Chunks of up to 512 tokens that end at paragraphs, headings and short last pieces: a deterministic mixture.
        let mut state = 7u64;
        let mut random = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as f64 / (1u64 << 31) as f64
        };
        let mut draw = || match random() {
            kind if kind < 0.5 => 512 - (random() * random() * 200.0) as usize,
            kind if kind < 0.9 => 16 + (random() * 496.0) as usize,
            _ => 3 + (random() * 30.0) as usize,
        };
        let sample: Vec<usize> = (0..4000).map(|_| draw()).collect();
        let held_out: Vec<usize> = (0..4000).map(|_| draw()).collect();
        let buckets = choose(&BucketChoice::Sample(sample), 512, 4096).unwrap();
        assert!(buckets.len() <= MAX_PROGRAMS, "{}", buckets.len());
        let share = padding(&held_out, &buckets);
        assert!(share < 0.1, "padding {share}");
    }

    #[test]
    fn every_length_has_a_bucket_and_lists_are_kept() {
        for longest in [1, 7, 8, 100, 512, 8192] {
            for choice in [BucketChoice::Default, BucketChoice::Sample(vec![3, 3, 900])] {
                let buckets = choose(&choice, longest, 4096).unwrap();
                assert!(buckets.len() <= MAX_PROGRAMS && buckets.last().unwrap().length == longest, "{buckets:?}");
                assert!((1..=longest).all(|length| pick(&buckets, 1, length).is_some()));
                assert!(pick(&buckets, 1, longest + 1).is_none());
            }
        }
        let list = BucketChoice::List(vec![(4, 64), (1, 16), (4, 64)]);
        let buckets = choose(&list, 512, 4096).unwrap();
        assert_eq!(buckets, [Bucket { batch: 1, length: 16 }, Bucket { batch: 4, length: 64 }]);
        assert_eq!(pick(&buckets, 3, 10), Some(0));
        assert_eq!(pick(&buckets, 3, 17), Some(1));
        assert!(choose(&BucketChoice::List(vec![(0, 4)]), 512, 4096).is_err());
    }
}
