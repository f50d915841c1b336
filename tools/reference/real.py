"""Writes what transformers and sentence-transformers give for the real models that `cargo xtask models` fetches.

    python tools/reference/real.py .cache/models tests/reference/real.json

In float32 on a CPU, one text at a time, eager attention. Needs torch, transformers and sentence-transformers.
"""

import json
import sys
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

TEXTS = [
    "This is an example sentence",
    "Tide tables were computed by machines of brass before there were electronic computers.",
    "El niño corrió hasta el faro; 東京, naïve café — 42 %.",
    "x",
    "The committee, which had met eleven times that year, could not agree on the wording of the second clause. " * 12,
]
QUERY = "How many people live in Berlin?"
PASSAGES = [
    "Berlin had a population of 3,520,031 registered inhabitants in an area of 891.82 square kilometers.",
    "New York City is famous for its Metropolitan Museum of Art.",
    TEXTS[4],
]
LETTER = "My name is Johanna Lindqvist, 482 Maple Street, Springfield, Illinois 62704. johanna@example.com 🙂"


def short(tensor: torch.Tensor) -> list:
    return [float(f"{x:.8g}") for x in tensor.reshape(-1).tolist()]


def load(kind, folder: Path):
    return kind.from_pretrained(folder, attn_implementation="eager").eval(), AutoTokenizer.from_pretrained(folder)


def main() -> None:
    models, target = Path(sys.argv[1]), Path(sys.argv[2])
    out = {}
    for name in ["all-MiniLM-L6-v2", "all-mpnet-base-v2"]:
        model = SentenceTransformer(str(models / name), device="cpu", model_kwargs={"attn_implementation": "eager"})
        out[name] = [{"text": text, "embedding": short(torch.tensor(model.encode(text)))} for text in TEXTS]
    with torch.no_grad():
        model, tokenizer = load(AutoModelForMaskedLM, models / "splade-tiny")
        out["splade-tiny"] = []
        for text in TEXTS[:4]:
            logits = model(**tokenizer(text, return_tensors="pt")).logits[0]
            weights = torch.log1p(torch.relu(logits)).max(dim=0).values
            terms = [[i, float(f"{w:.8g}")] for i, w in enumerate(weights.tolist()) if w > 0]
            out["splade-tiny"].append({"text": text, "terms": terms})
        model, tokenizer = load(AutoModelForSequenceClassification, models / "ms-marco-MiniLM-L-12-v2")
        out["ms-marco-MiniLM-L-12-v2"] = []
        for passage in PASSAGES:
            pair = tokenizer(QUERY, passage, return_tensors="pt", truncation=True, max_length=512)
            out["ms-marco-MiniLM-L-12-v2"].append({"query": QUERY, "text": passage, "logits": short(model(**pair).logits)})
        model, tokenizer = load(AutoModelForTokenClassification, models / "rampart")
        logits = model(**tokenizer(LETTER, return_tensors="pt")).logits
        out["rampart"] = [{"text": LETTER, "logits": short(logits)}]
    target.write_text(json.dumps(out))
    print({name: len(cases) for name, cases in out.items()})


if __name__ == "__main__":
    main()
