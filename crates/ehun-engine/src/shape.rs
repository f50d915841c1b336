//! Which items go together: similar lengths, within what a runner takes at once, the oldest always first.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use ehun_backend::{Bucket, buckets};

/// What a runner takes at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// Any items of together so many tokens.
    Tokens {
        /// Most tokens; a single longer item goes alone and is the runner's to refuse.
        max_tokens: usize,
        /// Most items.
        max_items: usize,
    },
    /// Items that fit one of these static shapes.
    Buckets(Vec<Bucket>),
}

impl Shape {
    /// The same with at most `tokens` in a batch, where that is not fixed by static shapes.
    pub fn within(self, tokens: usize) -> Self {
        match self {
            Self::Tokens { max_tokens, max_items } => Self::Tokens { max_tokens: max_tokens.min(tokens), max_items },
            buckets => buckets,
        }
    }

    /// Most items of at most `length` tokens at once, and the lengths that cost the same as `length`.
    fn room(&self, length: usize) -> Room {
        match self {
            Self::Tokens { max_tokens, max_items } => {
                Room { items: (*max_items).max(1), tokens: *max_tokens, lengths: 0..=usize::MAX }
            }
            Self::Buckets(buckets) => {
                let fits = buckets.iter().filter(|bucket| bucket.length >= length);
                let Some(shortest) = fits.clone().map(|bucket| bucket.length).min() else {
                    return Room { items: 1, tokens: usize::MAX, lengths: 0..=usize::MAX };
                };
                let items = fits.filter(|bucket| bucket.length == shortest).map(|bucket| bucket.batch).max();
                let below = buckets.iter().map(|bucket| bucket.length).filter(|&below| below < length).max();
                let lengths = below.map_or(0, |below| below + 1)..=shortest;
                Room { items: items.unwrap_or(1).max(1), tokens: usize::MAX, lengths }
            }
        }
    }

    /// How many items of up to `length` tokens the static shape that runs `items` of them holds: the rest is free.
    fn held(&self, items: usize, length: usize) -> usize {
        let Self::Buckets(buckets) = self else { return items };
        let batch = buckets::pick(buckets, items, length).map_or(1, |place| buckets[place].batch);
        items.div_ceil(batch) * batch
    }
}

struct Room {
    items: usize,
    tokens: usize,
    lengths: RangeInclusive<usize>,
}

/// The items that are run with the item `(length, key)`, that one included, from `waiting`, which is ordered by length.
///
/// Lengths close to its own are taken first, so that a batch has little padding; since it is always the oldest that is
/// served, no item waits for more batches than there were items before it. With static shapes, items that a shorter shape
/// would take come along only where they fill what would be computed empty.
pub fn companions(waiting: &BTreeSet<(usize, u64)>, oldest: (usize, u64), shape: &Shape) -> Vec<u64> {
    let room = shape.room(oldest.0);
    let mut chosen = vec![oldest.1];
    let mut tokens = oldest.0;
    let mut shorter = waiting.range(..oldest).rev().peekable();
    let after = (std::ops::Bound::Excluded(oldest), std::ops::Bound::Unbounded);
    let mut longer = waiting.range(after).peekable();
    // What is longer than an item that did not fit does not fit either; what is shorter may.
    let mut longest = *room.lengths.end();
    while chosen.len() < room.items {
        let down = shorter.peek().filter(|item| room.lengths.contains(&item.0)).map(|item| oldest.0 - item.0);
        let up = longer.peek().filter(|item| item.0 <= longest).map(|item| item.0 - oldest.0);
        let from_longer = match (down, up) {
            (Some(down), Some(up)) => up <= down,
            (down, up) => down.is_none() && up.is_some(),
        };
        let next = if from_longer { longer.next() } else { down.and_then(|_| shorter.next()) };
        let Some(&(length, key)) = next else { break };
        if tokens + length <= room.tokens {
            tokens += length;
            chosen.push(key);
        } else if from_longer {
            longest = 0;
        } else {
            break;
        }
    }
    let free = shape.held(chosen.len(), *room.lengths.end()).min(room.items).saturating_sub(chosen.len());
    chosen.extend(shorter.take(free).map(|&(_, key)| key));
    chosen
}

/// Splits items of these lengths into batches that `shape` takes; places in `lengths`, each exactly once. Items that
/// already fit together stay in their order.
pub fn split(shape: &Shape, lengths: &[usize]) -> Vec<Vec<usize>> {
    if let Shape::Tokens { max_tokens, max_items } = shape
        && lengths.len() <= *max_items
        && lengths.iter().sum::<usize>() <= *max_tokens
    {
        return if lengths.is_empty() { Vec::new() } else { vec![(0..lengths.len()).collect()] };
    }
    let mut waiting: BTreeSet<(usize, u64)> = lengths.iter().copied().zip(0..).collect();
    let mut parts = Vec::new();
    while let Some(&longest) = waiting.last() {
        let part = companions(&waiting, longest, shape);
        for &key in &part {
            waiting.remove(&(lengths[key as usize], key));
        }
        parts.push(part.into_iter().map(|key| key as usize).collect());
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shapes() -> impl Strategy<Value = Shape> {
        prop_oneof![
            (1usize..2000, 1usize..40).prop_map(|(max_tokens, max_items)| Shape::Tokens { max_tokens, max_items }),
            proptest::collection::vec((1usize..16, 1usize..600), 1..5).prop_map(|list| {
                Shape::Buckets(list.into_iter().map(|(batch, length)| Bucket { batch, length }).collect())
            }),
        ]
    }

    fn fits(shape: &Shape, lengths: &[usize]) -> bool {
        let longest = lengths.iter().max().copied().unwrap_or(0);
        match shape {
            Shape::Tokens { max_tokens, max_items } => {
                lengths.len() <= *max_items && lengths.iter().sum::<usize>() <= *max_tokens
            }
            Shape::Buckets(buckets) => buckets.iter().any(|b| b.length >= longest && b.batch >= lengths.len()),
        }
    }

    proptest! {
        #[test]
        fn every_item_is_in_one_batch_that_fits(
            shape in shapes(),
            lengths in proptest::collection::vec(0usize..600, 0..80),
        ) {
            let parts = split(&shape, &lengths);
            let mut seen: Vec<usize> = parts.iter().flatten().copied().collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..lengths.len()).collect::<Vec<_>>());
            for part in parts {
                let of_part: Vec<usize> = part.iter().map(|&i| lengths[i]).collect();
                prop_assert!(part.len() == 1 || fits(&shape, &of_part), "{:?}", of_part);
            }
        }

        /// An item that a shorter shape would take costs nothing where it comes along.
        #[test]
        fn what_comes_along_is_free(
            list in proptest::collection::vec((1usize..16, 1usize..300), 1..8),
            lengths in proptest::collection::vec(1usize..300, 1..60),
        ) {
            let list: Vec<Bucket> = list.into_iter().map(|(batch, length)| Bucket { batch, length }).collect();
            let own = |length: usize| list.iter().map(|bucket| bucket.length).filter(|&own| own >= length).min();
            let Some(shortest) = own(lengths[0]) else { return Ok(()) };
            let rows = |items: usize| {
                let bucket = list[buckets::pick(&list, items, shortest).unwrap()];
                items.div_ceil(bucket.batch) * bucket.batch * bucket.length
            };
            let waiting: BTreeSet<(usize, u64)> = lengths.iter().copied().zip(0..).collect();
            let chosen = companions(&waiting, (lengths[0], 0), &Shape::Buckets(list.clone()));
            let of_own = chosen.iter().filter(|&&key| own(lengths[key as usize]) == Some(shortest)).count();
            prop_assert!(chosen.iter().all(|&key| lengths[key as usize] <= shortest));
            prop_assert!(rows(chosen.len()) <= rows(of_own), "{:?}", chosen);
            // And none of its own stays out while there is room.
            let all = lengths.iter().filter(|&&length| own(length) == Some(shortest)).count();
            let most = list.iter().filter(|bucket| bucket.length == shortest).map(|bucket| bucket.batch).max().unwrap();
            prop_assert_eq!(of_own, all.min(most));
        }

        #[test]
        fn the_oldest_is_served_with_the_closest_lengths(
            lengths in proptest::collection::vec(1usize..300, 1..60),
            budget in 300usize..2000,
        ) {
            let waiting: BTreeSet<(usize, u64)> = lengths.iter().copied().zip(0..).collect();
            let shape = Shape::Tokens { max_tokens: budget, max_items: usize::MAX };
            let chosen = companions(&waiting, (lengths[0], 0), &shape);
            prop_assert_eq!(chosen[0], 0);
            // Nothing is skipped: what is shorter and stayed out is shorter than all that went in.
            let place = |key: u64| (lengths[key as usize], key);
            let shortest_in = chosen.iter().map(|&key| place(key)).min().unwrap_or_default();
            for key in (0..lengths.len() as u64).filter(|key| !chosen.contains(key) && place(*key) < place(0)) {
                prop_assert!(place(key) < shortest_in);
            }
            prop_assert!(chosen.iter().map(|&key| lengths[key as usize]).sum::<usize>() <= budget.max(lengths[0]));
        }
    }

    #[test]
    fn a_bucket_takes_what_costs_the_same() {
        let shape = Shape::Buckets(vec![Bucket { batch: 2, length: 128 }, Bucket { batch: 4, length: 32 }]);
        let waiting: BTreeSet<(usize, u64)> = [20, 30, 100, 31, 32, 5].into_iter().zip(0..).collect();
        assert_eq!(companions(&waiting, (20, 0), &shape), [0, 1, 3, 4]);
        assert_eq!(companions(&waiting, (100, 2), &shape), [2, 4]);
        // With a shape for one sequence nothing is left empty, and nothing comes along.
        let shape =
            Shape::Buckets([(1, 128), (2, 128), (4, 32)].map(|(batch, length)| Bucket { batch, length }).into());
        assert_eq!(companions(&waiting, (100, 2), &shape), [2]);
    }
}
