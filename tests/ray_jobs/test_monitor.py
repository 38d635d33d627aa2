"""The monitoring pair starts on loopback, says why it cannot, and leaves nothing running."""

import os
import socket
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from tocsin.core.errors import EnvironmentFault
from tocsin.ray_jobs.cli import app
from tocsin.ray_jobs.cluster import free_port
from tocsin.ray_jobs.commands.edge import EXIT_INVALID
from tocsin.ray_jobs.monitor import Monitor

ALERTMANAGER = "route: {receiver: nobody}\nreceivers: [{name: nobody}]\n"


def _monitor(folder: Path, prometheus: str = "global: {scrape_interval: 1s}\n") -> Monitor:
    (folder / "prometheus.yml").write_text(prometheus)
    (folder / "alertmanager.yml").write_text(ALERTMANAGER)
    return Monitor(
        folder / "data",
        prometheus_yml=folder / "prometheus.yml",
        alertmanager_yml=folder / "alertmanager.yml",
        prometheus_port=free_port(),
        alertmanager_port=free_port(),
    )


def test_a_missing_program_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is started, and with the command that installs it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFault, match=r"prometheus was not found.*apt-get install"):
        _monitor(tmp_path)


@pytest.mark.parametrize("metrics", ["[::1", "é..x", "a\0b", ""])
def test_a_hub_whose_address_is_none_is_one_line(tmp_path: Path, metrics: str) -> None:
    """Before anything is started or written but the folder."""
    result = CliRunner().invoke(app, ["monitor", "--metrics", metrics, "--data", str(tmp_path)])
    assert result.exit_code == EXIT_INVALID
    assert result.output.startswith("tocsin: monitor: no hub answered")
    assert result.output.count("\n") == 1


@pytest.mark.parametrize("option", ["--prometheus-port", "--alertmanager-port"])
def test_a_taken_port_is_told_with_the_option_that_names_another(
    tmp_path: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--port` is an option of another command."""
    monkeypatch.setattr("tocsin.ray_jobs.commands.monitor._hub_answers", lambda metrics: None)
    free = "--alertmanager-port" if option == "--prometheus-port" else "--prometheus-port"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = [option, str(taken.getsockname()[1]), free, str(free_port())]
        result = CliRunner().invoke(app, ["monitor", *words, "--data", str(tmp_path)])
    assert result.exit_code == EXIT_INVALID
    assert result.output.startswith("tocsin: monitor: ")
    assert f"choose another with {option}" in result.output


@pytest.mark.live
def test_both_answer_and_listen_on_loopback_only(tmp_path: Path) -> None:
    """No port of ours is open to another machine, the gossip port included; none stays open."""
    with _monitor(tmp_path) as monitor:
        for url in (monitor.prometheus_url, monitor.alertmanager_url):
            assert httpx.get(f"{url}/-/ready").status_code == 200
        assert monitor.fallen() == ""
        pids = [child.pid for child, _ in monitor._children]
        assert all(_listens_on(pid) == {"127.0.0.1"} for pid in pids)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.live
def test_a_configuration_that_is_wrong_is_told_in_one_line(tmp_path: Path) -> None:
    """The server's own last words are in the message, and its partner is ended."""
    monitor = _monitor(tmp_path, prometheus="nonsense: 1\n")
    with pytest.raises(EnvironmentFault, match=r"prometheus: was not ready.*nonsense"):
        monitor.__enter__()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{monitor.alertmanager_url}/-/ready")


def _listens_on(pid: int) -> set[str]:
    """Addresses of the listening TCP sockets of a process (proc(5))."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(entry)
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                raw = bytes.fromhex(words[1].partition(":")[0])
                address = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
                found.add(socket.inet_ntop(family, address))
    return found
