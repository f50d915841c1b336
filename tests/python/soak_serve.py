"""A started `ehun serve` under mixed load for a long time: every answer is the one that it was at first, and neither memory,
handles nor threads grow.

    soak_serve.py EHUN [MINUTES] [--pause SECONDS]

Prints one JSON line for each look at the process, and at the end one with what came of it. Exit code 1 where something grew
or an answer was another one.
"""

import argparse
import base64
import http.client
import itertools
import json
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from serving import server

TEXTS = [f"{words} {'and the tides of winter were measured by old clocks ' * (i % 5)}".strip() for i, words in
         enumerate(["how were tides predicted", "a river in winter", "Ana lives in Oslo", "woven cloth", "of what kind", "maps", "ink"])]

DOCUMENT = "# Tides\n\nThe tide is measured by clocks.\n\n" + "A paragraph of many words follows here. " * 60

Vector = list[float]


def rows_of_base64(answer: dict) -> list[Vector]:
    data = [base64.b64decode(row["embedding"]) for row in answer["data"]]
    return [list(struct.unpack(f"<{len(row) // 4}f", row)) for row in data]


def numbers(value: object) -> Iterator[float]:
    """All numbers of a JSON value, in its order."""
    if isinstance(value, bool):
        return
    if isinstance(value, (int, float)):
        yield float(value)
    elif isinstance(value, dict):
        for key in value:
            yield from numbers(value[key])
    elif isinstance(value, list):
        for one in value:
            yield from numbers(one)


def all_numbers(answer: object) -> list[Vector]:
    return [list(numbers(answer))]


# Method, path, body (made of some texts), status, and what of the answer must stay as it is.
Route = tuple[str, str, Callable[[list[str]], object], int, Callable | None]
ROUTES: list[Route] = [
    ("POST", "/v1/embeddings", lambda t: {"model": "real", "input": t, "encoding_format": "base64"}, 200, rows_of_base64),
    ("POST", "/v1/embeddings", lambda t: {"model": "embed", "input": t}, 200, lambda a: [row["embedding"] for row in a["data"]]),
    ("POST", "/embed", lambda t: {"inputs": t}, 200, lambda a: a),
    ("POST", "/rerank", lambda t: {"query": t[0], "texts": t}, 200, all_numbers),
    ("POST", "/v1/rerank", lambda t: {"model": "rerank", "query": t[0], "documents": t}, 200, lambda a: all_numbers(a["results"])),
    ("POST", "/v2/embed", lambda t: {"model": "embed", "texts": t, "input_type": "search_query", "embedding_types": ["float"]}, 200,
     lambda a: a["embeddings"]["float"]),
    ("POST", "/v1/classify", lambda t: {"inputs": t}, 200, lambda a: all_numbers(a["results"])),
    ("POST", "/v1/tag", lambda t: {"inputs": t}, 200, lambda a: all_numbers(a["results"])),
    ("POST", "/v1/sparse", lambda t: {"inputs": t}, 200, lambda a: all_numbers(a["results"])),
    ("POST", "/v2/models/embed/infer", lambda t: {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [len(t)], "data": t}]}, 200,
     lambda a: [a["outputs"][0]["data"]]),
    ("POST", "/tokenize", lambda t: {"inputs": t}, 200, None),
    ("GET", "/metrics", lambda _: None, 200, None),
    ("GET", "/v1/services", lambda _: None, 200, None),
    ("GET", "/openapi.json", lambda _: None, 200, None),
    ("POST", "/embed", lambda _: "half a {", 400, None),
    ("POST", "/v1/embeddings", lambda t: {"model": "nobody", "input": t}, 404, None),
    ("GET", "/nowhere", lambda _: None, 404, None),
]


class Soak:
    """Counts, and the first answer to each thing that is asked."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.lock = threading.Lock()
        self.asked: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.first: dict[tuple[int, int], list[Vector]] = {}

    def check(self, key: tuple[int, int], rows: list[Vector], path: str) -> None:
        with self.lock:
            want = self.first.setdefault(key, rows)
        flat = lambda rows: list(itertools.chain.from_iterable(rows))  # noqa: E731
        a, b = flat(want), flat(rows)
        # Company in a batch may turn the last bits.
        if len(a) != len(b) or any(abs(x - y) > 2e-4 * max(1.0, abs(x)) for x, y in zip(a, b, strict=True)):
            self.wrong.append(f"{path}: another answer than at first")

    def ask(self, connection: http.client.HTTPConnection, number: int) -> None:
        place, start = number % len(ROUTES), number // len(ROUTES) % len(TEXTS)
        method, path, body, status, rows = ROUTES[place]
        sent = body((TEXTS * 2)[start : start + 1 + start % 4])
        data = sent if isinstance(sent, str) else None if sent is None else json.dumps(sent)
        connection.request(method, path, data, {"content-type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        with self.lock:
            self.asked[f"{path} {answer.status}"] += 1
        if answer.status != status:
            self.wrong.append(f"{path}: {answer.status} {text[:200]!r}")
        elif rows is not None:
            self.check((place, start), rows(json.loads(text)), path)

    def document(self, connection: http.client.HTTPConnection) -> None:
        connection.request("POST", "/v1/documents?name=a.md", DOCUMENT)
        answer = connection.getresponse()
        text = answer.read()
        with self.lock:
            self.asked[f"/v1/documents {answer.status}"] += 1
        if answer.status != 200 or not json.loads(text)["chunks"]:
            self.wrong.append(f"/v1/documents: {answer.status} {text[:200]!r}")

    def hang_up(self) -> None:
        """A client that leaves: in the middle of its body, or before its answer."""
        host, port = self.address.rsplit(":", 1)
        body = json.dumps({"inputs": TEXTS * 8})
        for part in (len(body) // 2, len(body)):
            with socket.create_connection((host, int(port)), timeout=30) as stream:
                stream.sendall(f"POST /embed HTTP/1.1\r\nhost: s\r\ncontent-length: {len(body)}\r\n\r\n{body[:part]}".encode())
        with self.lock:
            self.asked["hung up"] += 2

    def client(self, first: int, pause: float, stop: threading.Event) -> None:
        connection = http.client.HTTPConnection(self.address, timeout=120)
        last = time.monotonic()
        for number in itertools.count(first * 5):
            if stop.is_set() or len(self.wrong) > 20:
                return
            if time.monotonic() - last > 10:
                connection.close()  # This process was held up: the server hangs up on who has nothing to say.
            begun = time.monotonic()
            try:
                self.ask(connection, number)
                if number % 50 == 0:
                    self.document(connection)
                if number % 97 == 0:
                    self.hang_up()
            except ConnectionError as error:
                connection.close()
                if time.monotonic() - begun > 10:
                    # Held up between the head and the body of a request is the same.
                    with self.lock:
                        self.asked["held up"] += 1
                else:
                    self.wrong.append(f"request {number}: {error!r}")
            except Exception as error:  # noqa: BLE001 whatever a client can meet is a fault here
                self.wrong.append(f"request {number}: {error!r}")
                connection.close()
            last = time.monotonic()
            if number % 200 == 0:
                connection.close()  # The next request opens another one.
            stop.wait(pause)


def look(pid: int) -> dict[str, float]:
    status = Path(f"/proc/{pid}/status").read_text()
    of = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return {"resident_mib": int(of["VmRSS"].split()[0]) / 1024, "threads": int(of["Threads"]), "handles": len(list(Path(f"/proc/{pid}/fd").iterdir()))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ehun")
    parser.add_argument("minutes", type=float, nargs="?", default=30.0)
    parser.add_argument("--pause", type=float, default=0.02, help="seconds between the requests of each of four clients")
    given = parser.parse_args()
    with server(given.ehun, more="[service.real]\nthreads = 1\n") as (address, pid):
        soak, stop, begun = Soak(address), threading.Event(), time.monotonic()
        threads = [threading.Thread(target=soak.client, args=(i, given.pause, stop)) for i in range(4)]
        for thread in threads:
            thread.start()
        looks = []
        # The first tenth warms up: pools, caches and buffers grow to what the load needs.
        for tenth in range(1, 11):
            while time.monotonic() - begun < given.minutes * 6 * tenth and len(soak.wrong) <= 20:
                time.sleep(0.2)
            looks.append({"minute": round((time.monotonic() - begun) / 60, 1), "requests": soak.asked.total(), **look(pid)})
            print(json.dumps(looks[-1]), flush=True)
        stop.set()
        for thread in threads:
            thread.join()
        time.sleep(2)
        rest = look(pid)
    start, end = looks[0], looks[-1]
    grew = [name for name, room in (("resident_mib", 16 + 0.05 * start["resident_mib"]), ("handles", 8), ("threads", 4)) if end[name] > start[name] + room]
    print(json.dumps({"answers": soak.asked, "wrong": soak.wrong, "grew": grew, "start": start, "middle": looks[4], "end": end, "at_rest": rest}))
    if soak.wrong or grew:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
