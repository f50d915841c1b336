//! The execution providers by name: where ONNX Runtime lets a model run.

/// How a provider is added to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Append {
    /// It is always there.
    Nothing,
    /// Through CUDA's own options.
    Cuda,
    /// Through TensorRT's own options.
    TensorRt,
    /// By this name.
    Named(&'static str),
}

/// An execution provider.
#[derive(Debug, PartialEq, Eq)]
pub struct Provider {
    /// What comes after `onnx:`.
    pub name: &'static str,
    /// The runtime's own name for it.
    pub runtime_name: &'static str,
    /// How it is added.
    pub append: Append,
    /// Options. What is asked for is binary32, so what would round products further is switched off.
    pub options: &'static [(&'static str, &'static str)],
    /// Whether it has a kernel for the fused attention operator, by ONNX Runtime's documentation.
    pub has_fused: bool,
    /// A Python package whose library has it.
    pub package: &'static str,
}

/// All providers that can be asked for, the CPU first.
pub const PROVIDERS: [Provider; 7] = [
    Provider {
        name: "cpu",
        runtime_name: CPU,
        append: Append::Nothing,
        options: &[],
        has_fused: true,
        package: "onnxruntime",
    },
    Provider {
        name: "tensorrt",
        runtime_name: "TensorrtExecutionProvider",
        append: Append::TensorRt,
        options: &[("device_id", "0"), ("trt_fp16_enable", "0"), ("trt_int8_enable", "0")],
        has_fused: false,
        package: "onnxruntime-gpu",
    },
    Provider {
        name: "openvino",
        runtime_name: "OpenVINOExecutionProvider",
        append: Append::Named("OpenVINO"),
        options: &[("precision", "FP32")],
        has_fused: false,
        package: "onnxruntime-openvino",
    },
    Provider {
        name: "coreml",
        runtime_name: "CoreMLExecutionProvider",
        append: Append::Named("CoreML"),
        options: &[("ModelFormat", "MLProgram"), ("AllowLowPrecisionAccumulationOnGPU", "0")],
        has_fused: false,
        package: "onnxruntime",
    },
    Provider {
        name: "directml",
        runtime_name: "DmlExecutionProvider",
        append: Append::Named("DML"),
        options: &[],
        has_fused: true,
        package: "onnxruntime-directml",
    },
    Provider {
        name: "qnn",
        runtime_name: "QNNExecutionProvider",
        append: Append::Named("QNN"),
        options: &[("enable_htp_fp16_precision", "0")],
        has_fused: false,
        package: "onnxruntime-qnn",
    },
    Provider {
        name: "cuda",
        runtime_name: "CUDAExecutionProvider",
        append: Append::Cuda,
        options: &[("device_id", "0"), ("use_tf32", "0")],
        has_fused: true,
        package: "onnxruntime-gpu",
    },
];

/// The runtime's name for the provider that every library has.
pub const CPU: &str = "CPUExecutionProvider";

/// Operators that multiply matrices: the work of a model. A provider that was asked for must take all of these; shapes,
/// masks and lookups may be computed on the CPU beside it, which the report says.
pub const PRODUCTS: [&str; 6] = ["MatMul", "Gemm", "FusedMatMul", "FusedGemm", "MultiHeadAttention", "Attention"];

impl Provider {
    /// The provider of the backend `name`: `onnx:cuda`, or `onnx` for the CPU.
    pub fn of_backend(name: &str) -> Option<&'static Self> {
        if name == "onnx" {
            return Some(&PROVIDERS[0]);
        }
        let name = name.strip_prefix("onnx:")?;
        PROVIDERS.iter().find(|provider| provider.name == name)
    }

    /// The backend's name.
    pub fn backend(&self) -> String {
        format!("onnx:{}", self.name)
    }

    /// Whether it is the CPU's.
    pub fn is_cpu(&self) -> bool {
        self.append == Append::Nothing
    }
}
