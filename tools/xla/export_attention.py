"""Exports JAX's Pallas attention kernel for TPUs as StableHLO functions that `--attention FOLDER` takes.

    pip install jax==0.10.2 jaxlib==0.10.2
    python tools/xla/export_attention.py OUT --heads 12 --width 64 --tokens 4096 --lengths 128,512,2048

writes OUT/BATCHxLENGTH.mlir for each length with batch = tokens / length: queries, keys and values
[batch, heads, length, width] in bf16, lengths [batch] in int32. JAX is a tool of this script and of nothing else here.
No TPU is needed. What the kernel refuses is said on standard error, in its own words, and leaves no file.
"""

import argparse
import pathlib
import sys

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import flash_attention as flash


def attention(q, k, v, lengths):
    length = q.shape[2]
    # Keys from lengths[b] on have another segment than the queries that count; rows of padding see only padding.
    segment = (jnp.arange(length)[None, :] >= lengths[:, None]).astype(jnp.int32)
    return flash.flash_attention(
        q, k, v, segment_ids=flash.SegmentIds(q=segment, kv=segment), sm_scale=q.shape[3] ** -0.5
    )


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("out", type=pathlib.Path)
    arguments.add_argument("--heads", type=int, default=12)
    arguments.add_argument("--width", type=int, default=64)
    arguments.add_argument("--tokens", type=int, default=4096)
    arguments.add_argument("--lengths", default="64,128,256,512,1024,2048,4096,8192,16384")
    asked = arguments.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    for length in map(int, asked.lengths.split(",")):
        batch = max(1, asked.tokens // length)
        rows = jax.ShapeDtypeStruct((batch, asked.heads, length, asked.width), jnp.bfloat16)
        lengths = jax.ShapeDtypeStruct((batch,), jnp.int32)
        try:
            lowered = jax.jit(attention).trace(rows, rows, rows, lengths).lower(lowering_platforms=("tpu",))
        except Exception as error:  # the kernel's own checks raise ValueError, the lowering others
            print(f"{batch}x{length}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        (asked.out / f"{batch}x{length}.mlir").write_text(lowered.as_text())
        print(f"{batch}x{length}: written")


if __name__ == "__main__":
    main()
