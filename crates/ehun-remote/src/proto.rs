//! The messages of `inference.GRPCInferenceService`, as the Open Inference Protocol's `grpc_predict_v2.proto` numbers them.
//!
//! Written by hand for the few messages there are: no protoc is needed to build, and client and server share them.

use std::collections::HashMap;

use prost::{Message, Oneof};

/// The service's name in paths: `/inference.GRPCInferenceService/ModelInfer`.
pub const SERVICE: &str = "inference.GRPCInferenceService";

/// A request without fields: ServerLive, ServerReady, ServerMetadata.
#[derive(Clone, PartialEq, Message)]
pub struct Empty {}

/// Answer of ServerLive, ServerReady and ModelReady.
#[derive(Clone, PartialEq, Message)]
pub struct Flag {
    /// Live or ready.
    #[prost(bool, tag = "1")]
    pub yes: bool,
}

/// Answer of ServerMetadata.
#[derive(Clone, PartialEq, Message)]
pub struct ServerMetadata {
    /// The server's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its version.
    #[prost(string, tag = "2")]
    pub version: String,
    /// Extensions of the protocol that it has.
    #[prost(string, repeated, tag = "3")]
    pub extensions: Vec<String>,
}

/// Request of ModelReady and ModelMetadata.
#[derive(Clone, PartialEq, Message)]
pub struct ModelName {
    /// The model.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its version; empty leaves it to the server.
    #[prost(string, tag = "2")]
    pub version: String,
}

/// Answer of ModelMetadata.
#[derive(Clone, PartialEq, Message)]
pub struct ModelMetadata {
    /// The model.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Versions that are there.
    #[prost(string, repeated, tag = "2")]
    pub versions: Vec<String>,
    /// What runs it.
    #[prost(string, tag = "3")]
    pub platform: String,
    /// Tensors that it takes.
    #[prost(message, repeated, tag = "4")]
    pub inputs: Vec<TensorMetadata>,
    /// Tensors that it gives.
    #[prost(message, repeated, tag = "5")]
    pub outputs: Vec<TensorMetadata>,
}

/// A tensor in [`ModelMetadata`].
#[derive(Clone, PartialEq, Message)]
pub struct TensorMetadata {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The type: BYTES, INT64, FP32.
    #[prost(string, tag = "2")]
    pub datatype: String,
    /// Dimensions; -1 is any.
    #[prost(int64, repeated, tag = "3")]
    pub shape: Vec<i64>,
}

/// A parameter of a request or tensor.
#[derive(Clone, PartialEq, Message)]
pub struct Parameter {
    /// The value.
    #[prost(oneof = "ParameterValue", tags = "1, 2, 3, 4, 5")]
    pub value: Option<ParameterValue>,
}

/// The value of a [`Parameter`].
#[derive(Clone, PartialEq, Oneof)]
pub enum ParameterValue {
    /// Yes or no.
    #[prost(bool, tag = "1")]
    Bool(bool),
    /// A whole number.
    #[prost(int64, tag = "2")]
    Int64(i64),
    /// A text.
    #[prost(string, tag = "3")]
    String(String),
    /// A number.
    #[prost(double, tag = "4")]
    Double(f64),
    /// A whole number from 0.
    #[prost(uint64, tag = "5")]
    Uint64(u64),
}

/// Elements of a tensor, row-major, in the field of its type.
#[derive(Clone, PartialEq, Message)]
pub struct Contents {
    /// BOOL.
    #[prost(bool, repeated, tag = "1")]
    pub bool_contents: Vec<bool>,
    /// INT8, INT16, INT32.
    #[prost(int32, repeated, tag = "2")]
    pub int_contents: Vec<i32>,
    /// INT64.
    #[prost(int64, repeated, tag = "3")]
    pub int64_contents: Vec<i64>,
    /// UINT8, UINT16, UINT32.
    #[prost(uint32, repeated, tag = "4")]
    pub uint_contents: Vec<u32>,
    /// UINT64.
    #[prost(uint64, repeated, tag = "5")]
    pub uint64_contents: Vec<u64>,
    /// FP32.
    #[prost(float, repeated, tag = "6")]
    pub fp32_contents: Vec<f32>,
    /// FP64.
    #[prost(double, repeated, tag = "7")]
    pub fp64_contents: Vec<f64>,
    /// BYTES.
    #[prost(bytes = "vec", repeated, tag = "8")]
    pub bytes_contents: Vec<Vec<u8>>,
}

/// A tensor of a request or an answer.
#[derive(Clone, PartialEq, Message)]
pub struct Tensor {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The type.
    #[prost(string, tag = "2")]
    pub datatype: String,
    /// Dimensions.
    #[prost(int64, repeated, tag = "3")]
    pub shape: Vec<i64>,
    /// Parameters.
    #[prost(map = "string, message", tag = "4")]
    pub parameters: HashMap<String, Parameter>,
    /// Elements, unless they are in the raw contents of the message.
    #[prost(message, optional, tag = "5")]
    pub contents: Option<Contents>,
}

/// An output that is asked for.
#[derive(Clone, PartialEq, Message)]
pub struct RequestedOutput {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Parameters.
    #[prost(map = "string, message", tag = "2")]
    pub parameters: HashMap<String, Parameter>,
}

/// Request of ModelInfer.
#[derive(Clone, PartialEq, Message)]
pub struct InferRequest {
    /// The model.
    #[prost(string, tag = "1")]
    pub model_name: String,
    /// Its version; empty leaves it to the server.
    #[prost(string, tag = "2")]
    pub model_version: String,
    /// Comes back in the answer.
    #[prost(string, tag = "3")]
    pub id: String,
    /// Parameters.
    #[prost(map = "string, message", tag = "4")]
    pub parameters: HashMap<String, Parameter>,
    /// Tensors.
    #[prost(message, repeated, tag = "5")]
    pub inputs: Vec<Tensor>,
    /// Outputs that are wanted; none is all.
    #[prost(message, repeated, tag = "6")]
    pub outputs: Vec<RequestedOutput>,
    /// Elements of each input, little-endian; a BYTES element is its length in four bytes and its bytes.
    #[prost(bytes = "vec", repeated, tag = "7")]
    pub raw_input_contents: Vec<Vec<u8>>,
}

/// Answer of ModelInfer.
#[derive(Clone, PartialEq, Message)]
pub struct InferResponse {
    /// The model.
    #[prost(string, tag = "1")]
    pub model_name: String,
    /// Its version.
    #[prost(string, tag = "2")]
    pub model_version: String,
    /// The request's.
    #[prost(string, tag = "3")]
    pub id: String,
    /// Parameters.
    #[prost(map = "string, message", tag = "4")]
    pub parameters: HashMap<String, Parameter>,
    /// Tensors.
    #[prost(message, repeated, tag = "5")]
    pub outputs: Vec<Tensor>,
    /// Elements of each output, little-endian.
    #[prost(bytes = "vec", repeated, tag = "6")]
    pub raw_output_contents: Vec<Vec<u8>>,
}

/// A message with gRPC's prefix: a byte that says it is not compressed, and the length.
pub fn framed(message: &impl Message) -> Vec<u8> {
    let mut out = vec![0; 5];
    out.extend(message.encode_to_vec());
    let length = u32::try_from(out.len() - 5).unwrap_or(u32::MAX);
    out[1..5].copy_from_slice(&length.to_be_bytes());
    out
}

/// The one message in `bytes`, or what is wrong with them.
pub fn unframed<M: Message + Default>(bytes: &[u8]) -> Result<M, String> {
    let Some((prefix, rest)) = bytes.split_first_chunk::<5>() else {
        return Err(format!("{} bytes are no gRPC message", bytes.len()));
    };
    if prefix[0] != 0 {
        return Err("compressed messages are not taken".into());
    }
    let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
    if rest.len() != length {
        return Err(format!("a message of {length} bytes has {}", rest.len()));
    }
    M::decode(rest).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_bytes_that_the_protocol_gives_it() {
        let request = InferRequest {
            model_name: "m".into(),
            inputs: vec![Tensor { name: "t".into(), datatype: "BYTES".into(), shape: vec![1], ..Tensor::default() }],
            raw_input_contents: vec![vec![1, 0, 0, 0, b'a']],
            ..InferRequest::default()
        };
        // Field 1 "m"; field 5 with fields 1 "t", 2 "BYTES", 3 packed [1]; field 7.
        let want = [
            &[0x0a, 1, b'm', 0x2a, 13, 0x0a, 1, b't', 0x12, 5][..],
            b"BYTES",
            &[0x1a, 1, 1, 0x3a, 5, 1, 0, 0, 0, b'a'],
        ]
        .concat();
        assert_eq!(request.encode_to_vec(), want);
        assert_eq!(unframed::<InferRequest>(&framed(&request)), Ok(request));
        for wrong in [&b""[..], &[1, 0, 0, 0, 0], &[0, 0, 0, 0, 2, 1], &[0, 0, 0, 0, 1, 0xff]] {
            assert!(unframed::<InferRequest>(wrong).is_err(), "{wrong:?}");
        }
    }
}
