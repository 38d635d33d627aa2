"""Debian's Prometheus and Alertmanager on loopback, started and stopped as children of ours."""

import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import IO

import httpx

from tocsin.core.errors import EnvironmentFault

HOST = "127.0.0.1"
PROMETHEUS_PORT, ALERTMANAGER_PORT = 9090, 9093
_READY_S = 30.0
_STOP_S = 10.0


class Monitor:
    """Two servers with given configurations; as a context manager it ends what it started.

    Attributes:
        prometheus_url, alertmanager_url: where they answer.
    """

    def __init__(
        self,
        folder: Path,
        *,
        prometheus_yml: Path,
        alertmanager_yml: Path,
        prometheus_port: int = PROMETHEUS_PORT,
        alertmanager_port: int = ALERTMANAGER_PORT,
    ) -> None:
        """Look for the programs; nothing is started yet.

        Args:
            folder: their data and logs.

        Raises:
            EnvironmentFault: a program is missing.
        """
        self.prometheus_url = f"http://{HOST}:{prometheus_port}"
        self.alertmanager_url = f"http://{HOST}:{alertmanager_port}"
        self._folder = folder
        self._prometheus = [
            binary("prometheus"),
            f"--config.file={prometheus_yml}",
            f"--storage.tsdb.path={folder / 'prometheus'}",
            f"--web.listen-address={HOST}:{prometheus_port}",
            "--enable-feature=exemplar-storage",
            "--storage.tsdb.retention.time=7d",
        ]
        self._alertmanager = [
            binary("prometheus-alertmanager"),
            f"--config.file={alertmanager_yml}",
            f"--storage.path={folder / 'alertmanager'}",
            f"--web.listen-address={HOST}:{alertmanager_port}",
            "--cluster.listen-address=",  # else it gossips on every address of the machine
        ]
        self._children: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []

    def start(self) -> None:
        """Start both and wait until they answer.

        Raises:
            EnvironmentFault: one ended or did not become ready; with the last line of its log.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        for name, words, url in (
            ("alertmanager", self._alertmanager, self.alertmanager_url),
            ("prometheus", self._prometheus, self.prometheus_url),
        ):
            log = self._folder / f"{name}.log"
            file = log.open("wb")
            # A Ctrl-C is ours to hear, and neither outlives us.
            child = subprocess.Popen(
                [*_dies_with_us(), *words],
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                start_new_session=True,
            )
            self._children.append((child, file))
            self._wait_until_ready(name, child, f"{url}/-/ready", log)

    def reload(self) -> None:
        """Have both read their files again."""
        for child, _ in self._children:
            child.send_signal(signal.SIGHUP)

    def fallen(self) -> str:
        """Words about a server that has ended, empty while both run."""
        for child, file in self._children:
            if child.poll() is not None:
                return f"{Path(file.name).stem} ended with {child.returncode}: {_last(file.name)}"
        return ""

    def close(self) -> None:
        """End both; one that does not go by itself is killed."""
        for child, _ in self._children:
            child.terminate()
        for child, file in self._children:
            try:
                child.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            file.close()
        self._children.clear()

    def __enter__(self) -> "Monitor":
        """Both, started."""
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def _wait_until_ready(
        self, name: str, child: "subprocess.Popen[bytes]", url: str, log: Path
    ) -> None:
        until_s = time.monotonic() + _READY_S
        while time.monotonic() < until_s:
            if child.poll() is not None:
                break
            try:
                if httpx.get(url, timeout=2.0, trust_env=False).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        raise EnvironmentFault(
            f"{name}: was not ready at {url} ({_last(log)}), expected it to start; "
            f"look at {log}, or choose another port"
        )


def _dies_with_us() -> list[str]:
    """Words before a command that end it with this process (prctl(2)); none where that is not."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM", "--"] if setpriv else []


def binary(name: str) -> str:
    """The path of a program of the Debian package of the same name.

    Raises:
        EnvironmentFault: it is not installed.
    """
    found = shutil.which(name)
    if found is None:
        raise EnvironmentFault(
            f"monitor: {name} was not found, expected it on PATH; "
            "apt-get install prometheus prometheus-alertmanager"
        )
    return found


def _last(log: str | Path) -> str:
    """The last line of a log, shortened."""
    lines = Path(log).read_text(errors="replace").strip().splitlines()
    return lines[-1][-300:] if lines else "it said nothing"
