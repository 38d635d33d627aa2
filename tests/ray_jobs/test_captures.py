"""Every fault on a whole replica leaves a snapshot that shows the failure without the replica."""

import json
from pathlib import Path

import pytest
import torch

from tests.ray_jobs.tiny_model import save_tiny_model
from tocsin.chaos.contract import faults
from tocsin.checker.capture import alarms
from tocsin.checker.contract import registry
from tocsin.checker.journal import Journal, JournalSettings, records_in
from tocsin.checker.snapshot import load_call, load_document, numbers
from tocsin.core.clock import ManualClock
from tocsin.core.faulting import Order, Scope
from tocsin.core.requests import Request, Sampling
from tocsin.ray_jobs.options import ServeOptions
from tocsin.ray_jobs.stack import build

torch.set_num_threads(1)

WITHOUT_A_CALL = {"attn.backend_fail", "host.mem_pressure"}
"""Faults that raise, or tell of memory: there is no operator call whose numbers are wrong."""

WITHOUT_A_RECORD = {"check.self_fault"}
"""Faults that no operator call shows: a check raised, and an event says so."""

OF_TWO_REQUESTS = {"kv.prefix_hash_collision"}
"""Faults that need a second request with the first one's prefix; one alone is served here."""

SECRET = tuple(range(200, 220))


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny decoder on disk."""
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    sorted(
        kind
        for kind, fault in faults().items()
        if fault.scope is Scope.WORKER
        and kind not in WITHOUT_A_RECORD | OF_TWO_REQUESTS
        and (kind in WITHOUT_A_CALL or set(fault.expect) & set(registry()))
    ),
)
def test_the_stored_calls_of_a_fault_alarm_again(
    kind: str, model_folder: Path, tmp_path: Path
) -> None:
    """Proves that what is on disk is the failing call: its check alarms on it, in a fresh reader.

    The engine runs under inference mode, runs the failing step again, undoes what it wrote and
    zeroes pages: the snapshot must have been taken before all that.
    """
    clock = ManualClock(ns=1_800_000_000_000_000_000)
    options = ServeOptions(
        path=str(model_folder), model="tiny", slots=4, pages=40, page_size=8, max_length=64
    )
    path = tmp_path / "failures-r1.jsonl"
    stack = build(options, replica="r1", clock=clock, journal=path)
    engine = stack.engine
    for number in range(3):
        ids = tuple((7 * number + n) % 200 + 3 for n in range(6 + 5 * number))
        engine.submit(
            Request(f"r{number}", SECRET + ids, 12, Sampling(seed=number), ignore_eos=True)
        )
    step = 0
    while engine.has_work:
        step = engine.stats().step
        if step == 8:
            fault = faults()[kind]
            stack.armoury.arm(Order(f"{kind}@0", kind, 11, step, 1e6, dict(fault.params)))
        stack.armoury.tick(step)
        if kind == "kv.stale_after_preempt" and step == 9:
            engine.preempt("r1")
        clock.sleep(0.01)
        engine.step()
    (status,) = stack.armoury.statuses()
    stack.armoury.disarm_all()
    assert status.evidence is not None, status
    stack.gate.close()
    lines = list(records_in(tmp_path))[::-1]
    assert lines, "the fault was not recorded"
    assert stack.gate.counters.snapshots_dropped == 0
    if kind in WITHOUT_A_CALL:
        return
    first = lines[0]
    assert first["snapshot"], first["snapshot_note"]
    seen = set()
    for line in filter(lambda one: one["snapshot"], lines):
        folder = tmp_path / str(line["snapshot"])
        for number in numbers(folder):
            call, document = load_call(folder, number), load_document(folder, number)
            seen |= set(document["checks"])
            assert document["alarms_again"] is True, document
            assert alarms(registry()[document["check"]], call) is True
        request = json.loads((folder / "request.json").read_text())
        assert "prompt_ids" not in request
        assert request["engine"]["model"] == "tiny"
        assert all(request["seeds"][name] == int(name[1]) for name in request["seeds"])
        assert any(one["occurrence"] == f"{kind}@0" for one in request["chaos"])
    assert seen & set(faults()[kind].expect)


def test_a_journal_of_a_replica_keeps_what_it_was_told(model_folder: Path, tmp_path: Path) -> None:
    """Proves that options reach the journal: archive, prompts, clock."""
    options = ServeOptions(
        path=str(model_folder),
        slots=4,
        pages=40,
        page_size=8,
        max_length=64,
        archive_url="memory://bucket",
        journal_prompts=True,
    )
    stack = build(options, replica="r1", journal=tmp_path / "failures-r1.jsonl")
    journal: Journal = stack.gate.journal
    assert journal.settings == JournalSettings(archive_url="memory://bucket", journal_prompts=True)
    assert "path" not in options.shape()
    stack.gate.close()
