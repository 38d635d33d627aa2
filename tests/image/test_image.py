"""The container image: its recipe is sound, and each of its commands runs as it stands."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from image.requirements import requirements
from image.torch_build import complaint
from tests.checkout import PARTS, ROOT, tracked
from tests.image.sandbox import Sandbox, context_files, instructions, pairs

DOCKERFILE = ROOT / "Dockerfile"
ALL = instructions(DOCKERFILE)
RUNTIME = [one for one in ALL if one.stage == "runtime"]
VOLATILE = ("/var/lib/tocsin", "/tmp", "/dev/shm")


def _values(name: str) -> list[str]:
    return [one.value for one in RUNTIME if one.name == name]


def _environment() -> dict[str, str]:
    return {key: value for text in _values("ENV") for key, value in pairs(text)}


def test_a_linter_has_nothing_to_say() -> None:
    """hadolint, whose shell rules look into every RUN; what it is told to pass over is by line."""
    linter = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([linter, str(DOCKERFILE)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_base_is_one_release_and_can_be_pinned_by_digest() -> None:
    """No moving tag: one argument names the base of both stages, to the patch release."""
    bases = [one.value.split()[0] for one in ALL if one.name == "FROM"]
    assert bases == ["${PYTHON_IMAGE}"] * 2
    (argument,) = [one.value for one in ALL if one.name == "ARG" and not one.stage]
    assert re.fullmatch(r"PYTHON_IMAGE=python:3\.11\.\d+-slim-[a-z]+", argument)


def test_the_container_runs_as_a_number_that_is_not_root() -> None:
    """Kubernetes can only hold `runAsNonRoot` against a number."""
    user = _values("USER")[-1]
    uid, _, gid = user.partition(":")
    assert int(uid) == int(gid) == 10001


def test_what_is_written_at_run_time_lies_where_a_pod_has_volumes() -> None:
    """With a read-only root nothing else could be written."""
    environment = _environment()
    for name in ("HOME", "TOCSIN_CACHE", "TOCSIN_STATE"):
        assert environment[name].startswith(VOLATILE), name
    assert _values("WORKDIR")[-1].startswith(VOLATILE)


def test_nothing_is_fetched_at_run_time() -> None:
    """Hubs are off, and the model that the image brings is where the program looks."""
    environment = _environment()
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["RAY_USAGE_STATS_ENABLED"] == "0"
    assert environment["TOCSIN_MODELS"] in "".join(_values("COPY"))


def test_every_installed_package_is_pinned() -> None:
    """Each pip line holds itself to the constraints, or installs the project and nothing else."""
    lines = [one.value for one in ALL if one.name == "RUN" and "pip install" in one.value]
    assert len(lines) == 4
    for line in lines:
        for command in re.findall(r"pip install [^&;]*", line):
            assert "-c constraints.txt" in command or "--no-deps" in command, command


def test_the_extras_of_the_image_are_declared() -> None:
    """The line that lists requirements names extras that exist, and gives each one's packages."""
    (line,) = [one.value for one in ALL if "requirements.py" in one.value and one.name == "RUN"]
    words = re.search(r"requirements\.py ([a-z ]+) >", line)
    assert words is not None
    listed = requirements(ROOT / "pyproject.toml", words[1].split())
    optional = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(optional["dependencies"]) <= set(listed)
    assert set(optional["optional-dependencies"]["serve"]) <= set(listed)


def test_an_unknown_extra_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt extra must not become an image without its packages."""
    with pytest.raises(SystemExit, match="found no extra serv, declared are"):
        requirements(ROOT / "pyproject.toml", ["serv"])


@pytest.mark.parametrize(
    ("variant", "cuda", "wrong"),
    [
        ("cpu", None, ""),
        ("cuda", "12.9", ""),
        ("cuda", None, "built without CUDA"),
        ("cpu", "12.9", "built for CUDA 12.9"),
        ("gpu", "12.9", "expected one of"),
    ],
)
def test_the_wrong_build_of_torch_stops_the_image(variant: str, cuda: str, wrong: str) -> None:
    """A CPU build on a GPU node would serve slowly and say nothing."""
    found = complaint(variant, cuda, "2.13.0")
    assert wrong in found
    assert bool(found) == bool(wrong)


def test_the_build_context_holds_the_program_and_little_else() -> None:
    """Tests, runs and environments stay outside; every part of the program is inside."""
    files = list(context_files(ROOT, tracked()))
    tops = {path.parts[0] for path in files}
    assert tops >= {"tocsin", "pyproject.toml", "constraints.txt", "LICENSE", "README.md", *PARTS}
    assert not tops & {"tests", "docs", ".ci", "Makefile"}


@pytest.mark.release
@pytest.mark.model
@pytest.mark.timeout(1500)
def test_the_image_builds(image: Sandbox) -> None:
    """Every RUN and COPY of both stages has succeeded, with this machine's Python."""
    assert image.entrypoint == ["tocsin"]
    assert image.path("/opt/tocsin/venv/bin/tocsin").is_file()
    models = list(image.path("/opt/tocsin/models").glob("smollm2-135m-*/model.safetensors"))
    assert len(models) == 1
    assert models[0].parent.stat().st_mode & 0o005 == 0o005


@pytest.mark.release
@pytest.mark.model
def test_the_commands_of_the_pods_are_on_the_path(image: Sandbox) -> None:
    """What KubeRay and the chart start, in a plain and in a login shell, as the image's user."""
    for shell in ("-c", "-lc"):
        done = image.run(["/bin/bash", shell, "command -v tocsin ray serve python && id -u"])
        assert done.stdout.split() == [
            *(f"/opt/tocsin/venv/bin/{name}" for name in ("tocsin", "ray", "serve", "python")),
            "10001",
        ], done.stderr


@pytest.mark.release
@pytest.mark.model
def test_a_plan_can_be_made_in_the_image(image: Sandbox) -> None:
    """The command line works without the repository, as a user who may write nowhere else."""
    done = image.run([*image.entrypoint, "chaos", "plan", "smoke"])
    assert done.returncode == 0, done.stderr
    assert "kv.poisoned_page" in done.stdout


_ASK = """
import json, subprocess, sys, time, urllib.request
server = subprocess.Popen(sys.argv[1:], stdout=sys.stderr)
def ask(path, body=None):
    data = json.dumps(body).encode() if body else None
    head = {"content-type": "application/json"}
    request = urllib.request.Request("http://127.0.0.1:8000" + path, data, head)
    return json.load(urllib.request.urlopen(request, timeout=60))
try:
    for _ in range(600):
        try:
            health = ask("/health")
            break
        except OSError:
            if server.poll() is not None:
                sys.exit("the server ended by itself")
            time.sleep(0.2)
    body = {"model": "SmolLM2-135M-Instruct", "prompt": "One, two,", "max_tokens": 4}
    print(json.dumps({"health": health, "answer": ask("/v1/completions", body)}))
finally:
    server.terminate()
    server.wait(60)
"""


@pytest.mark.release
@pytest.mark.model
@pytest.mark.ray
def test_the_image_serves_when_it_is_started(image: Sandbox) -> None:
    """ENTRYPOINT and CMD as they stand, as the image's user: the model answers on port 8000."""
    words = ["python", "-c", _ASK, *image.entrypoint, *image.command]
    done = image.run(words, network=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["health"]["status"] == "ok"
    assert told["answer"]["usage"]["completion_tokens"] == 4
