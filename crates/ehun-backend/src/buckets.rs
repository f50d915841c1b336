//! Which static shapes a backend has that needs them, and which one a batch gets.

use crate::{Bucket, BucketChoice, Refusal};

/// Most programs that are chosen without being listed.
pub const MAX_PROGRAMS: usize = 24;
/// Different lengths among them where no sample says which ones matter; the rest are programs for one sequence, so that a
/// single query does not pay for a batch.
const LENGTHS: usize = 16;
/// The same where there is a sample. Fewer lengths follow it closely enough, and leave programs for [`FEW`] sequences: the
/// last batch of a length is seldom full, and is most of the padding of a small collection.
const SAMPLED_LENGTHS: usize = 10;
/// Most programs for one sequence.
const SINGLES: usize = 8;
/// Sequences of the programs between one and a full batch.
const FEW: usize = 4;
/// Rows that a run counts for beside its own, as each is started and fed by itself: without it a batch would go one sequence
/// at a time to save a few rows.
const RUN_ROWS: usize = 64;
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
        BucketChoice::Sample(lengths) => from_lengths(lengths, longest, tokens, SAMPLED_LENGTHS),
        BucketChoice::Default => from_lengths(&default_lengths(longest), longest, tokens, LENGTHS),
    };
    buckets.sort_unstable_by_key(|bucket| (bucket.length, bucket.batch));
    buckets.dedup();
    Ok(buckets)
}

/// Reads a histogram of lengths: lines of a length in tokens, or of a length and how often it occurs, by white space or a
/// comma. Empty lines and lines from `#` on are left out. The error names the line.
pub fn histogram(text: &str) -> Result<Vec<(usize, u64)>, String> {
    let mut counts = Vec::new();
    for (place, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut parts = line.split([',', ' ', '\t']).filter(|part| !part.is_empty());
        let length = parts.next().and_then(|part| part.parse().ok()).filter(|&length| length > 0);
        let count = parts.next().map_or(Some(1), |part| part.parse().ok());
        match (length, count, parts.next()) {
            (Some(length), Some(count), None) => counts.push((length, count)),
            _ => return Err(format!("line {}: `{line}` is no length from 1 with or without a count", place + 1)),
        }
    }
    counts.retain(|&(_, count)| count > 0);
    if counts.is_empty() { Err("there is no length in it".to_owned()) } else { Ok(counts) }
}

/// Lengths spread evenly over their logarithm: no length is favoured, short ones are as frequent as long ones in octaves.
fn default_lengths(longest: usize) -> Vec<usize> {
    let count = 512;
    let octaves = (longest as f64 / 4.0).max(1.0).ln();
    (0..=count).map(|i| (4.0 * (octaves * f64::from(i) / f64::from(count)).exp()).round() as usize).collect()
}

fn from_lengths(lengths: &[usize], longest: usize, tokens: usize, most: usize) -> Vec<Bucket> {
    let edges = edges(lengths, longest, most);
    let full = |length: usize| (tokens / length).clamp(1, MAX_BATCH);
    let mut buckets: Vec<Bucket> = edges.iter().map(|&length| Bucket { batch: full(length), length }).collect();
    for (batch, most) in [(1, SINGLES), (FEW, MAX_PROGRAMS)] {
        let candidates: Vec<usize> = edges.iter().copied().filter(|&length| full(length) > batch).collect();
        let number = most.min(MAX_PROGRAMS - buckets.len()).min(candidates.len());
        // Every so many lengths from the longest down, so that each length has a program of this kind near it.
        for place in 0..number {
            let at = candidates.len() - 1 - place * candidates.len() / number;
            buckets.push(Bucket { batch, length: candidates[at] });
        }
    }
    buckets
}

/// The bucket lengths, at most `most` with `longest` as the last, that waste the fewest rows on `lengths`: dynamic
/// programming over all multiples of [`STEP`].
fn edges(lengths: &[usize], longest: usize, most: usize) -> Vec<usize> {
    let slots = longest.div_ceil(STEP);
    let mut count = vec![0u64; slots + 1];
    for &length in lengths {
        count[length.clamp(1, longest).div_ceil(STEP)] += 1;
    }
    let mut up_to = vec![0u64; slots + 1];
    for slot in 1..=slots {
        up_to[slot] = up_to[slot - 1] + count[slot];
    }
    // cost[slot]: fewest rows for all lengths up to `slot` with so many edges, the last of them at `slot`. The last slot may
    // be cut short.
    let rows = |from: usize, to: usize| (up_to[to] - up_to[from]) * (to * STEP).min(longest) as u64;
    let mut cost: Vec<u64> = (0..=slots).map(|slot| rows(0, slot)).collect();
    let mut before: Vec<Vec<usize>> = Vec::new();
    for _ in 1..most {
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

/// The place in `buckets` that computes `sequences` sequences of up to `length` tokens at the least cost, in several runs where
/// it holds fewer: the rows, and some more for each run. `None` where every bucket is too short.
pub fn pick(buckets: &[Bucket], sequences: usize, length: usize) -> Option<usize> {
    let fitting = buckets.iter().enumerate().filter(|(_, bucket)| bucket.length >= length);
    fitting
        .min_by_key(|(_, bucket)| {
            let runs = sequences.div_ceil(bucket.batch).max(1);
            (runs * (bucket.batch * bucket.length + RUN_ROWS), runs)
        })
        .map(|(place, _)| place)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
        // Three runs of 16 rows are dearer than they look, and still cheaper than one of 256.
        assert_eq!(pick(&buckets, 3, 10), Some(0));
        assert_eq!(pick(&buckets, 4, 10), Some(1));
        assert_eq!(pick(&buckets, 3, 17), Some(1));
        assert!(choose(&BucketChoice::List(vec![(0, 4)]), 512, 4096).is_err());
    }

    #[test]
    fn histograms_are_read_or_refused_by_line() {
        let text = "# lengths of a day\n12\n\n 7, 3 \n7\t2\n9 0\n";
        assert_eq!(histogram(text).unwrap(), [(12, 1), (7, 3), (7, 2)]);
        for (text, words) in [
            ("", "no length"),
            ("9 0", "no length"),
            ("1\n0 4", "line 2"),
            ("a text", "line 1"),
            ("1 2 3", "line 1"),
            ("-1", "line 1"),
        ] {
            let reason = histogram(text).unwrap_err();
            assert!(reason.contains(words), "{text}: {reason}");
        }
    }

    /// Rows of `lengths` when each goes to the first edge that holds it.
    fn rows(lengths: &[usize], longest: usize, edges: &[usize]) -> usize {
        let edge = |length: usize| edges.iter().find(|&&edge| edge >= length.clamp(1, longest)).unwrap();
        lengths.iter().map(|&length| edge(length)).sum()
    }

    /// The fewest rows with at most `most` edges, multiples of the step and `longest` as the last, by trying all.
    fn fewest_rows(lengths: &[usize], longest: usize, most: usize) -> usize {
        let slots: Vec<usize> = (1..longest.div_ceil(STEP)).map(|slot| slot * STEP).collect();
        let sets = (0u32..1 << slots.len()).filter(|set| (set.count_ones() as usize) < most);
        let chosen = sets.map(|set| {
            let inner = slots.iter().enumerate().filter(|(i, _)| set >> i & 1 == 1).map(|(_, &edge)| edge);
            rows(lengths, longest, &inner.chain([longest]).collect::<Vec<_>>())
        });
        chosen.min().unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        /// Against all subsets of up to 10 slots.
        #[test]
        fn edges_are_the_best_there_are(
            lengths in proptest::collection::vec(0usize..100, 0..40),
            longest in 1usize..88,
            most in 1usize..7,
        ) {
            let edges = edges(&lengths, longest, most);
            prop_assert!(edges.len() <= most && edges.last() == Some(&longest));
            prop_assert!(edges.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert_eq!(rows(&lengths, longest, &edges), fewest_rows(&lengths, longest, most));
        }

        /// Whatever is sampled: at most 24 programs in rising order, every length has one, the longest has one for a single
        /// sequence, and no program holds more than the tokens unless one sequence does.
        #[test]
        fn choices_are_complete(
            lengths in proptest::collection::vec(0usize..3000, 0..200),
            longest in 1usize..2048,
            tokens in 1usize..20_000,
        ) {
            let buckets = choose(&BucketChoice::Sample(lengths), longest, tokens).unwrap();
            prop_assert!(!buckets.is_empty() && buckets.len() <= MAX_PROGRAMS);
            prop_assert!(buckets.windows(2).all(|pair| (pair[0].length, pair[0].batch) < (pair[1].length, pair[1].batch)));
            prop_assert!(buckets.iter().all(|b| b.batch >= 1 && (b.batch == 1 || b.batch * b.length <= tokens)));
            prop_assert!(buckets.iter().any(|b| b.batch == 1 && b.length == longest));
            for length in [0, 1, longest / 2, longest] {
                let place = pick(&buckets, 1, length).unwrap();
                prop_assert!(buckets[place].length >= length);
            }
            prop_assert!(pick(&buckets, 1, longest + 1).is_none());
        }

        /// A plan never costs more than another bucket would.
        #[test]
        fn picks_are_cheapest(
            list in proptest::collection::vec((1usize..20, 1usize..200), 1..12),
            sequences in 1usize..50,
            length in 0usize..220,
        ) {
            let buckets = choose(&BucketChoice::List(list), 512, 4096).unwrap();
            let cost = |b: &Bucket| sequences.div_ceil(b.batch) * (b.batch * b.length + RUN_ROWS);
            let fitting = buckets.iter().filter(|b| b.length >= length).map(cost).min();
            prop_assert_eq!(pick(&buckets, sequences, length).map(|place| cost(&buckets[place])), fitting);
        }
    }
}
