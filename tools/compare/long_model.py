"""A model with random weights that takes long texts, for measuring time where no real model of the kind is at hand.

    python3 tools/compare/long_model.py TOKENIZER_DIRECTORY OUT [LAYERS WIDTH HEADS]

writes a NomicBERT (rotary positions, gated activation) of the size of a small encoder, 6 layers of 384 with 12 heads by
default, with the tokenizer of TOKENIZER_DIRECTORY (all-MiniLM-L6-v2's fits). What it answers means nothing; how long it takes does
not depend on that. Standard library alone.
"""

import array
import json
import random
import shutil
import struct
import sys
from pathlib import Path

source, out = Path(sys.argv[1]), Path(sys.argv[2])
layers, width, heads = (int(x) for x in sys.argv[3:6]) if len(sys.argv) > 5 else (6, 384, 12)
inner, vocabulary, positions = 4 * width, 30522, 8192
random.seed(0)

config = {
    "architectures": ["NomicBertModel"], "model_type": "nomic_bert", "activation_function": "swiglu", "n_embd": width,
    "n_head": heads, "n_layer": layers, "n_inner": inner, "n_positions": positions, "vocab_size": vocabulary,
    "type_vocab_size": 2, "layer_norm_epsilon": 1e-12, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_scaling_factor": None,
    "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "prenorm": False, "parallel_block": False,
    "causal": False, "use_rms_norm": False, "scale_attn_weights": True, "max_trained_positions": positions,
}
shapes = {
    "embeddings.word_embeddings.weight": [vocabulary, width],
    "embeddings.token_type_embeddings.weight": [2, width],
    "emb_ln.weight": [width], "emb_ln.bias": [width],
}
for layer in range(layers):
    at = f"encoder.layers.{layer}."
    shapes |= {
        at + "attn.Wqkv.weight": [3 * width, width], at + "attn.out_proj.weight": [width, width],
        at + "mlp.fc11.weight": [inner, width], at + "mlp.fc12.weight": [inner, width],
        at + "mlp.fc2.weight": [width, inner],
        at + "norm1.weight": [width], at + "norm1.bias": [width], at + "norm2.weight": [width], at + "norm2.bias": [width],
    }

out.mkdir(parents=True, exist_ok=True)
# A million deviates, taken from another place each time: nobody needs more to keep a kernel busy.
pool = array.array("f", (random.gauss(0, 0.05) for _ in range(1 << 20)))
header, offset = {}, 0
for name, shape in shapes.items():
    size = 4
    for dim in shape:
        size *= dim
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
    offset += size
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open(out / "model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text)
    for name, entry in header.items():
        count = (entry["data_offsets"][1] - entry["data_offsets"][0]) // 4
        if name.endswith("norm1.weight") or name.endswith("norm2.weight") or name == "emb_ln.weight":
            f.write(array.array("f", [1.0]) * count)
            continue
        start = random.randrange(1 << 20)
        values = pool[start:] + pool[:start]
        while count > 0:
            f.write(values[: min(count, len(values))].tobytes())
            count -= len(values)
(out / "config.json").write_text(json.dumps(config, indent=1))
for name in ["tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"]:
    if (source / name).exists():
        shutil.copy(source / name, out / name)
limits = out / "tokenizer_config.json"
if limits.exists():
    known = json.loads(limits.read_text()) | {"model_max_length": positions}
    limits.write_text(json.dumps(known, indent=1))
whole = json.loads((out / "tokenizer.json").read_text()) | {"truncation": None, "padding": None}
(out / "tokenizer.json").write_text(json.dumps(whole))
