//! The backend `cpu` and its factory.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ehun_backend::{
    AttentionChoice, Backend, BackendError, BackendFactory, BackendInfo, Capabilities, Executable, Options, Precision,
    Refusal, Unavailable,
};
use ehun_graph::{Graph, Op, WeightId, WeightStore};

use crate::exec::{
    AttentionKernel, Compile, CpuExecutable, Fusion, Guard, MAX_INT8_INPUTS, batch_steps, choose, kernel_names,
    schedule,
};
use crate::gemm::Products;
use crate::pool::ThreadPool;
use crate::simd::Isa;

/// The name of the backend.
pub const NAME: &str = "cpu";

/// Tokens of a sequence, where [`Capabilities::batch_bytes`] needs to know how many sequences a batch has.
const TOKENS_PER_SEQUENCE: usize = 16;

/// Opens the backend `cpu`.
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuFactory;

impl BackendFactory for CpuFactory {
    fn names(&self) -> Vec<String> {
        vec![NAME.to_owned()]
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Backend>, Unavailable> {
        open(name, Guard::Off)
    }
}

/// Opens the backend `cpu` with attention, native or of a plug-in, between pages that end the process when they are
/// touched, one sequence at a time. For conformance, in a process that may end.
#[cfg(unix)]
#[derive(Debug, Clone, Copy, Default)]
pub struct GuardedCpuFactory;

#[cfg(unix)]
impl BackendFactory for GuardedCpuFactory {
    fn names(&self) -> Vec<String> {
        vec![NAME.to_owned()]
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Backend>, Unavailable> {
        open(name, Guard::On)
    }
}

fn open(name: &str, guard: Guard) -> Result<Arc<dyn Backend>, Unavailable> {
    let isa = Isa::detect().map_err(|error| Unavailable::new(name, error.to_string()))?;
    let products = Products::detect().map_err(|error| Unavailable::new(name, error.to_string()))?;
    Ok(Arc::new(CpuBackend { guard, ..CpuBackend::new(isa).with_products(products) }))
}

/// The processor that this program runs on.
pub struct CpuBackend {
    isa: Isa,
    products: Products,
    model: String,
    guard: Guard,
    /// Pools in use, which executables of as many threads share.
    pools: Mutex<Vec<(usize, Weak<ThreadPool>)>>,
}

impl CpuBackend {
    /// The backend with the kernels of `isa`, and products of its own.
    #[must_use]
    pub fn new(isa: Isa) -> Self {
        Self { isa, products: Products::Own, model: processor(), guard: Guard::Off, pools: Mutex::new(Vec::new()) }
    }

    /// The same with others' products of f32: the bits of results are others then.
    #[must_use]
    pub fn with_products(self, products: Products) -> Self {
        Self { products, ..self }
    }

    fn device(&self, threads: usize) -> String {
        let plural = if threads == 1 { "" } else { "s" };
        let products = match self.products {
            Products::Own => String::new(),
            other => format!("products by {}, ", other.name()),
        };
        format!("{} ({}, {products}{threads} thread{plural})", self.model, self.isa.name())
    }

    fn pool(&self, threads: usize) -> Arc<ThreadPool> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|(_, pool)| pool.strong_count() > 0);
        let known = pools.iter().find(|(size, _)| *size == threads).and_then(|(_, pool)| pool.upgrade());
        known.unwrap_or_else(|| {
            let pool = Arc::new(ThreadPool::new(threads));
            pools.push((threads, Arc::downgrade(&pool)));
            pool
        })
    }

    fn kernel(&self, graph: &Graph, options: &Options) -> Result<Arc<dyn AttentionKernel>, Vec<Refusal>> {
        let mut refusals = Vec::new();
        match options.precision {
            Precision::F32 => {}
            Precision::Int8 if self.products != Products::Own => {
                let reason = format!(
                    "{} multiplies f32 alone (EHUN_GEMM); ask for precision f32, or for EHUN_GEMM=own",
                    self.products.name()
                );
                refusals.push(Refusal::new("options", reason));
            }
            Precision::Int8 => refusals.extend(wide_products(graph)),
            Precision::F16 | Precision::Bf16 => {
                let reason = format!(
                    "precision {} is not to be had: products are computed in f32 (weights stored as f16 or bf16 stay so in \
                     memory and are widened exactly) or int8; ask for one of these",
                    options.precision
                );
                refusals.push(Refusal::new("options", reason));
            }
        }
        if let Some(threads) = options.threads.filter(|threads| !(1..=MOST_THREADS).contains(threads)) {
            let reason = format!("{threads} threads; ask for 1 to {MOST_THREADS}");
            refusals.push(Refusal::new("options", reason));
        }
        match choose(self.isa, &options.attention, self.guard) {
            Ok(kernel) => {
                refusals.extend(graph.attentions().flat_map(|(operation, spec)| kernel.supports(operation, spec)));
                if refusals.is_empty() { Ok(kernel) } else { Err(refusals) }
            }
            Err(refusal) => {
                refusals.push(refusal);
                Err(refusals)
            }
        }
    }
}

/// More than any machine has cores for; each thread takes memory of its own.
const MOST_THREADS: usize = 1024;

fn threads(options: &Options) -> usize {
    options.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)).max(1)
}

/// Tokens of the largest batch: a single sequence of the largest length always fits.
fn max_tokens(options: &Options) -> usize {
    options.max_batch_tokens.max(options.max_sequence)
}

/// The weights of products.
fn matrices(graph: &Graph) -> impl Iterator<Item = (&str, WeightId)> {
    graph.nodes().iter().filter_map(|node| match &node.op {
        Op::Linear { weight, .. } => Some((node.label.as_str(), *weight)),
        _ => None,
    })
}

/// Products whose sums of bytes need not fit 32 bits.
fn wide_products(graph: &Graph) -> impl Iterator<Item = Refusal> {
    matrices(graph).map(|(operation, weight)| (operation, graph.weight(weight).width())).filter_map(|(operation, k)| {
        let reason = format!("{k} inputs of an int8 product are above {MAX_INT8_INPUTS}; ask for f32");
        (k > MAX_INT8_INPUTS).then(|| Refusal::new(operation, reason))
    })
}

/// Bytes of the weights, tables in the mapped checkpoint among them: as float32, the widest form (what is stored in 16
/// bits takes half), or one byte for each weight of an int8 product.
fn weight_bytes(graph: &Graph, precision: Precision) -> u64 {
    let all: usize = graph.weights().iter().map(|weight| weight.num_elements() * 4).sum();
    let of_products: BTreeSet<WeightId> = matrices(graph).map(|(_, weight)| weight).collect();
    let saved: usize = of_products.iter().map(|weight| graph.weight(*weight).num_elements() * 3).sum();
    (if precision == Precision::Int8 { all - saved } else { all }) as u64
}

/// The processor in its own words.
fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

impl Backend for CpuBackend {
    fn info(&self) -> BackendInfo {
        let threads = threads(&Options::default());
        let available: Vec<_> = Isa::available().iter().map(|isa| isa.name()).collect();
        BackendInfo {
            name: NAME.to_owned(),
            device: self.device(threads),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            attention_kernels: kernel_names(),
            precisions: vec![Precision::F32, Precision::Int8],
            static_shapes: false,
            notes: vec![
                format!("instruction set {}; this machine has {}", self.isa.name(), available.join(", ")),
                "EHUN_CPU=generic|avx2|avx512|avx512vnni|neon forces one".to_owned(),
                format!(
                    "products are computed by {}; EHUN_GEMM=own|matrixmultiply: our kernels, or a published crate as the reference",
                    self.products.name()
                ),
            ],
        }
    }

    fn capabilities(&self, graph: &Graph, options: &Options) -> Capabilities {
        let threads = threads(options);
        let tokens = max_tokens(options);
        let longest = graph.max_positions().map_or(tokens, |positions| positions.min(tokens));
        let arena = schedule(&batch_steps(graph, Fusion::On)).arena_bytes(tokens, tokens.div_ceil(TOKENS_PER_SEQUENCE));
        let (attention, scratch, refusals) = match self.kernel(graph, options) {
            Ok(kernel) => {
                let choice = |(operation, _): (&str, _)| AttentionChoice {
                    operation: operation.to_owned(),
                    kernel: kernel.describe(),
                    reason: kernel.reason(),
                };
                let scratch = graph.attentions().map(|(_, spec)| kernel.scratch_bytes(spec, longest) * threads).max();
                (graph.attentions().map(choice).collect(), scratch.unwrap_or(0), Vec::new())
            }
            Err(refusals) => (Vec::new(), 0, refusals),
        };
        Capabilities {
            backend: NAME.to_owned(),
            device: self.device(threads),
            precision: options.precision,
            attention,
            weight_bytes: weight_bytes(graph, options.precision),
            batch_bytes: Some((arena + scratch) as u64),
            refusals,
        }
    }

    fn compile(
        &self,
        graph: Arc<Graph>,
        weights: &WeightStore,
        options: &Options,
    ) -> Result<Box<dyn Executable>, BackendError> {
        let attention = self.kernel(&graph, options).map_err(BackendError::Refused)?;
        let pool = self.pool(threads(options));
        let device = self.device(pool.threads());
        let executable = CpuExecutable::new(Compile {
            graph,
            weights: weights.clone(),
            isa: self.isa,
            products: self.products,
            precision: options.precision,
            pool,
            device,
            attention,
            max_tokens: max_tokens(options),
            fusion: Fusion::On,
        })?;
        Ok(Box::new(executable))
    }
}
