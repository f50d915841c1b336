"""Ehun beside the engines that people use, on the same texts, in one run.

    python tools/bench/peers.py --ehun PROGRAM --model DIRECTORY [--half DIRECTORY] [--rounds 7] [--texts 1000] [--json FILE]

Each contestant is a process of its own that loads its model, warms up and then answers `run` with the seconds that it
needed for all texts (tokenisation included) and `one` with the seconds for one short text. The driver lets them take
turns, so that a machine whose speed drifts slows all alike, and prints for each the median of the ratios pair by pair.
`--ehun` is a program that speaks the same protocol: `cargo build --release -p ehun-engine --example contestant`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

BATCH = 32
SHORT = "how do slender wings behave at low speed near the ground"


def contestant_tokenizer(model):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{model}/tokenizer.json")
    limit = json.loads(Path(model, "sentence_bert_config.json").read_text())["max_seq_length"]
    tokenizer.enable_truncation(limit)
    tokenizer.enable_padding()
    return tokenizer


def onnx_file(model):
    """The model exported once by torch: last_hidden_state from ids, mask and, where the model has them, types."""
    import torch
    from transformers import AutoModel

    path = Path(model) / "exported.onnx"
    if path.exists():
        return path
    network = AutoModel.from_pretrained(model, attn_implementation="eager").eval()
    has_types = getattr(network.config, "type_vocab_size", 0) > 1
    names = ["input_ids", "attention_mask"] + (["token_type_ids"] if has_types else [])
    example = tuple(torch.ones(2, 8, dtype=torch.int64) for _ in names)

    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network

        def forward(self, *inputs):
            return self.network(**dict(zip(names, inputs))).last_hidden_state

    axes = {name: {0: "batch", 1: "length"} for name in names + ["last_hidden_state"]}
    torch.onnx.export(Plain(), example, str(path), input_names=names, output_names=["last_hidden_state"],
                      dynamic_axes=axes, opset_version=17, dynamo=False)
    return path


def sorted_batches(texts, encode):
    """Batches of texts of similar length; `encode` gets texts and returns pooled, normalised rows."""
    import numpy as np

    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    out = [None] * len(texts)
    for start in range(0, len(order), BATCH):
        part = order[start : start + BATCH]
        for i, row in zip(part, encode([texts[i] for i in part])):
            out[i] = row
    return np.stack(out)


def pooled(hidden, mask):
    import numpy as np

    mask = mask[..., None].astype(np.float32)
    mean = (hidden * mask).sum(1) / mask.sum(1)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def onnxruntime(model, threads, quantised=False):
    import numpy as np
    import onnxruntime as ort

    path = onnx_file(model)
    if quantised:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        small = Path(model) / "exported.int8.onnx"
        if not small.exists():
            quantize_dynamic(str(path), str(small), weight_type=QuantType.QInt8)
        path = small
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    tokenizer = contestant_tokenizer(model)
    wanted = [i.name for i in session.get_inputs()]

    def encode(texts):
        encoded = tokenizer.encode_batch(texts)
        ids = np.array([e.ids for e in encoded], dtype=np.int64)
        mask = np.array([e.attention_mask for e in encoded], dtype=np.int64)
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        return pooled(session.run(None, {name: feeds[name] for name in wanted})[0], mask)

    return lambda texts: sorted_batches(texts, encode)


def openvino(model, threads):
    import numpy as np
    import openvino as ov

    core = ov.Core()
    compiled = core.compile_model(core.read_model(onnx_file(model)), "CPU", {
        "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"})
    request = compiled.create_infer_request()
    tokenizer = contestant_tokenizer(model)
    wanted = [i.get_any_name() for i in compiled.inputs]

    def encode(texts):
        encoded = tokenizer.encode_batch(texts)
        ids = np.array([e.ids for e in encoded], dtype=np.int64)
        mask = np.array([e.attention_mask for e in encoded], dtype=np.int64)
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        return pooled(request.infer({name: feeds[name] for name in wanted})[compiled.output(0)], mask)

    return lambda texts: sorted_batches(texts, encode)


def sentence_transformers(model, threads):
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    loaded = SentenceTransformer(model, device="cpu")
    return lambda texts: loaded.encode(texts, batch_size=BATCH)


CONTESTANTS = {
    "onnxruntime": onnxruntime,
    "onnxruntime-int8": lambda model, threads: onnxruntime(model, threads, quantised=True),
    "openvino": openvino,
    "sentence-transformers": sentence_transformers,
}


def serve(name, model, threads, file):
    texts = json.loads(Path(file).read_text())
    encode = CONTESTANTS[name](model, threads)
    encode(texts[:64])
    print("ready", flush=True)
    for line in sys.stdin:
        work = [SHORT] if line.strip() == "one" else texts
        start = time.perf_counter()
        encode(work)
        print(time.perf_counter() - start, flush=True)


class Process:
    def __init__(self, command):
        # Some machines set these for old builds of OpenBLAS; they slow a current one.
        env = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
        self.pipe = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        answer = self.pipe.stdout.readline().strip()
        if answer != "ready":
            raise SystemExit(f"{command}: said {answer!r} where it should have said ready")

    def ask(self, what):
        self.pipe.stdin.write(what + "\n")
        self.pipe.stdin.flush()
        return float(self.pipe.stdout.readline())

    def close(self):
        self.pipe.stdin.close()
        self.pipe.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ehun", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--half", help="the same model with float16 weights, as the program embeds it")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--peers", default="onnxruntime,onnxruntime-int8,openvino,sentence-transformers")
    parser.add_argument("--json")
    parser.add_argument("--markdown", help="the file whose section for this model is written anew")
    arguments = parser.parse_args()

    import corpus

    texts = corpus.paragraphs(arguments.texts)
    file = Path(arguments.model) / "bench-texts.json"
    file.write_text(json.dumps(texts))
    common = ["--model", arguments.model, "--threads", str(arguments.threads), "--texts", str(file)]
    commands = {
        "ehun": [arguments.ehun, *common],
        "ehun-int8": [arguments.ehun, *common, "--precision", "int8"],
    }
    if arguments.half:
        commands["ehun-f16-weights"] = [arguments.ehun, *common, "--model", arguments.half]
    if arguments.threads > 1:
        commands["ehun-1-thread"] = [arguments.ehun, *common, "--threads", "1"]
    for name in filter(None, arguments.peers.split(",")):
        commands[name] = [sys.executable, __file__, "serve", name, arguments.model, str(arguments.threads), str(file)]
    running = {name: Process(command) for name, command in commands.items()}
    bulk = {name: [] for name in running}
    single = {name: [] for name in running}
    for _ in range(arguments.rounds):
        for name, process in running.items():
            bulk[name].append(process.ask("run"))
    # A stream of single texts to each in turn: the first ones of a turn find the caches full of another's weights.
    for _ in range(arguments.rounds):
        for name, process in running.items():
            single[name] += [process.ask("one") for _ in range(40)][10:]
    for process in running.values():
        process.close()

    def row(name, times, base):
        ratios = [t / b for t, b in zip(times[name], times[base])]
        return statistics.median(times[name]), statistics.median(ratios), min(ratios), max(ratios)

    report = {"texts": len(texts), "rounds": arguments.rounds, "threads": arguments.threads, "throughput": {}, "latency": {}}
    print(f"\n{len(texts)} paragraphs, {arguments.threads} threads, {arguments.rounds} rounds; ratio = time of the contestant / time of ehun, f32")
    print(f"{'contestant':24} {'texts/s':>9} {'ratio':>7} {'least':>7} {'most':>7} | {'one text, ms':>12} {'p99':>7} {'ratio':>7}")
    for name in running:
        seconds, ratio, least, most = row(name, bulk, "ehun")
        one, one_ratio, _, _ = row(name, single, "ehun")
        p99 = sorted(single[name])[int(len(single[name]) * 0.99)]
        print(f"{name:24} {len(texts) / seconds:9.1f} {ratio:7.2f} {least:7.2f} {most:7.2f} | {one * 1e3:12.2f} {p99 * 1e3:7.2f} {one_ratio:7.2f}")
        report["throughput"][name] = {"texts_per_second": len(texts) / seconds, "ratio": ratio, "least": least, "most": most}
        report["latency"][name] = {"median_ms": one * 1e3, "p99_ms": p99 * 1e3, "ratio": one_ratio}
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report, indent=1))
    if arguments.markdown:
        write_section(Path(arguments.markdown), Path(arguments.model).name, tables(report))


def tables(report):
    """The report as a Markdown table."""
    lines = [
        f"{report['texts']} texts, {report['threads']} threads, {report['rounds']} rounds.",
        "",
        "| contestant | texts/s | ratio | spread | one text, ms | p99, ms | ratio |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, bulk in report["throughput"].items():
        one = report["latency"][name]
        lines.append(
            f"| {name} | {bulk['texts_per_second']:.1f} | {bulk['ratio']:.2f} | {bulk['least']:.2f} to {bulk['most']:.2f} "
            f"| {one['median_ms']:.2f} | {one['p99_ms']:.2f} | {one['ratio']:.2f} |"
        )
    return "\n".join(lines)


def write_section(file, model, text):
    """Puts the table between the two comments that name the model, at the end of the file where there are none."""
    begin, end = f"<!-- bench peers: {model} -->", "<!-- end of bench peers -->"
    whole = file.read_text()
    before, found, rest = whole.partition(begin)
    after = rest.partition(end)[2] if found else "\n"
    file.write_text(f"{before}{begin}\n{text}\n{end}{after}")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
    else:
        main()
