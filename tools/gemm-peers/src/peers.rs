//! The contestants: each loads the weights of a shape (packing them if it can) and multiplies.

use std::cell::RefCell;
use std::rc::Rc;

use ehun_backend_cpu::gemm::{self as ours, Epilogue, MatMut, MatRef, PackedWeights, WeightBits};
use ehun_backend_cpu::pool::ThreadPool;
use ehun_backend_cpu::simd::Isa;
use faer::linalg::matmul::matmul;
use rten_gemm::{GemmExecutor, GemmInputA, GemmInputB, GemmOptions, PackedBMatrix};
use rten_tensor::NdTensorView;

/// `out[m, n] = a[m, k] * w[n, k]^T`, all of them by rows.
pub struct Problem<'a> {
    pub a: &'a [f32],
    pub w: &'a [f32],
    pub out: &'a mut [f32],
    pub m: usize,
    pub k: usize,
    pub n: usize,
}

/// Takes the weights `[n, k]` of a shape: `(w, k, n)`.
type Load<'p> = Box<dyn FnMut(&[f32], usize, usize) + 'p>;

/// A product and its preparation.
pub struct Peer<'p> {
    pub name: &'static str,
    pub load: Load<'p>,
    pub multiply: Box<dyn FnMut(Problem) + 'p>,
}

/// All contestants; the first is the one the others are compared with.
pub fn all<'p>(isa: Isa, threads: usize, pool: &'p ThreadPool) -> Vec<Peer<'p>> {
    vec![
        packed("ours f32", isa, pool, WeightBits::F32),
        packed("ours f16", isa, pool, WeightBits::F16),
        rten(),
        Peer { name: "gemm", load: Box::new(|_, _, _| {}), multiply: Box::new(move |p| call_gemm(p, threads)) },
        Peer { name: "faer", load: Box::new(|_, _, _| {}), multiply: Box::new(move |p| call_faer(p, threads)) },
        Peer { name: "matrixmultiply", load: Box::new(|_, _, _| {}), multiply: Box::new(call_matrixmultiply) },
    ]
}

fn packed<'p>(name: &'static str, isa: Isa, pool: &'p ThreadPool, bits: WeightBits) -> Peer<'p> {
    let weights: Rc<RefCell<Option<PackedWeights>>> = Rc::default();
    let of_load = weights.clone();
    Peer {
        name,
        load: Box::new(move |w, k, n| {
            of_load.replace(Some(PackedWeights::pack_f32(isa, w, n, k, bits)));
        }),
        multiply: Box::new(move |p| {
            if let Some(w) = &*weights.borrow() {
                let out = MatMut::new(p.out, p.m, p.n, p.n);
                ours::gemm(pool, MatRef::new(p.a, p.m, p.k, p.k), w, &Epilogue::default(), out);
            }
        }),
    }
}

fn rten<'p>() -> Peer<'p> {
    let executor = Rc::new(GemmExecutor::<f32>::new());
    let weights: Rc<RefCell<Option<PackedBMatrix<f32>>>> = Rc::default();
    let (of_load, packer) = (weights.clone(), executor.clone());
    Peer {
        name: "rten-gemm",
        load: Box::new(move |w, k, n| {
            let w = NdTensorView::from_data([n, k], w);
            of_load.replace(Some(packer.prepack_b(w.transposed())));
        }),
        multiply: Box::new(move |p| {
            if let Some(w) = &*weights.borrow() {
                let a = NdTensorView::from_data([p.m, p.k], p.a);
                let done = executor.gemm(p.out, GemmInputA::Unpacked(a), GemmInputB::Packed(w), GemmOptions::default());
                assert!(done.is_ok(), "rten-gemm refused {} x {} x {}", p.m, p.k, p.n);
            }
        }),
    }
}

fn call_gemm(p: Problem, threads: usize) {
    let parallelism = if threads == 1 { gemm::Parallelism::None } else { gemm::Parallelism::Rayon(threads) };
    let (k, n) = (p.k as isize, p.n as isize);
    // SAFETY: the matrices have these sizes and strides.
    unsafe {
        gemm::gemm(
            p.m,
            p.n,
            p.k,
            p.out.as_mut_ptr(),
            1,
            n,
            false,
            p.a.as_ptr(),
            1,
            k,
            p.w.as_ptr(),
            k,
            1,
            0.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

fn call_faer(p: Problem, threads: usize) {
    let parallelism = if threads == 1 { faer::Par::Seq } else { faer::Par::rayon(threads) };
    let out = faer::MatMut::from_row_major_slice_mut(p.out, p.m, p.n);
    let a = faer::MatRef::from_row_major_slice(p.a, p.m, p.k);
    let w = faer::MatRef::from_row_major_slice(p.w, p.n, p.k);
    matmul(out, faer::Accum::Replace, a, w.transpose(), 1.0f32, parallelism);
}

fn call_matrixmultiply(p: Problem) {
    let (k, n) = (p.k as isize, p.n as isize);
    // SAFETY: the matrices have these sizes and strides.
    unsafe {
        matrixmultiply::sgemm(
            p.m,
            p.k,
            p.n,
            1.0,
            p.a.as_ptr(),
            k,
            1,
            p.w.as_ptr(),
            1,
            k,
            0.0,
            p.out.as_mut_ptr(),
            n,
            1,
        );
    }
}
