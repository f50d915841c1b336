"""An exported model in plain onnxruntime gives what Ehun gives.

    python tests/python/run_onnx.py MODEL.onnx TEXTS.txt VECTORS.jsonl TOKENIZER.json

MODEL.onnx is what `ehun export` wrote, VECTORS.jsonl what `ehun embed --backend onnx --file TEXTS.txt` wrote. The texts are
tokenised here, by the tokenizers package.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from tokenizers import Tokenizer


def main(model: str, texts: str, vectors: str, tokenizer: str) -> None:
    onnx.checker.check_model(model, full_check=True)
    lines = [json.loads(line) for line in Path(vectors).read_text("utf-8").splitlines()]
    inputs = Path(texts).read_text("utf-8").splitlines()
    assert len(inputs) > 3 and [line["index"] for line in lines] == list(range(len(inputs)))
    tokens = Tokenizer.from_file(tokenizer)
    tokens.enable_padding()
    tokens.enable_truncation(256)
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = {value.name for value in session.get_inputs()}
    assert {"input_ids", "attention_mask"} <= names, names

    def run(texts: list[str]) -> np.ndarray:
        encoded = tokens.encode_batch(texts)
        every = {
            "input_ids": [e.ids for e in encoded],
            "attention_mask": [e.attention_mask for e in encoded],
            "token_type_ids": [e.type_ids for e in encoded],
        }
        feed = {name: np.array(rows, dtype=np.int64) for name, rows in every.items() if name in names}
        return session.run(["embedding"], feed)[0]

    together = run(inputs)
    alone = np.concatenate([run([text]) for text in inputs])
    ehun = np.array([line["embedding"] for line in lines], dtype=np.float32)
    assert together.shape == ehun.shape, (together.shape, ehun.shape)
    for name, rows in [("in one padded batch", together), ("alone", alone)]:
        worst = float(np.abs(rows - ehun).max())
        cosine = float((rows * ehun).sum(axis=1).min())
        print(f"{len(inputs)} texts {name}: onnxruntime {ort.__version__} differs by at most {worst:.1e}")
        # Shapes differ, so sums are added in another order: a few units in the last place of elements of about 0.05.
        assert worst < 1e-6 and cosine > 0.999999, (worst, cosine)


if __name__ == "__main__":
    main(*sys.argv[1:])
