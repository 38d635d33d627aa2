"""The make targets: what a person types first works, and says what is missing when it cannot."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.checkout import ROOT


def _make(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "KUBE_"))
    }
    return subprocess.run(
        ["make", *words],
        cwd=ROOT,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_help_lists_every_target_that_a_person_calls() -> None:
    """Each phony target has a line of help, so that `make` alone is a way in."""
    targets = set(re.findall(r"^\.PHONY: ([a-z-]+)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    listed = set(re.findall(r"^  make ([a-z-]+)", _make("help").stdout, re.MULTILINE))
    assert listed == targets
    assert {"setup", "chaos-run", "chaos-demo", "serve", "test", "lint"} <= targets


def test_set_up_without_python_says_what_to_install(tmp_path: Path) -> None:
    """No traceback and no shell error: one line with what was not found and what to do."""
    done = _make("setup", "PYTHON=no-such-python", f"VENV={tmp_path}/venv")
    assert done.returncode != 0
    assert "no-such-python was not found, expected Python 3.11 or newer; install it" in done.stderr


def test_set_up_with_an_old_python_says_which_one_it_met(tmp_path: Path) -> None:
    """A Python that is too old is named with its version before anything is made with it."""
    old = tmp_path / "python-old"
    old.write_text('#!/bin/sh\n[ "$1" = -V ] && { echo Python 3.9.2; exit 0; }\nexit 1\n')
    old.chmod(0o755)
    done = _make("setup", f"PYTHON={old}", f"VENV={tmp_path}/venv")
    assert done.returncode != 0
    assert "is Python 3.9.2, expected 3.11 or newer" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_set_up_has_nothing_to_do_when_nothing_changed(tmp_path: Path) -> None:
    """The second `make setup` starts no program at all."""
    (tmp_path / "bin").mkdir()
    for name in ("bin/python", ".installed", ".native", ".weights", ".golden"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (2**32, 2**32))
    done = _make("setup", f"VENV={tmp_path}")
    assert done.returncode == 0
    assert "Nothing to be done" in done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("SEED=7",), "chaos run first-light --seed 7"),
        (("PROFILE=off", "SPEC=smoke"), "chaos run smoke --profile off"),
        (
            ("SPEC=mine.yaml", "KUBE_CONTEXT=prod", "KUBE_NAMESPACE=llm", "RELEASE=r", "SEED=7"),
            "chaos run mine.yaml --seed 7 --kube-context prod --namespace llm --release r",
        ),
        (("KUBE_CONTEXT=prod",), "chaos run first-light --kube-context prod"),
        (("SPEC=smoke", "DRY_RUN=1"), "chaos run smoke --dry-run"),
    ],
)
def test_variables_of_a_run_reach_the_command(words: tuple[str, ...], expected: str) -> None:
    """SPEC, SEED, PROFILE and DRY_RUN on the make line are the words of `tocsin chaos run`."""
    done = _make("-n", "chaos-run", *words)
    assert expected in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("chaos-matrix",), "chaos matrix"),
        (
            ("chaos-matrix", "KINDS=kv.*,act.nan", "N=200", "RAY_N=0", "SEED=3", "FRESH=1"),
            'chaos matrix "kv.*,act.nan" --n 200 --ray-n 0 --seed 3 --fresh',
        ),
        (("chaos-soak", "HOURS=0.5"), "chaos soak --hours 0.5"),
        (
            ("chaos-soak", "REQUESTS=900", "SIM=1", "FAULTLESS=1", "SEED=3"),
            "chaos soak --requests 900 --sim --faultless --seed 3",
        ),
    ],
)
def test_variables_of_the_proofs_reach_their_commands(
    words: tuple[str, ...], expected: str
) -> None:
    """Each is an option of the same name."""
    assert " ".join(_make("-n", *words).stdout.split()).endswith(expected)


@pytest.mark.parametrize(
    ("words", "prepared"),
    [
        (("KUBE_CONTEXT=prod",), {".installed"}),
        (("RAY_ADDRESS=http://10.0.0.1:8265",), {".installed"}),
        (("RAY_ADDRESS=10.0.0.1:6379",), {".installed", ".weights", ".golden"}),
        ((), {".installed", ".weights", ".golden"}),
        (("SPEC=smoke",), {".installed", ".weights"}),
    ],
)
def test_a_caller_of_a_cluster_prepares_no_weights_and_no_golden_answers(
    tmp_path: Path, words: tuple[str, ...], prepared: set[str]
) -> None:
    """They are the cluster's affair; a laptop need not have a minute of a core for them."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    done = _make("-n", "chaos-run", f"VENV={tmp_path}", *words)
    made = {
        name for name in (".installed", ".weights") if f"touch {tmp_path}/{name}" in done.stdout
    }
    if "tocsin.ray_jobs.oracle" in done.stdout:
        made.add(".golden")
    assert made == prepared


def test_the_address_of_a_cluster_reaches_the_run_only_when_given() -> None:
    """RAY_ADDRESS is handed on; when it is not given it is absent, not empty."""
    show = ("-f", "Makefile", "-f", "/dev/stdin", "show")
    rule = "show:\n\t@env | grep ^RAY_ADDRESS || echo absent\n"
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "KUBE_"))
    }
    clean.pop("RAY_ADDRESS", None)
    for words, expected in (((), "absent"), (("RAY_ADDRESS=127.0.0.1:1",), "=127.0.0.1:1")):
        done = subprocess.run(
            ["make", *show, *words], cwd=ROOT, env=clean, input=rule, capture_output=True, text=True
        )
        assert expected in done.stdout
