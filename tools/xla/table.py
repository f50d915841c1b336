"""The tables of whole models in docs/tpu.md, from the files that `cargo xtask tpu` (or `ehun compile --json`) wrote.

    python3 tools/xla/table.py FOLDER
"""

import json
import pathlib
import sys

MIB = 2**20


def known(value, unit):
    return "-" if value is None else f"{value / unit:.1f}"


def rows_of(table, report):
    bucket = f"{report['bucket']['batch']} x {report['bucket']['length']}"
    for attempt in report["attempts"]:
        figures = attempt["outcome"].get("Ok")
        if figures is None:
            words = " ".join(attempt["outcome"]["Err"].replace("|", " ").split())[:200]
            yield f"| {bucket} | {attempt['form']} | | | | | | {words} |"
            continue
        total = sum(figures[part] for part in ("argument_bytes", "output_bytes", "temp_bytes", "code_bytes"))
        uncosted = f" + {figures['uncosted']} not costed" if figures["uncosted"] else ""
        cells = [
            bucket,
            attempt["form"],
            f"{figures['temp_bytes'] / MIB:.0f}",
            f"{total / MIB:.0f} ({100 * total / table['memory_limit']:.1f} %)",
            known(figures["flops"], 1e9),
            known(figures["bytes_accessed"], MIB),
            known(figures["optimal_seconds"], 1e-6) + uncosted,
            "chosen" if attempt["form"] == report["form"] else "",
        ]
        yield "| " + " | ".join(cells) + " |"


def main():
    tables = {}
    for file in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
        if not file.stat().st_size:
            continue
        table = json.loads(file.read_text())
        chip = table["topology"].split(":")[0]
        model = file.name[: file.name.index(f"-{chip}")]
        for report in table["buckets"]:
            tables.setdefault((model, chip), {})[report["bucket"]["length"], report["bucket"]["batch"]] = (table, report)
    for (model, chip), rows in tables.items():
        print(f"\n### {model}, {chip}\n")
        print("| batch x length | attention | between MiB | MiB of the device | GFLOP | MiB moved | estimated us | |")
        print("| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |")
        for _, (table, report) in sorted(rows.items()):
            print("\n".join(rows_of(table, report)))


if __name__ == "__main__":
    main()
