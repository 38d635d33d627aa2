"""Right values close to one that is there: what fits its surroundings mostly fits with them too."""

from collections.abc import Iterator, Mapping
from typing import Any

from tocsin.helm.gate.proofs.leaves import Leaf


def neighbours(leaf: Leaf, now: Any, count: int) -> list[Any]:
    """The first few right values other than `now`: those next to it, then any that are known.

    Args:
        now: what stands at the place; None where nothing does.
    """
    found: list[Any] = []
    own = (leaf.default,) if leaf.is_said else ()
    for value in (*_near(now), *leaf.alternatives(count), *own):
        if len(found) == count:
            break
        if not _same(value, now) and value not in found and leaf.accepts(value):
            found.append(value)
    return found


def _near(now: Any) -> Iterator[Any]:
    if isinstance(now, bool):
        yield not now
    elif isinstance(now, int | float):
        yield from (now + 1, now - 1, now / 2)
    elif isinstance(now, str) and now:
        yield from _words(now)
    elif isinstance(now, list) and now:
        yield from ([*now, one] for one in _near(now[-1]))
        yield from ([*now[:-1], one] for one in _near(now[-1]))
        yield now[:-1]
    elif isinstance(now, Mapping) and now:
        last = list(now)[-1]
        yield from ({**now, last: one} for one in _near(now[last]))
        yield {key: value for key, value in now.items() if key != last}


def _words(now: str) -> Iterator[str]:
    """Another digit, another letter, one letter more, in front or behind."""
    digits = [at for at, letter in enumerate(now) if letter.isascii() and letter.isdigit()]
    for at in reversed(digits):
        other = "8" if now[at] == "9" else str(int(now[at]) + 1)
        yield now[:at] + other + now[at + 1 :]
        break
    yield now + "x"
    yield "x" + now
    yield now[:-1]


def _same(one: Any, other: Any) -> bool:
    """Equal and of one type: true is not 1."""
    return type(one) is type(other) and bool(one == other)
