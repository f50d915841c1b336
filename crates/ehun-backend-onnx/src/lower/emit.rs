//! A model under construction: nodes, constants and inputs, each made once.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::proto::{Attribute, Dim, Element, MICROSOFT, Model, Node, Port, Tensor};

/// A value of the model, by name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Val(String);

impl Val {
    /// An input that is left out.
    pub fn none() -> Self {
        Self(String::new())
    }
}

/// A model under construction. The same operation on the same values is one node, so that masks and tables are shared by
/// all layers.
#[derive(Default)]
pub struct Emitter<'a> {
    model: Model<'a>,
    known: HashMap<String, Val>,
    label: String,
}

impl<'a> Emitter<'a> {
    /// What comes is part of the operation `label`; nodes are named by it.
    pub fn at(&mut self, label: &str) {
        self.label = label.to_owned();
    }

    /// A node of the standard operators with one output.
    pub fn node(&mut self, operator: &'static str, inputs: &[&Val], attributes: &[(&'static str, Attribute)]) -> Val {
        self.node_of("", operator, inputs, attributes)
    }

    /// A node of ONNX Runtime's own operators.
    pub fn own_node(
        &mut self,
        operator: &'static str,
        inputs: &[&Val],
        attributes: &[(&'static str, Attribute)],
    ) -> Val {
        self.node_of(MICROSOFT, operator, inputs, attributes)
    }

    fn node_of(
        &mut self,
        domain: &'static str,
        operator: &'static str,
        inputs: &[&Val],
        attributes: &[(&'static str, Attribute)],
    ) -> Val {
        let inputs: Vec<String> = inputs.iter().map(|val| val.0.clone()).collect();
        let key = format!("{domain}.{operator}({}) {attributes:?}", inputs.join(","));
        if let Some(val) = self.known.get(&key) {
            return val.clone();
        }
        let name = format!("{}/{operator}_{}", self.label, self.model.nodes.len());
        let val = Val(format!("{name}.out"));
        let output = val.0.clone();
        self.model.nodes.push(Node { name, operator, domain, inputs, output, attributes: attributes.to_vec() });
        self.known.insert(key, val.clone());
        val
    }

    /// The constant `name`, made by `bytes` where it is not there yet.
    pub fn tensor(
        &mut self,
        name: &str,
        element: Element,
        dims: &[usize],
        bytes: impl FnOnce() -> Cow<'a, [u8]>,
    ) -> Val {
        let key = format!("tensor {name}");
        if let Some(val) = self.known.get(&key) {
            return val.clone();
        }
        self.model.tensors.push(Tensor { name: name.to_owned(), element, dims: dims.to_vec(), bytes: bytes() });
        let val = Val(name.to_owned());
        self.known.insert(key, val.clone());
        val
    }

    /// Constant float32 numbers.
    pub fn floats(&mut self, name: &str, dims: &[usize], values: &[f32]) -> Val {
        self.tensor(name, Element::F32, dims, || values.iter().flat_map(|x| x.to_le_bytes()).collect())
    }

    /// Constant integers, one-dimensional: shapes, axes, indices.
    pub fn ints(&mut self, values: &[i64]) -> Val {
        let list: Vec<String> = values.iter().map(i64::to_string).collect();
        let name = format!("ints_{}", list.join("_"));
        self.named_ints(&name, values)
    }

    /// Constant integers under a name of their own, for long lists.
    pub fn named_ints(&mut self, name: &str, values: &[i64]) -> Val {
        self.tensor(name, Element::I64, &[values.len()], || values.iter().flat_map(|x| x.to_le_bytes()).collect())
    }

    /// A constant integer without dimensions.
    pub fn int(&mut self, value: i64) -> Val {
        self.tensor(&format!("int_{value}"), Element::I64, &[], || value.to_le_bytes().to_vec().into())
    }

    /// A constant number without dimensions.
    pub fn float(&mut self, value: f32) -> Val {
        // Named by its bits: two numbers that print alike are two constants.
        self.floats(&format!("float_{:08x}", value.to_bits()), &[], &[value])
    }

    /// A constant float64 number without dimensions.
    pub fn double(&mut self, value: f64) -> Val {
        let name = format!("double_{:016x}", value.to_bits());
        self.tensor(&name, Element::F64, &[], || value.to_le_bytes().to_vec().into())
    }

    /// An input of the model.
    pub fn input(&mut self, name: &'static str, element: Element, dims: &[Dim]) -> Val {
        if !self.model.inputs.iter().any(|port| port.name == name) {
            self.model.inputs.push(Port { name: name.to_owned(), element, dims: dims.to_vec() });
        }
        Val(name.to_owned())
    }

    /// `value` is the output `name`.
    pub fn output(&mut self, name: &str, value: &Val, dims: &[Dim]) {
        // An output has a name of its own, also where two are the same value.
        let node = Node {
            name: format!("output/{name}"),
            operator: "Identity",
            domain: "",
            inputs: vec![value.0.clone()],
            output: name.to_owned(),
            attributes: Vec::new(),
        };
        self.model.nodes.push(node);
        self.model.outputs.push(Port { name: name.to_owned(), element: Element::F32, dims: dims.to_vec() });
    }

    /// The model.
    pub fn finish(self) -> Model<'a> {
        self.model
    }

    /// `operator` on one value.
    pub fn unary(&mut self, operator: &'static str, x: &Val) -> Val {
        self.node(operator, &[x], &[])
    }

    /// `operator` on two values, the smaller repeated as NumPy does.
    pub fn binary(&mut self, operator: &'static str, a: &Val, b: &Val) -> Val {
        self.node(operator, &[a, b], &[])
    }

    /// `operator` on a value and a number.
    pub fn with_number(&mut self, operator: &'static str, a: &Val, b: f32) -> Val {
        let b = self.float(b);
        self.binary(operator, a, &b)
    }

    /// `x` with another shape; 0 keeps a dimension, -1 takes what is left.
    pub fn reshape(&mut self, x: &Val, shape: &[i64]) -> Val {
        let shape = self.ints(shape);
        self.binary("Reshape", x, &shape)
    }

    /// `x` with its dimensions in another order.
    pub fn transpose(&mut self, x: &Val, order: &[i64]) -> Val {
        self.node("Transpose", &[x], &[("perm", Attribute::Ints(order.to_vec()))])
    }

    /// `x` with dimensions of one put in at `axes`.
    pub fn unsqueeze(&mut self, x: &Val, axes: &[i64]) -> Val {
        let axes = self.ints(axes);
        self.binary("Unsqueeze", x, &axes)
    }

    /// The elements `start..end` along `axis`.
    pub fn slice(&mut self, x: &Val, axis: i64, start: i64, end: i64) -> Val {
        let (start, end) = (self.ints(&[start]), self.ints(&[end]));
        self.slice_at(x, axis, &start, &end)
    }

    /// The elements `start..end` along `axis`, where the ends are computed, `[1]` each.
    pub fn slice_at(&mut self, x: &Val, axis: i64, start: &Val, end: &Val) -> Val {
        let axis = self.ints(&[axis]);
        self.node("Slice", &[x, start, end, &axis], &[])
    }

    /// Values side by side along `axis`.
    pub fn concat(&mut self, parts: &[&Val], axis: i64) -> Val {
        self.node("Concat", parts, &[("axis", Attribute::Int(axis))])
    }

    /// The entries of `x` at `indices` along `axis`.
    pub fn gather(&mut self, x: &Val, indices: &Val, axis: i64) -> Val {
        self.node("Gather", &[x, indices], &[("axis", Attribute::Int(axis))])
    }

    /// `x` in another type.
    pub fn cast(&mut self, x: &Val, element: Element) -> Val {
        self.node("Cast", &[x], &[("to", Attribute::Int(element as i64))])
    }

    /// `operator` over `axis`, which is kept with one element.
    pub fn reduce(&mut self, operator: &'static str, x: &Val, axis: i64) -> Val {
        let axes = self.ints(&[axis]);
        self.node(operator, &[x, &axes], &[("keepdims", Attribute::Int(1))])
    }

    /// `operator` over `axis`, which goes away.
    pub fn reduce_away(&mut self, operator: &'static str, x: &Val, axis: i64) -> Val {
        let axes = self.ints(&[axis]);
        self.node(operator, &[x, &axes], &[("keepdims", Attribute::Int(0))])
    }

    /// `yes` where `condition`, else the number `no`.
    pub fn select(&mut self, condition: &Val, yes: &Val, no: f32) -> Val {
        let no = self.float(no);
        self.node("Where", &[condition, yes, &no], &[])
    }

    /// Dimension `axis` of `x`, `[1]`.
    pub fn size(&mut self, x: &Val, axis: i64) -> Val {
        self.node("Shape", &[x], &[("start", Attribute::Int(axis)), ("end", Attribute::Int(axis + 1))])
    }
}
