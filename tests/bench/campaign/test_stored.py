"""Pages and state: the engine's real checks are shown each fault, and a blind one catches none."""

from typing import Any

import pytest

from tests.bench.campaign.tiny import prompts, tiny
from tocsin.bench.campaign import pages, serving
from tocsin.bench.campaign.pages import STATE_FAULTS, flip_trials, state_trials
from tocsin.checker.guard import Guard, attach
from tocsin.core.terms import Profile


def blind(*args: Any, **kwargs: Any) -> Guard:
    """A guard with everything off."""
    guard = attach(*args, **kwargs)
    guard.switchboard.set_profile(Profile.OFF, "test")
    return guard


def test_every_flipped_bit_of_a_page_is_caught_and_named() -> None:
    """Keys, values, pages just taken over, any bit; the pages are sound again afterwards."""
    counts = flip_trials(tiny(), prompts(3), 130, 1, "flips")
    assert set(counts) == {"kv_k", "kv_v", "kv_adopted"}
    assert sum(one["trials"] for one in counts.values()) == 130
    assert min(one["trials"] for one in counts.values()) > 20
    for one in counts.values():
        assert one["caught"] == one["named"] == one["trials"]


def test_the_same_flips_and_a_blind_checker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A score is the checker's: with everything off nothing is caught."""
    monkeypatch.setattr(serving, "attach", blind)
    counts = flip_trials(tiny(), prompts(3), 20, 1, "flips")
    assert sum(one["trials"] for one in counts.values()) == 20
    assert sum(one["caught"] for one in counts.values()) == 0


def test_every_kind_of_state_fault_is_brought_about() -> None:
    """Each fires and is caught; a page of another prefix has no mark that a table could show."""
    counts = state_trials(tiny(), prompts(3, 40), 8 * len(STATE_FAULTS), 1, "state")
    assert set(counts) == set(STATE_FAULTS)
    for kind, one in counts.items():
        assert one["trials"] >= 2, kind
        assert one["caught"] == one["trials"], (kind, one)
        assert one["named"] == one["trials"], (kind, one)


def test_a_checker_that_names_everybody_names_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of one row is not named by an alarm of all rows, and not by one of none."""
    for rows in ((0, 1, 2), ()):
        monkeypatch.setattr(
            pages,
            "_requests",
            lambda attempt, _, rows=rows: {attempt.request_ids[row] for row in rows},
        )
        counts = state_trials(tiny(), prompts(3, 40), 2 * len(STATE_FAULTS), 1, "state")
        for kind in ("swap", "stale_length", "wrong_position", "foreign_page"):
            assert counts[kind]["caught"] == counts[kind]["trials"] > 0
            assert counts[kind]["named"] == 0, (kind, rows)


def test_state_faults_and_a_blind_checker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is caught that no check saw."""
    monkeypatch.setattr(serving, "attach", blind)
    counts = state_trials(tiny(), prompts(3, 40), 2 * len(STATE_FAULTS), 1, "state")
    assert sum(one["caught"] for one in counts.values()) == 0


def test_the_same_seed_makes_the_same_faults() -> None:
    """And another one others."""
    first, again, other = (
        pages.flip_trials(tiny(), prompts(3), 12, seed, "k") for seed in (1, 1, 2)
    )
    assert first == again
    assert first["kv_k"]["trials"] != other["kv_k"]["trials"] or first != other
