"""Requests that the OpenAPI document allows, and ones that it does not, against a started `ehun serve`: no 500, no panic.

    python tests/python/fuzz_http.py target/release/ehun [EXAMPLES [SEED]]

Bounded and the same in every run, unless a seed is given. More examples and other seeds look further.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from serving import served

# What the document promises of an answer is checked too, not only that it is no error of the server.
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def main(ehun: str, examples: str = "10", seed: str = "") -> None:
    # It leaves what it found in the current folder.
    with tempfile.TemporaryDirectory() as folder, served(ehun) as host:
        command = [
            str(Path(sys.executable).with_name("schemathesis")),
            "--config-file",
            str(Path(__file__).resolve().with_name("schemathesis.toml")),
            "run",
            f"http://{host}/openapi.json",
            f"--checks={CHECKS}",
            "--phases=examples,coverage,fuzzing",
            f"--max-examples={examples}",
            f"--seed={seed}" if seed else "--generation-deterministic",
            "--request-timeout=20",
            "--suppress-health-check=all",
            "--no-color",
        ]
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)
        assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-2000:]}"
        print("\n".join(done.stdout.strip().splitlines()[-12:]))


if __name__ == "__main__":
    main(*sys.argv[1:])
