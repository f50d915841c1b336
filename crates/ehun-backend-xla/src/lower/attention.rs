//! Attention in the forms that this backend can give it. All share one definition of the scores of a tile: the queries
//! from `q0` against the keys from `k0`; the forms differ in which tiles they cut and in what they hold between them.

use ehun_graph::{AttentionSpec, Bias};

use super::emit::{Elem, Emitter, Val};

/// Score of what a row does not see: its exponential is exactly 0 beside any real score, and no arithmetic with it is NaN.
const UNSEEN: f64 = -1e30;

/// How attention is written down for the compiler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// Products and softmax as they are, all scores at once: the compiler fuses what it can.
    Native,
    /// A loop over blocks of queries: memory linear in the length.
    Blocked,
    /// A loop over blocks of keys with running maxima and sums (Milakov and Gimelshein 2018, Dao et al. 2022).
    Flash,
    /// A StableHLO function from a file.
    Imported,
}

impl Form {
    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Blocked => "blocked",
            Self::Flash => "flash",
            Self::Imported => "imported",
        }
    }

    /// The form `name`, one of those that need no file.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Native, Self::Blocked, Self::Flash].into_iter().find(|form| form.name() == name)
    }
}

impl std::fmt::Display for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Rows of queries or keys in a block of the forms with loops.
pub const BLOCK: usize = 128;

/// How attention operations are written down.
#[derive(Debug, Clone, Copy)]
pub struct How<'a> {
    /// The form.
    pub form: Form,
    /// Two blocks in each step of a loop; such a program is only compiled for its figures.
    pub probe: bool,
    /// Name of the function that is called, for [`Form::Imported`].
    pub function: &'a str,
}

/// Attention of `q`, `k`, `v: [batch, length, heads * width]`; `tables` are the constants of the bias in the order of
/// [`AttentionSpec::bias_values`]. Products are in the operands' type, everything between in float32.
pub fn attention(
    e: &mut Emitter,
    How { form, probe, function }: How<'_>,
    spec: &AttentionSpec,
    [q, k, v]: [&Val; 3],
    lengths: &Val,
    tables: &[Val],
) -> Val {
    let (batch, length) = (q.dims[0], q.dims[1]);
    let q = heads_first(e, q, spec.num_heads, spec.head_dim);
    let k = heads_first(e, k, spec.num_kv_heads, spec.head_dim);
    let v = heads_first(e, v, spec.num_kv_heads, spec.value_dim);
    // A weight of 0 does not hide a NaN in a padding row; a selection does.
    let position = e.iota(1, &[batch, length]);
    let end = e.broadcast(lengths, &[0], &[batch, length]);
    let valid = e.compare("LT", &position, &end);
    let valid = e.broadcast(&valid, &[0, 2], &v.dims.clone());
    let v = e.select_number(&valid, &v, 0.0);
    let out = if form == Form::Imported {
        let mut operands = vec![q.clone(), k, v, lengths.clone()];
        operands.extend_from_slice(tables);
        let dims = [batch, spec.num_heads, length, spec.value_dim];
        e.call(function, &operands, &dims, q.elem)
    } else {
        // The last key block of the flash form reaches beyond the length where that is no multiple of the block.
        let reach = if form == Form::Flash && length > BLOCK { length.next_multiple_of(BLOCK) } else { length };
        let bias = RelativeBias::new(e, spec, tables, reach, q.elem);
        let scene = Scene { spec, lengths, bias, length, reach, probe };
        match form {
            Form::Blocked if length > BLOCK => scene.blocked(e, &q, &k, &v),
            Form::Flash if length > BLOCK => scene.flash(e, &q, &k, &v),
            _ => scene.native(e, &q, &k, &v),
        }
    };
    let out = e.transpose(&out, &[0, 2, 1, 3]);
    e.reshape(&out, &[batch, length, spec.num_heads * spec.value_dim])
}

/// `[batch, length, heads * width]` to `[batch, heads, length, width]`.
fn heads_first(e: &mut Emitter, x: &Val, heads: usize, width: usize) -> Val {
    let x = e.reshape(x, &[x.dims[0], x.dims[1], heads, width]);
    e.transpose(&x, &[0, 2, 1, 3])
}

/// What the bias reads, laid out by relative position: `2 * reach - 1` rows, the middle one for position 0.
enum RelativeBias {
    None,
    /// `[heads]`
    Alibi(Val),
    /// `[heads, 2 * reach - 1]` by key position - query position.
    Bucketed(Val),
    /// `[heads, 2 * reach - 1, head_dim]`: keys' positions by key - query, queries' positions by query - key.
    Disentangled {
        keys: Option<Val>,
        queries: Option<Val>,
    },
}

impl RelativeBias {
    fn new(e: &mut Emitter, spec: &AttentionSpec, tables: &[Val], reach: usize, elem: Elem) -> Self {
        let far = reach as i64 - 1;
        match &spec.bias {
            Bias::None => Self::None,
            Bias::Alibi { slopes } => Self::Alibi(e.floats(slopes)),
            Bias::Bucketed { rule, .. } => {
                let rows: Vec<i32> = (-far..=far).map(|relative| rule.bucket(relative) as i32).collect();
                let rows = e.integers(&rows);
                let table = e.convert(&tables[0], Elem::F32);
                let by_position = e.gather_rows(&table, &rows);
                Self::Bucketed(e.transpose(&by_position, &[1, 0]))
            }
            Bias::Disentangled { key_positions, query_positions, rule } => {
                let mut tables = tables.iter();
                let mut take = |e: &mut Emitter, there: bool, sign: i64| {
                    let table = if there { tables.next() } else { None }?;
                    let rows: Vec<i32> = (-far..=far).map(|relative| rule.row(sign * relative) as i32).collect();
                    let rows = e.integers(&rows);
                    let table = e.convert(table, elem);
                    let by_position = e.gather_rows(&table, &rows);
                    let split = e.reshape(&by_position, &[2 * reach - 1, spec.num_heads, spec.head_dim]);
                    Some(e.transpose(&split, &[1, 0, 2]))
                };
                let keys = take(e, key_positions.is_some(), -1);
                let queries = take(e, query_positions.is_some(), 1);
                Self::Disentangled { keys, queries }
            }
        }
    }
}

/// `count` rows from a computed first one, or from 0.
#[derive(Clone, Copy)]
struct Span<'a> {
    first: Option<&'a Val>,
    count: usize,
}

struct Scene<'a> {
    spec: &'a AttentionSpec,
    lengths: &'a Val,
    bias: RelativeBias,
    length: usize,
    /// Positions that the bias is laid out for, from the length on.
    reach: usize,
    probe: bool,
}

impl Scene<'_> {
    fn native(&self, e: &mut Emitter, q: &Val, k: &Val, v: &Val) -> Val {
        let all = Span { first: None, count: self.length };
        self.block(e, q, k, v, all, all)
    }

    /// One block of queries against one window of keys that has everything they see.
    fn block(&self, e: &mut Emitter, q: &Val, k: &Val, v: &Val, queries: Span<'_>, keys: Span<'_>) -> Val {
        let scores = self.scores(e, q, k, queries, keys);
        let largest = e.reduce("maximum", &scores, 3);
        let largest = e.broadcast(&largest, &[0, 1, 2], &scores.dims.clone());
        let shifted = e.binary("subtract", &scores, &largest);
        let weights = e.unary("exponential", &shifted);
        let sum = e.reduce("add", &weights, 3);
        let out = self.weigh(e, &weights, v);
        let sum = e.broadcast(&sum, &[0, 1, 2], &out.dims.clone());
        let out = e.binary("divide", &out, &sum);
        e.convert(&out, q.elem)
    }

    /// Steps of a loop over blocks of the length, and the blocks of each step.
    fn steps(&self) -> (usize, usize) {
        let blocks = self.length.div_ceil(BLOCK);
        if self.probe { (blocks.div_ceil(2), 2) } else { (blocks, 1) }
    }

    /// The first row of block `number` of step `step`.
    fn first_row(&self, e: &mut Emitter, step: &Val, number: usize) -> Val {
        let per_step = self.steps().1;
        let first = e.binary_number("multiply", step, (BLOCK * per_step) as f64);
        if number == 0 { first } else { e.binary_number("add", &first, (BLOCK * number) as f64) }
    }

    fn blocked(&self, e: &mut Emitter, q: &Val, k: &Val, v: &Val) -> Val {
        let mut dims = q.dims.clone();
        dims[3] = self.spec.value_dim;
        let start = e.splat(0.0, &dims, q.elem);
        let (steps, per_step) = self.steps();
        let out = e.repeat(steps, &[start], |e, step, carried| {
            let mut out = carried[0].clone();
            for number in 0..per_step {
                let first = self.first_row(e, step, number);
                out = self.query_block(e, [q, k, v], &first, &out);
            }
            vec![out]
        });
        out[0].clone()
    }

    /// `out` with the rows of the query block at `first`.
    fn query_block(&self, e: &mut Emitter, [q, k, v]: [&Val; 3], first: &Val, out: &Val) -> Val {
        let length = self.length;
        let band = self.spec.band;
        // With a window on both sides, a block sees only the keys around it.
        let window = match (band.left, band.right) {
            (Some(left), Some(right)) => length.min((left as usize + BLOCK).saturating_add(right as usize)),
            _ => length,
        };
        // The last block reaches back over rows that are done where the length is no multiple of the block.
        let first = e.binary_number("minimum", first, (length - BLOCK) as f64);
        let key = (window < length).then(|| {
            let key = e.binary_number("subtract", &first, f64::from(band.left.unwrap_or(0)));
            let key = e.binary_number("maximum", &key, 0.0);
            e.binary_number("minimum", &key, (length - window) as f64)
        });
        let q = e.dynamic_slice_dim(q, 2, &first, BLOCK);
        let (k, v) = match &key {
            Some(key) => (e.dynamic_slice_dim(k, 2, key, window), e.dynamic_slice_dim(v, 2, key, window)),
            None => (k.clone(), v.clone()),
        };
        let queries = Span { first: Some(&first), count: BLOCK };
        let keys = Span { first: key.as_ref(), count: window };
        let rows = self.block(e, &q, &k, &v, queries, keys);
        e.dynamic_update_dim(out, &rows, 2, &first)
    }

    fn flash(&self, e: &mut Emitter, q: &Val, k: &Val, v: &Val) -> Val {
        let rows = [q.dims[0], q.dims[1], self.length];
        let mut wide = rows.to_vec();
        wide.push(self.spec.value_dim);
        let start = [e.splat(UNSEEN, &rows, Elem::F32), e.splat(0.0, &rows, Elem::F32), e.splat(0.0, &wide, Elem::F32)];
        let padding = self.length.next_multiple_of(BLOCK) - self.length;
        let (k, v) = (e.pad_end(k, 2, padding), e.pad_end(v, 2, padding));
        let (steps, per_step) = self.steps();
        let done = e.repeat(steps, &start, |e, step, carried| {
            let mut carried = carried.to_vec();
            for number in 0..per_step {
                let first = self.first_row(e, step, number);
                carried = self.key_block(e, [q, &k, &v], &first, &carried);
            }
            carried
        });
        let sum = e.broadcast(&done[1], &[0, 1, 2], &done[2].dims.clone());
        let out = e.binary("divide", &done[2], &sum);
        e.convert(&out, q.elem)
    }

    /// The running maxima, sums and weighted values, with the key block at `first` taken in.
    fn key_block(&self, e: &mut Emitter, [q, k, v]: [&Val; 3], first: &Val, carried: &[Val]) -> Vec<Val> {
        let (largest, sum, out) = (&carried[0], &carried[1], &carried[2]);
        let k = e.dynamic_slice_dim(k, 2, first, BLOCK);
        let v = e.dynamic_slice_dim(v, 2, first, BLOCK);
        let queries = Span { first: None, count: self.length };
        let scores = self.scores(e, q, &k, queries, Span { first: Some(first), count: BLOCK });
        let block_largest = e.reduce("maximum", &scores, 3);
        let new_largest = e.binary("maximum", largest, &block_largest);
        let fade = e.binary("subtract", largest, &new_largest);
        let fade = e.unary("exponential", &fade);
        let level = e.broadcast(&new_largest, &[0, 1, 2], &scores.dims.clone());
        let shifted = e.binary("subtract", &scores, &level);
        let weights = e.unary("exponential", &shifted);
        let block_sum = e.reduce("add", &weights, 3);
        let sum = e.binary("multiply", sum, &fade);
        let sum = e.binary("add", &sum, &block_sum);
        let block_out = self.weigh(e, &weights, &v);
        let fade = e.broadcast(&fade, &[0, 1, 2], &out.dims.clone());
        let out = e.binary("multiply", out, &fade);
        let out = e.binary("add", &out, &block_out);
        vec![new_largest, sum, out]
    }

    /// `weights v` in float32, `[batch, heads, queries, value_dim]`; the products in `v`'s type.
    fn weigh(&self, e: &mut Emitter, weights: &Val, v: &Val) -> Val {
        let [batch, heads, queries, keys] = [0, 1, 2, 3].map(|i| weights.dims[i]);
        let groups = self.spec.num_kv_heads;
        let weights = e.convert(weights, v.elem);
        let weights = e.reshape(&weights, &[batch, groups, heads / groups * queries, keys]);
        let out = e.dot(&weights, v, (&[0, 1], &[0, 1]), (3, 2));
        e.reshape(&out, &[batch, heads, queries, self.spec.value_dim])
    }

    /// Scores of a tile, `[batch, heads, queries, keys]` in float32, with what a row does not see at [`UNSEEN`].
    fn scores(&self, e: &mut Emitter, q: &Val, k: &Val, queries: Span<'_>, keys: Span<'_>) -> Val {
        let spec = self.spec;
        let (batch, heads, groups) = (q.dims[0], spec.num_heads, spec.num_kv_heads);
        let dims = [batch, heads, queries.count, keys.count];
        let grouped = e.reshape(q, &[batch, groups, heads / groups * queries.count, spec.head_dim]);
        let scores = e.dot(&grouped, k, (&[0, 1], &[0, 1]), (3, 3));
        let mut scores = e.reshape(&scores, &dims);
        if let RelativeBias::Disentangled { keys: key_positions, queries: query_positions } = &self.bias {
            if let Some(positions) = key_positions {
                let term = self.position_products(e, q, positions, queries, keys);
                scores = e.binary("add", &scores, &term);
            }
            if let Some(positions) = query_positions {
                let term = self.position_products(e, k, positions, keys, queries);
                let term = e.transpose(&term, &[0, 1, 3, 2]);
                scores = e.binary("add", &scores, &term);
            }
        }
        let mut scores = e.binary_number("multiply", &scores, f64::from(spec.scale));
        if let Some(cap) = spec.soft_cap {
            let bent = e.binary_number("divide", &scores, f64::from(cap));
            let bent = e.unary("tanh", &bent);
            scores = e.binary_number("multiply", &bent, f64::from(cap));
        }
        let plane = [queries.count, keys.count];
        let position = |e: &mut Emitter, dim: usize, span: Span<'_>| {
            let inside = e.iota(dim, &plane);
            match span.first {
                Some(first) => {
                    let first = e.broadcast(first, &[], &plane);
                    e.binary("add", &inside, &first)
                }
                None => inside,
            }
        };
        let (i, j) = (position(e, 0, queries), position(e, 1, keys));
        match &self.bias {
            RelativeBias::Alibi(slopes) => {
                let distance = e.binary("subtract", &i, &j);
                let distance = e.unary("abs", &distance);
                let distance = e.convert(&distance, Elem::F32);
                let distance = e.broadcast(&distance, &[2, 3], &dims);
                let slopes = e.broadcast(slopes, &[1], &dims);
                let fall = e.binary("multiply", &distance, &slopes);
                scores = e.binary("subtract", &scores, &fall);
            }
            RelativeBias::Bucketed(by_position) => {
                let window = self.window(e, by_position, queries, keys);
                let width = window.dims[1];
                let rows = e.broadcast(&window, &[0, 2], &[heads, queries.count, width]);
                let bias = skew(e, &rows, queries.count, keys.count);
                let bias = e.broadcast(&bias, &[1, 2, 3], &dims);
                scores = e.binary("add", &scores, &bias);
            }
            RelativeBias::None | RelativeBias::Disentangled { .. } => {}
        }
        let key = e.broadcast(&j, &[2, 3], &dims);
        let end = e.broadcast(self.lengths, &[0], &dims);
        let mut seen = e.compare("LT", &key, &end);
        if spec.band.left.is_some() || spec.band.right.is_some() {
            let offset = e.binary("subtract", &j, &i);
            let sides = [spec.band.left.map(|n| ("GE", -i64::from(n))), spec.band.right.map(|n| ("LE", i64::from(n)))];
            for (direction, bound) in sides.into_iter().flatten() {
                // No position is farther than the length, so a bound beyond int32 bounds nothing.
                let bound = bound.clamp(-(self.length as i64), self.length as i64);
                let inside = e.compare_number(direction, &offset, bound);
                let inside = e.broadcast(&inside, &[2, 3], &dims);
                seen = e.binary("and", &seen, &inside);
            }
        }
        e.select_number(&seen, &scores, UNSEEN)
    }

    /// The `rows + columns - 1` relative positions of a tile out of all, along dimension 1.
    fn window(&self, e: &mut Emitter, all: &Val, rows: Span<'_>, columns: Span<'_>) -> Val {
        let width = rows.count + columns.count - 1;
        let mut start = e.splat((self.reach - rows.count) as f64, &[], Elem::I32);
        if let Some(first) = columns.first {
            start = e.binary("add", &start, first);
        }
        if let Some(first) = rows.first {
            start = e.binary("subtract", &start, first);
        }
        e.dynamic_slice_dim(all, 1, &start, width)
    }

    /// `x_r . positions[c - r]` for rows `r` and columns `c` of a tile: `[batch, heads, rows, columns]`.
    fn position_products(&self, e: &mut Emitter, x: &Val, positions: &Val, rows: Span<'_>, columns: Span<'_>) -> Val {
        let window = self.window(e, positions, rows, columns);
        let products = e.dot(x, &window, (&[1], &[0]), (3, 2));
        let products = e.transpose(&products, &[1, 0, 2, 3]);
        skew(e, &products, rows.count, columns.count)
    }
}

/// `x: [.., rows, rows + columns - 1]` by relative position becomes `[.., rows, columns]`:
/// `y[r, c] = x[r, c - r + rows - 1]`. Done by reading the rows one element shorter than they are written, which is a
/// copy, where a gather for each element would be slow on every accelerator.
fn skew(e: &mut Emitter, x: &Val, rows: usize, columns: usize) -> Val {
    let width = rows + columns - 1;
    let lead = x.dims.len() - 2;
    let mut dims = x.dims[..lead].to_vec();
    let padded = e.pad_end(x, lead + 1, 1);
    dims.push(rows * (width + 1));
    let flat = e.reshape(&padded, &dims);
    let flat = e.slice_dim(&flat, lead, 0, rows * width);
    dims.pop();
    dims.extend([rows, width]);
    let shifted = e.reshape(&flat, &dims);
    e.slice_dim(&shifted, lead + 1, rows - 1, columns)
}
