"""Exports JAX's Pallas attention kernels for TPUs as StableHLO functions that `--attention FOLDER` takes.

    pip install jax==0.10.2 jaxlib==0.10.2
    python tools/xla/export_attention.py OUT --kernel flash --heads 12 --width 64 --tokens 4096 --lengths 128,512,2048
    python tools/xla/export_attention.py OUT --kernel splash --heads 16 --kv-heads 8 --width 128 --right 0   (causal)
    python tools/xla/export_attention.py OUT --kernel splash --left 64 --right 64                            (a window)

writes OUT/BATCHxLENGTH.NAME.mlir for each length with batch = tokens / length: queries, keys and values
[batch, heads, length, width] in bf16, lengths [batch] in int32. The first line of a file says what types do not: scale,
visible keys, soft cap and bias, as `ehun explain --attention-signature` prints it. The functions for a model's several
kinds of attention go into one folder. JAX is a tool of this script and of nothing else here. No TPU is needed. What a
kernel refuses is said on standard error, in its own words, and leaves no file.
"""

import argparse
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks


def segments(lengths, length):
    # Keys from lengths[b] on have another segment than the queries that count; rows of padding see only padding.
    return (jnp.arange(length)[None, :] >= lengths[:, None]).astype(jnp.int32)


def flash_kernel(asked, length):
    if asked.kv_heads != asked.heads or (asked.left, asked.right) not in [(None, None), (None, 0)] or asked.cap:
        raise ValueError("the flash kernel takes as many key heads as query heads, full or causal, without a soft cap")

    def attention(q, k, v, lengths):
        ids = segments(lengths, length)
        ids = flash.SegmentIds(q=ids, kv=ids)
        return flash.flash_attention(q, k, v, segment_ids=ids, causal=asked.right == 0, sm_scale=asked.scale)

    return attention


def splash_kernel(asked, length):
    window = (asked.left, asked.right)
    full = window == (None, None)
    mask = masks.FullMask((length, length)) if full else masks.LocalMask((length, length), window, offset=0)
    mask = masks.MultiHeadMask([mask] * asked.heads)
    kernel = splash.make_splash_mha(mask, head_shards=1, q_seq_shards=1, attn_logits_soft_cap=asked.cap)

    def attention(q, k, v, lengths):
        q = (q.astype(jnp.float32) * asked.scale).astype(q.dtype)
        one = lambda q, k, v, ids: kernel(q, k, v, segment_ids=splash.SegmentIds(q=ids, kv=ids))
        return jax.vmap(one)(q, k, v, segments(lengths, length))

    return attention


def shown(positions):
    return "all" if positions is None else str(positions)


def rule(asked):
    cap = "none" if asked.cap is None else str(np.float32(asked.cap))
    scale = str(np.float32(asked.scale))
    return f"scale {scale}, sees {shown(asked.left)} before and {shown(asked.right)} after, cap {cap}, bias none"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("out", type=pathlib.Path)
    arguments.add_argument("--kernel", choices=["flash", "splash"], default="flash")
    arguments.add_argument("--heads", type=int, default=12)
    arguments.add_argument("--kv-heads", type=int, help="default: as many as heads")
    arguments.add_argument("--width", type=int, default=64)
    arguments.add_argument("--scale", type=float, help="default: 1 / sqrt(width)")
    arguments.add_argument("--left", type=int, help="positions that a row sees before its own; default: all")
    arguments.add_argument("--right", type=int, help="positions that a row sees after its own; default: all")
    arguments.add_argument("--cap", type=float, help="soft cap of the scores; default: none")
    arguments.add_argument("--tokens", type=int, default=4096)
    arguments.add_argument("--lengths", default="64,128,256,512,1024,2048,4096,8192,16384")
    asked = arguments.parse_args()
    asked.kv_heads = asked.kv_heads or asked.heads
    asked.scale = asked.scale or asked.width**-0.5
    asked.out.mkdir(parents=True, exist_ok=True)
    full = (asked.left, asked.right) == (None, None)
    name = asked.kernel + ("" if full else f"-{shown(asked.left)}-{shown(asked.right)}")
    for length in map(int, asked.lengths.split(",")):
        batch = max(1, asked.tokens // length)
        rows = lambda heads: jax.ShapeDtypeStruct((batch, heads, length, asked.width), jnp.bfloat16)
        lengths = jax.ShapeDtypeStruct((batch,), jnp.int32)
        try:
            attention = (flash_kernel if asked.kernel == "flash" else splash_kernel)(asked, length)
            traced = jax.jit(attention).trace(rows(asked.heads), rows(asked.kv_heads), rows(asked.kv_heads), lengths)
            lowered = traced.lower(lowering_platforms=("tpu",))
        except Exception as error:  # a kernel's own checks raise ValueError, the lowering others
            print(f"{batch}x{length}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        text = f"// attention: {rule(asked)}\n{lowered.as_text()}"
        (asked.out / f"{batch}x{length}.{name}.mlir").write_text(text)
        print(f"{batch}x{length}: written")


if __name__ == "__main__":
    main()
