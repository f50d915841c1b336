//! What all operations of a model share: its sizes, the places of the tokens, the masks, the rotary tables.

use ehun_graph::{Band, RotaryScaling, RotarySpec};

use super::emit::{Emitter, Val};
use crate::proto::{Attribute, Dim, Element};

/// Name of the input with the first position that pooling reads of each sequence, `[batch]`.
pub const POOLING_STARTS: &str = "pooling_starts";
/// Name of the input that is 1 for the tokens of a sequence and 0 for the padding behind them, `[batch, length]`.
pub const ATTENTION_MASK: &str = "attention_mask";
/// Name of the input with the token ids, `[batch, length]`.
pub const INPUT_IDS: &str = "input_ids";
/// Name of the input with the token types, `[batch, length]`.
pub const TOKEN_TYPE_IDS: &str = "token_type_ids";

/// Values that depend on the batch's shape alone, and the tables that are laid out for it.
pub struct Scene {
    /// Tokens of each sequence, int64 `[batch]`.
    pub lengths: Val,
    /// Length of the padded batch, int64 `[1]`.
    pub length: Val,
    /// `0..length`, int64 `[length]`.
    pub positions: Val,
    /// Longest sequence that tables are laid out for.
    pub longest: usize,
    /// Whether the first positions that pooling reads are an input; else they are 0.
    pub pooling_starts: bool,
}

impl Scene {
    /// The scene of a model for sequences of up to `longest` tokens.
    pub fn new(e: &mut Emitter<'_>, longest: usize, pooling_starts: bool) -> Self {
        e.at("batch");
        let mask = e.input(ATTENTION_MASK, Element::I64, &[Dim::Name("batch"), Dim::Name("length")]);
        let lengths = e.reduce_away("ReduceSum", &mask, 1);
        let length = e.size(&mask, 1);
        let zero_axis = e.ints(&[0]);
        let end = e.binary("Squeeze", &length, &zero_axis);
        let (zero, one) = (e.int(0), e.int(1));
        let positions = e.node("Range", &[&zero, &end, &one], &[]);
        Self { lengths, length, positions, longest, pooling_starts }
    }

    /// The first position that pooling reads, int64 `[batch, 1]` or a constant.
    pub fn starts(&self, e: &mut Emitter<'_>) -> Val {
        if !self.pooling_starts {
            return e.int(0);
        }
        let starts = e.input(POOLING_STARTS, Element::I64, &[Dim::Name("batch")]);
        e.unsqueeze(&starts, &[1])
    }

    /// Which tokens are no padding, bool `[batch, length]`.
    pub fn valid(&self, e: &mut Emitter<'_>) -> Val {
        let lengths = e.unsqueeze(&self.lengths, &[1]);
        e.binary("Less", &self.positions, &lengths)
    }

    /// Key position less query position, int64 `[length, length]`.
    pub fn relative(&self, e: &mut Emitter<'_>) -> Val {
        let rows = e.unsqueeze(&self.positions, &[1]);
        e.binary("Sub", &self.positions, &rows)
    }

    /// Which keys each query sees by the band alone, bool `[length, length]`; `None` where it sees all.
    pub fn band(&self, e: &mut Emitter<'_>, band: Band) -> Option<Val> {
        let mut seen: Option<Val> = None;
        let sides =
            [band.left.map(|n| ("GreaterOrEqual", -i64::from(n))), band.right.map(|n| ("LessOrEqual", i64::from(n)))];
        for (direction, bound) in sides.into_iter().flatten() {
            let relative = self.relative(e);
            let bound = e.int(bound);
            let inside = e.binary(direction, &relative, &bound);
            seen = Some(match seen {
                Some(seen) => e.binary("And", &seen, &inside),
                None => inside,
            });
        }
        seen
    }

    /// Which keys each query sees, bool `[batch, 1, length or 1, length]`.
    pub fn seen(&self, e: &mut Emitter<'_>, band: Band) -> Val {
        let valid = self.valid(e);
        let valid = e.unsqueeze(&valid, &[1, 2]);
        match self.band(e, band) {
            Some(seen) => e.binary("And", &valid, &seen),
            None => valid,
        }
    }

    /// Cosine and sine of a rotary embedding, `[length, 1, pairs]`, or `[batch, length, 1, pairs]` where the frequencies
    /// depend on the length of the sequence.
    pub fn rotary(&self, e: &mut Emitter<'_>, spec: &RotarySpec) -> (Val, Val) {
        let RotaryScaling::DynamicNtk { original_max_position, .. } = spec.scaling else {
            let (cos, sin) = spec.tables(self.longest);
            let dims = [self.longest, 1, spec.rotary_dim / 2];
            let key = rotary_name(spec);
            let start = e.ints(&[0]);
            let mut table = |kind: &str, values: &[f32]| {
                let table = e.floats(&format!("rotary_{kind}_{key}"), &dims, values);
                e.slice_at(&table, 0, &start, &self.length)
            };
            return (table("cos", &cos), table("sin", &sin));
        };
        // One row of frequencies for each length beyond the original one; shorter sequences have those of the original.
        let original = original_max_position as usize;
        let last = self.longest.max(original);
        let rows: Vec<f32> = (original..=last).flat_map(|len| spec.inverse_frequencies(len)).collect();
        let pairs = spec.rotary_dim / 2;
        let name = format!("rotary_frequencies_{}", rotary_name(spec));
        let table = e.floats(&name, &[last - original + 1, pairs], &rows);
        let least = e.int(original as i64);
        let row = e.binary("Max", &self.lengths, &least);
        let row = e.binary("Sub", &row, &least);
        let frequencies = e.gather(&table, &row, 0);
        // A float32 holds no angle of thousands of radians well enough: it is taken in float64, brought to a half turn either
        // side of 0, and given on as two float32, since few runtimes have a cosine in float64.
        let frequencies = e.cast(&frequencies, Element::F64);
        let frequencies = e.unsqueeze(&frequencies, &[1, 2]);
        let positions = e.cast(&self.positions, Element::F64);
        let positions = e.unsqueeze(&positions, &[1, 2]);
        let angle = e.binary("Mul", &positions, &frequencies);
        let turn = e.double(std::f64::consts::TAU);
        let turns = e.binary("Div", &angle, &turn);
        let whole = e.unary("Round", &turns);
        let part = e.binary("Sub", &turns, &whole);
        let angle = e.binary("Mul", &part, &turn);
        let high = e.cast(&angle, Element::F32);
        let back = e.cast(&high, Element::F64);
        let low = e.binary("Sub", &angle, &back);
        let low = e.cast(&low, Element::F32);
        // cos(h + l) = cos h - l sin h and sin(h + l) = sin h + l cos h, as l is below an ulp of h.
        let (cos, sin) = (e.unary("Cos", &high), e.unary("Sin", &high));
        let (less, more) = (e.binary("Mul", &low, &sin), e.binary("Mul", &low, &cos));
        (e.binary("Sub", &cos, &less), e.binary("Add", &sin, &more))
    }

    /// Rows `index(relative)` of `table` for all relative positions `-(longest - 1)..longest`, along dimension 0.
    pub fn by_relative(&self, e: &mut Emitter<'_>, table: &Val, name: &str, index: impl Fn(i64) -> usize) -> Val {
        let far = self.longest as i64 - 1;
        let rows: Vec<i64> = (-far..=far).map(|relative| index(relative) as i64).collect();
        let rows = e.named_ints(&format!("{name}_{}", self.longest), &rows);
        e.node("Gather", &[table, &rows], &[("axis", Attribute::Int(0))])
    }
}

fn rotary_name(spec: &RotarySpec) -> String {
    let text = format!("{spec:?}");
    text.chars().map(|c| if c.is_alphanumeric() { c } else { '_' }).collect()
}
