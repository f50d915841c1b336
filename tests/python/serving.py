"""A started `ehun serve` with the golden checkpoints as its models."""

import contextlib
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SERVICES = {
    "embed": "st-mean",
    "rerank": "ce-roberta",
    "classify": "bert.sequence-classification",
    "tag": "bert.token-classification",
    "sparse": "bert.masked-lm",
}


def golden(service: str) -> dict:
    """What sentence-transformers or transformers gave for the service's model."""
    return json.loads((ROOT / "goldens" / SERVICES[service] / "expected.json").read_text())


@contextlib.contextmanager
def served(ehun: str, log: Path | None = None) -> Iterator[str]:
    """Starts the server on a free port; gives `host:port`."""
    with server(ehun, log) as (address, _):
        yield address


@contextlib.contextmanager
def server(ehun: str, log: Path | None = None, more: str = "") -> Iterator[tuple[str, int]]:
    """The same with `more` services in the file; gives the process too."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "ehun.toml"
        lines = [f'[service.{name}]\nmodel = "{ROOT}/goldens/{model}"\nthreads = 1\n' for name, model in SERVICES.items()]
        config.write_text("\n".join([*lines, more]))
        command = [str(Path(ehun).resolve()), "serve", "--config", str(config), "--listen", "127.0.0.1:0"]
        errors = Path(log or Path(folder) / "log")
        with errors.open("w") as sink, subprocess.Popen(command, stderr=sink) as process:
            try:
                while not (found := re.search(r"listening on https?://(\S+),", errors.read_text())):
                    assert process.poll() is None, errors.read_text()
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(0.02)
                yield found.group(1), process.pid
                assert process.poll() is None, f"the server ended: {errors.read_text()}"
            finally:
                process.terminate()
        assert process.returncode == 0, f"exit code {process.returncode}: {errors.read_text()}"
        assert "panicked" not in errors.read_text(), errors.read_text()
