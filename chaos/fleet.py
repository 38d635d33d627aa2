"""The replicas as a run sees them: places that replicas fill, and the steps done in each place."""

from collections.abc import Sequence
from dataclasses import dataclass

from tocsin.core.system import ReplicaInfo


@dataclass(slots=True)
class Place:
    """One place for a replica; a replacement takes the place of the one that died.

    Attributes:
        replica: id of the replica that fills it; node: the Ray node that it is on.
        base_step: the replica's step when the load began, 0 for a replacement.
        steps_before: steps that earlier replicas of this place did since the load began.
    """

    replica: str
    alive: bool = True
    pid: int = 0
    step: int = 0
    base_step: int = 0
    steps_before: int = 0
    seen: bool = True
    node: str = ""

    @property
    def progress(self) -> int:
        """Steps done in this place since the load began: the logical clock `decode_step`."""
        return self.steps_before + max(0, self.step - self.base_step)


class Fleet:
    """Follows which replica fills which place."""

    def __init__(self, replicas: Sequence[ReplicaInfo]) -> None:
        """Places in the system's order; the clocks begin at 0."""
        self.places = [
            Place(r.replica, True, r.pid, r.step, base_step=r.step, node=r.node)
            for r in replicas
            if r.alive
        ]

    def update(self, replicas: Sequence[ReplicaInfo]) -> None:
        """Take in a new reading; newcomers fill the places of the dead."""
        known = {place.replica: place for place in self.places}
        for place in self.places:
            place.seen = False
        newcomers: list[ReplicaInfo] = []
        for reading in replicas:
            mine = known.get(reading.replica)
            if mine is None:
                newcomers += [reading] if reading.alive else []
                continue
            mine.seen = True
            mine.alive = reading.alive
            mine.step = max(mine.step, reading.step)
            mine.pid = reading.pid
        for place in self.places:
            place.alive = place.alive and place.seen
        for reading in newcomers:
            free = next((place for place in self.places if not place.alive), None)
            if free is None:
                new = Place(reading.replica, True, reading.pid, reading.step, node=reading.node)
                self.places.append(new)
                continue
            free.steps_before = free.progress
            free.replica, free.alive, free.pid = reading.replica, True, reading.pid
            free.step, free.base_step, free.seen = reading.step, 0, True
            free.node = reading.node

    def alive(self) -> list[Place]:
        """Places with a living replica."""
        return [place for place in self.places if place.alive]

    def is_alive(self, replica: str) -> bool:
        """Whether this very replica lives."""
        return any(place.replica == replica and place.alive for place in self.places)

    def place(self, index: int) -> Place:
        """The place of an index of the plan."""
        return self.places[index % len(self.places)]
