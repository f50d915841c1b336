//! Vectors: fewer dimensions, other number types, similarity.

use ehun_graph::Op;
use serde::{Deserialize, Serialize};

use crate::error::{ModelError, Result};
use crate::model::Model;

/// Cuts `vector` to its first `dimensions` and scales what is left to length 1 (Matryoshka embeddings, Kusupati et al. 2022).
/// Fails where there are not that many.
pub fn truncate(vector: &mut Vec<f32>, dimensions: usize) -> Result<()> {
    if dimensions == 0 || dimensions > vector.len() {
        return Err(ModelError::Request(format!(
            "the model has vectors of {}; from 1 to {} dimensions can be asked for, not {dimensions}",
            vector.len(),
            vector.len()
        )));
    }
    vector.truncate(dimensions);
    normalize(vector);
    Ok(())
}

/// Scales `vector` to length 1; a vector of zeros stays one.
pub fn normalize(vector: &mut [f32]) {
    let norm = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt().max(1e-12);
    for x in vector {
        *x = (f64::from(*x) / norm) as f32;
    }
}

impl Model {
    /// Whether the model's own last step scales its vectors to length 1.
    pub fn is_normalized(&self) -> bool {
        let graph = self.graph();
        graph.outputs().first().is_some_and(|output| matches!(graph.node(output.value).op, Op::L2Normalize { .. }))
    }
}

/// The number type of a vector's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// binary32, as the model gives them.
    #[default]
    Float,
    /// -128..127: `round(127 x)` of a vector of length 1.
    Int8,
    /// 0..255: [`Encoding::Int8`] and 128.
    Uint8,
    /// Bits, 1 where an element is above 0, eight to a byte, the first in the highest bit; the byte less 128.
    Binary,
    /// Bits, 1 where an element is above 0, eight to a byte, the first in the highest bit.
    Ubinary,
}

impl std::str::FromStr for Encoding {
    type Err = ModelError;

    fn from_str(name: &str) -> Result<Self> {
        Ok(match name {
            "float" | "f32" | "float32" => Self::Float,
            "int8" => Self::Int8,
            "uint8" => Self::Uint8,
            "binary" => Self::Binary,
            "ubinary" => Self::Ubinary,
            _ => {
                let known = "float, int8, uint8, binary and ubinary";
                return Err(ModelError::Request(format!("`{name}` is no encoding of vectors; there are {known}")));
            }
        })
    }
}

/// A vector in one of the number types.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Encoded {
    /// [`Encoding::Float`]
    Float(Vec<f32>),
    /// [`Encoding::Int8`] and [`Encoding::Binary`]
    Signed(Vec<i8>),
    /// [`Encoding::Uint8`] and [`Encoding::Ubinary`]
    Unsigned(Vec<u8>),
}

/// Writes `vector` in the number type `encoding`. The integers take the range -1..1 for granted, so vectors should have
/// length 1; what is beyond is clamped.
pub fn encode(vector: &[f32], encoding: Encoding) -> Encoded {
    let int8 = |x: &f32| (x * 127.0).round().clamp(-128.0, 127.0) as i8;
    match encoding {
        Encoding::Float => Encoded::Float(vector.to_vec()),
        Encoding::Int8 => Encoded::Signed(vector.iter().map(int8).collect()),
        Encoding::Uint8 => Encoded::Unsigned(vector.iter().map(|x| (i16::from(int8(x)) + 128) as u8).collect()),
        Encoding::Binary => Encoded::Signed(bits(vector).map(|byte| (i16::from(byte) - 128) as i8).collect()),
        Encoding::Ubinary => Encoded::Unsigned(bits(vector).collect()),
    }
}

fn bits(vector: &[f32]) -> impl Iterator<Item = u8> + '_ {
    vector
        .chunks(8)
        .map(|chunk| chunk.iter().enumerate().fold(0, |byte, (i, &x)| if x >= 0.0 { byte | 0x80 >> i } else { byte }))
}

/// A measure of how alike two vectors are; larger is more alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Similarity {
    /// Cosine of the angle.
    #[default]
    Cosine,
    /// Inner product.
    Dot,
    /// The Euclidean distance, negated.
    Euclidean,
    /// The sum of absolute differences, negated.
    Manhattan,
}

impl Similarity {
    /// The measure that sentence-transformers calls `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "cosine" => Self::Cosine,
            "dot" | "dot_product" => Self::Dot,
            "euclidean" => Self::Euclidean,
            "manhattan" => Self::Manhattan,
            _ => return None,
        })
    }

    /// How alike `a` and `b` are; they have the same length. Sums are in float64.
    pub fn of(self, a: &[f32], b: &[f32]) -> f32 {
        let pairs = || a.iter().zip(b).map(|(&x, &y)| (f64::from(x), f64::from(y)));
        let dot = || pairs().map(|(x, y)| x * y).sum::<f64>();
        let value = match self {
            Self::Cosine => {
                let norm = |v: &[f32]| v.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt().max(1e-12);
                dot() / (norm(a) * norm(b))
            }
            Self::Dot => dot(),
            Self::Euclidean => -pairs().map(|(x, y)| (x - y) * (x - y)).sum::<f64>().sqrt(),
            Self::Manhattan => -pairs().map(|(x, y)| (x - y).abs()).sum::<f64>(),
        };
        value as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_are_cut_before_the_length() {
        let mut vector = vec![3.0, 4.0, 12.0];
        truncate(&mut vector, 2).unwrap();
        assert_eq!(vector, [0.6, 0.8]);
        assert!(truncate(&mut vector, 0).is_err() && truncate(&mut vector, 3).is_err());
        let mut zeros = vec![0.0; 3];
        normalize(&mut zeros);
        assert_eq!(zeros, [0.0; 3]);
    }

    #[test]
    fn number_types() {
        let vector = [0.5, -0.5, 1.0, -1.0, 0.0, 0.1, -0.1, 0.2, 1.0];
        assert_eq!(encode(&vector[..4], Encoding::Int8), Encoded::Signed(vec![64, -64, 127, -127]));
        assert_eq!(encode(&vector[..4], Encoding::Uint8), Encoded::Unsigned(vec![192, 64, 255, 1]));
        assert_eq!(encode(&vector, Encoding::Ubinary), Encoded::Unsigned(vec![0b1010_1101, 0b1000_0000]));
        assert_eq!(encode(&vector, Encoding::Binary), Encoded::Signed(vec![45, 0]));
    }

    #[test]
    fn similarities() {
        let (a, b) = ([1.0, 0.0], [0.6, 0.8]);
        for (name, want) in [("cosine", 0.6), ("dot", 0.6), ("euclidean", -(0.8f32.sqrt())), ("manhattan", -1.2)] {
            let got = Similarity::from_name(name).unwrap().of(&a, &b);
            assert!((got - want).abs() < 1e-6, "{name}: {got}");
        }
    }
}
