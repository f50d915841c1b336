//! Attention as plain operators, or as ONNX Runtime's fused one.

use ehun_graph::{AttentionSpec, Band, Bias};

use super::emit::{Emitter, Val};
use super::scene::Scene;
use crate::proto::{Attribute, Element};

/// Score of what a row does not see: its exponential is exactly 0 beside any real score, and no arithmetic with it is NaN.
const UNSEEN: f32 = -1e30;

/// How attention is written down for the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Form {
    /// Products and softmax as standard operators.
    Native,
    /// `com.microsoft.MultiHeadAttention`: one operator, which providers have fast kernels for.
    Fused,
}

impl Form {
    /// All forms.
    pub const ALL: [Self; 2] = [Self::Native, Self::Fused];

    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Fused => "fused",
        }
    }

    /// The form `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|form| form.name() == name)
    }

    /// Why this form cannot compute `spec`, or `None` where it can.
    pub fn refusal(self, spec: &AttentionSpec) -> Option<String> {
        if self == Self::Native {
            return None;
        }
        if spec.num_kv_heads != spec.num_heads {
            let (heads, groups) = (spec.num_heads, spec.num_kv_heads);
            return Some(format!(
                "the fused operator has as many key heads as query heads, not {groups} for {heads}; native has groups"
            ));
        }
        if spec.soft_cap.is_some() {
            return Some("the fused operator has no soft cap; native has it".to_owned());
        }
        matches!(spec.bias, Bias::Disentangled { .. })
            .then(|| "the fused operator has no disentangled bias; native has it".to_owned())
    }
}

impl std::fmt::Display for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Attention of `q`, `k`, `v: [batch, length, heads * width]`; `tables` are the constants of the bias in the order of
/// [`AttentionSpec::bias_values`].
pub fn attention(
    e: &mut Emitter<'_>,
    scene: &Scene,
    form: Form,
    spec: &AttentionSpec,
    [q, k, v]: [&Val; 3],
    tables: &[Val],
) -> Val {
    // A weight of 0 does not hide a NaN in a padding row; a selection does.
    let valid = scene.valid(e);
    let valid = e.unsqueeze(&valid, &[2]);
    let v = e.select(&valid, v, 0.0);
    match form {
        Form::Native => native(e, scene, spec, [q, k, &v], tables),
        Form::Fused => {
            // The fused operator adds its mask, so keys must be numbers too.
            let k = e.select(&valid, k, 0.0);
            fused(e, scene, spec, [q, &k, &v], tables)
        }
    }
}

fn fused(e: &mut Emitter<'_>, scene: &Scene, spec: &AttentionSpec, [q, k, v]: [&Val; 3], tables: &[Val]) -> Val {
    let lengths = e.cast(&scene.lengths, Element::I32);
    let causal = spec.band == Band::CAUSAL;
    let mut bias = positional_bias(e, scene, spec, tables);
    if let Some(seen) = if causal { None } else { scene.band(e, spec.band) } {
        let hidden = match &bias {
            Some(bias) => e.select(&seen, bias, UNSEEN),
            None => {
                let zero = e.float(0.0);
                e.select(&seen, &zero, UNSEEN)
            }
        };
        // A mask without heads is the same for all of them.
        bias = Some(if bias.is_some() { hidden } else { e.unsqueeze(&hidden, &[0]) });
    }
    let bias = bias.map_or(Val::none(), |bias| e.unsqueeze(&bias, &[0]));
    let attributes = [
        ("num_heads", Attribute::Int(spec.num_heads as i64)),
        ("scale", Attribute::Float(spec.scale)),
        ("mask_filter_value", Attribute::Float(UNSEEN)),
        ("unidirectional", Attribute::Int(i64::from(causal))),
    ];
    e.own_node("MultiHeadAttention", &[q, k, v, &Val::none(), &lengths, &bias], &attributes)
}

/// ALiBi or bucketed bias, `[heads, length, length]`.
fn positional_bias(e: &mut Emitter<'_>, scene: &Scene, spec: &AttentionSpec, tables: &[Val]) -> Option<Val> {
    match &spec.bias {
        Bias::None | Bias::Disentangled { .. } => None,
        Bias::Alibi { slopes } => {
            let name = slopes.iter().map(|slope| format!("{:08x}", slope.to_bits())).collect::<Vec<_>>().join("_");
            let slopes = e.floats(&format!("alibi_{name}"), &[spec.num_heads, 1, 1], slopes);
            let relative = scene.relative(e);
            let distance = e.unary("Abs", &relative);
            let distance = e.cast(&distance, Element::F32);
            let fall = e.binary("Mul", &slopes, &distance);
            Some(e.unary("Neg", &fall))
        }
        Bias::Bucketed { rule, .. } => {
            let name = format!("buckets_{}_{}_{}", rule.num_buckets, rule.max_distance, rule.bidirectional);
            let rows = scene.by_relative(e, tables.first()?, &name, |relative| rule.bucket(relative));
            let by_head = e.transpose(&rows, &[1, 0]);
            let relative = scene.relative(e);
            let middle = e.int(scene.longest as i64 - 1);
            let place = e.binary("Add", &relative, &middle);
            Some(e.gather(&by_head, &place, 1))
        }
    }
}

fn native(e: &mut Emitter<'_>, scene: &Scene, spec: &AttentionSpec, [q, k, v]: [&Val; 3], tables: &[Val]) -> Val {
    let (heads, groups) = (spec.num_heads as i64, spec.num_kv_heads as i64);
    let q = heads_first(e, q, heads, spec.head_dim);
    let k = heads_first(e, k, groups, spec.head_dim);
    let v = heads_first(e, v, groups, spec.value_dim);
    let grouped = groups != heads;
    // The query heads of a group are rows of one product with its keys.
    let rows = if grouped { e.reshape(&q, &[0, groups, -1, spec.head_dim as i64]) } else { q.clone() };
    let columns = e.transpose(&k, &[0, 1, 3, 2]);
    let mut scores = e.binary("MatMul", &rows, &columns);
    if grouped {
        scores = e.reshape(&scores, &[0, heads, -1, 0]);
    }
    for term in disentangled(e, scene, spec, &q, &k, tables) {
        scores = e.binary("Add", &scores, &term);
    }
    scores = e.with_number("Mul", &scores, spec.scale);
    if let Some(cap) = spec.soft_cap {
        let bent = e.with_number("Div", &scores, cap);
        let bent = e.unary("Tanh", &bent);
        scores = e.with_number("Mul", &bent, cap);
    }
    if let Some(bias) = positional_bias(e, scene, spec, tables) {
        scores = e.binary("Add", &scores, &bias);
    }
    let seen = scene.seen(e, spec.band);
    let scores = e.select(&seen, &scores, UNSEEN);
    let mut weights = e.node("Softmax", &[&scores], &[("axis", Attribute::Int(-1))]);
    if grouped {
        weights = e.reshape(&weights, &[0, groups, -1, 0]);
    }
    let mut out = e.binary("MatMul", &weights, &v);
    if grouped {
        out = e.reshape(&out, &[0, heads, -1, spec.value_dim as i64]);
    }
    let out = e.transpose(&out, &[0, 2, 1, 3]);
    e.reshape(&out, &[0, 0, heads * spec.value_dim as i64])
}

/// `[batch, length, heads * width]` to `[batch, heads, length, width]`.
fn heads_first(e: &mut Emitter<'_>, x: &Val, heads: i64, width: usize) -> Val {
    let x = e.reshape(x, &[0, 0, heads, width as i64]);
    e.transpose(&x, &[0, 2, 1, 3])
}

/// The terms of a disentangled bias, each `[batch, heads, length, length]`.
fn disentangled(
    e: &mut Emitter<'_>,
    scene: &Scene,
    spec: &AttentionSpec,
    q: &Val,
    k: &Val,
    tables: &[Val],
) -> Vec<Val> {
    let Bias::Disentangled { key_positions, query_positions, rule } = &spec.bias else { return Vec::new() };
    let (heads, width) = (spec.num_heads as i64, spec.head_dim as i64);
    let mut tables = tables.iter();
    let mut term = |e: &mut Emitter<'_>, x: &Val, there: bool, sign: i64| {
        let table = if there { tables.next() } else { None }?;
        let name = format!("log_buckets_{}_{}_{}_{sign}", rule.span, rule.buckets, rule.max_position);
        let rows = scene.by_relative(e, table, &name, |relative| rule.row(sign * relative));
        let split = e.reshape(&rows, &[0, heads, width]);
        // `[heads, width, 2 longest - 1]` by key position less query position (or the reverse), the middle one for 0.
        let split = e.transpose(&split, &[1, 2, 0]);
        let longest = e.ints(&[scene.longest as i64]);
        let start = e.binary("Sub", &longest, &scene.length);
        let before_last = e.ints(&[scene.longest as i64 - 1]);
        let end = e.binary("Add", &before_last, &scene.length);
        let window = e.slice_at(&split, 2, &start, &end);
        let products = e.binary("MatMul", x, &window);
        Some(skew(e, scene, &products))
    };
    let keys = term(e, q, key_positions.is_some(), -1);
    let queries = term(e, k, query_positions.is_some(), 1);
    let queries = queries.map(|term| e.transpose(&term, &[0, 1, 3, 2]));
    keys.into_iter().chain(queries).collect()
}

/// `x: [batch, heads, n, 2 n - 1]` by relative position becomes `[batch, heads, n, n]`: `y[r, c] = x[r, c - r + n - 1]`.
/// Done by reading the rows one element shorter than they are written: a copy, where a gather would look up each element.
fn skew(e: &mut Emitter<'_>, scene: &Scene, x: &Val) -> Val {
    let length = &scene.length;
    let one = e.ints(&[1]);
    let twice = e.binary("Add", length, length);
    let width = e.binary("Sub", &twice, &one);
    let padding = e.ints(&[0, 0, 0, 0, 0, 0, 0, 1]);
    let padded = e.binary("Pad", x, &padding);
    let flat = e.reshape(&padded, &[0, 0, -1]);
    let kept = e.binary("Mul", length, &width);
    let start = e.ints(&[0]);
    let flat = e.slice_at(&flat, 2, &start, &kept);
    let lead = e.ints(&[0, 0]);
    let rest = e.ints(&[-1]);
    let shape = e.concat(&[&lead, length, &rest], 0);
    let shifted = e.binary("Reshape", &flat, &shape);
    let first = e.binary("Sub", length, &one);
    e.slice_at(&shifted, 3, &first, &width)
}
