#!/usr/bin/env python3
"""Compare the words that ehun-documents reads from DOCX files with those that python-docx finds in them.

    cargo build --release -p ehun-documents --example text
    python3 tools/docx/compare_python_docx.py --text target/release/examples/text DIR...

A test tool: it needs `pip install python-docx==1.2.0`. Recall is the share of the words of python-docx's tree that ours has, as a
multiset: over the body (paragraphs and tables, deleted runs included, as they are kept and labelled), over text boxes
and over foot- and endnotes. An alternative form of the same text (mc:Fallback) is no text of its own. Files that
python-docx cannot open, and parts of fewer than five words, are left out.
"""

import argparse
import collections
import pathlib
import re
import statistics
import subprocess

import docx
from docx.oxml.ns import qn
from lxml import etree

WORD = re.compile(r"\w+")
FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
BOX = qn("w:txbxContent")


def words(root, inside_boxes):
    """Words below a node that are in text boxes, or that are not."""
    out = []

    def walk(node, in_box):
        if node.tag == FALLBACK and node.getparent().find("{*}Choice") is not None and len(node.getparent().find("{*}Choice")):
            return
        in_box = in_box or node.tag == BOX
        if node.tag in (qn("w:t"), qn("w:delText")) and in_box == inside_boxes:
            out.append(node.text or "")
        elif node.tag in (qn("w:p"), qn("w:tab"), qn("w:br"), qn("w:cr"), qn("w:tc")):
            out.append(" ")
        for child in node:
            if isinstance(child.tag, str):
                walk(child, in_box)

    walk(root, False)
    return collections.Counter(WORD.findall("".join(out)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=pathlib.Path)
    parser.add_argument("--text", required=True, help="the example program `text`")
    options = parser.parse_args()
    results = collections.defaultdict(list)
    for path in sorted(p for folder in options.paths for p in folder.rglob("*.docx") if p.is_file()):
        try:
            document = docx.Document(str(path))
        except Exception:  # whatever python-docx raises, it cannot open the file
            continue
        parts = {
            "body": words(document.element.body, False),
            "text boxes": words(document.element.body, True),
            "notes": collections.Counter(),
        }
        for part in document.part.package.iter_parts():
            if re.search(r"/(footnotes|endnotes)\.xml$", str(part.partname)):
                parts["notes"] += words(etree.fromstring(part.blob), False)
        done = subprocess.run([options.text, str(path)], capture_output=True, check=False)
        ours = collections.Counter(WORD.findall(done.stdout.decode("utf-8", "replace")))
        for name, theirs in parts.items():
            count = sum(theirs.values())
            if count >= 5:
                found = sum(min(n, ours[word]) for word, n in theirs.items())
                results[name].append((found / count, count, path))
    for name, rows in results.items():
        total = sum(count for _, count, _ in rows)
        overall = sum(recall * count for recall, count, _ in rows) / total
        print(f"{name}: {len(rows)} files, {total} words, recall {overall:.4f} over all words, "
              f"{statistics.fmean(r for r, _, _ in rows):.4f} in the mean of files")
        for recall, count, path in sorted(rows)[:5]:
            if recall < 0.99:
                print(f"  {recall:.3f} of {count} words  {path}")


if __name__ == "__main__":
    main()
