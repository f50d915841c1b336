"""Does the engine keep the quality of the model? STS Spearman and Cranfield nDCG@10, from the vectors of `ehun embed`.

    python tools/bench/quality.py --ehun target/release/ehun [--precision int8] [--reference MODEL-DIRECTORY]

`--reference` computes the same with sentence-transformers beside it. Needs numpy alone without it. With `--precision` it also
says how far the vectors of 2,000 texts are from those of float32.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import corpus


def ehun(program, options):
    def encode(texts):
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as f:
            for text in texts:
                f.write(" ".join(text.split()) + "\n")
            f.flush()
            out = subprocess.run([program, "embed", "--quiet", "--file", f.name, *options], check=True, capture_output=True)
        rows = [json.loads(line)["embedding"] for line in out.stdout.splitlines()]
        assert len(rows) == len(texts)
        return np.array(rows, dtype=np.float32)

    return encode


def ranks(values):
    order = np.argsort(values, kind="stable")
    rank = np.empty(len(values))
    rank[order] = np.arange(len(values))
    for value in np.unique(values):
        same = values == value
        rank[same] = rank[same].mean()
    return rank


def spearman(a, b):
    return float(np.corrcoef(ranks(np.asarray(a)), ranks(np.asarray(b)))[0, 1])


def sts(encode, year):
    """Over all pairs of the year's files together."""
    rows = list(corpus.sts(year))
    first, second = encode([r[1] for r in rows]), encode([r[2] for r in rows])
    cosine = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    return spearman([r[0] for r in rows], cosine)


def cranfield(encode):
    """nDCG@10 with gains 1 for a judged document, and recall at 100, in the mean over the queries."""
    documents = list(corpus.cranfield())
    queries = corpus.cranfield_queries()
    relevant = {}
    for line in (corpus.DATA / "cranfield/cranqrel.trec.txt").read_text().splitlines():
        query, _, document, grade = line.split()
        if int(grade) > 0:
            relevant.setdefault(int(query), set()).add(int(document))
    vectors = encode([text or title or "." for _, title, text in documents])
    asked = encode([text for _, text in queries])
    numbers = np.array([number for number, _, _ in documents])
    ndcg, recall = [], []
    for (number, _), query in zip(queries, asked):
        good = relevant.get(number)
        if not good:
            continue
        ranked = numbers[np.argsort(-(vectors @ query), kind="stable")]
        hits = np.isin(ranked, list(good))
        discount = 1 / np.log2(np.arange(2, 12))
        ndcg.append((hits[:10] * discount).sum() / discount[: min(10, len(good))].sum())
        recall.append(hits[:100].sum() / len(good))
    return float(np.mean(ndcg)), float(np.mean(recall))


def drift(program, model, precision):
    """The cosines of the vectors in this precision and in float32, for 2,000 texts: worst, 1st percentile, median."""
    texts = corpus.paragraphs(1400) + [text for _, _, text in list(corpus.sts(15))[:300] + list(corpus.sts(16))[:300]]
    exact, other = (ehun(program, [*model, "--precision", p])(texts) for p in ("f32", precision))
    cosine = np.sort((exact * other).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(other, axis=1))
    return {"texts": len(texts), "worst": float(cosine[0]), "p1": float(cosine[len(texts) // 100]), "median": float(np.median(cosine))}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ehun", required=True)
    parser.add_argument("--precision")
    parser.add_argument("--model")
    parser.add_argument("--reference")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    options = []
    for name in ("precision", "model"):
        if getattr(arguments, name):
            options += [f"--{name}", getattr(arguments, name)]
    contestants = {"ehun": ehun(arguments.ehun, options)}
    if arguments.reference:
        from sentence_transformers import SentenceTransformer

        loaded = SentenceTransformer(arguments.reference, device="cpu")
        contestants["sentence-transformers"] = lambda texts: loaded.encode(texts, batch_size=32)
    report = {}
    print(f"{'':24} {'STS15':>8} {'STS16':>8} {'nDCG@10':>8} {'R@100':>8}")
    for name, encode in contestants.items():
        ndcg, recall = cranfield(encode)
        report[name] = {"sts15": sts(encode, 15), "sts16": sts(encode, 16), "ndcg10": ndcg, "recall100": recall}
        print(f"{name:24} " + " ".join(f"{value:8.4f}" for value in report[name].values()))
    if arguments.precision:
        model = ["--model", arguments.model] if arguments.model else []
        report["drift"] = drift(arguments.ehun, model, arguments.precision)
        print("cosine to float32: " + ", ".join(f"{key} {value:.5f}" if key != "texts" else f"{value} texts" for key, value in report["drift"].items()))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
