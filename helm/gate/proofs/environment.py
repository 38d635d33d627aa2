"""Every variable that a rendered container sets is one that the program, Ray or a library reads."""

import importlib.util
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.proofs.pods import place, pods, variables
from tocsin.helm.gate.render import Case
from tocsin.helm.gate.rule import Finding, items, sub

RULE = "contract.environment"
_CONSTANT = re.compile(r"""["']([A-Z][A-Za-z0-9_]{3,})["']""")
_RAY = re.compile(r"\bRAY_[A-Za-z0-9_]+")
_PARTS = ("core", "engine", "checker", "chaos", "dashboards", "ray_jobs")
_SHELL = frozenset({"HOME", "PATH", "TMPDIR", "LANG", "TZ", "PYTHONUNBUFFERED"})
# Read by libraries that are not there when this is checked, or by their compiled halves.
_LIBRARIES = ("huggingface_hub/constants.py", "opentelemetry/sdk/environment_variables/__init__.py")
_RAY_FILES = (
    "_private/ray_constants.py",
    "_common/usage/usage_constants.py",
    "_private/parameter.py",
    "_private/services.py",
    "_private/worker.py",
    "autoscaler/_private/constants.py",
    "dashboard/consts.py",
    "serve/_private/constants.py",
)
# Set by the operator for Ray's own use, or read by Ray's compiled half.
_RAY_KNOWN = frozenset({"RAY_ADDRESS", "RAY_external_storage_namespace", "RAY_REDIS_ADDRESS"})


# What the chart promises with them: nobody is told anything, and nothing is fetched.
PROMISED = {"RAY_USAGE_STATS_ENABLED": "0", "HF_HUB_OFFLINE": "1"}


def check_environment(objects: Sequence[Manifest], case: Case) -> Iterator[Finding]:
    """Names known, each once, the references to fields valid."""
    own = {str(entry.get("name")) for entry in items(case.values, "extraEnv")}
    for pod in pods(objects):
        for container in pod.containers():
            names = [str(entry.get("name", "")) for entry in variables(container)]
            for name in dict.fromkeys(names):
                where = f"{place(container)} env {name}"
                if name not in own and not is_read(name):
                    expected = "a name that the program, Ray or a library reads"
                    yield Finding(RULE, where, "a variable that nobody reads", expected)
                if names.count(name) > 1 and name not in own:
                    yield Finding(RULE, where, f"{names.count(name)} times", "once")
            for entry in variables(container):
                name, promised = str(entry.get("name")), PROMISED.get(str(entry.get("name")))
                if promised is not None and entry.get("value") != promised:
                    where = f"{place(container)} env {name}"
                    yield Finding(RULE, where, f"{entry.get('value')!r}", repr(promised))
                if not ("value" in entry or sub(entry, "valueFrom")):
                    where = f"{place(container)} env {entry.get('name')}"
                    yield Finding(RULE, where, "neither value nor valueFrom", "one of them")


@cache
def is_read(name: str) -> bool:
    """Whether anything in the image reads a variable of this name."""
    if name in _SHELL or name in _of_program() or name in _RAY_KNOWN:
        return True
    if name.startswith("RAY_"):
        return name in _of_ray()
    return name in _of_libraries()


@cache
def _of_program() -> frozenset[str]:
    """The constants of the program's source that can name a variable."""
    root = Path(__file__).resolve().parents[3]
    found: set[str] = set()
    for part in _PARTS:
        folder = root / part if (root / part).is_dir() else root / "tocsin" / part
        for path in folder.rglob("*.py"):
            found.update(_CONSTANT.findall(path.read_text(encoding="utf-8")))
    return frozenset(found)


@cache
def _of_ray() -> frozenset[str]:
    spec = importlib.util.find_spec("ray")
    root = Path(spec.origin).parent if spec and spec.origin else Path()
    paths = (root / name for name in _RAY_FILES)
    texts = (path.read_text(encoding="utf-8") for path in paths if path.is_file())
    return frozenset(name for text in texts for name in _RAY.findall(text))


@cache
def _of_libraries() -> frozenset[str]:
    spec = importlib.util.find_spec("pydantic")
    site = Path(spec.origin).parents[1] if spec and spec.origin else Path()
    paths = (site / name for name in _LIBRARIES)
    texts = (path.read_text(encoding="utf-8") for path in paths if path.is_file())
    return frozenset(name for text in texts for name in _CONSTANT.findall(text))
