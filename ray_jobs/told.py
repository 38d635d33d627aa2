"""The board is told of an experiment on what serves, so that pushed alerts are a drill's."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

_MARGIN_S = 120.0
"""What healing and looking after the application may take beyond the experiment's own limit."""
_AFTER_S = 60.0
"""A failure of the experiment's last step may be pushed a little later."""
_ANSWER_S = 15.0


@contextmanager
def board_told(board: Any, longest_s: float) -> Iterator[None]:
    """While the block lasts the board's pushes carry the drill's mark, as the rules' alerts do.

    A driver that is lost says no end: the mark ends by itself.

    Args:
        board: of the application that is attacked.
        longest_s: how long the experiment may take.
    """
    ray.get(board.attacked.remote(longest_s + _MARGIN_S), timeout=_ANSWER_S)
    try:
        yield
    finally:
        board.attacked.remote(_AFTER_S)
