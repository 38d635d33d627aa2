"""Rules for all faults at once, so that a new one is covered the moment it exists."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tocsin.chaos.contract import faults
from tocsin.core.calls import BatchCall
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Scope

WORKER_FAULTS = [unit.id for unit in faults().values() if unit.scope is Scope.WORKER]
LASTING = [kind for kind in WORKER_FAULTS if faults()[kind].heal_with is not None]
IN_CALLS_ONLY = {"kv.page_alias", "kv.stale_after_preempt"}
IN_BOOKS_ONLY = {
    "clock.jump",
    "clock.skew",
    "kv.eviction_storm",
    "kv.leak_refcount",
    "kv.prefix_hash_collision",
    "kv.use_after_free",
}


def _memory(worker: Any) -> dict[str, Tensor]:
    """Everything that outlives a step: pages, weights, tables."""
    held = {f"model.{name}": tensor for name, tensor in worker.model.named_parameters()}
    held |= {f"model.{name}": tensor for name, tensor in worker.model.named_buffers()}
    held["pages"] = worker.pages.data
    return {name: tensor.detach().clone() for name, tensor in held.items()}


def _differing(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {
        name
        for name, tensor in before.items()
        if not torch.equal(tensor.view(torch.int32), after[name].view(torch.int32))
    }


def test_the_fourteen_kinds_of_the_first_catalogue_are_declared() -> None:
    """The ids that experiments, checks and documents refer to exist."""
    assert set(faults()) >= {
        "kv.write_race",
        "kv.page_alias",
        "kv.stale_after_preempt",
        "kv.poisoned_page",
        "kv.bitflip",
        "act.bitflip",
        "weight.bitflip",
        "rope.table",
        "attn.cu_seqlens",
        "attn.backend_fail",
        "batch.malformed",
        "host.mem_pressure",
        "actor.kill",
        "actor.freeze",
    }


@pytest.mark.parametrize("kind", list(faults()))
def test_a_fault_names_a_detector_a_public_report_and_what_it_does(kind: str) -> None:
    """A declaration without these says nothing to its reader, and nothing could be judged."""
    unit = faults()[kind]
    assert unit.expect
    assert "#" in unit.source
    assert len(unit.summary) > 20
    assert set(unit.resolve({})) == set(unit.params)


@pytest.mark.parametrize("kind", list(faults()))
def test_a_parameter_that_a_fault_does_not_know_is_refused(kind: str) -> None:
    """A misspelt parameter must not leave the fault at its defaults in silence."""
    with pytest.raises(SpecError, match="no_such_parameter"):
        faults()[kind].resolve({"no_such_parameter": 1})


@pytest.mark.parametrize("kind", WORKER_FAULTS)
def test_a_fault_fires_and_leaves_evidence(worker: Any, kind: str) -> None:
    """Armed with its defaults on a busy worker, it changes something and can show what."""
    worker.arm(kind)
    worker.decode()
    status = worker.status()
    assert status.state == "fired", status.error
    assert status.fired_step == 0
    assert status.evidence is not None
    assert status.evidence.fired
    assert set(status.evidence.requests) <= {"a", "b"}
    assert [report.state for report in worker.reports] == ["armed", "fired"]


@pytest.mark.parametrize("kind", WORKER_FAULTS)
def test_a_fault_leaves_the_seams_when_it_is_over(worker: Any, kind: str) -> None:
    """What has done its work, or was taken back, costs nothing and can do nothing more."""
    order = worker.arm(kind)
    worker.decode()
    worker.armoury.disarm(order.occurrence)
    worker.armoury.tick(worker.step)
    assert worker.status().state == "healed", worker.status().error
    assert worker.seams.listening == frozenset()


@pytest.mark.parametrize("kind", LASTING)
def test_a_fault_that_lasts_is_seen_in_place_and_seen_healed(worker: Any, kind: str) -> None:
    """`heal_verify` says no while the damage stands and yes afterwards: it can say both."""
    order = worker.arm(kind)
    worker.decode()
    worker.armoury.tick(worker.step)
    assert worker.status().state == "fired"
    worker.armoury.disarm(order.occurrence)
    assert worker.status().state == "healed"
    assert worker.status().healed_ns >= worker.status().fired_ns


@pytest.mark.parametrize("kind", sorted(set(LASTING) - IN_CALLS_ONLY - IN_BOOKS_ONLY))
def test_healing_restores_what_the_fault_changed_and_nothing_else(worker: Any, kind: str) -> None:
    """The memory of a worker that suffered and healed equals that of one that never suffered."""
    order = worker.arm(kind)
    worker.decode()
    after_fault = _memory(worker)
    worker.armoury.disarm(order.occurrence)
    healed = _memory(worker)
    changed = _differing(after_fault, healed)
    assert len(changed) == 1
    assert worker.pages.verify(range(12)) == ()


@pytest.mark.parametrize("kind", sorted(set(LASTING) - IN_CALLS_ONLY - IN_BOOKS_ONLY))
def test_healing_leaves_alone_what_was_written_since(worker: Any, kind: str) -> None:
    """A place that recovery or new data has overwritten is right: the old value is not put back."""
    order = worker.arm(kind)
    worker.decode()
    patch = worker.armoury._book[order.occurrence].target.memory["patch"]
    patch.region.detach().fill_(1)
    worker.armoury.disarm(order.occurrence)
    assert torch.equal(patch.region, torch.ones_like(patch.region))


@pytest.mark.parametrize("kind", sorted(IN_CALLS_ONLY))
def test_a_repointed_entry_is_healed_in_place_or_gone_with_its_table(
    worker: Any, kind: str
) -> None:
    """An engine that keeps its table has it corrected; one that makes a new one needs nothing."""
    order = worker.arm(kind)
    worker.decode()
    table = worker.call(BatchCall).block_table
    clean = torch.tensor([[3, 5], [0, -1], [7, -1]])
    assert int((table != clean).sum()) == 1
    worker.armoury.disarm(order.occurrence)
    assert torch.equal(table, clean)
    again = replace(order, occurrence="again@0")
    worker.armoury.arm(again)
    worker.decode()
    worker.armoury.tick(worker.step)
    assert worker.status().state == "fired"
    worker.calls.clear()
    worker.armoury.tick(worker.step)
    assert worker.status().state == "healed"


@pytest.mark.parametrize("kind", sorted(set(WORKER_FAULTS) - {"host.mem_pressure"}))
def test_an_idle_worker_is_left_alone(worker: Any, kind: str) -> None:
    """A fault that nobody would suffer proves nothing: it waits for a request (memory does not)."""
    worker.request_ids = ("", "", "")
    worker.arm(kind)
    worker.decode()
    assert worker.status().state == "armed"


@pytest.mark.parametrize("kind", WORKER_FAULTS)
def test_the_same_seed_strikes_the_same_place(kind: str, new_worker: Any) -> None:
    """Two workers in the same state suffer the same fault: a run can be replayed."""
    places = []
    for _ in range(2):
        torch.manual_seed(1)
        again = new_worker()
        again.arm(kind)
        again.decode()
        places.append(again.status().evidence)
    assert places[0] == places[1]
