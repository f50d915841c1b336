"""Turns a quantised ONNX BERT (dynamic int8, or 4-bit blocks) into float32 safetensors with the names of Hugging Face.

    python dequantise_onnx.py MODEL.onnx SOURCE_DIR TARGET_DIR [ARCHITECTURE]

Copies the tokenizer and, where there is one, config.json from SOURCE_DIR; without one, writes it for ARCHITECTURE
(BertForSequenceClassification, BertModel) from the shapes of the tensors. Needs numpy, onnx and safetensors.
"""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from safetensors.numpy import save_file

TOKENIZER_FILES = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"]
HEAD_WIDTH = 32  # of the MiniLM models whose packages lack a config.json


def module_of(node_name):
    """`/bert/encoder/layer.0/output/dense/MatMul_quant` is the node of `bert.encoder.layer.0.output.dense`."""
    return re.sub(r"/(Gemm_)?(MatMul|Gemm)(_quant|_Q4)$", "", node_name.strip("/")).replace("/", ".")


def dequantise(tensors, name):
    """A tensor with one scale and one zero point."""
    quantised = tensors[f"{name}_quantized"].astype(np.float32)
    return (quantised - tensors[f"{name}_zero_point"].astype(np.float32)) * tensors[f"{name}_scale"]


def dequantise_blocks(tensors, node):
    """MatMulNBits: [N, blocks, bytes] of two values each, the low one first, and one scale for each block."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    if attributes["bits"] != 4 or len([i for i in node.input if i]) != 3:
        raise SystemExit(f"{node.name}: only 4 bits without zero points are understood")
    packed, scales = tensors[node.input[1]], tensors[node.input[2]]
    values = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:2], -1).astype(np.float32) - 8
    values = values * scales.reshape(*packed.shape[:2], 1)
    return values.reshape(packed.shape[0], -1)[:, : attributes["K"]]


def convert(model):
    tensors = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    out = {n: a for n, a in tensors.items() if a.dtype == np.float32 and re.search(r"\.(bias|weight)$", n)}
    for name in tensors:
        if name.endswith(".weight_quantized") and "embeddings" in name:
            out[name.removesuffix("_quantized")] = dequantise(tensors, name.removesuffix("_quantized"))
    for node in model.graph.node:
        if node.op_type == "MatMulInteger":
            weight = dequantise(tensors, node.input[1].removesuffix("_quantized")).T
        elif node.op_type == "MatMulNBits":
            weight = dequantise_blocks(tensors, node)
        else:
            continue
        out[f"{module_of(node.name)}.weight"] = weight
    return {name: np.ascontiguousarray(array, dtype=np.float32) for name, array in out.items()}


def config_of(tensors, architecture):
    prefix = "bert." if any(name.startswith("bert.") for name in tensors) else ""
    vocabulary, hidden = tensors[f"{prefix}embeddings.word_embeddings.weight"].shape
    layers = 1 + max(int(m.group(1)) for m in (re.search(r"layer\.(\d+)\.", name) for name in tensors) if m)
    config = {
        "architectures": [architecture],
        "model_type": "bert",
        "hidden_act": "gelu",
        "hidden_size": hidden,
        "intermediate_size": tensors[f"{prefix}encoder.layer.0.intermediate.dense.weight"].shape[0],
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // HEAD_WIDTH,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": tensors[f"{prefix}embeddings.position_embeddings.weight"].shape[0],
        "type_vocab_size": 2,
        "vocab_size": vocabulary,
        "pad_token_id": 0,
    }
    if "Classification" in architecture:
        config["id2label"] = {str(i): f"LABEL_{i}" for i in range(tensors["classifier.bias"].shape[0])}
    return config


def main(model, source, target, architecture="BertModel"):
    source, target = Path(source), Path(target)
    tensors = convert(onnx.load(model))
    target.mkdir(parents=True, exist_ok=True)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copy(source / name, target / name)
    if (source / "config.json").is_file():
        shutil.copy(source / "config.json", target / "config.json")
    else:
        (target / "config.json").write_text(json.dumps(config_of(tensors, architecture), indent=1))
    print(f"{target}: {len(tensors)} tensors")


if __name__ == "__main__":
    main(*sys.argv[1:])
