"""`tocsin.reproduce_from_log`: from a failure id to a small test that fails as recorded."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch
from torch import Tensor

from tocsin.checker.contract import Check, registry
from tocsin.checker.reproduction.archive import Recorded, Where, find
from tocsin.checker.reproduction.axes import elements
from tocsin.checker.reproduction.condense import condensed, is_without_weight, words
from tocsin.checker.reproduction.diagnosis import Diagnosis, diagnose
from tocsin.checker.reproduction.page import page, page_name
from tocsin.checker.shrink import Shrunk, read, shrink
from tocsin.checker.snapshot import REQUEST, load_call
from tocsin.core.calls import AllReduceCall, Call
from tocsin.core.errors import SpecError

REPRODUCED, NOT_REPRODUCED, ERROR = "reproduced", "not_reproduced", "error"
_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A reproduction that was written.

    Attributes:
        test: the pytest file in `folder`.
        shrunk: the minimal case; None: not asked for, or the failure did not come back.
        ratio: of the recorded call now; ratio_recorded: at the time, as text where not finite.
    """

    failure_id: str
    check: str
    operator: str
    folder: Path
    test: Path
    diagnosis: Diagnosis
    shrunk: Shrunk | None
    ratio: float
    ratio_recorded: Any

    @property
    def fails(self) -> bool:
        """The recorded call fails the check here and now."""
        return not self.ratio <= 1.0


def reproduce_from_log(
    failure_id: str, *, out: Path | str | None = None, folder: Where = None
) -> Path:
    """Write a pytest file that fails as the recorded failure did, shrunk, and return its folder.

    Neither the model nor a GPU is needed.

    Args:
        failure_id: from the alert or the journal; `latest` and `latest:<operator>` work too.
        out: folder to write, made if need be; None: `repro-<failure id>` in the current one.
        folder: where to look: a node folder, a journal, a chaos run, a snapshot, or several;
            None: `$TOCSIN_JOURNAL`, this machine's node folder and `store/`.

    Raises:
        SpecError: no such failure, or it was not recorded in full.
    """
    return reproduction(failure_id, out=out, folder=folder).folder


def reproduction(
    failure_id: str,
    *,
    out: Path | str | None = None,
    folder: Where = None,
    smaller: bool = True,
) -> Reproduction:
    """Write a reproduction and say what it is.

    Args:
        smaller: shrink the recorded call.

    Raises:
        SpecError: no such failure, it was not recorded in full, or its check is not known here.
    """
    return write(find(failure_id, folder), out=out, smaller=smaller)


def write(
    recorded: Recorded, *, out: Path | str | None = None, smaller: bool = True
) -> Reproduction:
    """Write the reproduction of a failure that was found."""
    unit = _unit(recorded)
    call = _stacked(load_call(recorded.folder, recorded.number))
    found = read(unit, call)
    incomplete = is_without_weight(call, recorded.facts.get("reduced") or ())
    start = condensed(call) if incomplete else call
    made = None
    if smaller and start is not None and read(unit, start).fails:
        made = replace(shrink(unit, start), before=elements(call))
    diagnosis = Diagnosis("no weight", words(call)) if incomplete else diagnose(call)
    target = Path(out) if out is not None else Path(f"repro-{recorded.failure_id}")
    copy = target / "recorded"
    copy.mkdir(parents=True, exist_ok=True)
    for path in recorded.folder.iterdir():
        if path.is_file() and path.resolve() != (copy / path.name).resolve():
            shutil.copyfile(path, copy / path.name)
    declared = registry()[unit.id]
    text = page(declared, call, recorded.facts, diagnosis, made, found.ratio)
    test = target / page_name(unit.id)
    test.write_text(text, encoding="utf-8")
    # The settings of whatever project the folder lies in are none of its business.
    (target / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    return Reproduction(
        failure_id=recorded.failure_id,
        check=unit.id,
        operator=str(call.operator),
        folder=target,
        test=test,
        diagnosis=diagnosis,
        shrunk=made,
        ratio=found.ratio,
        ratio_recorded=recorded.facts.get("ratio"),
    )


def run(test: Path, *, output: list[str] | None = None) -> str:
    """Run a reproduction with pytest in a process of its own.

    Args:
        output: what pytest said is appended to it.

    Returns:
        `reproduced` when it fails with its own check, `not_reproduced` when what must fail
        passes, `error` when pytest could not run it.
    """
    results = test.parent / f".results-{os.getpid()}.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"]
    command += ["-c", str(test.parent / "pytest.ini"), "--rootdir", str(test.parent)]
    command += ["--import-mode=importlib", f"--junitxml={results}", str(test)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            env=environment,
        )
        if output is not None:
            output.append(done.stdout + done.stderr)
        return outcome_of(results, test) if results.is_file() else ERROR
    except subprocess.TimeoutExpired:
        return ERROR
    finally:
        results.unlink(missing_ok=True)


def outcome_of(results: Path, test: Path) -> str:
    """What pytest's own report (JUnit XML) of one reproduction amounts to."""
    check = _check_of(test)
    cases = [
        one
        for one in ElementTree.parse(results).iter("testcase")
        if str(one.get("classname", "")).rpartition(".")[2] == test.stem
    ]
    if not cases or any(one.find("error") is not None for one in cases):
        return ERROR
    for case in cases:
        failure = case.find("failure")
        must_pass = str(case.get("name", "")).endswith("_passes")
        if must_pass == (failure is not None):
            return NOT_REPRODUCED
        if failure is not None and f"[{check}]" not in str(failure.get("message", "")):
            return ERROR
    return REPRODUCED


def request_of(recorded: Recorded) -> Path | None:
    """The request that was served when it failed, where it was recorded."""
    path = recorded.folder / REQUEST
    return path if path.is_file() else None


def _unit(recorded: Recorded) -> Check:
    """The check with the limits that it had."""
    name = str(recorded.facts.get("check") or "")
    unit = registry().get(name)
    if unit is None:
        raise SpecError(
            f"reproduce: failure {recorded.failure_id} is of check {name!r}, expected one of this "
            "version; install the version of tocsin that recorded it"
        )
    limits = recorded.facts.get("thresholds") or {}
    try:
        known = {key: float(value) for key, value in limits.items() if key in unit.thresholds}
    except (AttributeError, TypeError, ValueError) as error:
        raise SpecError(
            f"reproduce: the thresholds of failure {recorded.failure_id} are {limits!r:.80}, "
            "expected numbers by name; copy its snapshot again"
        ) from error
    return replace(unit, thresholds={**unit.thresholds, **known})


def _stacked(call: Call) -> Call:
    """Partials that were given one by one, as one tensor where they have one shape."""
    if isinstance(call, AllReduceCall) and not isinstance(call.partials, Tensor):
        parts = list(call.partials)
        if len({part.shape for part in parts}) == 1:
            return replace(call, partials=torch.stack(parts))
    return call


def _check_of(test: Path) -> str:
    found = re.search(r'^CHECK = "([^"]+)"', test.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return found.group(1) if found else ""
