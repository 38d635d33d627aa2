"""What a campaign consists of: every kind and stratum, shared out evenly, none without its turn."""

from itertools import compress

import pytest

from tests.bench.campaign.tiny import SMALL
from tocsin.bench.campaign.campaign import share
from tocsin.bench.campaign.plan import (
    Campaign,
    Shard,
    faults_of,
    quick,
    shards_of,
    trial_of,
    world_number,
)
from tocsin.bench.campaign.quotas import sequence, strata, tickets_of
from tocsin.core.errors import SpecError

SHARDS = shards_of(SMALL)


def test_shards_have_keys_of_their_own() -> None:
    """And a quick campaign holds every kind."""
    for campaign in (SMALL, quick(), Campaign()):
        shards = shards_of(campaign)
        assert len({shard.key for shard in shards}) == len(shards)
        assert {shard.kind for shard in shards} == {
            "coverage",
            "pages",
            "state",
            "alarms",
            "repair",
        }


def test_the_full_campaign_is_as_large_as_its_goals() -> None:
    """Flips, state faults, repairs: the numbers that the goals name."""
    full = Campaign()
    dtypes = len(full.dtypes)
    assert full.page_shards * full.page_flips * dtypes >= 10_000
    assert full.state_shards * full.state_faults * dtypes >= 1_000
    assert sum(full.repair_shards.values()) * full.repair_faults >= 1_000
    assert set(full.alarm_shards) == {"fp32", "bf16", "fp16"}
    assert {1, 32} <= set(full.alarm_rows) <= set(range(1, 33))
    assert min(full.alarm_shards.values()) >= 3  # each meets 1 and 32 rows


def test_every_stratum_is_drawn_as_often_as_its_tickets_say() -> None:
    """One round of batches, and at each start, at `guard` and at the competitors none is left out.

    What is seen of only every fourth batch must not be the same strata each time.
    """
    campaign = Campaign()
    round_of = sequence()
    assert all(round_of.count(one) >= tickets_of(*one) > 0 for one in strata())
    assert len(round_of) - sum(tickets_of(*one) for one in strata()) <= 3
    for parts in (
        [number % len(campaign.starts) == 0 for number in range(campaign.decode_batches["fp32"])],
        [
            number // 2 % campaign.guard_every == 0
            for number in range(campaign.decode_batches["fp32"])
        ],
        [
            number // 2 % campaign.rivals_every == 0
            for number in range(campaign.decode_batches["fp32"])
        ],
    ):
        drawn = {
            round_of[(number * campaign.rows + row) % len(round_of)]
            for number in compress(range(campaign.decode_batches["fp32"]), parts)
            for row in range(campaign.rows)
        }
        assert drawn == set(strata())
    for every in (campaign.guard_every, campaign.rivals_every):
        shown = {n % len(campaign.starts) for n in range(40) if n // 2 % every == 0}
        assert shown == set(range(len(campaign.starts)))


def test_a_batch_has_faults_of_all_kinds() -> None:
    """Tickets are spread: no batch is made of one kind of bits or one site."""
    for number in range(12):
        shard = Shard(kind="coverage", dtype="fp32", number=number, phase="decode")
        faults = faults_of(Campaign(), shard)
        assert len({fault.site for fault in faults}) > 10
        assert len({fault.bits for fault in faults}) > 3


def test_both_phases_move_on_to_the_next_prompts_together() -> None:
    """A golden run is made once, not each time that the other phase has its turn."""
    campaign = Campaign()
    for phase, count in (
        ("decode", campaign.decode_batches["fp32"]),
        ("prefill", campaign.prefill_batches["fp32"]),
    ):
        shards = [
            Shard(kind="coverage", dtype="fp32", number=number, phase=phase)
            for number in range(count)
        ]
        worlds = [world_number(campaign, shard) for shard in shards]
        assert worlds == sorted(worlds)
        assert set(worlds) == set(range(campaign.worlds))


def test_two_machines_have_as_much_to_do() -> None:
    """Every lane is shared out evenly, and so are the batches that competitors see."""
    shards = shards_of(Campaign())
    parts = [share(shards, part) for part in ("1/2", "2/2")]
    assert sorted(s.key for part in parts for s in part) == sorted(s.key for s in shards)
    for lane in {shard.lane for shard in shards}:
        counts = [sum(shard.lane == lane for shard in part) for part in parts]
        assert abs(counts[0] - counts[1]) <= 1
    every = Campaign().rivals_every
    shown = [
        sum(s.lane == "coverage/bf16/decode" and s.number // 2 % every == 0 for s in part)
        for part in parts
    ]
    assert abs(shown[0] - shown[1]) <= 1


def test_a_seed_makes_other_faults_at_the_same_strata() -> None:
    """Everything that a fault picks follows from seed and key."""
    shard = SHARDS[0].model_copy(update={"kind": "coverage", "phase": "decode"})
    one, other = faults_of(SMALL, shard), faults_of(SMALL.model_copy(update={"seed": 6}), shard)
    assert [fault.site for fault in one] == [fault.site for fault in other]
    assert [f.below(1 << 40, "x") for f in one] != [f.below(1 << 40, "x") for f in other]
    assert one == faults_of(SMALL, shard)


def test_other_code_does_not_take_these_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that was changed is judged anew: the journal is that of the code on trial."""
    from tocsin.bench.campaign import plan

    before = SMALL.digest
    monkeypatch.setattr(plan, "code_digest", lambda: "other")
    assert SMALL.digest != before


@pytest.mark.parametrize("part", ["0/2", "3/2", "two", "1"])
def test_a_wrong_share_is_refused(part: str) -> None:
    """Shards that nobody does would be missing without a word."""
    with pytest.raises(SpecError, match="expected i/n"):
        share(SHARDS, part)


@pytest.mark.parametrize("key", ["coverage/fp32/decode/7/1", "pages/fp32/0001", "coverage/fp31/…"])
def test_a_wrong_trial_is_refused(key: str) -> None:
    """It names what a key looks like."""
    with pytest.raises(SpecError, match="expected a key"):
        trial_of(key)
