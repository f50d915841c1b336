//! Memory of a run: linear in the length for `flash`, quadratic for `naive`, seen by an allocator that counts.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{Bert, bert, compile, run, sequences, weights};
use ehun_graph::{Graph, GraphBuilder, PoolingMode};

/// Bytes that are allocated, and the most that were since [`peak_of`] last looked.
static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: the system's allocator does the work; this only counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: as the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller's.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn model() -> Graph {
    let shape = Bert { layers: 1, positions: 8192, ..Bert::SMALL };
    let mut b = GraphBuilder::new();
    let x = bert(&mut b, &shape).expect("a graph");
    let pooled = b.pooling("pooling", x, PoolingMode::Mean).expect("pooling");
    b.output("embedding", pooled);
    b.finish().expect("a graph")
}

/// Most bytes that a first run of one sequence of `len` tokens holds, beside the executable, on threads of its own.
fn peak_of(graph: &Graph, attention: &str, len: usize) -> usize {
    let executable = compile(graph, &weights(graph, 1), 2, attention);
    let batch = sequences(&[len], Bert::SMALL.vocabulary, 1);
    // The scratch of a thread is kept for its next batch, so each measurement has threads that never ran one.
    std::thread::scope(|scope| {
        let run_once = || {
            let before = NOW.load(Ordering::Relaxed);
            PEAK.store(before, Ordering::Relaxed);
            run(&*executable, &batch);
            PEAK.load(Ordering::Relaxed) - before
        };
        scope.spawn(run_once).join().expect("a run")
    })
}

#[test]
fn flash_is_linear_and_naive_is_not() {
    let graph = model();
    let [short, middle, long] = [512, 2048, 8192].map(|len| peak_of(&graph, "flash", len));
    println!("flash: {short} bytes at 512 tokens, {middle} at 2048, {long} at 8192");
    let per_token = |more: usize, less: usize, tokens: usize| (more - less) as f64 / tokens as f64;
    let (first, second) = (per_token(middle, short, 1536), per_token(long, middle, 6144));
    assert!((0.7..1.3).contains(&(second / first)), "{first} bytes for each token more, then {second}");
    let naive = peak_of(&graph, "naive", 2048);
    println!("naive: {naive} bytes at 2048 tokens");
    assert!(naive > 2048 * 2048 * 4, "{naive} bytes cannot hold the scores");
    assert!(middle < 2048 * 2048 * 4 / 4, "{middle} bytes are as many as scores take");
}
