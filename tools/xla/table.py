"""The tables of whole models in docs/tpu.md, from the files that `cargo xtask tpu` (or `ehun compile --json`) wrote.

    python3 tools/xla/table.py FOLDER
"""

import json
import pathlib
import sys

MIB = 2**20


def known(value, unit):
    return "-" if value is None else f"{value / unit:.1f}"


def row(table, report):
    bucket = f"{report['bucket']['batch']} x {report['bucket']['length']}"
    by_form = {attempt["form"]: attempt["outcome"] for attempt in report["attempts"]}
    chosen = by_form.get(report["form"], {}).get("Ok")
    if chosen is None:
        return f"| {bucket} | none | | | | | | {report['reason']} |"
    total = sum(chosen[part] for part in ("argument_bytes", "output_bytes", "temp_bytes", "code_bytes"))
    share = 100 * total / table["memory_limit"]
    uncosted = f" + {chosen['uncosted']} not costed" if chosen["uncosted"] else ""
    cells = [
        bucket,
        report["form"],
        f"{chosen['temp_bytes'] / MIB:.0f}",
        f"{total / MIB:.0f} ({share:.1f} %)",
        known(chosen["flops"], 1e9),
        known(chosen["bytes_accessed"], MIB),
        known(chosen["optimal_seconds"], 1e-6) + uncosted,
        report["reason"],
    ]
    return "| " + " | ".join(cells) + " |"


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
        print("| batch x length | attention | between MiB | MiB of the device | GFLOP | MiB moved | estimated us | why |")
        print("| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |")
        for _, (table, report) in sorted(rows.items()):
            print(row(table, report))


if __name__ == "__main__":
    main()
