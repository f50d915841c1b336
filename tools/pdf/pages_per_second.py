#!/usr/bin/env python3
"""Pages of PDF a second: ehun-documents in two workers beside pdfium in two processes, on the same files, in one run.

    cargo xtask bench documents DIR... [--rounds N]

Files that either cannot open, and equal files, are left out. The two take turns; a turn is the whole set. pdfium gives
its text as it comes (FPDFText_GetText), without reading order, blocks or hidden text told apart. The share of hand-over
is what lies between giving a document to a worker and having its answer, less the time in its parser.
"""

import argparse
import hashlib
import multiprocessing
import pathlib
import re
import statistics
import subprocess
import tempfile
import time

import pypdfium2


def pages(path):
    """Reads a file's text and gives its number of pages; 0 if it cannot be opened."""
    try:
        document = pypdfium2.PdfDocument(str(path))
    except pypdfium2.PdfiumError:
        return 0
    count = len(document)
    for number in range(count):
        try:
            page = document[number]
            text = page.get_textpage()
            text.get_text_range()
            text.close()
            page.close()
        except pypdfium2.PdfiumError:
            continue
    document.close()
    return count


def run(survey, paths, *flags):
    """What the example program prints about the files."""
    with tempfile.NamedTemporaryFile("w") as listed:
        listed.write("\n".join(map(str, paths)))
        listed.flush()
        command = [survey, "--list", listed.name, "--workers", "2", *flags]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def ours(survey, paths):
    """(pages, seconds, share of hand-over)."""
    said = run(survey, paths)
    count, seconds = re.search(r"pages (\d+) in ([\d.]+) s", said).groups()
    return int(count), float(seconds), float(re.search(r"hand-over: ([\d.]+) %", said)[1])


def readable(survey, paths):
    """Those of the files that our reader opens."""
    said = run(survey, paths, "--verbose")
    lines = re.findall(r"^ *[\d.]+ s  (.*)  (text|no text): \d+ bytes", said, re.MULTILINE)
    opened = {path for path, _ in lines}
    return [path for path in paths if str(path) in opened]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=pathlib.Path)
    parser.add_argument("--survey", required=True, help="the example program `survey`")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    seen, files = set(), []
    for folder in options.paths:
        for path in sorted(p for p in folder.rglob("*") if p.suffix.lower() == ".pdf" and p.is_file()):
            digest = hashlib.sha256(path.read_bytes()).digest()
            if digest not in seen:
                files.append(path)
            seen.add(digest)
    files = readable(options.survey, files)
    with multiprocessing.Pool(2) as pool:
        counts = pool.map(pages, files, chunksize=1)
        files = [path for path, count in zip(files, counts) if count]
        total = sum(counts)
        print(f"{len(files)} files, {total} pages by pdfium")
        ratios, rates, shares = [], [], []
        for number in range(options.rounds):
            begun = time.perf_counter()
            pool.map(pages, files, chunksize=1)
            theirs = total / (time.perf_counter() - begun)
            count, seconds, share = ours(options.survey, files)
            rates.append((count / seconds, theirs))
            ratios.append(count / seconds / theirs)
            shares.append(share)
            print(f"round {number + 1}: ehun {count / seconds:.0f} pages/s ({count} pages, hand-over {share:.1f} %), pdfium {theirs:.0f} pages/s")
    middle = [statistics.median(rate[i] for rate in rates) for i in (0, 1)]
    print(
        f"median: ehun {middle[0]:.0f} pages/s, pdfium {middle[1]:.0f} pages/s, ratio {statistics.median(ratios):.3f} "
        f"({min(ratios):.3f} to {max(ratios):.3f}), hand-over {statistics.median(shares):.1f} % ({min(shares):.1f} to {max(shares):.1f})"
    )


if __name__ == "__main__":
    main()
