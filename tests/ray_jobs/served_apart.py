"""An application in a process of its own, with Ray's client port: what a run in a pod finds.

Run as a script: `served_apart.py MODEL STATE`; says where it serves in one line of JSON, and ends
when its input does.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CLIENT = [sys.executable, "-m", "ray.util.client.server", "--host=127.0.0.1", "--mode=proxy"]
TOCSIN = [sys.executable, "-c", "from tocsin.ray_jobs.cli import main; main()"]


@dataclass(frozen=True, slots=True)
class Apart:
    """Where it serves: URL, and address of the cluster as another pod has it."""

    url: str
    address: str

    def begin(self, *words: str, log: Path) -> "subprocess.Popen[bytes]":
        """A `tocsin` command in a process of its own, as the driver's pod runs it."""
        settings = {"RAY_ADDRESS": self.address, "RAY_AUTH_MODE": "token"}
        with log.open("wb") as out:
            return subprocess.Popen(
                [*TOCSIN, *words],
                env={**os.environ, **settings},
                stdout=out,
                stderr=subprocess.STDOUT,
            )


@contextmanager
def served_apart(model: Path, state: Path) -> Iterator[Apart]:
    """It serves as long as the block lasts."""
    process = subprocess.Popen(
        [sys.executable, __file__, str(model), str(state)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(state / "serve.log").open("wb"),
        start_new_session=True,
        env={**os.environ, "TOCSIN_STATE": str(state), "TOCSIN_METRICS_PORT": "0"},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (state / "serve.log").read_text()
        yield Apart(**json.loads(line))
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def main(model: str) -> None:
    """Serve until nobody listens any more."""
    import ray

    from tocsin.ray_jobs.application import deploy
    from tocsin.ray_jobs.cluster import Cluster, free_port
    from tocsin.ray_jobs.options import ServeOptions

    os.environ.pop("RAY_ADDRESS", None)
    options = ServeOptions(path=model, model=model, slots=4, pages=64, max_length=256)
    with Cluster(options.replicas):
        served = deploy(options, host="127.0.0.1", port=free_port())
        cluster = ray.get_runtime_context().gcs_address
        port = free_port()
        client = subprocess.Popen([*CLIENT, f"--port={port}", f"--address={cluster}"])
        said = {"url": served.url, "address": f"ray://127.0.0.1:{port}"}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
        sys.stdin.read()
        client.terminate()


if __name__ == "__main__":
    main(sys.argv[1])
