"""What a failure leaves behind: the failing call as it was, before the step was run again."""

import json
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tocsin.checker.breaker import Breaker
from tocsin.checker.capture import ELEMENTS_MAX, capture, summary
from tocsin.checker.contract import registry
from tocsin.checker.counters import Counters
from tocsin.checker.excerpt import excerpt
from tocsin.checker.gate import GuardGate
from tocsin.checker.guard import attach
from tocsin.checker.inspect import judge
from tocsin.checker.journal import Admission, Journal, JournalSettings, records_in
from tocsin.checker.kept import KeptCalls
from tocsin.checker.snapshot import load_call, load_document, numbers
from tocsin.checker.surroundings import Surroundings
from tocsin.core.calls import (
    AttentionCall,
    BatchCall,
    Call,
    EmbeddingCall,
    KVUpdateCall,
    LinearCall,
    LogitsCall,
)
from tocsin.core.clock import ManualClock
from tocsin.core.errors import BackendError
from tocsin.core.requests import Request, Sampling
from tocsin.core.terms import Operator, Phase
from tocsin.core.verdict import Finding

torch.set_num_threads(1)

SECRET = (41, 42, 43)


class Desk:
    """A gate over a small model that journals into a folder."""

    def __init__(self, folder: Path, attempt: type[Any], **chosen: Any) -> None:
        self.folder = folder
        self.clock = ManualClock(ns=1_800_000_000_000_000_000)
        self.model = nn.Sequential(nn.Linear(8, 256)).eval()
        self.guard = attach(self.model, clock=self.clock)
        self.journal = Journal(
            folder / "failures-r1.jsonl",
            counters=self.guard.runtime.counters,
            settings=JournalSettings(**chosen),
            clock=self.clock,
        )
        request = Request("b", SECRET, 5, Sampling(seed=77))
        self.gate = GuardGate(
            self.guard,
            Breaker(clock=self.clock),
            None,
            journal=self.journal,
            clock=self.clock,
            replica="r1",
            surroundings=Surroundings(
                engine={"slots": 3, "bucket": [3, 1]},
                request_of={"b": request}.get,
                trace_of=lambda request_id: f"00-{'a' * 32}-{'b' * 16}-01",
                chaos=lambda: [{"occurrence": "flip@0", "state": "fired"}],
            ),
        )
        self._attempt = attempt
        self._step = 0

    def settle(self, body: Callable[[Any, str], None]) -> Any:
        """One step as an engine runs it; what it was settled with."""
        self._step += 1
        attempt = self._attempt(body, self.gate, step=self._step, backend="flash")
        self.gate.open(attempt)
        error = None
        try:
            attempt.run()
        except (BackendError, RuntimeError) as raised:
            error = raised
        return self.gate.settle(attempt, error)

    def emit(self, call: Call, phase: Phase = Phase.AFTER) -> None:
        self.guard.seams.emit(call, phase)

    def record(self) -> dict[str, Any]:
        """The newest line."""
        return next(records_in(self.folder))

    def snapshot(self) -> Path:
        """Where the newest failure's calls are."""
        assert self.journal.drain()
        return self.folder / str(self.record()["snapshot"])


@pytest.fixture
def desk(tmp_path: Path, fake_attempt: type[Any]) -> Iterator[Callable[..., Desk]]:
    made: list[Desk] = []

    def make(**chosen: Any) -> Desk:
        made.append(Desk(tmp_path / "journal", fake_attempt, **chosen))
        return made[-1]

    yield make
    for one in made:
        one.gate.close()
        one.guard.detach()


def attention(value: float = math.nan, module: str = "layers.1.attn") -> AttentionCall:
    """Three rows, the second of them wrong."""
    output = torch.ones(3, 2, 1, 4)
    output[1, 0, 0, 0] = value
    kv = torch.ones(3, 1, 5, 4)
    q = torch.ones(3, 2, 1, 4)
    return AttentionCall(module=module, depth=1, rows=3, q=q, k=kv, v=kv, output=output)


def batch(ids: tuple[int, ...], expected: tuple[int, ...]) -> BatchCall:
    position_ids = torch.arange(3)
    return BatchCall(
        rows=3,
        input_ids=torch.tensor(ids),
        input_ids_expected=torch.tensor(expected),
        position_ids=position_ids,
        position_ids_expected=position_ids,
        vocab_size=100,
        request_ids=("a", "b", "c"),
    )


def test_the_call_is_stored_as_it_was_in_the_first_run(desk: Callable[..., Desk]) -> None:
    """Proves that a fault which is gone on the second run is in the snapshot all the same."""
    one = desk()
    memory = attention()
    settled = threading.Event()
    # The disk is slow: nothing is written before the second run is over.
    assert one.journal.snapshot(lambda: _wait(settled), 0)

    def body(step: Any, backend: str) -> None:
        if step.runs > 1:  # the same memory, overwritten by the second run
            assert memory.output is not None
            memory.output.fill_(1.0)
        one.emit(memory)

    one.settle(body)
    settled.set()
    stored = load_call(one.snapshot())
    assert isinstance(stored, AttentionCall)
    assert stored.output is not None
    assert bool(stored.output[1, 0, 0, 0].isnan())
    document = load_document(one.snapshot())
    assert document["alarms_again"] is True
    assert document["check"] == one.record()["check"]
    assert document["failure_id"] == one.record()["failure_id"]
    assert (document["operator"], document["module"], document["depth"]) == (
        "attention",
        "layers.1.attn",
        1,
    )
    assert document["phase"] == "after"
    assert document["rows_alarmed"] == [1]
    assert document["full"] is True


def test_a_record_has_every_field(desk: Callable[..., Desk]) -> None:
    """Proves that the line says who, where, what, how large, on what, and since when."""
    one = desk()
    one.settle(lambda step, backend: one.emit(attention(1.0 if step.runs > 1 else math.nan)))
    line = one.record()
    wanted = {
        "row": "failure",
        "trace_id": "a" * 32,
        "span_id": "b" * 16,
        "request_id": "b",
        "operator": "attention",
        "layer_idx": 1,
        "device": "cpu",
        "suppressed_since_last": 0,
        "sampled_full": True,
        "snapshot": f"snapshots/{line['failure_id']}",
        "snapshot_note": "",
        "seed": 77,
        "chaos_run": "",
        "stack": [],
    }
    assert {name: line[name] for name in wanted} == wanted
    assert line["code"] == line["check"] == line["findings"][0]["check"]
    assert line["shapes"]["k"] == [3, 1, 5, 4]
    assert line["dtypes"]["output"] == "float32"
    assert line["business_impact"]
    assert line["environment"]["slots"] == 3
    assert line["environment"]["threads"] == torch.get_num_threads()
    assert "torch" in line["environment"]["build"]
    statistics = line["tensors"]["output"]
    assert (statistics["nan"], statistics["inf"], statistics["max"]) == (1, 0, 1.0)
    assert one.gate.counters.nonfinite["attention", "nan"] == 1
    assert one.gate.counters.nonfinite["attention", "inf"] == 0
    assert line["ts"].startswith("2027-01-15T08:00:00")


def test_a_host_side_call_is_stored_and_its_prompt_is_not(desk: Callable[..., Desk]) -> None:
    """Proves that a vetoed batch is captured, alarms again, and holds no token id."""
    one = desk()

    def body(step: Any, backend: str) -> None:
        wrong = (41, 42, 43) if step.runs > 1 else (41, 99, 43)
        one.emit(batch(wrong, SECRET), Phase.BEFORE)
        one.emit(attention(1.0))

    one.settle(body)
    stored, document = load_call(one.snapshot()), load_document(one.snapshot())
    assert isinstance(stored, BatchCall)
    assert stored.input_ids.tolist() == [0, 3, 2]
    assert stored.input_ids_expected.tolist() == [0, 1, 2]
    assert document["alarms_again"] is True
    assert document["phase"] == "before"
    assert document["redacted"] == ["input_ids", "input_ids_expected"]
    request = json.loads((one.snapshot() / "request.json").read_text())
    assert request["seeds"] == {"b": 77}
    assert request["sampling"]["b"]["seed"] == 77
    assert request["chaos"] == [{"occurrence": "flip@0", "state": "fired"}]
    assert request["engine"]["slots"] == 3
    assert "prompt_ids" not in request
    assert request["prompt_tokens"] == {"b": 3}


def test_prompts_are_stored_where_that_is_wanted(desk: Callable[..., Desk]) -> None:
    """Proves the switch that a replay on the model needs."""
    one = desk(journal_prompts=True)
    one.settle(lambda step, backend: one.emit(batch((41, 99, 43), SECRET), Phase.BEFORE))
    stored = load_call(one.snapshot())
    assert isinstance(stored, BatchCall)
    assert stored.input_ids.tolist() == [41, 99, 43]
    request = json.loads((one.snapshot() / "request.json").read_text())
    assert request["prompt_ids"] == {"b": list(SECRET)}


def test_a_second_failure_within_five_minutes_has_numbers_only(desk: Callable[..., Desk]) -> None:
    """Proves that full snapshots are the first of a check, and again after five minutes."""
    one = desk(full_share=0.0)

    def fail() -> dict[str, Any]:
        one.settle(lambda step, backend: one.emit(attention(1.0 if step.runs > 1 else math.nan)))
        return one.record()

    assert fail()["sampled_full"] is True
    one.clock.sleep(299)
    second = fail()
    assert second["sampled_full"] is False
    assert second["snapshot"] == ""
    assert second["tensors"]["output"]["nan"] == 1
    one.clock.sleep(1)
    assert fail()["sampled_full"] is True
    assert one.journal.drain()
    assert len(list((one.folder / "snapshots").iterdir())) == 2


def test_each_check_of_a_failure_has_its_first_call(desk: Callable[..., Desk]) -> None:
    """Proves that several operators failing in one step leave a call each, the first one first."""
    one = desk()

    def body(step: Any, backend: str) -> None:
        value = 1.0 if step.runs > 1 else math.nan
        one.emit(attention(value))
        one.emit(attention(value, module="layers.2.attn"))
        hidden = torch.full((3, 1, 4), value)
        one.emit(
            LogitsCall(module="head", rows=3, logits=torch.full((3, 1, 9), value), hidden=hidden)
        )

    one.settle(body)
    folder = one.snapshot()
    documents = [load_document(folder, number) for number in numbers(folder)]
    assert [document["operator"] for document in documents] == ["attention", "logits"]
    assert documents[0]["module"] == "layers.1.attn"
    pairs = {(finding["operator"], finding["check"]) for finding in one.record()["findings"]}
    stored = {
        (document["operator"], check) for document in documents for check in document["checks"]
    }
    assert stored == pairs


def test_a_sample_is_one_call_without_its_weights() -> None:
    """Proves that one in a hundred of a storm costs kilobytes, and still alarms."""
    call = LinearCall(
        module="m",
        x=torch.ones(2, 512),
        weight=torch.ones(512, 512),
        output=torch.full((2, 512), 9.0),
        block_sums=torch.full((4, 512), 128.0),
        block_norms=torch.full((4,), 256.0),
    )
    findings = [_at(finding, call) for finding in judge(call).findings]
    assert findings
    other = attention()
    findings += [_at(finding, other) for finding in judge(other).findings]
    sampled, first = Admission(True, True, (), 0, 0.0), Admission(True, True, (("a", "b"),), 0, 0.0)
    counters = Counters()
    for admission, calls, size_max in ((sampled, 1, 50_000), (first, 2, 2_000_000)):
        taken = capture([call, other], findings, admission, registry(), JournalSettings(), counters)
        assert len(taken.exhibits) == calls
        assert sum(one.size_bytes for one in taken.exhibits) <= size_max
        assert judge(taken.exhibits[0].call).findings
    assert counters.nonfinite["attention", "nan"] == 1  # only where it was captured


def test_without_the_library_the_line_says_so(
    desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves that safetensors is optional: the numbers stay, and a word says what is missing."""
    monkeypatch.setattr("tocsin.checker.capture.can_save", lambda: False)
    one = desk()
    one.settle(lambda step, backend: one.emit(attention()))
    line = one.record()
    assert line["snapshot"] == ""
    assert "safetensors was not found" in line["snapshot_note"]
    assert line["tensors"]["output"]["nan"] == 1


def test_a_full_disk_costs_the_snapshot_and_nothing_else(
    desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves that what the thread cannot write is counted, while the step is settled as ever."""

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tocsin.checker.capture.save_calls", full)
    one = desk()
    settlement = one.settle(
        lambda step, backend: one.emit(attention(1.0 if step.runs > 1 else math.nan))
    )
    assert settlement.failures
    assert one.journal.drain()
    assert one.gate.counters.snapshots_dropped == 1


def test_a_capture_that_fails_stops_no_step(
    desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves that no memory for a copy costs the copy alone; the line says why."""

    def no_memory(*args: Any, **kwargs: Any) -> None:
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")

    monkeypatch.setattr("tocsin.checker.capture.excerpt", no_memory)
    one = desk()
    settlement = one.settle(
        lambda step, backend: one.emit(attention(1.0 if step.runs > 1 else math.nan))
    )
    assert settlement.failures
    assert one.record()["snapshot"] == ""
    assert "OutOfMemoryError: tried to allocate" in one.record()["snapshot_note"]


def test_a_backlog_is_counted_and_never_waited_for(desk: Callable[..., Desk]) -> None:
    """Proves that a disk that hangs does not hold the step: the next snapshot is given up."""
    one = desk(queue_bytes_max=1)
    hanging, begun = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        hanging.wait(30)

    assert one.journal.snapshot(hang, 1)
    assert begun.wait(30)
    assert one.journal.snapshot(lambda: None, 1)  # waits behind the one that hangs
    one.settle(lambda step, backend: one.emit(attention(1.0 if step.runs > 1 else math.nan)))
    assert one.gate.counters.snapshots_dropped == 1
    assert one.record()["snapshot"] == ""
    assert "too many wait for the disk" in one.record()["snapshot_note"]
    hanging.set()


def test_an_exception_leaves_its_kind_and_its_innermost_frames(desk: Callable[..., Desk]) -> None:
    """Proves code and stack of a failure without a finding; no folder of this machine is told."""
    one = desk()

    def body(step: Any, backend: str) -> None:
        raise BackendError("flash: the kernel refused head size 40")

    one.settle(body)
    line = one.record()
    assert line["code"] == "BackendError"
    assert line["stack"][-1].startswith("checker/test_capture.py:")
    assert line["stack"][-1].endswith(" body")
    assert "head size 40" in line["error"]


def test_a_clean_step_keeps_nothing(desk: Callable[..., Desk]) -> None:
    """Proves that no reference outlives its step, failed or clean."""
    one = desk()
    kept = one.guard.runtime.evaluation.kept
    held: list[int] = []

    def body(step: Any, backend: str) -> None:
        one.emit(attention(1.0))
        held.append(len(kept.calls))

    one.settle(body)
    assert held == [1]
    assert kept.calls == []
    held.clear()
    one.settle(lambda step, backend: (one.emit(attention()), held.append(len(kept.calls)))[0])
    assert held[:2] == [1, 0]  # the first run is told about, no other
    assert kept.calls == []


def test_references_have_a_budget() -> None:
    """Proves that a call beyond it is let go, and that memory of the model does not count."""
    weight = torch.ones(256, 256)
    kept = KeptCalls(bytes_max=100)
    small = LinearCall(x=torch.ones(1, 4), weight=weight, output=torch.ones(1, 4))
    large = LinearCall(x=torch.ones(9, 4), weight=weight, output=torch.ones(9, 4))
    kept.keep(small)
    kept.keep(large)
    kept.keep(small)
    assert kept.calls == [small, small]
    kept.clear()
    kept.keep(small)
    assert len(kept.calls) == 1
    assert KeptCalls().calls == []


def test_a_call_that_was_not_kept_is_said(tmp_path: Path) -> None:
    """Proves that a missing snapshot has a reason in the line."""
    finding = Finding(
        "numerical.finite", Operator.LINEAR, _layer(), _priority(), 9.0, "m", (), "", ""
    )
    admission = Admission(True, True, (("linear", "numerical.finite"),), 0, 0.0)
    counters = Counters()
    taken = capture([], [finding], admission, registry(), JournalSettings(), counters)
    assert not taken.exhibits
    assert "was not kept" in taken.note
    call = LinearCall(module="m", x=torch.ones(2, 4), weight=torch.ones(4, 4))
    tight = JournalSettings(snapshot_bytes_max=10)
    taken = capture([call], [finding], admission, registry(), tight, counters)
    assert not taken.exhibits
    assert "more than the 10 that may be stored" in taken.note
    assert taken.described["shapes"]["x"] == [2, 4]


def test_a_module_that_ran_twice_is_asked_which_call_alarms() -> None:
    """Proves that the failing one of two calls is taken."""
    good, bad = attention(1.0), attention(math.nan)
    findings = judge(bad).findings
    placed = [_at(finding, bad) for finding in findings]
    admission = Admission(True, True, (), 0, 0.0)
    taken = capture([good, bad], placed[:1], admission, registry(), JournalSettings(), Counters())
    assert isinstance(taken.exhibits[0].call, AttentionCall)
    assert taken.exhibits[0].call.output is not None
    assert bool(taken.exhibits[0].call.output.isnan().any())


@settings(max_examples=60, deadline=None)
@given(
    ids=st.lists(st.integers(-3, 14), min_size=1, max_size=12),
    seed=st.integers(0, 9),
)
def test_a_lookup_is_as_wrong_in_its_excerpt(ids: list[int], seed: int) -> None:
    """Proves that ids out of range stay so, and every row stays the one that was looked up."""
    torch.manual_seed(seed)
    weight = torch.randn(10, 4)
    tensor = torch.tensor(ids)
    output = weight[tensor.clamp(0, 9)]
    call = EmbeddingCall(input_ids=tensor, weight=weight, output=output)
    part = excerpt(call, 1 << 20, prompts=False).call
    assert isinstance(part, EmbeddingCall)
    for before, after, row in zip(ids, part.input_ids.tolist(), output, strict=True):
        assert (0 <= before < 10) == (0 <= after < part.weight.shape[0])
        assert (before < 0) == (after < 0)
        if 0 <= before < 10:
            assert torch.equal(part.weight[after], row)
    names = [finding.check for finding in judge(call).findings]
    assert [finding.check for finding in judge(part).findings] == names


def test_large_memory_that_no_check_reads_is_not_stored() -> None:
    """Proves that a head of 64 MiB becomes an excerpt of kilobytes which alarms alike."""
    weight = torch.ones(4096, 4096)
    call = LogitsCall(
        logits=torch.full((2, 4096), 1e9),
        hidden=torch.ones(2, 4096),
        weight=weight,
        weight_norm_max=torch.tensor(64.0),
    )
    part = excerpt(call, 1 << 20, prompts=False)
    assert part.reduced == ("logits", "weight")
    assert isinstance(part.call, LogitsCall)
    assert part.call.weight is not None
    assert part.call.weight.shape == (1, 4096)
    assert part.size_bytes < 100_000
    assert [one.check for one in judge(part.call).findings] == [
        one.check for one in judge(call).findings
    ]
    assert judge(call).findings


@pytest.mark.parametrize("spoil", ["nothing", "slot", "page", "value"])
def test_a_large_cache_is_stored_by_its_named_pages(
    spoil: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves that an update alarms on the pages that it names exactly as on the whole cache."""
    monkeypatch.setattr("tocsin.checker.excerpt.LARGE_BYTES", 1000)
    pages, size = 40, 4
    keys, values = torch.zeros(pages, size, 1, 8), torch.zeros(pages, size, 1, 8)
    slots = torch.tensor([9 * size + 1, 30 * size + 2, -1])
    new = torch.randn(3, 1, 8)
    for token, slot in enumerate(slots.tolist()[:2]):
        keys[slot // size, slot % size] = new[token]
        values[slot // size, slot % size] = new[token]
    owners = torch.full((pages,), -1)
    owners[9], owners[30] = 0, 1
    call = KVUpdateCall(
        rows=3,
        key_cache=keys,
        value_cache=values,
        new_key=new,
        new_value=new,
        slot_mapping=slots,
        block_table=torch.tensor([[9], [30], [-1]]),
        seq_lens=torch.tensor([2, 3, 0]),
        position_ids=torch.tensor([1, 2, 0]),
        owners=owners,
    )
    if spoil == "slot":
        call.slot_mapping[1] = pages * size + 3
    elif spoil == "page":
        call.block_table[1, 0] = 9
    elif spoil == "value":
        keys[30, 2, 0, 3] = 7.0
    part = excerpt(call, 1 << 20, prompts=False)
    assert isinstance(part.call, KVUpdateCall)
    assert part.call.key_cache.shape[0] <= 3
    found = [one.check for one in judge(call).findings]
    assert [one.check for one in judge(part.call).findings] == found
    assert bool(found) == (spoil != "nothing")


@settings(max_examples=50, deadline=None)
@given(
    shape=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool]),
    bad=st.sampled_from([0.0, math.nan, math.inf, -math.inf]),
)
def test_a_summary_looks_at_a_thousand_elements(
    shape: list[int], dtype: torch.dtype, bad: float
) -> None:
    """Proves bounds, exact counts of what is not finite, and strict JSON, for any tensor."""
    tensor = torch.randn(shape).to(dtype).transpose(0, -1)
    if dtype.is_floating_point:
        tensor[(-1,) * tensor.ndim] = bad
    found = summary(tensor)
    json.dumps(found, allow_nan=False)
    assert found["elements"] == tensor.numel()
    assert len(found["first"]) == min(8, tensor.numel())
    if dtype.is_floating_point:
        assert found["nan"] == int(math.isnan(bad))
        assert found["inf"] == int(math.isinf(bad))
    if tensor.numel() <= ELEMENTS_MAX and dtype is torch.int64:
        assert found["min"] == float(tensor.min())
        assert found["max"] == float(tensor.max())


def test_a_summary_of_nothing_and_of_what_has_no_values() -> None:
    """Proves that empty, sparse and meta tensors are no error."""
    assert summary(torch.ones(0, 3)) == {"elements": 0}
    assert summary(torch.eye(2).to_sparse()) == {"elements": 4}
    assert summary(torch.ones(2, device="meta")) == {"elements": 0}
    assert summary(torch.ones(1).expand(5000))["mean"] == 1.0


def _wait(event: threading.Event) -> None:
    assert event.wait(30)


def _layer() -> Any:
    return judge(attention()).findings[0].layer


def _priority() -> Any:
    return judge(attention()).findings[0].priority


def _at(finding: Finding, call: Call) -> Finding:
    """The finding of a stand-alone call, at the place of the call."""
    import dataclasses

    return dataclasses.replace(finding, module=call.module, depth=call.depth)
