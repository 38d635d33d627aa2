"""Whether Ray has an actor for dead: the process of one on another node cannot be looked at."""

import asyncio
import logging
import time
from collections.abc import Callable

import ray

_LOG = logging.getLogger("tocsin.board")
_EVERY_S = 1.0
_DEAD = "DEAD"


class Inquiry:
    """Asks Ray about replicas that are silent, at most once a second each; never holds anybody up.

    Args:
        dead: hears of each replica whose actor is dead.
        is_dead: asks; it may take as long as it likes, or raise.
    """

    def __init__(
        self,
        dead: Callable[[str], None],
        is_dead: Callable[[str], bool] | None = None,
    ) -> None:
        """Nobody was asked about yet."""
        self._dead = dead
        self._is_dead = is_dead or actor_is_dead
        self._asked: dict[str, tuple[float, asyncio.Task[None]]] = {}

    def about(self, replica: str, actor: str) -> None:
        """Ask, unless an answer is still awaited or was given just now."""
        known = self._asked.get(replica)
        if known is not None and (not known[1].done() or time.monotonic() - known[0] < _EVERY_S):
            return
        task = asyncio.ensure_future(self._ask(replica, actor))
        self._asked[replica] = (time.monotonic(), task)

    async def _ask(self, replica: str, actor: str) -> None:
        try:
            dead = await asyncio.to_thread(self._is_dead, actor)
        except Exception as error:  # noqa: BLE001 - whatever Ray breaks, the silence still counts
            _LOG.warning("board: Ray does not say whether %s lives: %r", replica, error)
            return
        if dead:
            self._dead(replica)


def actor_is_dead(actor: str) -> bool:
    """Whether Ray's table of actors has this one (hex id) as dead; one that it forgot is not."""
    found = ray._private.state.actors(actor)
    return bool(found) and found.get("State") == _DEAD
