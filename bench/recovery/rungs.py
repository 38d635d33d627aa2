"""One fault for each rung of the ladder, and what the ladder must conclude from it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from tocsin.bench.recovery.desk import VICTIM, Desk
from tocsin.core.terms import Action, Cause, Operator, Phase

Undo = Callable[[], None]
Arm = Callable[[Desk], tuple[Callable[[], None], Undo]]
"""Puts a fault in place: what to do before the hot step, and how to take it out again."""


@dataclass(frozen=True, slots=True)
class Rung:
    """A fault and the rung that explains it.

    Attributes:
        refuses: the victim gets an error instead of an answer.
    """

    id: str
    says: str
    cause: Cause
    action: Action
    arm: Arm
    refuses: bool = False


def _nothing() -> None:
    """There is nothing to do before the hot step."""


def _transient(desk: Desk) -> tuple[Callable[[], None], Undo]:
    """One bit of one product, in one run: the same step is clean the next time."""
    done: list[bool] = []

    def flip(call: Any) -> bool:
        if done or not call.module.endswith("layers.1.mlp.down_proj"):
            return False
        done.append(True)
        call.output[VICTIM, -1, 7:8].view(torch.int32).bitwise_xor_(1 << 29)
        return True

    return _nothing, desk.listen(Operator.LINEAR, Phase.AFTER, flip)


def _persistent(desk: Desk) -> tuple[Callable[[], None], Undo]:
    """The first attention backend is wrong in every run: only the next one is clean."""
    primary, running = desk.breaker.primary, [""]

    def note(call: Any) -> bool:
        running[0] = call.backend
        return False

    def poison(call: Any) -> bool:
        if running[0] != primary or call.depth != 0:
            return False
        call.output[VICTIM, 0, -1, 0] = math.nan
        return True

    listeners = (
        desk.listen(Operator.ATTENTION, Phase.BEFORE, note),
        desk.listen(Operator.ATTENTION, Phase.AFTER, poison),
    )

    def undo() -> None:
        for remove in listeners:
            remove()

    return _nothing, undo


def _page(desk: Desk) -> tuple[Callable[[], None], Undo]:
    """One bit of a KV page between two steps: its holder is recomputed from the start."""

    def flip() -> None:
        pages = desk.engine.pages
        page = pages.table(desk.victim())[0]
        pages.data[page, 1, 0, 3, 5:6].view(torch.int32).bitwise_xor_(1 << 30)
        desk.fired()

    return flip, _nothing


def _tile(desk: Desk) -> tuple[Callable[[], None], Undo]:
    """One bit of a weight between two steps: its tile comes back from the cold copy."""
    weight = desk.model.get_submodule("model.layers.1.mlp.up_proj").weight

    def flip() -> None:
        with torch.no_grad():
            weight[17, 3:4].view(torch.int32).bitwise_xor_(1 << 29)  # type: ignore[index]
        desk.fired()

    return flip, _nothing


def _legitimate(desk: Desk) -> tuple[Callable[[], None], Undo]:
    """A norm that rounds a little worse than allowed, everywhere alike: no fault, so released."""

    def scale(call: Any) -> bool:
        if call.module != "model.norm":
            return False
        call.output[VICTIM] *= 1 + 6e-6
        return True

    return _nothing, desk.listen(Operator.RMS_NORM, Phase.AFTER, scale)


def _refused(desk: Desk) -> tuple[Callable[[], None], Undo]:
    """A product that is wrong in every run on every backend, with all sums exact: an error."""

    def poison(call: Any) -> bool:
        if not call.module.endswith("layers.1.mlp.down_proj"):
            return False
        call.output[VICTIM, -1, 7] = math.nan
        return True

    return _nothing, desk.listen(Operator.LINEAR, Phase.AFTER, poison)


RUNGS: Final = (
    Rung("transient", "run again", Cause.TRANSIENT, Action.RELEASE, _transient),
    Rung("persistent", "the next backend", Cause.PERSISTENT, Action.RELEASE, _persistent),
    Rung("state_page", "page quarantined, holder recomputed", Cause.STATE, Action.RECOMPUTE, _page),
    Rung("state_weight", "tile copied back", Cause.STATE, Action.RELEASE, _tile),
    Rung("legitimate", "refuted and released", Cause.LEGITIMATE, Action.RELEASE, _legitimate),
    Rung(
        "unresolved", "refused with an error", Cause.UNRESOLVED, Action.REFUSE, _refused,
        refuses=True,
    ),
)  # fmt: skip
"""Every rung, from the cheapest explanation to the last."""
