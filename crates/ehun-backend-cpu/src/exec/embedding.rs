//! Rows of embedding tables, widened where they lie in the mapped checkpoint: no table is ever copied.

use ehun_graph::{DType, TensorView};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Values converted at a time.
const STEP: usize = 64;

/// Whether a row is written or added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Put {
    Write,
    Add,
}

/// Reads row `row` of a table `[rows, out.len()]` into `out`, or adds it. The row must be in the table, which
/// `RaggedBatch::check` has seen to.
pub(crate) fn lookup(table: &TensorView<'_>, row: usize, out: &mut [f32], put: Put) {
    let bytes = &table.bytes[row * out.len() * table.dtype.size()..][..out.len() * table.dtype.size()];
    match table.dtype {
        DType::F32 => widen(bytes, out, put, |bytes, to| {
            for (x, b) in to.iter_mut().zip(bytes.chunks_exact(4)) {
                *x = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }),
        DType::F16 => widen(bytes, out, put, |bytes, to| {
            let mut halves = [f16::ZERO; STEP];
            for (x, b) in halves.iter_mut().zip(bytes.chunks_exact(2)) {
                *x = f16::from_le_bytes([b[0], b[1]]);
            }
            halves[..to.len()].convert_to_f32_slice(to);
        }),
        DType::Bf16 => widen(bytes, out, put, |bytes, to| {
            for (x, b) in to.iter_mut().zip(bytes.chunks_exact(2)) {
                *x = bf16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }),
    }
}

fn widen(bytes: &[u8], out: &mut [f32], put: Put, convert: impl Fn(&[u8], &mut [f32])) {
    let size = bytes.len() / out.len().max(1);
    for (bytes, out) in bytes.chunks(STEP * size.max(1)).zip(out.chunks_mut(STEP)) {
        match put {
            Put::Write => convert(bytes, out),
            Put::Add => {
                let mut values = [0.0; STEP];
                let values = &mut values[..out.len()];
                convert(bytes, values);
                out.iter_mut().zip(values.iter()).for_each(|(sum, x)| *sum += x);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_every_storage_type_are_read_and_added() {
        for width in [1, 5, 64, 100] {
            let values: Vec<f32> = (0..3 * width).map(|i| i as f32 / 8.0 - 3.0).collect();
            let of = |f: &dyn Fn(f32) -> Vec<u8>| values.iter().flat_map(|x| f(*x)).collect::<Vec<u8>>();
            let stored = [
                (DType::F32, of(&|x| x.to_le_bytes().to_vec())),
                (DType::F16, of(&|x| f16::from_f32(x).to_le_bytes().to_vec())),
                (DType::Bf16, of(&|x| bf16::from_f32(x).to_le_bytes().to_vec())),
            ];
            for (dtype, bytes) in stored {
                let shape = [3, width];
                let table = TensorView { dtype, shape: &shape, bytes: &bytes };
                let mut out = vec![1.0; width];
                lookup(&table, 2, &mut out, Put::Write);
                let want = table.to_f32()[2 * width..].to_vec();
                assert_eq!(out, want, "{dtype:?} {width}");
                lookup(&table, 0, &mut out, Put::Add);
                for (i, x) in out.iter().enumerate() {
                    assert_eq!(*x, want[i] + table.to_f32()[i], "{dtype:?} {width} {i}");
                }
            }
        }
    }
}
