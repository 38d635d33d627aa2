"""Lanes: calls of one form side by side, as tensors without records, until they are checked.

A decode step makes some five hundred calls, and each is like the one of the step before. So what is
the same in every step (a module's names, settings, trusted references, sites) stands in a plan, and
a call is no more than its tensors: one dictionary look-up and two appends.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import repeat
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from tocsin.checker import native
from tocsin.checker.forms import Form, form_of
from tocsin.checker.fused import Fused, Job, fused_for, fused_of, job_of
from tocsin.checker.sites import Group, Site
from tocsin.checker.structure import problem
from tocsin.core.calls import Call, KVUpdateCall
from tocsin.core.errors import ContractError

Entry = tuple["Plan", tuple[Any, ...]]
"""A call: its plan, its tensors and settings."""

Told = tuple[Any, ...]
"""An entry that was told of at the time of its call: with the versions of its tensors then."""

ELEMENTS_MAX = 1 << 17
"""A call with more input elements is checked at once: it is bound by memory, not by dispatch."""

LANES_MAX = 4096

READ_THE_CACHE = frozenset(
    {
        "numerical.attention_row_sum",
        "numerical.attention_hull",
        "numerical.attention_scores",
    }
)
"""Checks that go through keys and values, which are in the processor's caches just after."""

SHAPES_MAX = 64
"""Lanes a plan remembers: a service of many lengths does not collect them for ever."""


@dataclass(slots=True, eq=False)
class Plan:
    """One operator of one module: what is the same in each of its calls.

    Attributes:
        build: `(*tensors) -> record`, for whoever needs one.
        trusted: references that a fused check takes, None where there is none.
        static: all that the form of a call has besides its tensors.
        settings: what a fused check needs besides its tensors, a part of `static`.
        activations: positions among the tensors of what the operator read, then of what it made.
        made: so many of these, from the end, say nothing once somebody has written into them.
        counted: position among the tensors of the one whose elements count.
        lanes: by shape of the first tensor.
        by_form: sites of checks that look at metadata only; by_value: of the others.
        sites: both, filled in by the runtime; whole: the buffer has a line for each of them.
        revision: of the set of checks that these belong to.
        run: number of the run in which it was called last.
        expected: versions of its activations, the same at its call and at the end of the step.
        settled: these were seen to stay, so that a call need not be looked at before the end;
            restless: they were not the same in each step.
        sources: other calls in which all its tensors were found, and the places there; closes:
            plans whose last source this one is.
        read_off: nothing tells of its calls, they are put together from their sources.
        lines: of the buffer, for the calls of a compiled model that go with this one.
        name: tells it from all others; family: from those of another form.
        present: which of `trusted` there are; fused: the native checks of its kind.
    """

    kind: type[Call]
    module: str
    depth: int | None
    build: Callable[..., Call]
    trusted: tuple[Tensor | None, ...] = ()
    static: tuple[Any, ...] = ()
    settings: tuple[Any, ...] = ()
    activations: tuple[int, ...] = (0, 1)
    made: int = 1
    counted: int = 0
    lanes: dict[torch.Size, "Lane"] = field(default_factory=dict)
    by_form: tuple[Site, ...] = ()
    by_value: tuple[Site, ...] = ()
    sites: tuple[Site, ...] = ()
    whole: bool = True
    at_once: bool = False
    revision: int = -1
    run: int = -1
    expected: tuple[int, ...] = ()
    settled: bool = False
    restless: bool = False
    sources: "tuple[tuple[Plan, int], ...]" = ()
    closes: "tuple[Plan, ...]" = ()
    read_off: bool = False
    lines: Tensor | None = None
    name: str = field(init=False)
    family: str = field(init=False)
    present: tuple[bool, ...] = field(init=False)
    fused: Fused | None = field(init=False)

    def __post_init__(self) -> None:
        """Work out what a tracer asks for."""
        self.name = f"{self.kind.operator} {self.module}"
        self.family = f"{self.kind.operator} {self.static}"
        self.present = tuple(one is not None for one in self.trusted)
        self.fused = fused_of(self.kind)


@dataclass(slots=True, eq=False)
class Lane:
    """Calls of one form, in order of execution.

    Attributes:
        form: of the records.
        like: what each tensor of a call must look like, or the setting it must equal.
        elements: of a call's counted tensor; nbytes: of all its tensors.
        at_once: checked as soon as it is heard.
        form_sites: of its first plan, in whose groups all are counted.
        fused: the native form of its checks; None: they run in Python.
        job: arguments that stay the same while the same plans come in the same order; jobs: of
            each plan by itself.
        unseen: nobody has looked yet whether the tensors of the calls that wait were written into;
            expected: the version of each of their tensors, -1 where it may be any.
    """

    kind: type[Call]
    form: Form
    like: tuple[Any, ...]
    rows: int | None
    elements: int
    nbytes: int
    at_once: bool
    form_sites: tuple[Site, ...]
    fused: Fused | None = None
    entries: list[Entry] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    job: Job | None = None
    jobs: dict[Plan, Job] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()
    unseen: bool = False
    expected: tuple[int, ...] = ()

    def fits(self, tensors: tuple[Any, ...]) -> bool:
        """Whether a call has the form of this lane."""
        for value, like in zip(tensors, self.like, strict=True):
            if type(like) is Look:
                # Spelt out: this runs between two operators, where each frame is dear.
                if (
                    not isinstance(value, Tensor)
                    or value.shape != like.shape
                    or value.dtype is not like.dtype
                    or value.stride() != like.stride
                    or value.device != like.device
                ):
                    return False
            elif isinstance(value, Tensor) or value != like:
                return False
        return True

    def all_fit(self, entries: list[Entry]) -> bool:
        """Whether all calls have the form of this lane, and nobody wrote into their tensors since.

        False may also mean: look one by one.
        """
        if not native.available():
            return False
        columns = zip(*[one[1] for one in entries], strict=True)
        if self.unseen:
            return all(map(_fit, self.like, columns, self.expected))
        return all(map(_fit, self.like, columns, repeat(-1)))

    def run(self, buffer: Tensor, entries: list[Entry]) -> tuple[int, ...]:
        """Check calls natively: the worst ratio of each row goes into the verdict buffer.

        Returns:
            lines of the sites that had nothing to say.

        Raises:
            ContractError: the lane has no native checks.
        """
        if self.fused is None:
            raise ContractError(
                f"lane: {self.kind.__name__} has no native checks, expected some; "
                "run its checks in Python"
            )
        if len(entries) == 1:
            plan, tensors = entries[0]
            job = self.jobs.get(plan)
            if job is None:
                job = self.jobs[plan] = self._job_of(self.fused, [plan])
            self.fused.launch(buffer, job, job.rows, [[one] for one in tensors])
        else:
            plans = [entry[0] for entry in entries]
            if self.job is None or plans != self.plans:
                self.plans, self.job = plans, self._job_of(self.fused, plans)
            columns = [list(column) for column in zip(*(one[1] for one in entries), strict=True)]
            job = self.job
            self.fused.launch(buffer, job, job.rows, columns)
        self.count(len(entries))
        for group in self.groups:
            group.ok += len(entries)
        return job.idle

    def count(self, calls: int) -> None:
        """So many calls had the form of the lane, which is all that some checks look at."""
        for site in self.form_sites:
            site.group.ok += calls

    def _job_of(self, fused: Fused, plans: list[Plan]) -> Job:
        silent = fused.idle(self.like)
        by_value = [plan.by_value for plan in plans]
        first = plans[0]
        self.groups = tuple(site.group for site in first.by_value if site.unit.id not in silent)
        trusted = [plan.trusted for plan in plans]
        return job_of(fused, by_value, self.rows, trusted, first.settings, silent)


class Lanes:
    """Every lane of a runtime, found by what a call looks like.

    Attributes:
        busy: lanes with calls that wait, in order of first execution.
    """

    def __init__(self) -> None:
        """None is known yet."""
        self.busy: list[Lane] = []
        self._known: dict[tuple[Any, ...], Lane] = {}

    def clear(self) -> None:
        """Forget what waits."""
        for lane in self.busy:
            lane.entries, lane.unseen = [], False
        self.busy = []

    def forget(self) -> None:
        """Other checks are in force from now on: no lane stays."""
        self.clear()
        self._known = {}

    def learn(self, plan: Plan, tensors: tuple[Any, ...]) -> Lane | None:
        """The lane of a call whose form its plan has not met; None when it must be a record."""
        key = (plan.kind, plan.static, tensors[0].shape)
        lane = self._known.get(key)
        if lane is None or not lane.fits(tensors):
            lane = _lane_of(plan, tensors)
            if lane is None:
                return None
            if len(self._known) >= LANES_MAX:
                self._known.clear()
            self._known[key] = lane
        if len(plan.lanes) >= SHAPES_MAX:
            plan.lanes.clear()
        plan.lanes[tensors[0].shape] = lane
        return lane


def _lane_of(plan: Plan, tensors: tuple[Any, ...]) -> Lane | None:
    """A new lane, after a look at the whole record: only what is sound may become one."""
    like = looks(tensors)
    first = tensors[plan.counted]
    if like is None or first.numel() == 0 or first.device.type != "cpu":
        return None  # on a device it would take a synchronisation to know that a form is sound
    call = plan.build(*tensors)
    form = form_of(call)
    if form is None or problem(call):
        return None
    if not all(_is_clean(site, call) for site in plan.by_form):
        return None
    fused = fused_for(plan.kind, plan.by_value, tensors)
    large = first.numel() > ELEMENTS_MAX
    at_once = large or plan.at_once
    if at_once and fused is None and plan.by_value:
        return None
    nbytes = sum(one.nbytes for one in tensors if isinstance(one, Tensor))
    return Lane(
        plan.kind, form, like, call.rows, first.numel(), nbytes, at_once, plan.by_form, fused
    )


def _fit(like: Any, column: tuple[Any, ...], version: int) -> bool:
    """Whether one tensor, or one setting, of many calls is as it must be."""
    first = column[0]
    if not isinstance(like, Look):
        return not any(isinstance(one, Tensor) or one != like for one in column)
    if not isinstance(first, Tensor) or not like.matches(first):
        return False
    if version < 0 and all(one is first for one in column):
        return True
    return bool(torch.ops.tocsin.same_form(column, first, version))


def _is_clean(site: Site, call: Call) -> bool:
    """Whether a metadata check finds nothing; one that raises is heard of through the record."""
    try:
        return bool((site.unit.ratio(call, **site.thresholds) <= 1.0).all())
    except Exception:  # noqa: BLE001 - the record's own path says so, and counts it
        return False


@dataclass(frozen=True, slots=True)
class Look:
    """The metadata of a tensor."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def matches(self, tensor: Tensor) -> bool:
        """Whether a tensor has the same metadata."""
        return (
            tensor.shape == self.shape
            and tensor.dtype is self.dtype
            and tensor.stride() == self.stride
            and tensor.device == self.device
        )


_UPDATE = (
    "block_table",  # first: its shape is what changes while a sequence grows
    "new_key",
    "new_value",
    "key_cache",
    "value_cache",
    "slot_mapping",
    "seq_lens",
    "position_ids",
    "owners",
    "token_rows",
    "rows",
)

update_fields: Callable[[KVUpdateCall], tuple[Any, ...]] = attrgetter(*_UPDATE)
"""What an update of the cache, which comes as a record, comes to as tensors."""


def update_plan(module: str, depth: int | None) -> Plan:
    """The plan of the updates at one depth; their records go through `update_fields`."""

    def build(*values: Any) -> KVUpdateCall:
        given: dict[str, Any] = dict(zip(_UPDATE, values, strict=True))
        return KVUpdateCall(module=module, depth=depth, **given)

    return Plan(KVUpdateCall, module, depth, build, activations=(1, 2), counted=1)


def looks(values: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Metadata of tensors, settings as they are; None where a tensor is of another kind."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, Tensor):
            if type(value) is not Tensor or value.layout is not torch.strided:
                return None
            found.append(Look(value.shape, value.stride(), value.dtype, value.device))
        else:
            found.append(value)
    return tuple(found)


def static_form(*values: Any) -> tuple[Any, ...]:
    """What a plan's own tensors and settings add to the form of its calls."""
    return tuple(
        (value.shape, value.stride(), value.dtype, value.device)
        if isinstance(value, Tensor)
        else value
        for value in values
    )


def versions(plan: Plan, tensors: tuple[Any, ...]) -> tuple[int, ...]:
    """Each grows with every write in place; an inference tensor does not count its own: -1."""
    found = [tensors[at] for at in plan.activations]
    return tuple([-1 if one.is_inference() else one._version for one in found])


def unlike(plan: Plan, tensors: tuple[Any, ...], expected: tuple[int, ...]) -> int:
    """How many of a call's activations somebody has written into (unknown under inference mode).

    Returns:
        the position behind the last of them among the plan's activations; 0: none.
    """
    found = 0
    for index, (at, version) in enumerate(zip(plan.activations, expected, strict=True), 1):
        one = tensors[at]
        if version >= 0 and not one.is_inference() and one._version != version:
            found = index
    return found
