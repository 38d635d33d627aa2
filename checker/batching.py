"""Checks of one kind of call on all layers at once: records are kept, stacked, and checked by vmap.

A decode step of a small model makes some thousand tiny check evaluations, and each costs more in
dispatch than in arithmetic. Nothing of a verdict is needed before the end of the step, so records
of equal form wait until then; a check, written for one call, then runs once for all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from tocsin.checker.forms import Form
from tocsin.checker.lanes import ELEMENTS_MAX, Entry, Lane
from tocsin.checker.structure import assume_sound
from tocsin.core.calls import (
    Call,
    KVUpdateCall,
    LinearCall,
    ResidualCall,
    RMSNormCall,
    RopeCall,
    SwiGLUCall,
)

PENDING_MAX = 1 << 25
"""Input elements that may wait; more are checked before the step goes on."""

GROUP_MIN = 3

_ACTIVATIONS: dict[type[Call], Callable[[Call], tuple[Tensor | None, ...]]] = {
    LinearCall: attrgetter("x", "output"),
    RMSNormCall: attrgetter("x", "output"),
    RopeCall: attrgetter("q", "q_out", "k", "k_out"),
    ResidualCall: attrgetter("x", "output", "delta"),
    SwiGLUCall: attrgetter("gate", "output", "up"),
    KVUpdateCall: attrgetter("new_key", "new_value"),
}
"""What an operator read and made: the first counts the elements, the second must be there."""

_TRUSTED = frozenset({"block_sums", "block_norms", "bias_sums", "weight_trusted", "inv_freq"})
"""Fields that never change while a model is attached: stacked once."""

_NOT_READ: dict[type[Call], frozenset[str]] = {LinearCall: frozenset({"weight"})}
"""Fields that no check reads by value where trusted sums came along: the first call's will do."""


@dataclass(slots=True)
class Group:
    """Calls of one form with the sites of their checks.

    Attributes:
        sound: the metadata checks found nothing.
        sites: `sites[i][j]`: unit j on call i.
    """

    kind: type[Call]
    form: Form
    sound: bool
    calls: list[Call] = field(default_factory=list)
    sites: list[tuple[Any, ...]] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    modules: set[tuple[str, int | None]] = field(default_factory=set)


class Deferred:
    """The records of one step that wait for its end."""

    def __init__(self) -> None:
        """Nothing waits."""
        self._groups: dict[Form, Group] = {}
        self._trusted: dict[tuple[Any, ...], Tensor] = {}
        self._elements = 0

    def take(self, call: Call, sites: tuple[Any, ...], form: Form, *, sound: bool) -> bool:
        """Keep a record for the end of the step; False when it must be checked at once."""
        kind = type(call)
        read = _ACTIVATIONS.get(kind)
        if read is None or (kind is KVUpdateCall and not call.depth):
            return False  # at the first depth an update is checked for what all depths share
        tensors = read(call)
        if tensors[0] is None or tensors[1] is None:
            return False
        elements = tensors[0].numel()
        if elements > ELEMENTS_MAX or self._elements + elements > PENDING_MAX:
            return False
        group = self._groups.get(form)
        if group is None or (call.module, call.depth) in group.modules:
            # A module that is called twice in a step starts a group of its own.
            group = Group(kind, form, sound)
            while form in self._groups:
                form = (*form, 0)
            self._groups[form] = group
        group.calls.append(call)
        group.sites.append(sites)
        group.versions.append(_versions(tensors))
        group.modules.add((call.module, call.depth))
        self._elements += elements
        return True

    def clear(self) -> None:
        """Forget what waits."""
        self._groups = {}
        self._elements = 0

    def drain(self) -> list[Group]:
        """What waits, in order of first execution; nothing waits afterwards."""
        groups = list(self._groups.values())
        self.clear()
        return groups

    def stack(self, group: Group) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Fields that all calls share, and the stacks [n,...] of those that differ."""
        shared: dict[str, Any] = {}
        stacks: dict[str, Tensor] = {}
        first = group.calls[0]
        not_read = _NOT_READ.get(group.kind, frozenset())
        for name in (one.name for one in fields(group.kind)):
            value = getattr(first, name)
            values = [getattr(call, name) for call in group.calls]
            unread = name in not_read and getattr(first, "block_sums", None) is not None
            if not isinstance(value, Tensor) or unread or all(one is value for one in values):
                shared[name] = value
            elif name in _TRUSTED:
                key = (name, group.form, tuple(map(id, values)))
                if key not in self._trusted:
                    self._trusted[key] = torch.stack(values)
                stacks[name] = self._trusted[key]
            else:
                stacks[name] = _stack(values)
        return shared, stacks


def group_of(lane: Lane, entries: list[Entry]) -> Group:
    """Calls that were taken as tensors, as records with the sites of their checks."""
    return Group(
        lane.kind,
        lane.form,
        sound=True,
        calls=[plan.build(*tensors) for plan, tensors in entries],
        sites=[plan.by_value for plan, _ in entries],
    )


def ratios(
    group: Group, column: int, shared: dict[str, Any], stacks: dict[str, Tensor], *, sound: bool
) -> Tensor:
    """[n,...] ratios of one check on all calls of a group.

    Args:
        sound: the form of the group is known to be as it must be.
    """
    site = group.sites[0][column]
    names = tuple(stacks)

    def one(*tensors: Tensor) -> Tensor:
        given: dict[str, Any] = {**shared, **dict(zip(names, tensors, strict=True))}
        call = group.kind(**given)
        assume_sound(call if sound else None)
        ratio: Tensor = site.unit.ratio(call, **site.thresholds)
        return ratio

    try:
        result: Tensor = torch.vmap(one)(*stacks.values())
    finally:
        assume_sound(None)
    return result


def unchanged(group: Group, index: int) -> bool:
    """Whether nobody wrote into a waiting record's tensors (unknown under inference mode)."""
    read = _ACTIVATIONS[group.kind]
    return group.versions[index] == _versions(read(group.calls[index]))


def _stack(tensors: list[Tensor]) -> Tensor:
    """[n,...]; without a copy where the tensors are evenly spaced views of one memory."""
    first, second = tensors[0], tensors[1]
    step = second.storage_offset() - first.storage_offset()
    memory = first.untyped_storage().data_ptr()
    spaced = step > 0 and all(
        tensor.untyped_storage().data_ptr() == memory
        and tensor.stride() == first.stride()
        and tensor.storage_offset() == first.storage_offset() + index * step
        for index, tensor in enumerate(tensors)
    )
    if not spaced:
        return torch.stack(tensors)
    return first.as_strided((len(tensors), *first.shape), (step, *first.stride()))


def _versions(tensors: tuple[Tensor | None, ...]) -> int:
    """Grows with every write in place; inference tensors do not count theirs."""
    return sum(
        tensor._version for tensor in tensors if tensor is not None and not tensor.is_inference()
    )
