//! The parts that are done and not in the final tables yet.

use crate::journal::Record;
use crate::source::order;

/// Parts with numbers in a row whose sources rise from each to the next: to readers, one table. Their files are named by their
/// numbers, so however many there are, this is all that is held of them.
pub(crate) struct Chain {
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// The last source of the last part.
    end: String,
}

impl Chain {
    pub(crate) fn has(&self, number: u64) -> bool {
        (self.first..=self.last).contains(&number)
    }

    /// Puts a part to the last chain, or begins one.
    pub(crate) fn add(chains: &mut Vec<Self>, number: u64, start: &str, end: String) {
        match chains.last_mut() {
            Some(chain) if chain.last + 1 == number && order(&chain.end, start).is_lt() => {
                chain.last = number;
                chain.end = end;
            }
            _ => chains.push(Self { first: number, last: number, end }),
        }
    }

    /// Takes out the parts up to `through`.
    pub(crate) fn forget(chains: &mut Vec<Self>, through: u64) {
        chains.retain(|chain| chain.last > through);
        chains.iter_mut().for_each(|chain| chain.first = chain.first.max(through + 1));
    }
}

/// What a journal says, taken in fact by fact.
#[derive(Default)]
pub(crate) struct Said {
    pub(crate) chains: Vec<Chain>,
    last_part: u64,
    /// The final tables hold all parts up to this one.
    through: u64,
    /// New final tables are durable and perhaps not in place.
    pub(crate) publishing: Option<u64>,
}

impl Said {
    pub(crate) fn hear(&mut self, record: Record) {
        match record {
            Record::Part { number, first, last } => {
                self.last_part = self.last_part.max(number);
                Chain::add(&mut self.chains, number, &first, last);
            }
            Record::Publish { through } => self.publishing = Some(through),
            Record::Published { through } => {
                self.through = through;
                self.publishing = None;
                Chain::forget(&mut self.chains, through);
            }
        }
    }

    pub(crate) fn next_part(&self) -> u64 {
        self.last_part.max(self.through) + 1
    }
}
