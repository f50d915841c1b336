"""Writes reference.json: attention and rotary embeddings as PyTorch and transformers compute them, in float64.

    python reference.py > reference.json          (torch 2.15, transformers 5.24)

The Rust interpreter is compared with these numbers. Whatever transformers has code for is computed by that code; bands,
grouped heads, soft cap and ALiBi are dense masks and biases in torch, which is how eager attention has them.
"""

import json
import math
import sys

import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.deberta_v2.modeling_deberta_v2 import DebertaV2Config, DisentangledSelfAttention
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as apply_interleaved
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as apply_half_split
from transformers.models.t5.modeling_t5 import T5Attention

torch.manual_seed(9)
cases = []


def numbers(x):
    return [float(f"{v:.17g}") for v in x.detach().double().flatten().tolist()]


def random(*shape):
    # float32 values, so that the Rust side reads the same numbers from its weights
    return torch.randn(*shape).float().double()


def attention(name, length, heads, kv_heads, head_dim, value_dim, left=None, right=None, soft_cap=None, slopes=None,
              bucketed=None):
    q, k, v = random(length, heads * head_dim), random(length, kv_heads * head_dim), random(length, kv_heads * value_dim)
    scale = float(torch.tensor(0.7 / math.sqrt(head_dim)).float())
    qh = q.view(length, heads, head_dim).transpose(0, 1)
    kh = k.view(length, kv_heads, head_dim).transpose(0, 1).repeat_interleave(heads // kv_heads, dim=0)
    vh = v.view(length, kv_heads, value_dim).transpose(0, 1).repeat_interleave(heads // kv_heads, dim=0)
    scores = qh @ kh.transpose(1, 2) * scale
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    relative = torch.arange(length)[None, :] - torch.arange(length)[:, None]  # key - query
    case = {"kind": "attention", "name": name, "length": length, "heads": heads, "kv_heads": kv_heads,
            "head_dim": head_dim, "value_dim": value_dim, "left": left, "right": right, "scale": scale,
            "soft_cap": soft_cap, "bias": "none"}
    if slopes is not None:
        scores = scores - torch.tensor(slopes).float().double()[:, None, None] * relative.abs()
        case |= {"bias": "alibi", "slopes": slopes}
    if bucketed is not None:
        buckets, distance, bidirectional = bucketed
        table = random(buckets, heads)
        rows = T5Attention._relative_position_bucket(relative, bidirectional, buckets, distance)
        scores = scores + table[rows].permute(2, 0, 1)
        case |= {"bias": "bucketed", "num_buckets": buckets, "max_distance": distance, "bidirectional": bidirectional,
                 "table": numbers(table)}
    hidden = torch.zeros(length, length, dtype=torch.bool)
    if left is not None:
        hidden |= relative < -left
    if right is not None:
        hidden |= relative > right
    scores = scores.masked_fill(hidden, -math.inf)
    out = (scores.softmax(-1) @ vh).transpose(0, 1).reshape(length, heads * value_dim)
    cases.append(case | {"q": numbers(q), "k": numbers(k), "v": numbers(v), "out": numbers(out)})


def disentangled(name, length, kinds, buckets, max_positions, heads=2, head_dim=4):
    width = heads * head_dim
    config = DebertaV2Config(hidden_size=width, num_attention_heads=heads, relative_attention=True, pos_att_type=kinds,
                             position_buckets=buckets, max_relative_positions=max_positions, share_att_key=True,
                             hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    module = DisentangledSelfAttention(config).double().eval()
    for parameter in module.parameters():
        parameter.data = random(*parameter.shape) * 0.5
    span = buckets if buckets > 0 else max_positions
    hidden, relative = random(1, length, width), random(2 * span, width)
    with torch.no_grad():
        out, _ = module(hidden, torch.ones(1, 1, length, length), rel_embeddings=relative)
        q, k, v = module.query_proj(hidden), module.key_proj(hidden), module.value_proj(hidden)
        key_positions, query_positions = module.key_proj(relative), module.query_proj(relative)
    scale = 1.0 / math.sqrt(head_dim * (1 + len(kinds)))
    cases.append({"kind": "attention", "name": name, "length": length, "heads": heads, "kv_heads": heads,
                  "head_dim": head_dim, "value_dim": head_dim, "left": None, "right": None, "scale": scale,
                  "soft_cap": None, "bias": "disentangled", "span": span, "buckets": max(buckets, 0),
                  "max_position": max_positions,
                  "key_positions": numbers(key_positions) if "c2p" in kinds else None,
                  "query_positions": numbers(query_positions) if "p2c" in kinds else None,
                  "q": numbers(q), "k": numbers(k), "v": numbers(v), "out": numbers(out)})


def rotary(name, length, head_dim, rotary_dim, theta, scaling, interleaved=False):
    heads = 2
    parameters = {"rope_type": "default", "rope_theta": theta} | scaling
    if rotary_dim != head_dim:
        parameters["partial_rotary_factor"] = rotary_dim / head_dim
    original = scaling.get("original_max_position_embeddings", 16)
    config = LlamaConfig(hidden_size=heads * head_dim, num_attention_heads=heads, head_dim=head_dim,
                         max_position_embeddings=original, rope_parameters=parameters)
    if parameters["rope_type"] == "default":
        frequencies, factor = 1.0 / theta ** (torch.arange(0, rotary_dim, 2).float() / rotary_dim), 1.0
    else:
        frequencies, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu", seq_len=length)
    angles = torch.arange(length).double()[:, None] * frequencies.double()[None, :]
    x = random(length, heads, head_dim)
    turned, rest = x[..., :rotary_dim], x[..., rotary_dim:]
    if interleaved:
        y = apply_interleaved(turned[None], (angles.sin() * factor)[None], (angles.cos() * factor)[None])[0]
    else:
        both = torch.cat([angles, angles], dim=-1)[None]
        y = apply_half_split(turned[None], turned[None], both.cos() * factor, both.sin() * factor, unsqueeze_dim=2)[0][0]
    out = torch.cat([y, rest], dim=-1)
    cases.append({"kind": "rotary", "name": name, "length": length, "heads": heads, "head_dim": head_dim,
                  "rotary_dim": rotary_dim, "theta": theta, "interleaved": interleaved, "scaling": scaling,
                  "attention_factor": factor, "x": numbers(x), "out": numbers(out)})


attention("full", 7, 2, 2, 4, 4)
attention("grouped heads, other value width", 6, 6, 2, 4, 3)
attention("one key/value head", 5, 4, 1, 2, 2)
attention("causal", 7, 2, 2, 4, 4, right=0)
attention("window of both sides", 9, 2, 1, 4, 4, left=2, right=1)
attention("window to the left only", 9, 1, 1, 4, 4, left=3, right=0)
attention("soft cap", 7, 2, 2, 4, 4, soft_cap=0.75)
attention("soft cap, causal window", 8, 2, 1, 4, 4, left=2, right=0, soft_cap=1.5)
attention("alibi", 8, 2, 2, 4, 4, slopes=[0.25, 0.0625])
attention("bucketed, both directions", 40, 2, 2, 2, 2, bucketed=(8, 20, True))
attention("bucketed, one direction", 24, 2, 2, 2, 2, bucketed=(8, 20, False))
attention("bucketed, soft cap and window", 12, 2, 2, 2, 2, left=7, right=5, soft_cap=1.0, bucketed=(8, 20, True))
disentangled("disentangled, both, log buckets", 24, ["c2p", "p2c"], 8, 32)
disentangled("disentangled, both, plain positions, clamped", 12, ["c2p", "p2c"], -1, 6)
disentangled("disentangled, c2p alone", 10, ["c2p"], 4, 16)
disentangled("disentangled, p2c alone", 10, ["p2c"], 4, 16)
rotary("half split", 5, 8, 8, 10000.0, {})
rotary("half split, part of the head", 5, 8, 4, 10000.0, {})
rotary("interleaved", 5, 8, 8, 1000.0, {}, interleaved=True)
rotary("interleaved, part of the head", 5, 8, 6, 1000.0, {}, interleaved=True)
rotary("linear", 5, 8, 8, 10000.0, {"rope_type": "linear", "factor": 4.0})
rotary("dynamic, below the original length", 9, 8, 8, 10000.0, {"rope_type": "dynamic", "factor": 2.0})
rotary("dynamic, beyond the original length", 40, 4, 4, 10000.0, {"rope_type": "dynamic", "factor": 2.0})
rotary("yarn", 6, 16, 16, 10000.0,
       {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0})
rotary("yarn, ramp not rounded", 6, 16, 16, 10000.0,
       {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 16.0, "beta_slow": 2.0,
        "truncate": False})
rotary("llama3", 6, 16, 16, 500000.0,
       {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128})

json.dump(cases, sys.stdout)
print()
