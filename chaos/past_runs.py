"""The runs that a store holds, whole or half-written, and the way from a name to a folder."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tocsin.chaos.spec import LATEST
from tocsin.chaos.store import MANIFEST, VERDICT
from tocsin.core.errors import SpecError

REPORT = "report.html"
_EXPERIMENT = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_RUN = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z-[0-9a-f]{12}(\.\d+)?")
_JSON_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class PastRun:
    """One run as far as its folder tells.

    Attributes:
        begun: UTC, `2026-11-29 18:04:05`.
        verdict: empty while there is none: it is running, or it was killed.
        seed, length_s: None: not known.
        report: there is a report.html.
    """

    experiment: str
    name: str
    folder: Path
    begun: str
    verdict: str = ""
    exit_code: int | None = None
    sentence: str = ""
    seed: int | None = None
    plan_digest: str = ""
    profile: str = ""
    requests: int | None = None
    length_s: float | None = None
    report: bool = False

    @property
    def id(self) -> str:
        """`<experiment>/<name>`, unique in its store."""
        return f"{self.experiment}/{self.name}"


def past_runs(store: Path, experiment: str = "") -> tuple[PastRun, ...]:
    """The runs of a store, newest first; whatever cannot be read of one is left out of it.

    Args:
        experiment: only of this one; empty: of all.
    """
    found = [_read(folder) for folder in _folders(store, experiment)]
    return tuple(sorted(found, key=lambda run: (run.name, run.experiment), reverse=True))


def find_run(store: Path, name: str) -> Path:
    """The folder of a run.

    Args:
        name: a folder; `<experiment>/<run>`, the name of an experiment for its newest whole run,
            or `latest`, in the store.

    Raises:
        SpecError: there is none.
    """
    direct = Path(name)
    if (direct / MANIFEST).is_file():
        return direct.resolve()
    inside = store / name
    if (name == LATEST or _is_id(name)) and (inside / MANIFEST).is_file():
        return inside.resolve()
    if _EXPERIMENT.fullmatch(name):
        for run in past_runs(store, name):
            if run.verdict:
                return run.folder.resolve()
    known = sorted({run.experiment for run in past_runs(store)})
    of = f"; {store} has runs of {', '.join(known)}" if known else f"; {store} has no runs"
    raise SpecError(
        f"{name}: holds no run with a verdict, expected a folder {store}/<experiment>/<run>, or "
        f"the name of an experiment{of}"
    )


def run_of_id(store: Path, run_id: str) -> PastRun | None:
    """The run of an id that somebody sent; None: there is no such run in the store."""
    if not _is_id(run_id):
        return None
    folder = store / run_id
    here = folder.is_dir() and not folder.is_symlink() and not folder.parent.is_symlink()
    return _read(folder) if here else None


def _is_id(text: str) -> bool:
    experiment, slash, name = text.partition("/")
    return bool(slash and _EXPERIMENT.fullmatch(experiment) and _RUN.fullmatch(name))


def _folders(store: Path, experiment: str) -> Iterator[Path]:
    """Folders that are called as runs are; links lead to runs that are listed themselves."""
    parents = [store / experiment] if experiment else _below(store)
    for parent in parents:
        if parent.is_symlink() or not _EXPERIMENT.fullmatch(parent.name):
            continue
        for folder in _below(parent):
            if _RUN.fullmatch(folder.name) and not folder.is_symlink() and folder.is_dir():
                yield folder


def _below(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _read(folder: Path) -> PastRun:
    verdict, manifest = _json(folder / VERDICT), _json(folder / MANIFEST)
    match = _RUN.fullmatch(folder.name)
    begun = "{}-{}-{} {}:{}:{}".format(*match.groups()[:6]) if match else ""
    spec = manifest.get("spec")
    seed = verdict.get("seed", (spec if isinstance(spec, dict) else {}).get("seed"))
    times = manifest.get("t_start_ns"), manifest.get("t_end_ns")
    start_ns, end_ns = (one if isinstance(one, int) else 0 for one in times)
    return PastRun(
        experiment=folder.parent.name,
        name=folder.name,
        folder=folder,
        begun=begun,
        verdict=_text(verdict, "verdict"),
        exit_code=_whole(verdict.get("exit_code")),
        sentence=_text(verdict, "sentence"),
        seed=_whole(seed),
        plan_digest=_text(verdict, "plan_digest") or _text(manifest, "plan_digest"),
        profile=_text(verdict, "profile"),
        requests=_whole(verdict.get("requests")),
        length_s=(end_ns - start_ns) / 1e9 if end_ns > start_ns > 0 else None,
        report=(folder / REPORT).is_file(),
    )


def _json(path: Path) -> Mapping[str, Any]:
    """A JSON object; an empty one for a file that is missing, half there or something else."""
    try:
        if path.stat().st_size > _JSON_BYTES_MAX:
            return {}
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(found: Mapping[str, Any], key: str) -> str:
    value = found.get(key)
    return value if isinstance(value, str) else ""


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
