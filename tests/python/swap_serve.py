"""What clients of a started `ehun serve` notice of swaps cpu -> xla:cpu -> cpu while they ask.

    swap_serve.py EHUN [SECONDS] [--rounds N]

Four clients each send one text after the other, which keeps the server busy. Prints one JSON object: latency before any swap and
of the requests that were in flight while a swap was under way, failures, and the server's memory. The cache of compiled programs is
empty at first, so that the first swap to XLA compiles and the later ones do not. The XLA plugin is taken from EHUN_PJRT_PLUGIN_CPU, or
from where `cargo xtask plugins` puts it.
"""

import argparse
import http.client
import json
import os
import re
import tempfile
import threading
import time
from pathlib import Path

from serving import ROOT, server

WORDS = "the tide of a woven cloth and river in winter was measured by old clocks again".split()
CLIENTS = 4


def text(number: int) -> str:
    """4 to 60 words, the same in every run."""
    return " ".join(WORDS[(number * 7 + i * i) % len(WORDS)] for i in range(4 + number * 13 % 57))


class Load:
    """Requests, each with when it was sent, when it was answered, and its status."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.answers: list[tuple[float, float, int]] = []
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.client, args=(i,)) for i in range(CLIENTS)]

    def client(self, number: int) -> None:
        connection = http.client.HTTPConnection(self.address, timeout=60)
        while not self.stop.is_set():
            body = json.dumps({"model": "real", "input": text(number), "encoding_format": "base64"})
            sent = time.monotonic()
            try:
                connection.request("POST", "/v1/embeddings", body, {"content-type": "application/json"})
                answer = connection.getresponse()
                answer.read()
                status = answer.status
            except OSError:
                connection.close()
                status = 0
            self.answers.append((sent, time.monotonic(), status))
            number += CLIENTS

    def latency(self, begin: float, end: float) -> dict[str, float]:
        """Of the requests that were in flight at any time between the two, in milliseconds."""
        times = sorted((done - sent) * 1e3 for sent, done, _ in list(self.answers) if done >= begin and sent <= end)
        at = lambda share: round(times[min(len(times) - 1, int(len(times) * share))], 2)  # noqa: E731
        return {"requests": len(times), "median": at(0.5), "p99": at(0.99), "worst": at(1.0)}


def resident(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return round(int(line.split()[1]) / 1024, 1)


def swap(admin: str, backend: str) -> dict:
    connection = http.client.HTTPConnection(admin, timeout=300)
    connection.request("POST", "/admin/v1/services/real/swap", json.dumps({"backends": [backend]}))
    answer = connection.getresponse()
    body = json.loads(answer.read())
    if answer.status != 200:
        raise SystemExit(f"the swap to {backend}: {answer.status} {body}")
    return body


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ehun")
    parser.add_argument("seconds", type=float, nargs="?", default=10.0)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    os.environ.setdefault("EHUN_PJRT_PLUGIN_CPU", str(ROOT / ".cache/plugins/xla-cpu/pjrt_c_api_cpu_plugin.so"))
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        os.environ["XDG_CACHE_HOME"] = str(Path(folder) / "cache")
        with server(given.ehun, log, more="[service.real]\n") as (address, pid):
            while not (found := re.search(r"administration on http://([^\s,]+),", log.read_text())):
                time.sleep(0.05)
            load = Load(address)
            for thread in load.threads:
                thread.start()
            time.sleep(2)
            begin = time.monotonic()
            time.sleep(given.seconds)
            normal = load.latency(begin, time.monotonic())
            memory, swaps = resident(pid), []
            for backend in ["xla:cpu", "cpu"] * given.rounds:
                before = load.latency(time.monotonic() - given.seconds, time.monotonic())
                begin = time.monotonic()
                swap(found.group(1), backend)
                end = time.monotonic()
                time.sleep(given.seconds + 2)
                during = load.latency(begin, end)
                swaps.append({"to": backend, "seconds": round(end - begin, 2), **during, "p99_before": before["p99"], "median_before": before["median"],
                              "p99_times": round(during["p99"] / before["p99"], 2), "p99_times_unswapped": round(during["p99"] / normal["p99"], 2), "resident_mib": resident(pid)})
            load.stop.set()
            for thread in load.threads:
                thread.join()
            failed = sum(status != 200 for _, _, status in load.answers)
            print(json.dumps({"normal_ms": normal, "swaps_ms": swaps, "requests": len(load.answers), "failed": failed, "resident_mib_before": memory}, indent=1))
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
