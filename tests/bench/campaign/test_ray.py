"""Shards over Ray actors are the same shards."""

from pathlib import Path

import pytest

from tests.bench.campaign.tiny import SMALL, load
from tocsin.bench.campaign import campaign as campaign_module
from tocsin.bench.campaign.campaign import journal_paths, work
from tocsin.bench.campaign.journal import read
from tocsin.bench.campaign.plan import shards_of

pytestmark = pytest.mark.ray


def test_actors_do_the_same_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two actors share the state and page shards; their records are those of a run without Ray."""
    monkeypatch.setattr(campaign_module, "load_served", load)
    shards = shards_of(SMALL, ("state", "pages"))
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    assert work(SMALL, shards, alone) == 0
    assert work(SMALL, shards, shared, actors=2) == 0
    first, second = (read(journal_paths(folder, SMALL)) for folder in (alone, shared))
    assert first == second
    assert set(first) == {shard.key for shard in shards}
