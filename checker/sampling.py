"""The full set of checks on a share of requests, and in turn elsewhere under the guard profile.

A request is chosen by a keyed hash of its id: on every replica, and after a restart, the same ones
are. Beside them the guard profile lends each operator and layer its expensive checks for a while,
one after the other, so that none goes unlooked at for good.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field

from tocsin.checker.contract import Check
from tocsin.checker.counters import Counters
from tocsin.checker.switchboard import Switchboard, Turn
from tocsin.core.draw import draw_unit
from tocsin.core.terms import Layer, Operator, Profile

_REMEMBERED = 4096
_REST = 4
"""Of so many parts of a turn one is used: the others keep the profile as cheap as it is."""


def _share(value: object) -> object:
    """A share as a number: "1%" is 0.01."""
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            return float(value.strip()[:-1]) / 100
        except ValueError:
            return value  # pydantic says what is wrong with it
    return value


Share = Annotated[float, BeforeValidator(_share), Field(ge=0.0, le=1.0)]
"""A share of all requests: 0.01, or "1%"."""


def turns_of(units: Iterable[Check]) -> tuple[Turn, ...]:
    """Every operator and layer that has checks beyond those of the guard profile, in order."""
    found = {
        (operator, unit.layer)
        for unit in units
        for operator in unit.operators
        if unit.profile_at(operator) is Profile.FULL
    }
    operators, layers = list(Operator), list(Layer)
    return tuple(sorted(found, key=lambda turn: (layers.index(turn[1]), operators.index(turn[0]))))


class SampledCounts:
    """What the checks of sampled steps found, apart from those of all steps.

    Args:
        flush: the counters, with all that was found so far.
    """

    def __init__(self, flush: Callable[[], Counters]) -> None:
        """No step has begun."""
        self._flush = flush
        self._before: dict[tuple[str, str, str], int] | None = None

    def begin(self, *, sampled: bool) -> None:
        """A step begins; costs nothing where no request of the sample is in it."""
        self._before = dict(self._flush().checks) if sampled else None

    def end(self) -> None:
        """The step is settled: what came since its beginning is its own, reruns included."""
        if self._before is None:
            return
        counters = self._flush()
        for key, count in counters.checks.items():
            if key[-1] != "error":  # it evaluated nothing
                counters.sampled_checks[key] += count - self._before.get(key, 0)
        self._before = None


class Sampler:
    """Decides before each step what it is checked with, and tells the switchboard.

    Args:
        share: of requests that are checked in full; a step that holds one of them is.
        seed: key of the hash.
        rotate_steps: steps that one operator's turn lasts, in the first quarter of which its
            expensive checks run; 0: no rotation.

    Attributes:
        chosen: requests so far that are checked in full; seen: requests so far.
    """

    def __init__(
        self,
        switchboard: Switchboard,
        units: Mapping[str, Check],
        *,
        share: float = 0.0,
        seed: int = 0,
        rotate_steps: int = 0,
    ) -> None:
        """No step has begun."""
        self._switchboard = switchboard
        self._turns = turns_of(units.values())
        self._known: OrderedDict[str, bool] = OrderedDict()
        self.chosen = 0
        self.seen = 0
        self.limit(share=share, seed=seed, rotate_steps=rotate_steps)

    def limit(self, *, share: float, seed: int, rotate_steps: int) -> None:
        """Other shares from the next step on; requests under way are drawn anew."""
        self._share, self._seed, self._rotate_steps = share, seed, rotate_steps
        self._known.clear()

    def begin(self, step: int, request_ids: Iterable[str]) -> bool:
        """A step is about to be checked; costs a look-up a row.

        Args:
            request_ids: of each row, empty for an idle row.

        Returns:
            a request of the sample is in it.
        """
        sampled = self._share > 0.0 and any(
            [self.samples(request) for request in request_ids if request]
        )
        self._switchboard.attend(sampled, self.turn_at(step))
        return sampled

    def samples(self, request_id: str) -> bool:
        """Whether this request is one of the share."""
        known = self._known.get(request_id)
        if known is None:
            known = draw_unit(self._seed, "sample", request_id) < self._share
            self.seen += 1
            self.chosen += known
            self._known[request_id] = known
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return known

    def turn_at(self, step: int) -> Turn | None:
        """Whose expensive checks run at a step under the guard profile."""
        if self._rotate_steps == 0 or not self._turns or step < 0:
            return None
        turn, at = divmod(step, self._rotate_steps)
        if at >= max(1, self._rotate_steps // _REST):
            return None
        return self._turns[turn % len(self._turns)]
