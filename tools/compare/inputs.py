"""Inputs for `ehun compare`, made from the Cranfield collection in data/ in one fixed way.

    python3 tools/compare/inputs.py OUT

writes OUT/abstracts (1,400 files of one abstract), OUT/queries.jsonl (225 queries with their relevance judgements), and
OUT/long (files of COUNT abstracts one after the other, as single paragraphs, so that chunks of any size fill up).
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import corpus


def main():
    out = Path(sys.argv[1])
    for folder in ["abstracts", "long"]:
        (out / folder).mkdir(parents=True, exist_ok=True)
    documents = list(corpus.cranfield())
    for number, _, text in documents:
        (out / "abstracts" / f"{number}.txt").write_text(text + "\n", encoding="utf-8")
    relevant = defaultdict(dict)
    for line in (corpus.DATA / "cranfield/cranqrel.trec.txt").read_text(encoding="utf-8").splitlines():
        query, _, document, grade = line.split()
        if int(grade) > 0:
            relevant[int(query)][f"{document}.txt"] = 1
    with open(out / "queries.jsonl", "w", encoding="utf-8") as f:
        for number, text in corpus.cranfield_queries():
            f.write(json.dumps({"query": text, "relevant": relevant[number]}) + "\n")
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 60
    texts = [text for _, _, text in documents if text]
    for first in range(0, len(texts), count):
        whole = " ".join(texts[first : first + count])
        (out / "long" / f"{first // count}.txt").write_text(whole + "\n", encoding="utf-8")


main()
