//! The seam behind which attention implementations are exchanged.
//!
//! An implementation says which specifications it takes ([`AttentionKernel::supports`]), which of its kernels a sequence
//! gets, by its own length alone, and computes a batch. Here stand the two kernels of [`crate::attention`]: each by its
//! name, and `auto`, which chooses between them.

use std::sync::Arc;

use ehun_backend::{Attention, BackendError, Refusal};
use ehun_graph::{AttentionSpec, Bias, RaggedBatch, ValueId};

use super::program::ConstantRows;
use crate::attention::{AttentionKernel as Kernel, BiasTables, Choice, Inputs, attention};
use crate::gemm::{MatMut, MatRef};
#[cfg(unix)]
use crate::guard::GuardedKernel;
use crate::plugin::Plugin;
use crate::pool::ThreadPool;
use crate::simd::Isa;

/// Widest head.
const MAX_HEAD: usize = 256;

/// The constant rows that a bias reads.
#[derive(Debug, Clone, Default)]
pub(crate) struct BiasRows {
    buckets: Vec<f32>,
    key_positions: Vec<f32>,
    query_positions: Vec<f32>,
}

impl BiasRows {
    pub(crate) fn new(spec: &AttentionSpec, constant: impl Fn(ValueId) -> ConstantRows) -> Self {
        let rows = |value: Option<ValueId>| value.map_or_else(Vec::new, |value| constant(value).data);
        match &spec.bias {
            Bias::None | Bias::Alibi { .. } => Self::default(),
            Bias::Bucketed { table, .. } => Self { buckets: rows(Some(*table)), ..Self::default() },
            Bias::Disentangled { key_positions, query_positions, .. } => {
                Self { key_positions: rows(*key_positions), query_positions: rows(*query_positions), ..Self::default() }
            }
        }
    }

    pub(crate) fn tables(&self) -> BiasTables<'_> {
        BiasTables {
            buckets: &self.buckets,
            key_positions: &self.key_positions,
            query_positions: &self.query_positions,
        }
    }
}

/// One attention operation on one batch.
pub(crate) struct Call<'a> {
    pub(crate) spec: &'a AttentionSpec,
    pub(crate) bias: BiasTables<'a>,
    pub(crate) batch: &'a RaggedBatch,
    /// `[tokens, heads * width]` each, see [`AttentionSpec`].
    pub(crate) q: MatRef<'a>,
    pub(crate) k: MatRef<'a>,
    pub(crate) v: MatRef<'a>,
    /// `[tokens, num_heads * value_dim]`
    pub(crate) out: MatMut<'a>,
}

/// An implementation of attention. What it computes for a sequence depends on that sequence alone.
pub(crate) trait AttentionKernel: Send + Sync {
    /// What it is, or the rule by which it chooses: `naive up to 64 tokens, flash above`.
    fn describe(&self) -> String;

    /// Why it is this one.
    fn reason(&self) -> String;

    /// Every reason for which it cannot do `spec`, the specification of `operation`; none where it can.
    fn supports(&self, operation: &str, spec: &AttentionSpec) -> Vec<Refusal>;

    /// Name of the kernel that a sequence of `len` tokens gets.
    fn name_for(&self, len: usize) -> &str;

    /// Bytes of working memory of one thread for sequences of up to `longest` tokens.
    fn scratch_bytes(&self, spec: &AttentionSpec, longest: usize) -> usize;

    /// Computes a batch on the threads of `pool`. An error is that of this batch.
    fn run(&self, pool: &ThreadPool, call: Call<'_>) -> Result<(), BackendError>;
}

/// The kernels of this crate.
struct Native {
    isa: Isa,
    choice: Choice,
}

impl AttentionKernel for Native {
    fn describe(&self) -> String {
        match self.choice {
            Choice::Fixed(kernel) => kernel.name().to_owned(),
            Choice::Auto => {
                let (naive, flash) = (Kernel::Naive.name(), Kernel::Flash.name());
                format!("{naive} up to {} tokens, {flash} above", self.choice.longest_naive(self.isa, 1 << 20))
            }
        }
    }

    fn reason(&self) -> String {
        match self.choice {
            Choice::Fixed(_) => "asked for by name".to_owned(),
            Choice::Auto => {
                format!("the faster of the two for a sequence's own length, a fixed table for {}", self.isa.name())
            }
        }
    }

    fn supports(&self, operation: &str, spec: &AttentionSpec) -> Vec<Refusal> {
        let mut refusals = Vec::new();
        for (what, width) in [("", spec.head_dim), ("value ", spec.value_dim)] {
            if width > MAX_HEAD {
                refusals.push(Refusal::new(operation, format!("{what}head width {width} is above {MAX_HEAD}")));
            }
        }
        refusals
    }

    fn name_for(&self, len: usize) -> &str {
        self.choice.kernel(self.isa, len).name()
    }

    fn scratch_bytes(&self, spec: &AttentionSpec, longest: usize) -> usize {
        // Queries, keys, values and scores as the kernels hold them, panels and strides rounded up.
        let padded = |len: usize| len.next_multiple_of(64);
        let widths = spec.head_dim * 2 + padded(spec.value_dim) * 2;
        let naive = self.choice.longest_naive(self.isa, longest);
        let values_of_naive = padded(naive) * (naive + 64 + widths);
        let values_of_flash = if naive < longest { (256 + 64) * (widths + 64) } else { 0 };
        let values_of_bias = match &spec.bias {
            Bias::None => 0,
            Bias::Alibi { .. } | Bias::Bucketed { .. } => 2 * longest * spec.num_heads,
            Bias::Disentangled { rule, .. } => {
                let reached = padded((2 * rule.span as usize).min(2 * longest));
                reached * (2 * spec.head_dim + longest.min(256).max(naive) + 64) + longest * widths
            }
        };
        values_of_naive.max(values_of_flash) * size_of::<f32>() + values_of_bias * size_of::<f32>()
    }

    fn run(&self, pool: &ThreadPool, call: Call<'_>) -> Result<(), BackendError> {
        let inputs = Inputs { q: call.q, k: call.k, v: call.v };
        attention(self.isa, pool, self.choice, call.spec, &call.bias, inputs, call.batch.cu_seqlens(), call.out);
        Ok(())
    }
}

/// Names of the kernels of this crate.
pub(crate) fn kernel_names() -> Vec<String> {
    [Kernel::Naive, Kernel::Flash].map(|kernel| kernel.name().to_owned()).to_vec()
}

/// Whether attention runs between guard pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Guard {
    #[default]
    Off,
    /// For conformance: what steps outside ends the process.
    #[cfg(unix)]
    On,
}

/// The implementation that was asked for.
pub(crate) fn choose(isa: Isa, asked: &Attention, guard: Guard) -> Result<Arc<dyn AttentionKernel>, Refusal> {
    let kernel = named(isa, asked, guard)?;
    match guard {
        Guard::Off => Ok(kernel),
        #[cfg(unix)]
        Guard::On => Ok(Arc::new(GuardedKernel::new(kernel))),
    }
}

fn named(isa: Isa, asked: &Attention, guard: Guard) -> Result<Arc<dyn AttentionKernel>, Refusal> {
    let choice = match asked {
        Attention::Auto => Choice::Auto,
        Attention::Named(name) => {
            let known = [Kernel::Naive, Kernel::Flash].into_iter().find(|kernel| kernel.name() == name);
            let Some(kernel) = known else {
                let reason = format!("no attention kernel `{name}`; there are auto, {}", kernel_names().join(", "));
                return Err(Refusal::new("options", reason));
            };
            Choice::Fixed(kernel)
        }
        Attention::File(path) => return Ok(Arc::new(Plugin::open(path, guard)?)),
    };
    Ok(Arc::new(Native { isa, choice }))
}

/// Floating-point operations of attention over a sequence: two for each element of a visible key and of its value.
pub(crate) fn flops(spec: &AttentionSpec, len: usize) -> u64 {
    let visible: usize = (0..len).map(|i| spec.band.visible(i, len).len()).sum();
    2 * (visible * spec.num_heads * (spec.head_dim + spec.value_dim)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_refused_with_what_is() {
        let isa = Isa::best();
        for (asked, why) in [("flash3", "naive, flash"), ("./no-such-attention.so", "No such file")] {
            let asked: Attention = asked.parse().unwrap();
            let refusal = choose(isa, &asked, Guard::Off).err().map(|refusal| refusal.to_string()).unwrap_or_default();
            assert!(refusal.contains(&asked.to_string()) && refusal.contains(why), "{refusal}");
        }
    }

    #[test]
    fn wide_heads_are_refused_each_by_its_width() {
        let kernel = choose(Isa::best(), &Attention::Auto, Guard::Off).unwrap();
        let mut spec = AttentionSpec::full(2, 256);
        assert_eq!(kernel.supports("layer.0", &spec), []);
        (spec.head_dim, spec.value_dim) = (320, 257);
        let refusals = kernel.supports("layer.0", &spec);
        assert_eq!(refusals.len(), 2);
        assert_eq!(refusals[0], Refusal::new("layer.0", "head width 320 is above 256"));
    }

    #[test]
    fn the_rule_is_described_as_it_is() {
        let kernel = choose(Isa::best(), &Attention::Auto, Guard::Off).unwrap();
        let up_to = Choice::Auto.longest_naive(Isa::best(), 1 << 20);
        assert_eq!((kernel.name_for(up_to), kernel.name_for(up_to + 1)), ("naive", "flash"));
        assert!(kernel.describe().contains(&up_to.to_string()));
    }
}
