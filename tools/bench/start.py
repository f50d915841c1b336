"""What a start costs: process start to the first vector, and the most memory that a run of many texts holds.

    python tools/bench/start.py --ehun target/release/ehun [--rounds 15] [--texts 1000]

Memory is the high-water mark of the resident set as the system counts it (mapped weights that were read are part of it). The
weights are counted as they lie in the program and as they are packed.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import corpus


def first_vector(program, options):
    started = time.perf_counter()
    process = subprocess.Popen([program, "embed", "hello world", *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    process.stdout.readline()
    seconds = time.perf_counter() - started
    process.wait()
    return seconds


def peak(program, file, options):
    """MiB at the most, of a run over all lines of a file."""
    process = subprocess.Popen([program, "embed", "--quiet", "--file", file, *options], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, status
    return usage.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ehun", required=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--texts", type=int, default=1000)
    arguments = parser.parse_args()
    first_vector(arguments.ehun, [])
    for precision in ("f32", "int8"):
        times = sorted(first_vector(arguments.ehun, ["--precision", precision]) for _ in range(arguments.rounds))
        print(f"{precision}: start to first vector {statistics.median(times) * 1e3:.0f} ms in the median, {times[0] * 1e3:.0f} to {times[-1] * 1e3:.0f}")
        for count in (1, arguments.texts):
            with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
                file.writelines(" ".join(text.split()) + "\n" for text in corpus.paragraphs(count))
                file.flush()
                print(f"{precision}: {peak(arguments.ehun, file.name, ['--precision', precision]):.0f} MiB at the most for {count} texts")


if __name__ == "__main__":
    main()
