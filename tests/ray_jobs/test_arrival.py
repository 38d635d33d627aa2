"""What was mounted before an upgrade is not taken for what came with it."""

import hashlib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tocsin.core.clock import ManualClock
from tocsin.core.errors import EnvironmentFault, SpecError
from tocsin.ray_jobs import arrival
from tocsin.ray_jobs.arrival import wait_for_file, wait_for_service
from tocsin.ray_jobs.cli import app
from tocsin.ray_jobs.commands.edge import EXIT_INVALID

OLD, NEW = b"enabled: false\n", b"enabled: true\n"
DIGEST = hashlib.sha256(NEW).hexdigest()


class KubeletClock(ManualClock):
    """Writes the new file when a minute has passed."""

    path: Path

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.now_ns() >= 60e9:
            self.path.write_bytes(NEW)


def test_the_new_file_is_waited_for_however_late_the_kubelet_brings_it(tmp_path: Path) -> None:
    """Looked at once a second; the old one is there meanwhile."""
    path, clock = tmp_path / "policy.yaml", KubeletClock()
    path.write_bytes(OLD)
    clock.path = path
    wait_for_file(path, DIGEST, clock)
    assert clock.now_ns() == 60_000_000_000


def test_a_file_that_is_there_is_not_waited_for(tmp_path: Path) -> None:
    """Also when its digest is written in capitals."""
    path, clock = tmp_path / "policy.yaml", ManualClock()
    path.write_bytes(NEW)
    wait_for_file(path, DIGEST.upper(), clock)
    assert clock.now_ns() == 0


@pytest.mark.parametrize("content", [OLD, None])
def test_a_file_that_never_comes_is_said_with_both_digests(
    content: bytes | None, tmp_path: Path
) -> None:
    """After the time that even a slow kubelet needs."""
    path = tmp_path / "policy.yaml"
    if content is not None:
        path.write_bytes(content)
    found = hashlib.sha256(OLD).hexdigest() if content else "unknown"
    with pytest.raises(EnvironmentFault, match=f"{found}.*expected {DIGEST} within 180 s"):
        wait_for_file(path, DIGEST, ManualClock())


def test_a_chaos_run_begins_with_the_policy_that_it_was_rendered_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line and no run where the policy of the place stays another one, or there is none."""
    monkeypatch.setattr(arrival, "WITHIN_S", 0.0)
    policy = tmp_path / "policy.yaml"
    policy.write_bytes(OLD)
    words = ["chaos", "run", "smoke", "--policy-sha256", DIGEST]
    for path, said in ((str(policy), "its SHA-256 is"), ("", "TOCSIN_CHAOS_POLICY")):
        monkeypatch.setenv("TOCSIN_CHAOS_POLICY", path)
        result = CliRunner().invoke(app, words)
        assert result.exit_code == EXIT_INVALID
        assert said in result.output
        assert result.output.count("\n") == 1


def test_a_service_that_still_loads_is_given_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked once a second; then what it said last is the error."""
    clock, asked = ManualClock(), []

    def ask(url: str) -> None:
        asked.append(url)
        if clock.now_ns() < 90e9:
            raise EnvironmentFault(f"service: {len(asked)}: not yet")

    monkeypatch.setattr(arrival, "ask", ask)
    wait_for_service("http://head:8000", 90.0, clock)
    assert len(asked) == 91
    clock, asked = ManualClock(), []
    with pytest.raises(EnvironmentFault, match="service: 31: not yet"):
        wait_for_service("http://head:8000", 30.0, clock)


def test_a_run_waits_for_its_service_only_when_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens there: one line at once, or after the time that was given."""
    waited = []
    monkeypatch.setattr(arrival, "wait_for_service", lambda url, s, clock: waited.append((url, s)))
    words = ["chaos", "run", "smoke", "--on", "http://127.0.0.1:9", "--dry-run"]
    for more in ([], ["--wait-s", "7"]):
        result = CliRunner().invoke(app, [*words, *more])
        assert result.exit_code == EXIT_INVALID
        assert "expected the served application" in result.output
    assert waited == [("http://127.0.0.1:9", 7.0)]


@pytest.mark.parametrize("digest", ["xyz", "", DIGEST[:-1], DIGEST + "0"])
def test_what_is_no_digest_is_said_at_once(tmp_path: Path, digest: str) -> None:
    """Nobody waits minutes for a slip of the keyboard."""
    clock = ManualClock()
    with pytest.raises(SpecError, match="64 hexadecimal digits"):
        wait_for_file(tmp_path / "file", digest, clock)
    assert clock.now_ns() == ManualClock().now_ns()
