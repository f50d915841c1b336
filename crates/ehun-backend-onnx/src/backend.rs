//! `onnx:cpu`, `onnx:cuda` and their kind: one backend on any execution provider.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use ehun_backend::{
    Attention, AttentionChoice, Backend, BackendError, BackendFactory, BackendInfo, Bucket, BucketChoice, Capabilities,
    Options, Placement, Precision, Refusal, Unavailable, buckets,
};
use ehun_graph::{AttentionSpec, Graph, WeightStore};
use ort_sys::OrtErrorCode;

use crate::executable::OnnxExecutable;
use crate::library::{self, VARIABLE};
use crate::lower::attention::Form;
use crate::lower::{Target, lower};
use crate::proto::{Model, Place, Tensor};
use crate::provider::{PRODUCTS, PROVIDERS, Provider};
use crate::runtime::{OrtError, Placed, Runtime, Session, SessionRequest};

/// Tensors of fewer bytes are written into the model; the others stay where they are.
const SMALL: usize = 1024;
/// Tokens of a bucket on the CPU, which gains nothing from more than its caches hold.
const CPU_TOKENS: usize = 4096;
/// Most elements of one value, 256 MiB in float32: bounds the memory of a bucket whatever the model is.
const MOST_ELEMENTS: usize = 1 << 26;

/// How this crate's backends are opened.
#[derive(Debug, Clone, Default)]
pub struct OnnxConfig {
    /// The library, used where the environment names none.
    pub library: Option<PathBuf>,
}

/// Opens the ONNX Runtime backends.
#[derive(Debug, Clone, Default)]
pub struct OnnxFactory {
    config: OnnxConfig,
}

impl OnnxFactory {
    /// A factory that uses `config`.
    pub fn new(config: OnnxConfig) -> Self {
        Self { config }
    }

    /// Opens the backend `name` (`onnx:cpu`, or `onnx` for short) as what it is.
    pub fn open_onnx(&self, name: &str) -> Result<OnnxBackend, Unavailable> {
        let unavailable = |reason: String| Unavailable::new(name, reason);
        let provider =
            Provider::of_backend(name).ok_or_else(|| unavailable(format!("there are {}", self.names().join(", "))))?;
        let path = library::find(self.config.library.as_deref()).map_err(|error| unavailable(error.to_string()))?;
        let runtime = Runtime::load(&path).map_err(|error| unavailable(error.to_string()))?;
        let providers = runtime.providers().map_err(|error| unavailable(error.to_string()))?;
        if !providers.iter().any(|known| known == provider.runtime_name) {
            return Err(unavailable(format!(
                "{} (ONNX Runtime {}) was built with {}; the package {} has {}: name its library in {VARIABLE}",
                runtime.path().display(),
                runtime.version(),
                providers.join(", "),
                provider.package,
                provider.runtime_name
            )));
        }
        let backend = OnnxBackend { runtime, provider };
        backend.probe().map_err(|reason| unavailable(format!("{}: {reason}", provider.runtime_name)))?;
        Ok(backend)
    }
}

impl BackendFactory for OnnxFactory {
    fn names(&self) -> Vec<String> {
        PROVIDERS.iter().map(Provider::backend).collect()
    }

    fn knows(&self, name: &str) -> bool {
        Provider::of_backend(name).is_some()
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Backend>, Unavailable> {
        Ok(Arc::new(self.open_onnx(name)?))
    }
}

/// An execution provider of a library.
#[derive(Debug)]
pub struct OnnxBackend {
    runtime: Arc<Runtime>,
    provider: &'static Provider,
}

impl OnnxBackend {
    fn device(&self) -> String {
        format!("{} of ONNX Runtime {}", self.provider.runtime_name, self.runtime.version())
    }

    /// Whether the provider takes a product of two matrices. A library may have a provider whose device is not here, and
    /// says so only when a session is made.
    fn probe(&self) -> Result<(), String> {
        if self.provider.is_cpu() {
            return Ok(());
        }
        let model = Model::probe();
        let session = self.session(&model, None).map_err(|error| error.to_string())?;
        let placed = session.placement().map_err(|error| error.to_string())?;
        not_taken(self.provider, &placed).map_or(Ok(()), Err)
    }

    fn session(&self, model: &Model<'_>, threads: Option<usize>) -> Result<Session, OrtError> {
        let file = |tensor: &Tensor<'_>| (tensor.bytes.len() >= SMALL).then(|| tensor.name.clone());
        let bytes = model.encode(&|tensor| file(tensor).map(|file| Place { file, offset: 0 }));
        let files: Vec<(String, &[u8])> =
            model.tensors.iter().filter_map(|tensor| Some((file(tensor)?, tensor.bytes.as_ref()))).collect();
        let threads = threads.or_else(|| std::thread::available_parallelism().ok().map(usize::from));
        let request = SessionRequest { model: &bytes, files: &files, provider: self.provider, threads };
        Session::new(&self.runtime, &request)
    }

    /// The shapes that batches are padded to. The model takes any shape: they are fixed so that a sequence's bits depend on
    /// a shape that the report names.
    fn buckets(&self, graph: &Graph, options: &Options) -> Result<Vec<Bucket>, Refusal> {
        let tokens =
            if self.provider.is_cpu() { options.max_batch_tokens.min(CPU_TOKENS) } else { options.max_batch_tokens };
        let longest = graph.max_positions().map_or(options.max_sequence, |most| most.min(options.max_sequence));
        let mut all = buckets::choose(&options.buckets, longest, tokens)?;
        if !matches!(options.buckets, BucketChoice::List(_)) {
            let widest = graph.nodes().iter().map(|node| node.width).max().unwrap_or(1);
            let heads = graph.attentions().map(|(_, spec)| spec.num_heads).max().unwrap_or(0);
            for bucket in &mut all {
                let row = widest.max(heads * bucket.length).max(1);
                bucket.batch = bucket.batch.min(MOST_ELEMENTS / (bucket.length * row)).max(1);
            }
            // A shape costs nothing to have, so a batch is padded to no more than twice its sequences.
            let halves = |bucket: &Bucket| {
                let length = bucket.length;
                std::iter::successors(Some(bucket.batch), |&batch| (batch > 1).then(|| batch.div_ceil(2)))
                    .map(move |batch| Bucket { batch, length })
            };
            all = all.iter().flat_map(halves).collect();
            all.sort_unstable_by_key(|bucket| (bucket.length, bucket.batch));
            all.dedup();
        }
        Ok(all)
    }

    fn refusals(&self, graph: &Graph, options: &Options) -> Vec<Refusal> {
        let mut refusals = Vec::new();
        if options.precision != Precision::F32 {
            let reason = format!("precision {} is not lowered to ONNX here; there is f32", options.precision);
            refusals.push(Refusal::new("options", reason));
        }
        refusals.extend(self.buckets(graph, options).err());
        match &options.attention {
            Attention::Auto => {}
            Attention::Named(name) => match Form::from_name(name) {
                Some(form) if !forms(self.provider).any(|known| known == form) => {
                    let reason = format!("{} has no kernel for attention `{form}`", self.provider.runtime_name);
                    refusals.push(Refusal::new("options", reason));
                }
                Some(form) => refusals.extend(
                    graph.attentions().filter_map(|(label, spec)| Some(Refusal::new(label, form.refusal(spec)?))),
                ),
                None => {
                    let reason = format!("attention `{name}` is unknown; there are native and fused");
                    refusals.push(Refusal::new("options", reason));
                }
            },
            Attention::File(path) => {
                let reason =
                    format!("{}: ONNX Runtime has no attention plug-ins; there are native and fused", path.display());
                refusals.push(Refusal::new("options", reason));
            }
        }
        refusals
    }

    /// As [`Backend::compile`], with the executable as what it is.
    pub fn compile_onnx(
        &self,
        graph: Arc<Graph>,
        weights: &WeightStore,
        options: &Options,
    ) -> Result<OnnxExecutable, BackendError> {
        let refusals = self.refusals(&graph, options);
        if !refusals.is_empty() {
            return Err(BackendError::Refused(refusals));
        }
        let buckets = self.buckets(&graph, options).map_err(|refusal| BackendError::Refused(vec![refusal]))?;
        let longest = buckets.iter().map(|bucket| bucket.length).max().unwrap_or(1);
        let form = |spec: &AttentionSpec| choose(self.provider, &options.attention, spec).0;
        let target = Target { longest, form: &form, pooling_starts: true };
        let model = lower(&graph, weights, target).map_err(|error| BackendError::Failed(error.to_string()))?;
        let on_device = |error: OrtError| error.on_device(&self.device());
        let session = self.session(&model, options.threads).map_err(|error| match error.code {
            // An operation that neither the provider nor the CPU has.
            OrtErrorCode::ORT_NOT_IMPLEMENTED => BackendError::Refused(vec![Refusal::new("graph", error.to_string())]),
            _ => on_device(error),
        })?;
        let placed = session.placement().map_err(on_device)?;
        if let Some(reason) = not_taken(self.provider, &placed) {
            return Err(BackendError::Refused(vec![Refusal::new("graph", reason)]));
        }
        let inputs = model.inputs.into_iter().map(|port| port.name).collect();
        drop(model.tensors);
        let mut kernels: Vec<Form> = graph.attentions().map(|(_, spec)| form(spec)).collect();
        kernels.sort_unstable();
        kernels.dedup();
        Ok(OnnxExecutable {
            backend: self.provider.backend(),
            placement: by_provider(&placed, self.provider),
            graph,
            session,
            buckets,
            inputs,
            kernels,
        })
    }
}

/// Why these nodes are not what was asked for: products that the provider did not take.
fn not_taken(provider: &Provider, placed: &[Placed]) -> Option<String> {
    let mut elsewhere: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let (mut all, mut here) = (0, 0);
    for node in placed.iter().filter(|node| PRODUCTS.contains(&node.operator.as_str())) {
        all += 1;
        if node.provider == provider.runtime_name {
            here += 1;
        } else {
            *elsewhere.entry((&node.operator, &node.provider)).or_default() += 1;
        }
    }
    if here == all {
        return None;
    }
    let list: Vec<String> =
        elsewhere.iter().map(|((operator, provider), count)| format!("{count} {operator} on {provider}")).collect();
    Some(format!(
        "{} took {here} of the {all} products of the model and would leave {}; nothing is moved silently",
        provider.runtime_name,
        list.join(", ")
    ))
}

/// The nodes by provider, the one that was asked for first.
fn by_provider(placed: &[Placed], first: &Provider) -> Vec<Placement> {
    let mut all: BTreeMap<&str, BTreeMap<String, usize>> = BTreeMap::new();
    for node in placed {
        *all.entry(&node.provider).or_default().entry(node.operator.clone()).or_default() += 1;
    }
    let mut list: Vec<Placement> =
        all.into_iter().map(|(provider, operators)| Placement { provider: provider.to_owned(), operators }).collect();
    list.sort_by_key(|placement| placement.provider != first.runtime_name);
    list
}

/// The forms that a provider has kernels for.
fn forms(provider: &Provider) -> impl Iterator<Item = Form> {
    let has_fused = provider.has_fused;
    Form::ALL.into_iter().filter(move |form| *form != Form::Fused || has_fused)
}

/// The form of an attention operation, and why.
fn choose(provider: &Provider, attention: &Attention, spec: &AttentionSpec) -> (Form, String) {
    if let Attention::Named(name) = attention {
        return (Form::from_name(name).unwrap_or(Form::Native), "asked for".to_owned());
    }
    if !provider.has_fused {
        return (Form::Native, format!("{} has no kernel for the fused operator", provider.runtime_name));
    }
    match Form::Fused.refusal(spec) {
        Some(reason) => (Form::Native, reason),
        None => (Form::Fused, format!("{} has a kernel for it", provider.runtime_name)),
    }
}

impl Backend for OnnxBackend {
    fn info(&self) -> BackendInfo {
        let providers = self.runtime.providers().unwrap_or_default();
        BackendInfo {
            name: self.provider.backend(),
            device: self.device(),
            version: format!(
                "ONNX Runtime {}, ehun-backend-onnx {}",
                self.runtime.version(),
                env!("CARGO_PKG_VERSION")
            ),
            attention_kernels: forms(self.provider).map(|form| form.name().to_owned()).collect(),
            precisions: vec![Precision::F32],
            static_shapes: true,
            notes: vec![
                format!("library {}", self.runtime.path().display()),
                format!("built with {}", providers.join(", ")),
            ],
        }
    }

    fn capabilities(&self, graph: &Graph, options: &Options) -> Capabilities {
        let attention = graph
            .attentions()
            .map(|(label, spec)| {
                let (form, reason) = choose(self.provider, &options.attention, spec);
                AttentionChoice { operation: label.to_owned(), kernel: form.name().to_owned(), reason }
            })
            .collect();
        Capabilities {
            backend: self.provider.backend(),
            device: self.device(),
            precision: options.precision,
            attention,
            weight_bytes: graph.weights().iter().map(|weight| weight.num_elements() as u64 * 4).sum(),
            batch_bytes: None,
            refusals: self.refusals(graph, options),
        }
    }

    fn compile(
        &self,
        graph: Arc<Graph>,
        weights: &WeightStore,
        options: &Options,
    ) -> Result<Box<dyn ehun_backend::Executable>, BackendError> {
        Ok(Box::new(self.compile_onnx(graph, weights, options)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(nodes: &[(&str, &str)]) -> Vec<Placed> {
        let one = |&(provider, operator): &(&str, &str)| Placed {
            provider: format!("{provider}ExecutionProvider"),
            operator: operator.to_owned(),
        };
        nodes.iter().map(one).collect()
    }

    #[test]
    fn a_product_on_the_cpu_is_no_model_on_a_provider() {
        let cuda = Provider::of_backend("onnx:cuda").unwrap();
        let beside = placed(&[("CUDA", "MatMul"), ("CUDA", "Softmax"), ("CPU", "Gather"), ("CPU", "Shape")]);
        assert_eq!(not_taken(cuda, &beside), None);
        let list = by_provider(&beside, cuda);
        assert_eq!(list[0].provider, "CUDAExecutionProvider");
        assert_eq!(list[1].operators, BTreeMap::from([("Gather".to_owned(), 1), ("Shape".to_owned(), 1)]));

        let left = placed(&[("CUDA", "MatMul"), ("CPU", "MatMul"), ("CPU", "MultiHeadAttention"), ("CPU", "MatMul")]);
        let reason = not_taken(cuda, &left).unwrap();
        let words =
            ["took 1 of the 4", "2 MatMul on CPUExecutionProvider", "1 MultiHeadAttention on CPUExecutionProvider"];
        assert!(words.iter().all(|word| reason.contains(word)), "{reason}");
        // A provider that took nothing at all.
        assert!(not_taken(cuda, &placed(&[("CPU", "FusedMatMul")])).unwrap().contains("took 0 of the 1"));
    }

    #[test]
    fn auto_takes_the_fused_operator_where_both_can() {
        let (cpu, qnn) = (Provider::of_backend("onnx").unwrap(), Provider::of_backend("onnx:qnn").unwrap());
        let full = AttentionSpec::full(2, 4);
        let grouped = AttentionSpec { num_kv_heads: 1, ..full.clone() };
        let form = |provider, spec| choose(provider, &Attention::Auto, spec).0;
        assert_eq!(
            [form(cpu, &full), form(cpu, &grouped), form(qnn, &full)],
            [Form::Fused, Form::Native, Form::Native]
        );
    }
}
