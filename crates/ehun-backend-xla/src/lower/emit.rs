//! StableHLO text, operation by operation, each result with its type.

use std::fmt::Write as _;

/// Type of an element of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Elem {
    /// IEEE 754 binary32.
    F32,
    /// The upper half of binary32.
    Bf16,
    /// Signed 32-bit integer.
    I32,
    /// Truth value.
    I1,
}

impl Elem {
    fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::I32 => "i32",
            Self::I1 => "i1",
        }
    }
}

/// `tensor<2x3xf32>`.
pub fn type_text(dims: &[usize], elem: Elem) -> String {
    let mut text = String::from("tensor<");
    for dim in dims {
        let _ = write!(text, "{dim}x");
    }
    text + elem.name() + ">"
}

/// A value of the program with its type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Val {
    name: String,
    /// Dimensions.
    pub dims: Vec<usize>,
    /// Type of the elements.
    pub elem: Elem,
}

impl Val {
    /// A value that stands under `name` already: an argument of a function.
    pub fn named(name: impl Into<String>, dims: &[usize], elem: Elem) -> Self {
        Self { name: name.into(), dims: dims.to_vec(), elem }
    }

    /// Its name in the text.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its type in the text.
    pub fn ty(&self) -> String {
        type_text(&self.dims, self.elem)
    }
}

fn list<T: std::fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    let all: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    all.join(", ")
}

/// Writes the body of a function.
#[derive(Debug, Default)]
pub struct Emitter {
    body: String,
    next: usize,
}

impl Emitter {
    /// The text so far.
    pub fn into_body(self) -> String {
        self.body
    }

    fn fresh(&mut self) -> String {
        self.next += 1;
        format!("%v{}", self.next)
    }

    fn define(&mut self, text: &str, ty: &str, dims: &[usize], elem: Elem) -> Val {
        let name = self.fresh();
        let _ = writeln!(self.body, "    {name} = {text} : {ty}");
        Val { name, dims: dims.to_vec(), elem }
    }

    fn one_operand(&mut self, text: &str, x: &Val, dims: &[usize], elem: Elem) -> Val {
        let ty = format!("({}) -> {}", x.ty(), type_text(dims, elem));
        self.define(text, &ty, dims, elem)
    }

    /// The same number everywhere. Written as bits, so that nothing is lost to decimals.
    pub fn splat(&mut self, value: f64, dims: &[usize], elem: Elem) -> Val {
        let literal = match elem {
            Elem::F32 => format!("0x{:08X}", (value as f32).to_bits()),
            Elem::Bf16 => format!("0x{:04X}", half::bf16::from_f32(value as f32).to_bits()),
            Elem::I32 => format!("{}", value as i64),
            Elem::I1 => (value != 0.0).to_string(),
        };
        self.define(&format!("stablehlo.constant dense<{literal}>"), &type_text(dims, elem), dims, elem)
    }

    /// Integers, one for each element of a vector.
    pub fn integers(&mut self, values: &[i32]) -> Val {
        let mut bytes = String::with_capacity(values.len() * 8);
        for byte in values.iter().flat_map(|value| value.to_le_bytes()) {
            let _ = write!(bytes, "{byte:02X}");
        }
        // One element in hexadecimal would be read as a splat of its bytes; a plain number is never misread.
        let literal = if values.len() == 1 { values[0].to_string() } else { format!("\"0x{bytes}\"") };
        let dims = [values.len()];
        self.define(&format!("stablehlo.constant dense<{literal}>"), &type_text(&dims, Elem::I32), &dims, Elem::I32)
    }

    /// Float32 numbers, one for each element of a vector.
    pub fn floats(&mut self, values: &[f32]) -> Val {
        let literal = list(values.iter().map(|value| format!("0x{:08X}", value.to_bits())));
        let dims = [values.len()];
        self.define(&format!("stablehlo.constant dense<[{literal}]>"), &type_text(&dims, Elem::F32), &dims, Elem::F32)
    }

    /// The index along dimension `dim`.
    pub fn iota(&mut self, dim: usize, dims: &[usize]) -> Val {
        self.define(&format!("stablehlo.iota dim = {dim}"), &type_text(dims, Elem::I32), dims, Elem::I32)
    }

    /// Changes the type of the elements; nothing where they have it.
    pub fn convert(&mut self, x: &Val, elem: Elem) -> Val {
        if x.elem == elem {
            return x.clone();
        }
        self.one_operand(&format!("stablehlo.convert {}", x.name), x, &x.dims.clone(), elem)
    }

    /// An element-wise operation of one operand: `exponential`, `tanh`.
    pub fn unary(&mut self, op: &str, x: &Val) -> Val {
        let op = if op.contains('.') { op.to_owned() } else { format!("stablehlo.{op}") };
        let ty = if op.starts_with("chlo.") { format!("{0} -> {0}", x.ty()) } else { x.ty() };
        self.define(&format!("{op} {}", x.name), &ty, &x.dims.clone(), x.elem)
    }

    /// An element-wise operation of two operands of the same type: `add`.
    pub fn binary(&mut self, op: &str, a: &Val, b: &Val) -> Val {
        debug_assert_eq!((&a.dims, a.elem), (&b.dims, b.elem), "{op}");
        self.define(&format!("stablehlo.{op} {}, {}", a.name, b.name), &a.ty(), &a.dims.clone(), a.elem)
    }

    /// As `binary` with a number on the right.
    pub fn binary_number(&mut self, op: &str, a: &Val, b: f64) -> Val {
        let b = self.splat(b, &a.dims.clone(), a.elem);
        self.binary(op, a, &b)
    }

    /// Compares integers: `LT`, `GE`.
    pub fn compare(&mut self, direction: &str, a: &Val, b: &Val) -> Val {
        let ty = format!("({}, {}) -> {}", a.ty(), b.ty(), type_text(&a.dims, Elem::I1));
        let text = format!("stablehlo.compare {direction}, {}, {}, SIGNED", a.name, b.name);
        self.define(&text, &ty, &a.dims.clone(), Elem::I1)
    }

    /// Compares integers with a number.
    pub fn compare_number(&mut self, direction: &str, a: &Val, b: i64) -> Val {
        let b = self.splat(b as f64, &a.dims.clone(), a.elem);
        self.compare(direction, a, &b)
    }

    /// `a` where `which` holds, else `b`.
    pub fn select(&mut self, which: &Val, a: &Val, b: &Val) -> Val {
        debug_assert_eq!(which.dims, a.dims);
        let text = format!("stablehlo.select {}, {}, {}", which.name, a.name, b.name);
        self.define(&text, &format!("{}, {}", which.ty(), a.ty()), &a.dims.clone(), a.elem)
    }

    /// `a` where `which` holds, else a number.
    pub fn select_number(&mut self, which: &Val, a: &Val, b: f64) -> Val {
        let b = self.splat(b, &a.dims.clone(), a.elem);
        self.select(which, a, &b)
    }

    /// Repeats `x`, whose dimensions become `at` of the result.
    pub fn broadcast(&mut self, x: &Val, at: &[usize], dims: &[usize]) -> Val {
        if x.dims == dims {
            return x.clone();
        }
        self.one_operand(&format!("stablehlo.broadcast_in_dim {}, dims = [{}]", x.name, list(at)), x, dims, x.elem)
    }

    /// The same elements in other dimensions.
    pub fn reshape(&mut self, x: &Val, dims: &[usize]) -> Val {
        debug_assert_eq!(x.dims.iter().product::<usize>(), dims.iter().product::<usize>());
        if x.dims == dims {
            return x.clone();
        }
        self.one_operand(&format!("stablehlo.reshape {}", x.name), x, dims, x.elem)
    }

    /// Dimensions in another order.
    pub fn transpose(&mut self, x: &Val, order: &[usize]) -> Val {
        let dims: Vec<usize> = order.iter().map(|&dim| x.dims[dim]).collect();
        self.one_operand(&format!("stablehlo.transpose {}, dims = [{}]", x.name, list(order)), x, &dims, x.elem)
    }

    /// The part `ranges` of `x`.
    pub fn slice(&mut self, x: &Val, ranges: &[(usize, usize)]) -> Val {
        let dims: Vec<usize> = ranges.iter().map(|(start, end)| end - start).collect();
        if dims == x.dims {
            return x.clone();
        }
        let parts = list(ranges.iter().map(|(start, end)| format!("{start}:{end}")));
        self.one_operand(&format!("stablehlo.slice {} [{parts}]", x.name), x, &dims, x.elem)
    }

    /// `width` elements of dimension `dim` from `start`, all of the others.
    pub fn slice_dim(&mut self, x: &Val, dim: usize, start: usize, width: usize) -> Val {
        let ranges: Vec<(usize, usize)> =
            x.dims.iter().enumerate().map(|(i, &n)| if i == dim { (start, start + width) } else { (0, n) }).collect();
        self.slice(x, &ranges)
    }

    /// As `slice_dim` from a computed start, a scalar.
    pub fn dynamic_slice_dim(&mut self, x: &Val, dim: usize, start: &Val, width: usize) -> Val {
        if x.dims[dim] == width {
            return x.clone();
        }
        let zero = self.splat(0.0, &[], Elem::I32);
        let mut dims = x.dims.clone();
        dims[dim] = width;
        let starts = list((0..dims.len()).map(|i| if i == dim { start.name.clone() } else { zero.name.clone() }));
        let index_types = list(dims.iter().map(|_| "tensor<i32>"));
        let ty = format!("({}, {index_types}) -> {}", x.ty(), type_text(&dims, x.elem));
        let text = format!("stablehlo.dynamic_slice {}, {starts}, sizes = [{}]", x.name, list(&dims));
        self.define(&text, &ty, &dims, x.elem)
    }

    /// `x` with `part` written along dimension `dim` from a computed start.
    pub fn dynamic_update_dim(&mut self, x: &Val, part: &Val, dim: usize, start: &Val) -> Val {
        let zero = self.splat(0.0, &[], Elem::I32);
        let starts = list((0..x.dims.len()).map(|i| if i == dim { start.name.clone() } else { zero.name.clone() }));
        let index_types = list(x.dims.iter().map(|_| "tensor<i32>"));
        let ty = format!("({}, {}, {index_types}) -> {}", x.ty(), part.ty(), x.ty());
        let text = format!("stablehlo.dynamic_update_slice {}, {}, {starts}", x.name, part.name);
        self.define(&text, &ty, &x.dims.clone(), x.elem)
    }

    /// Values side by side along `dim`.
    pub fn concat(&mut self, parts: &[Val], dim: usize) -> Val {
        let Some((first, rest)) = parts.split_first() else { return self.splat(0.0, &[0], Elem::F32) };
        if rest.is_empty() {
            return first.clone();
        }
        let mut dims = first.dims.clone();
        dims[dim] = parts.iter().map(|part| part.dims[dim]).sum();
        let names = list(parts.iter().map(|part| part.name.as_str()));
        let types = list(parts.iter().map(Val::ty));
        let ty = format!("({types}) -> {}", type_text(&dims, first.elem));
        self.define(&format!("stablehlo.concatenate {names}, dim = {dim}"), &ty, &dims, first.elem)
    }

    /// `x` with `count` zeros after the end of dimension `dim`.
    pub fn pad_end(&mut self, x: &Val, dim: usize, count: usize) -> Val {
        if count == 0 {
            return x.clone();
        }
        let zero = self.splat(0.0, &[], x.elem);
        let mut dims = x.dims.clone();
        dims[dim] += count;
        let zeros = list(dims.iter().map(|_| 0));
        let high = list((0..dims.len()).map(|i| if i == dim { count } else { 0 }));
        let ty = format!("({}, {}) -> {}", x.ty(), zero.ty(), type_text(&dims, x.elem));
        let text =
            format!("stablehlo.pad {}, {}, low = [{zeros}], high = [{high}], interior = [{zeros}]", x.name, zero.name);
        self.define(&text, &ty, &dims, x.elem)
    }

    /// `add` or `maximum` over dimension `dim`, which goes away.
    pub fn reduce(&mut self, op: &str, x: &Val, dim: usize) -> Val {
        let start = if op == "maximum" { f64::NEG_INFINITY } else { 0.0 };
        let start = self.splat(start, &[], x.elem);
        let mut dims = x.dims.clone();
        dims.remove(dim);
        let ty = format!("({}, {}) -> {}", x.ty(), start.ty(), type_text(&dims, x.elem));
        let text = format!(
            "stablehlo.reduce({} init: {}) applies stablehlo.{op} across dimensions = [{dim}]",
            x.name, start.name
        );
        self.define(&text, &ty, &dims, x.elem)
    }

    /// Products summed over the `contract` dimensions; the result is float32 with the batch dimensions first. Float32
    /// operands are multiplied as such: without `HIGHEST` a TPU would round them to bfloat16.
    pub fn dot(&mut self, a: &Val, b: &Val, batch: (&[usize], &[usize]), contract: (usize, usize)) -> Val {
        debug_assert_eq!(a.elem, b.elem);
        let free = |x: &Val, batch: &[usize], contract: usize| -> Vec<usize> {
            (0..x.dims.len()).filter(|i| !batch.contains(i) && *i != contract).map(|i| x.dims[i]).collect()
        };
        let mut dims: Vec<usize> = batch.0.iter().map(|&i| a.dims[i]).collect();
        dims.extend(free(a, batch.0, contract.0));
        dims.extend(free(b, batch.1, contract.1));
        let batching = if batch.0.is_empty() {
            String::new()
        } else {
            format!("batching_dims = [{}] x [{}], ", list(batch.0), list(batch.1))
        };
        let precision = if a.elem == Elem::F32 { "HIGHEST, HIGHEST" } else { "DEFAULT, DEFAULT" };
        let text = format!(
            "stablehlo.dot_general {}, {}, {batching}contracting_dims = [{}] x [{}], precision = [{precision}]",
            a.name, b.name, contract.0, contract.1
        );
        let ty = format!("({}, {}) -> {}", a.ty(), b.ty(), type_text(&dims, Elem::F32));
        self.define(&text, &ty, &dims, Elem::F32)
    }

    /// Rows of `table: [entries, width]` by `index` of any dimensions: `[index dimensions, width]`.
    pub fn gather_rows(&mut self, table: &Val, index: &Val) -> Val {
        let width = table.dims[1];
        let mut dims = index.dims.clone();
        dims.push(width);
        let rank = index.dims.len();
        let name = self.fresh();
        let _ = writeln!(
            self.body,
            "    {name} = \"stablehlo.gather\"({}, {}) <{{dimension_numbers = #stablehlo.gather<offset_dims = [{rank}], \
             collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = {rank}>, indices_are_sorted = false, \
             slice_sizes = array<i64: 1, {width}>}}> : ({}, {}) -> {}",
            table.name,
            index.name,
            table.ty(),
            index.ty(),
            type_text(&dims, table.elem)
        );
        Val { name, dims, elem: table.elem }
    }

    /// Calls a function of the module.
    pub fn call(&mut self, function: &str, operands: &[Val], dims: &[usize], elem: Elem) -> Val {
        let names = list(operands.iter().map(|operand| operand.name.as_str()));
        let types = list(operands.iter().map(Val::ty));
        let ty = format!("({types}) -> {}", type_text(dims, elem));
        self.define(&format!("func.call @{function}({names})"), &ty, dims, elem)
    }

    /// Repeats `body` for `0..count`: it gets the counter, a scalar, and the carried values, and returns their successors.
    pub fn repeat(
        &mut self,
        count: usize,
        carried: &[Val],
        body: impl FnOnce(&mut Self, &Val, &[Val]) -> Vec<Val>,
    ) -> Vec<Val> {
        let start = self.splat(0.0, &[], Elem::I32);
        let mut all = vec![start];
        all.extend_from_slice(carried);
        let result = self.fresh();
        let inside: Vec<Val> = all.iter().map(|x| Val { name: self.fresh(), ..x.clone() }).collect();
        let pairs = list(inside.iter().zip(&all).map(|(i, x)| format!("{} = {}", i.name, x.name)));
        let types = list(all.iter().map(Val::ty));
        let _ = writeln!(self.body, "    {result}:{} = stablehlo.while({pairs}) : {types}", all.len());
        let _ = writeln!(self.body, "    cond {{");
        let more = self.compare_number("LT", &inside[0], count as i64);
        let _ = writeln!(self.body, "    stablehlo.return {} : {}", more.name, more.ty());
        let _ = writeln!(self.body, "    }} do {{");
        let mut next = vec![self.binary_number("add", &inside[0], 1.0)];
        next.extend(body(self, &inside[0], &inside[1..]));
        let names = list(next.iter().map(|x| x.name.as_str()));
        let _ = writeln!(self.body, "    stablehlo.return {names} : {types}");
        let _ = writeln!(self.body, "    }}");
        (1..all.len()).map(|i| Val { name: format!("{result}#{i}"), ..all[i].clone() }).collect()
    }
}
