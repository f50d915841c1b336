"""Texts for references and benchmarks, made from the corpora in data/ in one fixed way."""

import csv
import re
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "data"


def cranfield():
    """(number, title, text) of the 1,400 abstracts; the text begins with the title, as the collection has it."""
    whole = (DATA / "cranfield/cran.all.1400.xml").read_text(encoding="utf-8")
    for doc in re.findall(r"<doc>(.*?)</doc>", whole, re.S):
        field = lambda name: " ".join(re.search(rf"<{name}>(.*?)</{name}>", doc, re.S).group(1).split())
        yield int(field("docno")), field("title"), field("text")


def cranfield_queries():
    """(number, text): queries count from 1 in the order of the file, as the relevance judgements do."""
    whole = (DATA / "cranfield/cran.qry.xml").read_text(encoding="utf-8")
    titles = re.findall(r"<title>(.*?)</title>", whole, re.S)
    return [(number, " ".join(title.split())) for number, title in enumerate(titles, 1)]


def sts(year):
    """(score, first, second) of STS15 or STS16."""
    # data/ has the headlines of STS16 alone; STS15 goes without its own.
    files = {
        15: ["answers-forums", "answers-students", "belief", "images"],
        16: ["answer-answer", "headlines", "plagiarism", "postediting", "question-question"],
    }[year]
    for name in files:
        with open(DATA / f"sts/{name}.test.tsv", encoding="utf-8") as f:
            for row in csv.reader(f, delimiter="\t", quoting=csv.QUOTE_NONE):
                if len(row) == 3 and row[0]:
                    yield float(row[0]), row[1], row[2]


def paragraphs(count):
    """`count` paragraphs of one to four sentences of Cranfield: lengths as real documents have them, 63 tokens in the mean."""
    made = []
    for number, _, text in cranfield():
        sentences = [s.strip() for s in text.split(" . ") if s.strip()]
        at, size = 0, number % 4
        while at < len(sentences) and len(made) < count:
            size = size % 4 + 1
            made.append(" . ".join(sentences[at : at + size]) + " .")
            at += size
    return made[:count]


def reference_texts():
    """The 500 texts whose vectors are in the repository: whole abstracts (many above the window), titles, STS sentences."""
    documents = [d for d in cranfield() if d[2]]
    texts = [text for _, _, text in documents[:300]]
    texts += [title for _, title, _ in documents[300:400]]
    texts += [first for _, first, _ in list(sts(15))[:100]]
    return texts
