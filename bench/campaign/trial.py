"""One batch of trials: every row its own fault, judged by its logits and by each detector."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tocsin.bench.campaign.outcome import Judged, Outcome, judge, margin_of
from tocsin.bench.campaign.sites import Fault
from tocsin.bench.campaign.subject import STEP_ERRORS, Subject, World, replay
from tocsin.bench.competitors.competitor import Attached
from tocsin.core.calls import LinearCall
from tocsin.core.terms import Operator, Profile
from tocsin.core.verdict import Finding, Verdict

RATIO_MAX = 1e30
"""Ratios that are no numbers, or larger, are written down as this."""

Alarms = dict[str, list[float]]
"""Check and operator (`numerical.residual@residual`) → first step that alarmed, and the finding's
ratio, which is the worst of its rows."""


@dataclass(slots=True)
class Trial:
    """One fault and what became of it.

    Attributes:
        start: golden step of the fault; 0 is a prefill chunk.
        alarms: by profile that it was shown to; the steps count from the fault's, and end with the
            first wrong token where there is one (`full` looks at all steps).
        place: where it acted, and the word there before and after.
        flagged: first step that a competitor flagged, -1 for none; absent where it was not run.
        asked: `guard` and the competitors that the harmful faults of its batch are shown to.
    """

    fault: Fault
    start: int
    judged: Judged
    place: str = ""
    alarms: dict[str, Alarms] = field(default_factory=dict)
    flagged: dict[str, int] = field(default_factory=dict)
    asked: tuple[str, ...] = ()

    def as_record(self) -> dict[str, Any]:
        """JSON-safe; `caught_at` reads it."""
        return {
            "site": self.fault.site,
            "bits": self.fault.bits,
            "key": self.fault.key,
            "place": self.place,
            "phase": "prefill" if self.start == 0 else "decode",
            "outcome": str(self.judged.outcome),
            "wrong": self.judged.wrong_step,
            "alarms": self.alarms,
            "flagged": self.flagged,
            "asked": list(self.asked),
        }


@dataclass(slots=True)
class Rival:
    """A competitor at work on a subject of its own.

    Attributes:
        name, profile: of its rows in the table.
        per_row: it says which row; else each trial needs a step of its own.
    """

    name: str
    profile: str
    subject: Subject
    attached: Attached
    per_row: bool = True

    @property
    def key(self) -> str:
        """`name/profile`."""
        return f"{self.name}/{self.profile}"


def run_batch(
    subject: Subject,
    world: World,
    start: int,
    horizon: int,
    faults: Sequence[Fault],
    rivals: Sequence[Rival] = (),
    alone_max: int = 0,
    *,
    guarded: bool = True,
) -> list[Trial]:
    """Judge a batch of faults; a row's outcome is the fault's, its neighbours are clean or faulty.

    Args:
        start: golden step of the faults; horizon: steps looked at.
        faults: at most one a row.
        alone_max: harmful trials that competitors which cannot tell rows apart are shown, each in
            a step of its own.
        guarded: show the harmful ones to profile `guard` too.

    Raises:
        FaultDidNotFire: one left no evidence.
    """
    horizon = min(horizon, world.steps - start)
    golden = world.logits[start : start + horizon]
    margin = margin_of(subject.dtype)
    subject.set_profile(Profile.FULL)
    logits, verdicts, raised = _observe(subject, world, start, horizon, faults)
    if raised and len(faults) > 1:  # whose was it? each alone will tell
        alone: list[Trial] = []
        for fault in faults:
            one = (subject, world, start, horizon, [fault], rivals, alone_max)
            alone += run_batch(*one, guarded=guarded)
        return alone
    subject.injector.require_fired(faults)
    places = {fault.key: _place(subject, fault) for fault in faults}
    asked = (*(("guard",) if guarded else ()), *(rival.key for rival in rivals))
    trials = []
    for fault in faults:
        rows = [step[fault.row] for step in logits]
        faulty = torch.stack(rows) if rows else golden[:0, fault.row]
        judged = judge(faulty, golden[:, fault.row], margin)
        trial = Trial(fault, start, judged, places[fault.key], asked=asked)
        trial.alarms["full"] = alarms_of(fault.row, verdicts, len(faults) == 1)
        trials.append(trial)
    if len(faults) > 1:
        _attribute(subject, world, start, trials, verdicts, "full")
    last = max(
        (trial.judged.wrong_step for trial in trials if trial.judged.outcome.counts), default=-1
    )
    if last >= 0 and guarded:
        subject.set_profile(Profile.GUARD)
        _, verdicts, _ = _observe(subject, world, start, last + 1, faults)
        for trial in trials:
            trial.alarms["guard"] = alarms_of(trial.fault.row, verdicts, len(faults) == 1)
        if len(faults) > 1:
            _attribute(subject, world, start, trials, verdicts, "guard")
    together: dict[int, list[Rival]] = {}
    for rival in rivals if last >= 0 else ():
        together.setdefault(id(rival.subject), []).append(rival)
    for group in together.values():
        _show(group, world, start, last + 1, trials, alone_max)
    return trials


def alarms_of(row: int, verdicts: Sequence[Verdict], whole: bool) -> Alarms:
    """First alarm of each check for a row.

    Args:
        whole: alarms of the whole step count too: the row is the only faulty one.
    """
    found: Alarms = {}
    for step, verdict in enumerate(verdicts):
        for finding in verdict.findings:
            if row in finding.rows or (whole and not finding.rows):
                found.setdefault(_name(finding), [step, _number(finding.ratio)])
    return found


def _observe(
    subject: Subject, world: World, start: int, steps: int, faults: Sequence[Fault]
) -> tuple[list[Tensor], list[Verdict], bool]:
    """Logits and verdicts until the end or until the model raises."""
    logits: list[Tensor] = []
    verdicts: list[Verdict] = []
    try:
        for step_logits, verdict in replay(subject, world, start, steps, faults):
            logits.append(step_logits)
            verdicts.append(verdict)
    except STEP_ERRORS:
        return logits, verdicts, True
    return logits, verdicts, False


def _attribute(
    subject: Subject,
    world: World,
    start: int,
    trials: Sequence[Trial],
    verdicts: Sequence[Verdict],
    profile: str,
) -> None:
    """An alarm of the whole step belongs to nobody: a harmful trial without its own runs alone."""
    if not any(verdict.whole_step() for verdict in verdicts):
        return
    for trial in trials:
        last = trial.judged.wrong_step
        if trial.judged.outcome.counts and caught_at(trial.alarms[profile], last) is None:
            _, alone, _ = _observe(subject, world, start, last + 1, [trial.fault])
            trial.alarms[profile] = alarms_of(trial.fault.row, alone, whole=True)


def caught_at(alarms: Mapping[str, Sequence[float]], last: int, without: str = "") -> int | None:
    """First step with an alarm, at or before `last` (-1: at any step); None where there is none.

    Args:
        without: id of a check that is taken out.
    """
    steps = [int(step) for name, (step, _) in alarms.items() if name.partition("@")[0] != without]
    first = min(steps, default=None)
    return first if first is not None and (last < 0 or first <= last) else None


def _show(
    rivals: Sequence[Rival],
    world: World,
    start: int,
    steps: int,
    trials: Sequence[Trial],
    alone_max: int,
) -> None:
    """Let competitors on one subject see the same faults."""
    if rivals[0].per_row:
        faults = [trial.fault for trial in trials]
        for rival, flags in zip(rivals, _flags(rivals, world, start, steps, faults), strict=True):
            for trial in trials:
                rows = [bool(flag.expand(world.rows)[trial.fault.row]) for flag in flags]
                trial.flagged[rival.key] = rows.index(True) if True in rows else -1
        return
    shown = [trial for trial in trials if trial.judged.outcome is Outcome.HARMFUL][:alone_max]
    for trial in shown:
        last = trial.judged.wrong_step
        for rival, flags in zip(
            rivals, _flags(rivals, world, start, last + 1, [trial.fault]), strict=True
        ):
            alone = [bool(flag.any()) for flag in flags]
            trial.flagged[rival.key] = alone.index(True) if True in alone else -1


def _flags(
    rivals: Sequence[Rival], world: World, start: int, steps: int, faults: Sequence[Fault]
) -> list[list[Tensor]]:
    """What each competitor flags in each step; an exception of the model is not its doing."""
    flags: list[list[Tensor]] = [[] for _ in rivals]
    subject = rivals[0].subject
    with _inside_linear(subject) if not rivals[0].per_row else nullcontext():
        for rival in rivals:
            rival.attached.begin()
        try:
            for _ in replay(subject, world, start, steps, faults):
                for rival, mine in zip(rivals, flags, strict=True):
                    mine.append(rival.attached.flagged())
                    rival.attached.begin()
        except STEP_ERRORS:
            return flags
    return flags


@contextmanager
def _inside_linear(subject: Subject) -> Iterator[None]:
    """Let faults of linear modules act inside `functional.linear`, before whoever looks there."""
    names = {
        id(module.weight): name
        for name, module in subject.model.named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    original = functional.linear

    def faulty(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        output: Tensor = original(x, weight, bias)
        name = names.get(id(weight))
        if name is not None:
            call = LinearCall(module=name, x=x, weight=weight, bias=bias, output=output)
            subject.injector.act(call)
        return output

    place: Any = functional
    place.linear = faulty
    subject.injector.deaf_to.add(Operator.LINEAR)
    try:
        yield
    finally:
        place.linear = original
        subject.injector.deaf_to.discard(Operator.LINEAR)


def _place(subject: Subject, fault: Fault) -> str:
    change = subject.injector.changes[fault.key]
    words = " → ".join(f"{word % (1 << 32):08x}" for word in (change.before, change.after))
    return f"{subject.injector.places[fault.key]}: {words}"


def _name(finding: Finding) -> str:
    return f"{finding.check}@{finding.operator}"


def _number(ratio: float) -> float:
    return round(ratio, 4) if ratio <= RATIO_MAX else RATIO_MAX
