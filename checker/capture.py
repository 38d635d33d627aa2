"""The failing calls of a step, taken before the step is run again and they are gone."""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tocsin.checker.contract import Check, phase_of
from tocsin.checker.counters import Counters
from tocsin.checker.excerpt import SAMPLE_BYTES, excerpt
from tocsin.checker.journal import Admission, Journal, JournalSettings, plain_json
from tocsin.checker.journal.files import snapshots_folder
from tocsin.checker.snapshot import REQUEST, can_save, save_calls, tensor_fields
from tocsin.core.calls import Call
from tocsin.core.terms import Phase
from tocsin.core.verdict import Finding

ELEMENTS_MAX = 1000
"""Elements that stand for a tensor in a line of the journal."""

FIRST_ELEMENTS = 8

COUNTED_ELEMENTS_MAX = 1 << 22
"""Above this NaN and infinities are counted among the sampled elements only."""

_NOT_COUNTED = frozenset(
    {"weight", "mask", "lse", "after", "allowed", "key_cache", "value_cache", "weight_trusted"}
)
"""Fields where infinities are right, or that are no result of the failing step."""

_LOG = logging.getLogger("tocsin.checker")


@dataclass(frozen=True, slots=True)
class Exhibit:
    """One failing call with a memory of its own.

    Attributes:
        about: what `call.json` says beside the call itself.
    """

    call: Call
    about: dict[str, Any]
    size_bytes: int


@dataclass(slots=True)
class Captured:
    """What was taken of a step.

    Attributes:
        exhibits: calls to be stored whole, the first failing one first.
        described: of the first failing call: shapes, dtypes, device, and statistics of ≤ 1,000
            elements of each tensor.
        note: why something is missing.
    """

    exhibits: list[Exhibit] = field(default_factory=list)
    described: dict[str, Any] = field(default_factory=dict)
    note: str = ""


def capture(
    calls: Sequence[Call],
    findings: Sequence[Finding],
    admission: Admission,
    units: Mapping[str, Check],
    settings: JournalSettings,
    counters: Counters,
    *,
    storing: bool = True,
) -> Captured:
    """Take the first failing call of each (operator, check).

    Args:
        calls: of the run that alarmed, by reference; findings: of the same run, in order.
        admission: what the journal will store of this failure.
        storing: whether there is a folder for whole calls.
    """
    captured = Captured()
    if not admission.written or not findings:
        return captured
    storing = storing and admission.full
    if storing and not can_save():
        captured.note = "no snapshot: the package safetensors was not found; pip install it"
        storing = False
    taken: dict[int, Exhibit] = {}
    counted: set[int] = set()
    is_first = bool(admission.firsts)
    for finding in _first_of_each(findings) if storing and is_first else findings[:1]:
        call = failing_call(calls, finding, units)
        if call is None:
            captured.note = captured.note or (
                f"the call of {finding.check} was not kept: the step held more than "
                f"{settings.capture_bytes_max} bytes of calls"
            )
            continue
        if not captured.described:
            captured.described = described(call)
        if id(call) not in counted:
            counted.add(id(call))
            count_nonfinite(call, counters)
        if id(call) in taken:
            taken[id(call)].about["checks"].append(finding.check)
        elif storing and len(taken) < settings.snapshot_calls_max:
            room = settings.snapshot_bytes_max - sum(one.size_bytes for one in taken.values())
            part = excerpt(
                call,
                room,
                prompts=settings.journal_prompts,
                large_bytes=None if is_first else SAMPLE_BYTES,
            )
            captured.note = captured.note or part.note
            if part.call is not None:
                about = _about(finding, units, part.redacted, part.reduced)
                taken[id(call)] = Exhibit(part.call, about, part.size_bytes)
    captured.exhibits = list(taken.values())
    return captured


def store(
    journal: Journal,
    failure_id: str,
    exhibits: Sequence[Exhibit],
    units: Mapping[str, Check],
    request: Mapping[str, Any],
) -> bool:
    """Let the journal's thread write the exhibits; False when too much waits for it.

    The thread checks each stored call once more: `alarms_again` says whether it shows the failure.

    Args:
        request: what `request.json` shall say.
    """
    if journal.folder is None:
        return False
    folder, counters = snapshots_folder(journal.folder) / failure_id, journal.counters

    def write() -> None:
        told = [
            (
                one.call,
                {
                    "failure_id": failure_id,
                    **one.about,
                    "alarms_again": _alarms_again(units, one),
                },
            )
            for one in exhibits
        ]
        try:
            save_calls(folder, told, {REQUEST: {"failure_id": failure_id, **request}})
        except OSError as error:
            counters.snapshots_dropped += 1
            _LOG.error("journal: %s could not be written: %s; free the disk", folder, error)

    return journal.snapshot(write, sum(one.size_bytes for one in exhibits))


def _alarms_again(units: Mapping[str, Check], exhibit: Exhibit) -> bool | None:
    unit = units.get(exhibit.about["check"])
    return None if unit is None else alarms(unit, exhibit.call)


def failing_call(
    calls: Sequence[Call], finding: Finding, units: Mapping[str, Check]
) -> Call | None:
    """The call that a finding speaks of; None when it was not kept.

    A module that ran twice in a step has two; then the check says which of them alarms.
    """
    place = (finding.operator, finding.module, finding.depth)
    found = [call for call in calls if (call.operator, call.module, call.depth) == place]
    if len(found) > 1 and finding.check in units:
        for call in found:
            if alarms(units[finding.check], call):
                return call
    return found[0] if found else None


def alarms(unit: Check, call: Call) -> bool | None:
    """Whether a check alarms on a call; None when it raises."""
    try:
        with torch.no_grad():
            ratio = unit(call)
            return bool(ratio.numel()) and not bool((ratio <= 1.0).all())
    except Exception:  # noqa: BLE001 - a check's own bug says nothing about the call
        return None


def described(call: Call) -> dict[str, Any]:
    """What a line of the journal says of a call, JSON-safe."""
    tensors = tensor_fields(call)
    return {
        "device": next((str(one.device) for one in tensors.values()), "cpu"),
        "shapes": {name: list(one.shape) for name, one in tensors.items()},
        "dtypes": {name: str(one.dtype).removeprefix("torch.") for name, one in tensors.items()},
        "tensors": {name: summary(one) for name, one in tensors.items()},
    }


def count_nonfinite(call: Call, counters: Counters) -> None:
    """Add the NaN and infinities of a failing call's activations to the counters."""
    for name, tensor in tensor_fields(call).items():
        if name.partition(".")[0] not in _NOT_COUNTED:
            for kind, count in _nonfinite(tensor).items():
                counters.nonfinite[str(call.operator), kind] += count


def summary(tensor: Tensor) -> dict[str, Any]:
    """Minimum, maximum, mean and deviation of ≤ 1,000 finite elements, evenly spread; the first.

    NaN and infinities are counted in the whole tensor unless it is very large.
    """
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.numel() == 0:
        return {"elements": 0 if tensor.is_meta else tensor.numel()}
    with torch.no_grad():
        sample = _spread(tensor.detach())
        statistics: dict[str, Any] = {"elements": tensor.numel(), **_nonfinite(tensor)}
        values = sample.to("cpu", torch.float64)
        finite = values[torch.isfinite(values)]
        if finite.numel():
            statistics |= {
                "min": _short(float(finite.min())),
                "max": _short(float(finite.max())),
                "mean": _short(float(finite.mean())),
                "std": _short(float(finite.std(correction=0))),
            }
        # No further synchronisation: `values` is the host's copy, taken once, after an alarm.
        statistics["first"] = plain_json([_short(one) for one in values[:FIRST_ELEMENTS].tolist()])
        return statistics


def _nonfinite(tensor: Tensor) -> dict[str, int]:
    """Numbers of NaN and infinities; nothing for a tensor that can hold none."""
    if not tensor.dtype.is_floating_point or tensor.layout is not torch.strided or tensor.is_meta:
        return {}
    whole = tensor.detach()
    with torch.no_grad():
        counted = whole if whole.numel() <= COUNTED_ELEMENTS_MAX else _spread(whole)
        return {"nan": int(torch.isnan(counted).sum()), "inf": int(torch.isinf(counted).sum())}


def _spread(tensor: Tensor) -> Tensor:
    """[≤ 1000] elements of any tensor: the first few, and others at even steps."""
    count = tensor.numel()
    if count <= ELEMENTS_MAX:
        return tensor.reshape(-1)
    head = torch.arange(FIRST_ELEMENTS, device=tensor.device)
    rest = torch.linspace(
        FIRST_ELEMENTS,
        count - 1,
        ELEMENTS_MAX - FIRST_ELEMENTS,
        dtype=torch.float64,
        device=tensor.device,
    )
    places = torch.cat((head, rest.to(torch.int64)))
    return tensor[torch.unravel_index(places, tensor.shape)]


def _about(
    finding: Finding,
    units: Mapping[str, Check],
    redacted: tuple[str, ...],
    reduced: tuple[str, ...],
) -> dict[str, Any]:
    unit = units.get(finding.check)
    return {
        "check": finding.check,
        "checks": [finding.check],
        "layer": str(finding.layer),
        "priority": str(finding.priority),
        "phase": "before" if phase_of(finding.operator) is Phase.BEFORE else "after",
        "thresholds": dict(unit.thresholds) if unit is not None else {},
        "ratio": plain_json(finding.ratio),
        "rows_alarmed": list(finding.rows),
        "message": finding.message,
        "redacted": list(redacted),
        "reduced": list(reduced),
        "full": True,
    }


def _first_of_each(findings: Iterable[Finding]) -> list[Finding]:
    """The first finding of each (operator, check), in order."""
    kept: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        kept.setdefault((str(finding.operator), finding.check), finding)
    return list(kept.values())


def _short(value: float) -> float:
    """Six digits say enough in a line that is read by people."""
    return float(f"{value:.6g}") if math.isfinite(value) else value
