"""Whether Ray's control plane answers: asked once a second by gRPC's own health protocol."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from tocsin.core.history import EventKind

CLUSTER = "cluster"
"""Whom an alarm of the control plane is about."""
_EVERY_S = 1.0
_ANSWER_S = 1.5
_IN_A_ROW = 2
"""A busy machine may be late once."""
_CHECK = "/grpc.health.v1.Health/Check"
_SILENT = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)

Note = Callable[[str, str, dict[str, Any]], None]


class ControlPlane:
    """Follows one control plane; each change is told once.

    Args:
        note: hears kind of event, whom it is about, and details.
    """

    def __init__(self, note: Note) -> None:
        """Nothing was heard yet: one that never answers is asked in a wrong way (TLS), not down."""
        self._note = note
        self._heard = False
        self._missed = 0

    @property
    def down(self) -> bool:
        """Whether it does not answer."""
        return self._missed >= _IN_A_ROW

    def take(self, answered: bool) -> None:
        """One answer, or none."""
        was_down = self.down
        self._heard = self._heard or answered
        self._missed = 0 if answered or not self._heard else self._missed + 1
        if self.down and not was_down:
            silent_s = round(_IN_A_ROW * _ANSWER_S, 1)
            self._note(EventKind.CONTROL_DOWN, CLUSTER, {"silent_s": silent_s})
        elif was_down and not self.down:
            self._note(EventKind.CONTROL_UP, CLUSTER, {})

    async def mind_for_ever(self, address: str) -> None:
        """Ask again and again.

        Args:
            address: `host:port` of the control plane (GCS).
        """
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.unary_unary(_CHECK)
            while True:
                self.take(await _answers(call))
                await asyncio.sleep(_EVERY_S)


async def _answers(call: Callable[..., Any]) -> bool:
    """Whether anything comes back: a refusal is an answer, too."""
    try:
        await call(b"", timeout=_ANSWER_S)
    except grpc.RpcError as error:
        return error.code() not in _SILENT
    return True
