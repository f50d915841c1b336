#!/usr/bin/env python3
"""Compare the text that ehun-documents reads from PDFs with what pdfium reads.

    cargo build --release -p ehun-documents --example text
    python3 tools/pdf/compare_pdfium.py --text target/release/examples/text DIR... [--csv out.csv]

A test tool: it needs `pip install pypdfium2 rapidfuzz`. Every PDF below the folders is read by both, ours in a process
with limits on time and memory. Two figures are taken over words (split at whitespace and at the border of letters and
other characters, so that spacing counts little and words count):

- similarity: 2 * LCS / (words of both), where LCS is the longest common subsequence: sensitive to the order;
- recall: the share of pdfium's words that ours has, as a multiset: sensitive to what is lost.

pdfium's text is in the order of drawing, which for most files is the reading order, and it holds hyphens at line ends
as U+0002 or U+FFFE; these are joined here. The figure reported is the median over left-to-right files with a text
layer (at least MIN_WORDS words by pdfium) that both can open; files with the same text count once.

Of files with right-to-left letters, whatever their share, the right-to-left words alone are compared, letter by letter: a
reversed word is another word.
"""

import argparse
import collections
import csv
import hashlib
import json
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import unicodedata

import pypdfium2
from rapidfuzz.distance import LCSseq

MIN_WORDS = 10
MAX_WORDS = 60_000
WORD = re.compile(r"[^\W_]+|[^\w\s]|_")
RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]")


def pdfium_text(path):
    """Text of all pages, None where pdfium cannot open the file."""
    try:
        document = pypdfium2.PdfDocument(str(path))
    except pypdfium2.PdfiumError:
        return None
    pages = []
    try:
        for number in range(len(document)):
            try:
                # Our text holds what annotations and form fields show; flattening makes it text of the page here, too.
                page = document[number]
                pypdfium2.raw.FPDFPage_Flatten(page, pypdfium2.raw.FLAT_NORMALDISPLAY)
                page.close()
                pages.append(document[number].get_textpage().get_text_range())
            except pypdfium2.PdfiumError:
                continue
    finally:
        document.close()
    return "\n".join(pages)


def our_text(binary, path, seconds, mib):
    """(outcome, text): outcome is text, error:CODE, crash or hang."""

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (mib << 20, mib << 20))

    try:
        done = subprocess.run([binary, str(path)], capture_output=True, timeout=seconds, preexec_fn=limit)
    except subprocess.TimeoutExpired:
        return "hang", ""
    if done.returncode == 0:
        return "text", done.stdout.decode("utf-8", "replace")
    if done.returncode == 3:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or [""]
        return "error:" + last[0].split(":")[0], ""
    return "crash", done.stderr.decode("utf-8", "replace")[-300:]


def words(text):
    text = re.sub("[\u0002\ufffe\u00ad]\\s*", "", text)
    text = re.sub(r"(?<=[a-z])[-\u2010]\s*\n\s*(?=[a-z])", "", text)
    return WORD.findall(unicodedata.normalize("NFKC", text))[:MAX_WORDS]


def compare(ours, theirs):
    a, b = words(ours), words(theirs)
    if not a and not b:
        return 1.0, 1.0, 0
    common = LCSseq.similarity(a, b)
    left = collections.Counter(a)
    right = collections.Counter(b)
    recall = sum((left & right).values()) / max(1, len(b))
    return 2 * common / max(1, len(a) + len(b)), recall, len(b)


def right_to_left(ours, theirs):
    """(words of right-to-left letters by pdfium, how many of them stand in ours in the same order)."""
    a, b = ([word for word in words(text) if RIGHT_TO_LEFT.match(word)] for text in (ours, theirs))
    return len(b), LCSseq.similarity(a, b)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=pathlib.Path)
    parser.add_argument("--text", required=True, help="the example program `text`")
    parser.add_argument("--csv", type=pathlib.Path, help="one line per file")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--worst", type=int, default=25, help="how many of the least similar to list")
    options = parser.parse_args()

    files = []
    for path in options.paths:
        files += sorted(p for p in path.rglob("*") if p.suffix.lower() == ".pdf" and p.is_file()) if path.is_dir() else [path]
    outcomes = collections.Counter()
    rows = []
    turned = {}
    for path in files:
        outcome, ours = our_text(options.text, path, options.seconds, options.mib)
        outcomes[outcome if outcome != "text" or ours.strip() else "text (empty)"] += 1
        theirs = pdfium_text(path)
        row = {"file": str(path), "outcome": outcome, "pdfium": theirs is not None}
        if outcome in ("crash", "hang"):
            print(outcome, path, ours, file=sys.stderr)
        if outcome == "text" and theirs is not None:
            similarity, recall, total = compare(ours, theirs)
            rtl = len(RIGHT_TO_LEFT.findall(theirs)) > 0.2 * len(re.findall(r"[^\W\d]", theirs))
            count, same = right_to_left(ours, theirs)
            if count:
                turned[theirs] = (count, same)
                print(f"right to left: {same} of {count} words  {path}")
            row["text"] = hashlib.sha256(theirs.encode("utf-8", "replace")).hexdigest()
            row |= {"similarity": round(similarity, 4), "recall": round(recall, 4), "words": total, "rtl": rtl}
        rows.append(row)
    counted, seen = [], set()
    for row in rows:
        text = row.pop("text", None)
        # Test collections hold the same text many times over; it counts once.
        if row.get("words", 0) >= MIN_WORDS and not row["rtl"] and text not in seen:
            counted.append(row)
            seen.add(text)
    counted.sort(key=lambda row: row["similarity"])
    for row in counted[: options.worst]:
        print(f"{row['similarity']:.3f} recall {row['recall']:.3f} {row['words']:6} words  {row['file']}")
    if options.csv:
        with options.csv.open("w", newline="") as out:
            writer = csv.DictWriter(out, ["file", "outcome", "pdfium", "similarity", "recall", "words", "rtl"])
            writer.writeheader()
            writer.writerows(rows)
    values = [row["similarity"] for row in counted]
    print(
        json.dumps(
            {
                "files": len(files),
                "outcomes": dict(outcomes),
                "opened_by_pdfium": sum(row["pdfium"] for row in rows),
                "compared": len(values),
                "median_similarity": round(statistics.median(values), 4) if values else None,
                "mean_similarity": round(statistics.fmean(values), 4) if values else None,
                "median_recall": round(statistics.median(row["recall"] for row in counted), 4) if values else None,
                "right_to_left_files": len(turned),
                "right_to_left_words": [sum(n) for n in zip(*turned.values())],
                "at_least_0.95": sum(v >= 0.95 for v in values),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
