"""Who notices that a road or a control plane is not what it was: told once, never by chance."""

from collections.abc import Mapping
from typing import Any

import pytest

from tocsin.core.history import EventKind
from tocsin.ray_jobs.control_plane import ControlPlane
from tocsin.ray_jobs.road_watch import LATE_S, Judgement

SLOW, LOST, CLEAR = EventKind.ROAD_SLOW, EventKind.ROAD_LOST, EventKind.ROAD_CLEAR


def _told(pairs: list[tuple[float | None, float | None]]) -> list[EventKind]:
    told: list[EventKind] = []

    def tell(kind: EventKind, data: Mapping[str, Any]) -> None:
        told.append(kind)

    judgement = Judgement(tell)
    for direct_s, road_s in pairs:
        judgement.take(direct_s, road_s)
    return told


@pytest.mark.parametrize(
    ("pairs", "told"),
    [
        ([(0.1, 0.1)] * 5, []),
        ([(3.0, 3.0 + LATE_S)] * 5, []),  # the service itself is slow
        ([(0.1, 0.4), (0.1, 0.1), (0.1, 0.4)], []),  # once is chance
        ([(0.1, 0.4)] * 5, [SLOW]),
        ([(0.1, None)] * 5, [LOST]),
        ([(None, None)] * 5, []),  # nobody answers anybody
        ([(0.1, None), (None, None), (0.1, None)], [LOST]),
        ([(0.1, 0.4), (0.1, None), (0.1, None)], [LOST]),
        ([(0.1, 0.4)] * 2 + [(0.1, 0.1)] + [(0.1, None)] * 2, [SLOW, CLEAR, LOST]),
        ([(0.1, None)] * 2 + [(0.1, 0.4)] * 2 + [(0.1, 0.1)] * 2, [LOST, SLOW, CLEAR]),
    ],
)
def test_a_road_is_judged_beside_the_direct_way(
    pairs: list[tuple[float | None, float | None]], told: list[EventKind]
) -> None:
    """Only what the road adds counts, twice in a row, and each change is told once."""
    assert _told(pairs) == told


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ("yyyyy", []),
        ("yyny", []),
        ("yynn", ["control_down"]),
        ("ynnnnn", ["control_down"]),
        ("ynnyy", ["control_down", "control_up"]),
        ("ynnynny", ["control_down", "control_up", "control_down", "control_up"]),
        ("nnnnn", []),  # asked in a wrong way, as under TLS
        ("nnynn", ["control_down"]),
    ],
)
def test_a_control_plane_is_down_after_two_silent_questions(answers: str, told: list[str]) -> None:
    """And one that has never answered is not known to be down."""
    heard: list[str] = []

    def note(kind: str, about: str, data: Mapping[str, Any]) -> None:
        assert about == "cluster"
        heard.append(kind)

    control = ControlPlane(note)
    for answer in answers:
        control.take(answer == "y")
    assert heard == told
