"""What may keep a chaos run from going on: a label, a lease, an alert."""

from typing import Protocol


class Guard(Protocol):
    """One condition under which faults may be injected."""

    def why_not(self) -> str:
        """Why nothing may be injected (any more), in one line; empty: it may.

        May take seconds and is called from a thread of its own. It never raises: what it cannot
        find out is a reason.
        """
        ...
