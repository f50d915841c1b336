//! The few messages of the ONNX format (`onnx.proto3`, IR version 8) that a lowered graph needs, written in protobuf's wire
//! format. Only writing: nothing here parses what others made.

use std::borrow::Cow;

/// Version of the file format: the first that has the operator set below.
const IR_VERSION: u64 = 8;
/// Version of the standard operators.
pub const OPSET: u64 = 18;
/// Domain of ONNX Runtime's own operators, the fused attention among them.
pub const MICROSOFT: &str = "com.microsoft";

/// Type of the elements of a tensor, with its number in the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element {
    /// binary32
    F32 = 1,
    /// 32-bit integers
    I32 = 6,
    /// 64-bit integers
    I64 = 7,
    /// truth values
    Bool = 9,
    /// binary64
    F64 = 11,
}

/// A constant tensor of the model.
#[derive(Debug, Clone)]
pub struct Tensor<'a> {
    /// Name of its value.
    pub name: String,
    /// Type of the elements.
    pub element: Element,
    /// Shape.
    pub dims: Vec<usize>,
    /// The elements, little-endian, row-major.
    pub bytes: Cow<'a, [u8]>,
}

/// Where a tensor's bytes are kept instead of in the model: ONNX's external data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Name of the file, relative to the model.
    pub file: String,
    /// First byte.
    pub offset: usize,
}

/// An attribute of a node.
#[derive(Debug, Clone, PartialEq)]
pub enum Attribute {
    /// A number.
    Float(f32),
    /// An integer.
    Int(i64),
    /// Integers.
    Ints(Vec<i64>),
}

/// An operation of the model.
#[derive(Debug, Clone)]
pub struct Node {
    /// Where it stands in the graph: `encoder.layer.0.attention.self/MatMul_12`.
    pub name: String,
    /// The operator.
    pub operator: &'static str,
    /// Its domain; empty is the standard.
    pub domain: &'static str,
    /// Names of the values that it reads; empty is an input left out.
    pub inputs: Vec<String>,
    /// Name of the value that it makes.
    pub output: String,
    /// Attributes.
    pub attributes: Vec<(&'static str, Attribute)>,
}

/// A dimension of an input or output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dim {
    /// Fixed.
    Size(usize),
    /// Known when the model runs: `batch`, `length`.
    Name(&'static str),
}

/// An input or output of the model.
#[derive(Debug, Clone)]
pub struct Port {
    /// Name.
    pub name: String,
    /// Type of the elements.
    pub element: Element,
    /// Shape.
    pub dims: Vec<Dim>,
}

/// A whole model.
#[derive(Debug, Clone, Default)]
pub struct Model<'a> {
    /// Operations in the order of evaluation.
    pub nodes: Vec<Node>,
    /// Constants. One that is an input too is that input's default.
    pub tensors: Vec<Tensor<'a>>,
    /// Inputs.
    pub inputs: Vec<Port>,
    /// Outputs.
    pub outputs: Vec<Port>,
}

impl Model<'_> {
    /// A product of a `[1, 4]` input with a constant, to ask a provider whether it takes any.
    pub fn probe() -> Self {
        let port =
            |name: &str| Port { name: name.into(), element: Element::F32, dims: vec![Dim::Size(1), Dim::Size(4)] };
        Self {
            nodes: vec![Node {
                name: "product".into(),
                operator: "MatMul",
                domain: "",
                inputs: vec!["x".into(), "w".into()],
                output: "y".into(),
                attributes: Vec::new(),
            }],
            tensors: vec![Tensor {
                name: "w".into(),
                element: Element::F32,
                dims: vec![4, 4],
                bytes: vec![0; 64].into(),
            }],
            inputs: vec![port("x")],
            outputs: vec![port("y")],
        }
    }

    /// The model as a file has it. `place` says for each tensor where its bytes are, or `None` for inside.
    pub fn encode(&self, place: &dyn Fn(&Tensor<'_>) -> Option<Place>) -> Vec<u8> {
        let mut graph = Vec::new();
        for node in &self.nodes {
            message(&mut graph, 1, &encode_node(node));
        }
        text(&mut graph, 2, "ehun");
        for tensor in &self.tensors {
            message(&mut graph, 5, &encode_tensor(tensor, place(tensor)));
        }
        for port in &self.inputs {
            message(&mut graph, 11, &encode_port(port));
        }
        for port in &self.outputs {
            message(&mut graph, 12, &encode_port(port));
        }
        let mut model = Vec::new();
        number(&mut model, 1, IR_VERSION);
        text(&mut model, 2, "ehun");
        text(&mut model, 3, env!("CARGO_PKG_VERSION"));
        message(&mut model, 7, &graph);
        let mut domains = vec![("", OPSET)];
        if self.nodes.iter().any(|node| node.domain == MICROSOFT) {
            domains.push((MICROSOFT, 1));
        }
        for (domain, version) in domains {
            let mut opset = Vec::new();
            text(&mut opset, 1, domain);
            number(&mut opset, 2, version);
            message(&mut model, 8, &opset);
        }
        model
    }
}

fn encode_node(node: &Node) -> Vec<u8> {
    let mut out = Vec::new();
    for input in &node.inputs {
        text(&mut out, 1, input);
    }
    text(&mut out, 2, &node.output);
    text(&mut out, 3, &node.name);
    text(&mut out, 4, node.operator);
    for (name, attribute) in &node.attributes {
        let mut field = Vec::new();
        text(&mut field, 1, name);
        match attribute {
            Attribute::Float(x) => {
                varint(&mut field, 2 << 3 | 5);
                field.extend(x.to_le_bytes());
                number(&mut field, 20, 1);
            }
            Attribute::Int(x) => {
                number(&mut field, 3, *x as u64);
                number(&mut field, 20, 2);
            }
            Attribute::Ints(list) => {
                for x in list {
                    number(&mut field, 8, *x as u64);
                }
                number(&mut field, 20, 7);
            }
        }
        message(&mut out, 5, &field);
    }
    if !node.domain.is_empty() {
        text(&mut out, 7, node.domain);
    }
    out
}

fn encode_tensor(tensor: &Tensor<'_>, place: Option<Place>) -> Vec<u8> {
    let mut out = Vec::new();
    for &dim in &tensor.dims {
        number(&mut out, 1, dim as u64);
    }
    number(&mut out, 2, tensor.element as u64);
    text(&mut out, 8, &tensor.name);
    match place {
        None => message(&mut out, 9, &tensor.bytes),
        Some(place) => {
            let facts = [
                ("location", place.file),
                ("offset", place.offset.to_string()),
                ("length", tensor.bytes.len().to_string()),
            ];
            for (key, value) in facts {
                let mut entry = Vec::new();
                text(&mut entry, 1, key);
                text(&mut entry, 2, &value);
                message(&mut out, 13, &entry);
            }
            number(&mut out, 14, 1);
        }
    }
    out
}

fn encode_port(port: &Port) -> Vec<u8> {
    let mut shape = Vec::new();
    for dim in &port.dims {
        let mut field = Vec::new();
        match dim {
            Dim::Size(size) => number(&mut field, 1, *size as u64),
            Dim::Name(name) => text(&mut field, 2, name),
        }
        message(&mut shape, 1, &field);
    }
    let mut tensor = Vec::new();
    number(&mut tensor, 1, port.element as u64);
    message(&mut tensor, 2, &shape);
    let mut kind = Vec::new();
    message(&mut kind, 1, &tensor);
    let mut out = Vec::new();
    text(&mut out, 1, &port.name);
    message(&mut out, 2, &kind);
    out
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn number(out: &mut Vec<u8>, field: u64, value: u64) {
    varint(out, field << 3);
    varint(out, value);
}

fn message(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    varint(out, field << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn text(out: &mut Vec<u8>, field: u64, value: &str) {
    message(out, field, value.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_format() {
        // From the Python package onnx 1.23.2: TensorProto(dims=[2], data_type=INT64, name="n", raw_data=...).
        let tensor = Tensor {
            name: "n".into(),
            element: Element::I64,
            dims: vec![2],
            bytes: [300i64, -1].iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>().into(),
        };
        let mut want = vec![0x08, 2, 0x10, 7, 0x42, 1, b'n', 0x4a, 16];
        want.extend([0x2c, 1, 0, 0, 0, 0, 0, 0]);
        want.extend([0xff; 8]);
        assert_eq!(encode_tensor(&tensor, None), want);
        // A negative attribute is ten bytes long, and a node of another domain says so.
        let node = Node {
            name: String::new(),
            operator: "X",
            domain: MICROSOFT,
            inputs: vec![],
            output: "y".into(),
            attributes: vec![("axis", Attribute::Int(-1))],
        };
        let mut want = vec![0x12, 1, b'y', 0x1a, 0, 0x22, 1, b'X', 0x2a, 20, 0x0a, 4];
        want.extend(b"axis\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\xa0\x01\x02");
        want.extend([0x3a, 13]);
        want.extend(MICROSOFT.as_bytes());
        assert_eq!(encode_node(&node), want);
    }
}
