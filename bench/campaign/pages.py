"""Single-bit flips in KV pages and faults of state, shown to the engine's real checks of a step."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from tocsin.bench.campaign.serving import PREFILL_CHUNK, ProbeGate, engine_of, submit
from tocsin.bench.campaign.sites import Fault
from tocsin.core.calls import BatchCall, Call, VarlenAttentionCall
from tocsin.core.errors import ContractError
from tocsin.core.requests import Request
from tocsin.core.terms import Operator, Phase
from tocsin.core.verdict import Verdict
from tocsin.engine.engine import ReferenceEngine
from tocsin.engine.gate import OpenGate
from tocsin.engine.pages import SHARED
from tocsin.engine.step import Attempt

_WORDS = {2: torch.int16, 4: torch.int32}
_STEPS_BETWEEN = 64
"""Looks at one step before the next one is served, so that lengths and pages differ."""

STATE_FAULTS = (
    "race",
    "alias",
    "swap",
    "stale",
    "stale_length",
    "wrong_position",
    "foreign_page",
)
"""A late writer's row over a slot · an entry at another request's page · two entries exchanged ·
a page with contents of before its last write · a length of before the last token · a position
that is off · an entry at a page that nobody holds."""
_OF_ONE_ROW = frozenset({"swap", "stale_length", "wrong_position", "foreign_page"})
"""No other request's pages or numbers are touched: whoever names another one is wrong."""


def flip_trials(
    model: nn.Module, prompts: Sequence[Sequence[int]], trials: int, seed: int, key: str
) -> dict[str, Any]:
    """Flip one bit of what a page holds, look, and flip it back.

    Three quarters of the flips are in pages of running requests, the rest in pages of the prefix
    index that another request has just taken over and not yet read.

    Returns:
        for `kv_k`, `kv_v` and `kv_adopted`: trials, caught, named (to page and requests), and the
        first misses.
    """
    counts = {group: _counts() for group in ("kv_k", "kv_v", "kv_adopted")}

    def running(gate: ProbeGate, attempt: Attempt, engine: ReferenceEngine, number: int) -> None:
        fault = Fault("kv", "uniform", 0, seed, f"{key}-{number}")
        half, flipped = _flip(gate, attempt, engine, fault)
        _count(counts[("kv_k", "kv_v")[half]], *flipped)

    def adopted(gate: ProbeGate, attempt: Attempt, engine: ReferenceEngine, number: int) -> None:
        fault = Fault("kv", "uniform", 0, seed, f"{key}-adopted-{number}")
        _count(counts["kv_adopted"], *_flip(gate, attempt, engine, fault)[1])

    _probe(model, prompts, trials - trials // 4, running)
    _probe_adopted(model, prompts[0], trials // 4, adopted)
    return counts


def _flip(
    gate: ProbeGate, attempt: Attempt, engine: ReferenceEngine, fault: Fault
) -> tuple[int, tuple[Verdict, bool, str]]:
    """One flip: the half (0 is K), and what `_count` takes."""
    pool, rows = engine.pages, [row for row, name in enumerate(attempt.request_ids) if name]
    row = rows[fault.below(len(rows), "row")]
    written = attempt.plan.positions[row].start  # tokens that the step finds in the pages
    token = fault.below(written, "token")
    page = pool.table(attempt.request_ids[row])[token // pool.page_size]
    depth, half = fault.below(pool.data.shape[1], "depth"), fault.below(2, "half")
    values = pool.data[page, depth, half, token % pool.page_size]
    words, width = values.view(_WORDS[values.element_size()]), values.element_size() * 8
    element, bit = fault.below(len(words), "element"), fault.below(width, "bit")
    before = words[element].clone()
    words[element] ^= _bit_mask(bit, width)
    verdict = gate.look(attempt)
    holders = {name for name in attempt.request_ids if name and page in pool.table(name)}
    named = set(attempt.corrupt_pages()) == {page} and _requests(attempt, verdict) == holders
    words[element] = before
    return half, (verdict, named, f"page {page} depth {depth} half {half} bit {bit}")


def state_trials(
    model: nn.Module, prompts: Sequence[Sequence[int]], trials: int, seed: int, key: str
) -> dict[str, Any]:
    """Bring about each fault of state in turn, look, and undo it; counts by kind."""
    counts = {kind: _counts() for kind in STATE_FAULTS}

    def one(gate: ProbeGate, attempt: Attempt, engine: ReferenceEngine, number: int) -> None:
        kind = STATE_FAULTS[number % len(STATE_FAULTS)]
        fault = Fault(kind, "state", 0, seed, f"{key}-{number}")
        trouble = _Trouble(engine, attempt, fault)
        undo = trouble.begin()
        verdict = gate.look(attempt)
        pages = set(attempt.corrupt_pages())
        undo()
        if not trouble.fired:
            return
        requests = _requests(attempt, verdict)
        named = trouble.victim in requests and (trouble.page < 0 or trouble.page in pages)
        if kind in _OF_ONE_ROW:  # to it, and not to everybody
            named = named and requests == {trouble.victim}
        _count(counts[kind], verdict, named, f"request {trouble.victim} {trouble.words}")

    _probe(model, prompts, trials, one)
    return counts


class _Trouble:
    """One fault of state on one row of a step."""

    def __init__(self, engine: ReferenceEngine, attempt: Attempt, fault: Fault) -> None:
        rows = [row for row, name in enumerate(attempt.request_ids) if name]
        first = fault.below(len(rows), "row")
        self.row = rows[first]
        self.other = rows[(first + 1 + fault.below(len(rows) - 1, "other")) % len(rows)]
        self.victim = attempt.request_ids[self.row]
        self.fired = False
        self.page = -1
        """Page whose contents are wrong; -1 where a table, length or position is."""
        self.words = ""
        self._engine, self._attempt, self._fault = engine, attempt, fault

    def begin(self) -> Callable[[], None]:
        """Bring it about; returns what undoes it."""
        kind = self._fault.site
        if kind in ("race", "stale"):
            return self._contents(kind)
        seams = self._engine.seams
        if kind == "stale_length":
            return seams.add_fault(Operator.FLASH_ATTN_VARLEN, Phase.BEFORE, self._shorten)
        return seams.add_fault(Operator.BATCH, Phase.BEFORE, self._misdirect)

    def _contents(self, kind: str) -> Callable[[], None]:
        """A slot holds another request's row, or what it held before it was written."""
        pool = self._engine.pages
        token = self._attempt.plan.positions[self.row].start - 1
        page = pool.table(self.victim)[token // pool.page_size]
        slot = pool.data[page, :, :, token % pool.page_size]
        before = slot.clone()
        if kind == "race":
            donor = self._attempt.request_ids[self.other]
            last = self._attempt.plan.positions[self.other].start - 1
            source = pool.table(donor)[last // pool.page_size]
            slot.copy_(pool.data[source, :, :, last % pool.page_size].clone())
        else:
            slot.zero_()
        self.fired = not torch.equal(slot, before)
        self.page, self.words = page, f"page {page}"

        def undo() -> None:
            slot.copy_(before)

        return undo

    def _misdirect(self, call: Call) -> None:
        if not isinstance(call, BatchCall) or call.block_table is None:
            return
        kind, row, fault = self._fault.site, self.row, self._fault
        if kind == "wrong_position":
            places = (call.position_ids.view(len(call.request_ids), -1), slice(None))
            before = places[0][row].clone()
            places[0][row] += (-1, 1, 16)[fault.below(3, "offset")]
            self.fired, self.words = not torch.equal(places[0][row], before), f"position {before}"
            return
        entries = call.block_table[row]
        used = len(self._engine.pages.table(self.victim))
        at = fault.below(used, "entry")
        before = entries.clone()
        if kind == "swap":
            at, other = used - 1, fault.below(max(1, used - 1), "with")
            entries[at], entries[other] = before[other], before[at]
        elif kind == "alias":
            theirs = self._engine.pages.table(self._attempt.request_ids[self.other])
            entries[at] = theirs[fault.below(len(theirs), "theirs")]
        else:
            free = [
                page
                for page in range(1, self._engine.pages.pages_total + 1)
                if not self._engine.pages.tag(page).holders
            ]
            entries[at] = free[fault.below(len(free), "free")]
        self.fired = not torch.equal(entries, before)
        kind_of = "shared " if self._engine.pages.tag(int(entries[at])).owner == SHARED else ""
        self.words = f"entry {at}: {before.tolist()} → {kind_of}{entries.tolist()}"

    def _shorten(self, call: Call) -> None:
        if not isinstance(call, VarlenAttentionCall):
            return
        before = call.cu_seqlens_k.clone()
        call.cu_seqlens_k[self.row + 1 :] -= 1
        self.fired, self.words = not torch.equal(before, call.cu_seqlens_k), "one key less"


def _probe(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    trials: int,
    one: Callable[[ProbeGate, Attempt, ReferenceEngine, int], None],
) -> None:
    """Serve the prompts and make the trials between decode steps that all rows take part in."""
    # The first request has begun to answer before the last one's prompt is through.
    prefill = sum(-(-len(prompt) // PREFILL_CHUNK) for prompt in prompts)
    tokens = prefill + 2 + -(-trials // _STEPS_BETWEEN)
    engine, guard = engine_of(model, len(prompts), max(map(len, prompts)) + tokens)
    made = 0

    def probe(gate: ProbeGate, attempt: Attempt) -> None:
        nonlocal made
        if attempt.kind == "decode" and all(attempt.request_ids):
            for _ in range(min(_STEPS_BETWEEN, trials - made)):
                one(gate, attempt, engine, made)
                made += 1

    try:
        engine.gate = ProbeGate(guard, probe)
        submit(engine, prompts, tokens)
        while engine.has_work and made < trials:
            engine.step()
    finally:
        guard.detach()
    if made < trials:
        raise ContractError(
            f"campaign: {made} of {trials} looks were taken before the requests ended, expected "
            "all; ask for longer answers"
        )


def _probe_adopted(
    model: nn.Module,
    prompt: Sequence[int],
    trials: int,
    one: Callable[[ProbeGate, Attempt, ReferenceEngine, int], None],
) -> None:
    """Ask the same prompt again and again; look at the step that takes over its cached pages.

    Raises:
        ContractError: no page was taken over.
    """
    # As long as it takes to have whole chunks in the index.
    text = (list(prompt) * (2 * PREFILL_CHUNK // len(prompt) + 1))[: PREFILL_CHUNK + 2]
    engine, guard = engine_of(model, 1, len(text) + 1)
    made = 0

    def probe(gate: ProbeGate, attempt: Attempt) -> None:
        nonlocal made
        if attempt.kind == "prefill" and attempt.plan.positions[0].start >= PREFILL_CHUNK:
            for _ in range(min(_STEPS_BETWEEN, trials - made)):
                one(gate, attempt, engine, made)
                made += 1

    try:
        engine.gate = ProbeGate(guard, probe)
        for number in range(2 + -(-trials // _STEPS_BETWEEN)):
            # The first one computes its pages itself: nothing of them is shared yet.
            engine.gate = ProbeGate(guard, probe) if number else OpenGate(engine.choice)
            engine.submit(Request(f"again{number}", tuple(text), 1, ignore_eos=True))
            while engine.has_work:
                engine.step()
    finally:
        guard.detach()
    if made < trials or not engine.pages.prefix_hits:
        raise ContractError(
            f"campaign: {made} of {trials} looks at pages taken over, {engine.pages.prefix_hits} "
            "hits of the prefix index; expected all, with its prefix cache on"
        )


def _requests(attempt: Attempt, verdict: Verdict) -> set[str]:
    return {attempt.request_ids[row] for row in verdict.rows()}


def _counts() -> dict[str, Any]:
    return {"trials": 0, "caught": 0, "named": 0, "misses": []}


def _count(counts: dict[str, Any], verdict: Verdict, named: bool, words: str) -> None:
    counts["trials"] += 1
    counts["caught"] += not verdict.ok
    counts["named"] += named and not verdict.ok
    if verdict.ok or not named:
        counts["misses"] = [*counts["misses"], words][:8]


def _bit_mask(bit: int, width: int) -> int:
    return (1 << bit) - (1 << width) if bit == width - 1 else 1 << bit
