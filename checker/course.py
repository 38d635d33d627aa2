"""The course of a run: how its calls were sorted, for the next run that takes the same one.

A decode step makes the calls of the step before it, in the same order and of the same form. Where
the order is the same, each call's lane is known without a look at the call; whether its form is,
and whether anybody wrote into its tensors, is asked of a whole lane at once when it is checked.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from tocsin.checker.lanes import Entry, Lane, Lanes, Plan, unlike
from tocsin.checker.sites import Site

COURSES_MAX = 16

Waiting = Sequence[Any]
"""What came in a run, in order: sites, plans, entries."""


@dataclass(frozen=True, slots=True)
class _Share:
    """The calls of one lane: entries at some places, or sums of tensors at others.

    Attributes:
        entries: gets those at their places; None where the lane has sums.
        sums: each with the places of its tensors: of the entry, and in it.
        expected: versions of the tensors, -1 where any will do.
    """

    lane: Lane
    entries: Callable[[Waiting], Sequence[Entry]] | None
    sums: tuple[tuple[Plan, tuple[tuple[int, int], ...]], ...]
    expected: tuple[int, ...]

    def of(self, waiting: Waiting) -> list[Entry]:
        """The lane's calls of a run."""
        if self.entries is not None:
            return [one[:2] for one in self.entries(waiting)]
        return [
            (plan, tuple([waiting[index][1][at] for index, at in places]))
            for plan, places in self.sums
        ]


@dataclass(frozen=True, slots=True)
class Course:
    """One way through a model.

    Attributes:
        sequence: what came, in order: the plan of an entry, a site or a plan as it is.
        order: what it was sorted to, each once; checks: how many these have.
        told: places of entries that came with the versions of their tensors.
    """

    sequence: list[Any]
    order: list[Site | Plan]
    checks: int
    shares: tuple[_Share, ...]
    told: tuple[int, ...]

    def sort(self, waiting: Waiting, lanes: Lanes) -> bool:
        """Put the calls of a run into their lanes; False, and nothing done, where one is unlike."""
        for index in self.told:
            plan, tensors, *versions = waiting[index]
            if unlike(plan, tensors, versions[0] if versions else plan.expected):
                return False
        found = [share.of(waiting) for share in self.shares]
        for share, entries in zip(self.shares, found, strict=True):
            if entries[0][1][0].shape != share.lane.like[0].shape:
                return False
        for share, entries in zip(self.shares, found, strict=True):
            share.lane.entries, share.lane.unseen = entries, True
            share.lane.expected = share.expected
            lanes.busy.append(share.lane)
        return True


def sequence_of(waiting: Waiting) -> list[Any]:
    """What a course is known by.

    The plan stands for a call that waits and its name for one that was checked at its time; an
    entry from which something is still to be learnt is as no other.
    """
    return [
        (one[0] if len(one) == 2 or one[0].settled or one[0].restless else one)
        if type(one) is tuple
        else (one.name if type(one) is Plan else one)
        for one in waiting
    ]


def course_of(
    waiting: Waiting, order: Sequence[Site | Plan], busy: Sequence[Lane]
) -> Course | None:
    """The course of a run that was sorted call by call; None where it cannot be taken again.

    Args:
        order: what it was sorted to; busy: lanes with its calls, as sorted.
    """
    sequence = sequence_of(waiting)
    places = {one[0]: index for index, one in enumerate(waiting) if type(one) is tuple}
    in_lanes = {entry[0] for lane in busy for entry in lane.entries}
    if (
        any(type(one) is tuple for one in sequence)  # something is still to be learnt
        or len(places) < sum(type(one) is tuple for one in waiting)  # a module ran twice
        or _repeats([one for one in order if isinstance(one, Plan)])
        or not in_lanes.issuperset(places)  # a call was heard as a record
    ):
        return None
    shares = [_share_of(lane, waiting, places) for lane in busy]
    known = tuple(share for share in shares if share is not None)
    if len(known) < len(shares):
        return None
    checks = sum(1 if isinstance(one, Site) else len(one.sites) for one in order)
    told = tuple(index for index in places.values() if len(waiting[index]) == 3)
    return Course(sequence, list(order), checks, known, told)


def _share_of(lane: Lane, waiting: Waiting, places: Mapping[Plan, int]) -> _Share | None:
    """Where the calls of a lane are; None where they are of several kinds."""
    plans = [entry[0] for entry in lane.entries]
    late = {plan for plan in plans if plan in places and len(waiting[places[plan]]) == 3}
    expected = {_expected(plan, len(lane.like), told=plan in late) for plan in plans}
    together = [plan for plan in plans if plan.read_off]
    if len(expected) != 1:
        return None
    if not together and all(plan in places for plan in plans):
        indices = [places[plan] for plan in plans]
        get: Any = itemgetter(*indices) if len(indices) > 1 else _one(indices[0])
        return _Share(lane, get, (), expected.pop())
    sources = [source for plan in plans for source, _ in plan.sources]
    if len(together) < len(plans) or not all(source in places for source in sources):
        return None
    sums = tuple(
        (plan, tuple((places[source], at) for source, at in plan.sources)) for plan in plans
    )
    return _Share(lane, None, sums, expected.pop())


def _repeats(plans: Sequence[Plan]) -> bool:
    return len(set(plans)) < len(plans)


def _one(index: int) -> Callable[[Waiting], Sequence[Entry]]:
    return lambda waiting: (waiting[index],)


def _expected(plan: Plan, tensors: int, *, told: bool) -> tuple[int, ...]:
    """Versions of all tensors of a call, -1 where it may be any: they were looked at before."""
    if told:
        return (-1,) * tensors
    known = dict(zip(plan.activations, plan.expected, strict=False))
    return tuple(known.get(at, -1) for at in range(tensors))
