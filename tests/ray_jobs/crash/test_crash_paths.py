"""Nothing that dies or raises leaves a fault armed; and what does stay is seen to stay."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.test_wal import RECORDS
from tocsin.chaos import wal
from tocsin.ray_jobs.crash.paths import (
    Terms,
    Walked,
    Walker,
    left_armed,
    overlooked_cuts,
    worst_exit,
)

KILLED = [*RECORDS[:3], {"type": "renew", "wall_s": 4.0}]
"""The log of a run that was killed while its one fault was in force."""


@pytest.fixture
def walker(tmp_path: Path) -> Iterator[Walker]:
    one = Walker(tmp_path, Terms(patience_s=180.0))
    yield one
    one.close()


@pytest.mark.slow
def test_none_of_the_seven_paths_leaves_a_fault_armed(walker: Walker) -> None:
    """On each the damage stood when the crash came, and is gone at the end."""
    walked = list(walker.walk())
    assert len(walked) == 7
    assert [one.path for one in walked if not one.in_force] == []
    assert [(one.path, one.left) for one in walked if one.left] == []
    told = {one.path: one.told for one in walked}
    for path in ("controller: SIGTERM", "controller: SIGINT", "an action raises"):
        assert "ends with 4 and leaves verdict.json" in told[path], told
    # With every reading spoiled it may not be shown that all is healed, and then that is said.
    assert re.search("ends with [45] and leaves verdict.json", told["a probe raises"]), told
    assert "heal --all ends with 0" in told["controller: SIGKILL"]


@pytest.mark.slow
def test_a_lease_that_does_not_end_is_seen_as_a_fault_left_armed(walker: Walker) -> None:
    """So the table above can say yes: the controller is dead and the weights stay changed."""
    walker.terms = Terms(ttl_s=600.0, patience_s=180.0)
    with walker.attacked("long") as (controller, before):
        controller.kill()
        assert not before.clean
        walker.terms = Terms(ttl_s=600.0, patience_s=3.0)
        left, gone_s = walker.until_clean()
    assert gone_s is None
    assert "weights of replica-" in left
    assert "is in force" in left


def test_a_log_cut_anywhere_names_its_fault_as_soon_as_its_intent_is_whole(tmp_path: Path) -> None:
    """And never before: nothing was ordered by then."""
    cuts, overlooked = overlooked_cuts(KILLED, tmp_path)
    assert cuts == sum(len(wal.encode(one)) for one in KILLED) + 1
    assert overlooked == []


def test_a_reader_that_gives_up_at_a_torn_line_would_be_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle's own test: one torn line makes it see nothing at all."""
    honest = wal.read

    def fragile(path: Path) -> wal.Reading:
        found = honest(path)
        return wal.Reading((), found.damaged) if found.damaged else found

    monkeypatch.setattr(wal, "read", fragile)
    assert overlooked_cuts(KILLED, tmp_path)[1]


@pytest.mark.parametrize(
    ("changes", "code", "left"),
    [({}, 0, 0), ({"in_force": False}, 3, 0), ({"left": "w@0 is in force"}, 5, 1)],
)
def test_the_exit_code_is_that_of_the_worst_path(
    changes: dict[str, Any], code: int, left: int
) -> None:
    """A path on which nothing was in force shows nothing, which is not fine."""
    fine: dict[str, Any] = {"in_force": True, "left": "", "gone_after_s": 1.0, "told": ""}
    walked = [Walked("one", **fine), Walked("other", **{**fine, **changes})]
    assert worst_exit(walked) == code
    assert len(left_armed(walked)) == left
