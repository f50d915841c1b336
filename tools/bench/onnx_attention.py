"""Time of two exported models in onnxruntime, alternating, by shape.

    ehun export --attention native --out native.onnx
    ehun export --attention fused --out fused.onnx
    python tools/bench/onnx_attention.py native.onnx fused.onnx [--threads 2] [--rounds 15] [--shapes 1x16,8x64,...]

Each round runs every model once on the same batch, in turn; printed are the median of each and of the quotient of a round, with
the quartiles of the quotient.
"""

import argparse
import statistics
import time

import numpy as np
import onnxruntime as ort


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--shapes", default="1x16,1x128,1x256,32x16,16x64,8x128,8x256")
    parser.add_argument("--filled", type=float, default=0.75, help="share of each sequence but the first that is no padding")
    flags = parser.parse_args()
    options = ort.SessionOptions()
    options.intra_op_num_threads = flags.threads
    options.inter_op_num_threads = 1
    sessions = [ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]) for path in flags.models]
    names = {value.name for value in sessions[0].get_inputs()}
    random = np.random.default_rng(0)
    print(f"onnxruntime {ort.__version__}, {flags.threads} threads, median of {flags.rounds} rounds, ms")
    print(f"{'batch x length':>14} {'first':>9} {'second':>9} {'second / first (quartiles)':>28}")
    for shape in flags.shapes.split(","):
        batch, length = map(int, shape.split("x"))
        mask = np.ones((batch, length), dtype=np.int64)
        mask[1:, max(1, int(length * flags.filled)) :] = 0
        every = {
            "input_ids": random.integers(1000, 20000, (batch, length)) * mask,
            "attention_mask": mask,
            "token_type_ids": np.zeros_like(mask),
        }
        feed = {name: rows for name, rows in every.items() if name in names}
        times: list[list[float]] = [[], []]
        for turn in range(flags.rounds + 2):
            for session, taken in zip(sessions, times):
                start = time.perf_counter()
                session.run(None, feed)
                # The first two rounds fill arenas and caches.
                if turn >= 2:
                    taken.append(1e3 * (time.perf_counter() - start))
        quotients = sorted(b / a for a, b in zip(*times))
        low, middle, high = statistics.quantiles(quotients, n=4)
        first, second = map(statistics.median, times)
        print(f"{shape:>14} {first:9.2f} {second:9.2f} {middle:12.3f} ({low:.3f} to {high:.3f})", flush=True)


if __name__ == "__main__":
    main()
