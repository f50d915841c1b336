"""What several versions of libtpu say to imported kernels: a line for each program and version.

    pip install jax==0.10.2 jaxlib==0.10.2
    python tools/xla/versions.py --ehun target/release/ehun --chips v5e:1x1,v6e:1x1 LIBTPU.so [LIBTPU.so ...]

Each program is exported by JAX and compiled by `ehun`'s own compiling process, so a compiler that ends its process is a
line and not the end. No TPU is needed; the processes set TPU_SKIP_MDS_QUERY, so nothing asks for cloud metadata.
"""

import argparse
import json
import os
import pathlib
import subprocess
import tempfile

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_ID": "0",
}


def native(q, k, v):
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=jnp.float32) * q.shape[-1] ** -0.5
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1).astype(v.dtype), v)


def flash_of(block=None):
    def kernel(q, k, v):
        sizes = None
        if block is not None:
            sizes = flash.BlockSizes(block_q=block, block_k_major=block, block_k=block, block_b=1)
        return flash.flash_attention(q, k, v, sm_scale=q.shape[-1] ** -0.5, block_sizes=sizes)

    return kernel


def splash_of(causal):
    def kernel(q, k, v):
        shape = (q.shape[2], q.shape[2])
        mask = masks.CausalMask(shape) if causal else masks.FullMask(shape)
        mask = masks.MultiHeadMask([mask] * q.shape[1])
        return jax.vmap(splash.make_splash_mha(mask, head_shards=1, q_seq_shards=1))(q, k, v)

    return kernel


# name, kernel, batch, heads, key heads, length, width, type
CASES = [
    ("native", native, 8, 12, 12, 512, 64, jnp.bfloat16),
    ("native, one long sequence", native, 1, 12, 12, 4096, 64, jnp.bfloat16),
    ("flash", flash_of(), 8, 12, 12, 512, 64, jnp.bfloat16),
    ("flash, length 64", flash_of(), 64, 12, 12, 64, 64, jnp.bfloat16),
    ("flash, length 200", flash_of(), 8, 12, 12, 200, 64, jnp.bfloat16),
    ("flash, heads of 192", flash_of(), 8, 12, 12, 512, 192, jnp.bfloat16),
    ("flash, f16", flash_of(), 8, 12, 12, 512, 64, jnp.float16),
    ("flash, blocks of 2048", flash_of(2048), 2, 12, 12, 2048, 64, jnp.bfloat16),
    ("splash", splash_of(False), 8, 12, 12, 512, 64, jnp.bfloat16),
    ("splash, causal, 8 key heads", splash_of(True), 8, 16, 8, 512, 128, jnp.bfloat16),
    ("splash, length 64", splash_of(False), 64, 12, 12, 64, 64, jnp.bfloat16),
]


def exported(case):
    _, kernel, batch, heads, kv_heads, length, width, dtype = case
    rows = lambda heads: jax.ShapeDtypeStruct((batch, heads, length, width), dtype)
    traced = jax.jit(kernel).trace(rows(heads), rows(kv_heads), rows(kv_heads))
    return traced.lower(lowering_platforms=("tpu",)).as_text()


def compiled(ehun, plugin, topology, text, seconds):
    with tempfile.TemporaryDirectory() as folder:
        at = lambda name: str(pathlib.Path(folder) / name)
        pathlib.Path(at("program")).write_text(text)
        request = {
            "platform": "tpu",
            "plugin": str(plugin),
            "program": at("program"),
            "target": {"Topology": topology},
            "answer": at("answer"),
            "executable": at("executable"),
        }
        pathlib.Path(at("request")).write_text(json.dumps(request))
        command = [ehun, "__xla-compile", at("request")]
        try:
            done = subprocess.run(command, env=os.environ | ENVIRONMENT, capture_output=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            return f"no answer in {seconds} s"
        if not pathlib.Path(at("answer")).exists():
            return f"the compiler's process ended with {done.returncode}"
        answer = json.loads(pathlib.Path(at("answer")).read_text())
        if "Ok" in answer:
            figures = answer["Ok"]["figures"]
            return f"compiles, {figures['temp_bytes'] / 2**20:.1f} MiB between"
        return answer["Err"]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--ehun", default="target/release/ehun")
    arguments.add_argument("--chips", default="v5e:1x1,v6e:1x1")
    arguments.add_argument("--seconds", type=int, default=600)
    arguments.add_argument("plugins", nargs="+", type=pathlib.Path)
    asked = arguments.parse_args()
    print("| program | chip | libtpu | outcome |\n| --- | --- | --- | --- |")
    for case in CASES:
        try:
            text = exported(case)
        except Exception as error:  # a kernel's own checks raise ValueError, the lowering others
            print(f"| {case[0]} | any | JAX refuses before | {type(error).__name__}: {error} |", flush=True)
            continue
        for topology in asked.chips.split(","):
            for plugin in asked.plugins:
                outcome = compiled(asked.ehun, plugin, topology, text, asked.seconds)
                outcome = " ".join(outcome.replace("|", " ").split())[:240]
                print(f"| {case[0]} | {topology} | {plugin.parent.parent.name} | {outcome} |", flush=True)


if __name__ == "__main__":
    main()
