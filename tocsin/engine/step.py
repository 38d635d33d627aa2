"""One engine step that can be run again; implements `core.protocols.StepAttempt`."""

from collections import abc
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tocsin.core.calls import KVReadCall
from tocsin.core.clock import Clock
from tocsin.core.errors import ContractError, TocsinError
from tocsin.core.history import Event, EventKind
from tocsin.core.protocols import Gate, Sink
from tocsin.core.requests import Sampling
from tocsin.core.seams import Seams
from tocsin.core.terms import Operator, Phase
from tocsin.engine.attention import AttentionContext, launch_of
from tocsin.engine.cache import PagedCache
from tocsin.engine.fused import operators
from tocsin.engine.inputs import StepInputs, as_read, build, kv_read
from tocsin.engine.memory import MemoryReader
from tocsin.engine.noted import catch_up
from tocsin.engine.pages import PagePool
from tocsin.engine.sampler import Choice, sample
from tocsin.engine.scheduler import Plan
from tocsin.engine.scrub import PageScrub
from tocsin.engine.sequence import Sequence
from tocsin.engine.written import WrittenSums

_NEED_SUMS = ((Operator.KV_READ, Phase.BEFORE), (Operator.ATTENTION, Phase.AFTER))
"""Seams whose checks compare with what was summed when it was written."""

STEP_ERRORS = (TocsinError, RuntimeError, IndexError, ValueError)
"""What a model call raises: ours, torch's, and what a fault in its inputs leads to."""


@dataclass(slots=True)
class Parts:
    """What every step of one engine works with; only the gate is ever replaced.

    Attributes:
        cache_keyword: name under which the model takes its cache.
        key_heads: K; groups: query heads a key head.
    """

    model: nn.Module
    pool: PagePool
    seams: Seams
    gate: Gate
    sink: Sink
    clock: Clock
    memory: MemoryReader
    scrub: PageScrub
    replica: str
    vocab_size: int
    key_heads: int
    groups: int
    cache_keyword: str
    find: Callable[[str], Sequence | None]


@dataclass(slots=True)
class _Written:
    """What a run wrote, so that it can be taken back.

    Attributes:
        addresses: [depth,2,tokens] rows of the pool.
        token_rows: [tokens] row of the step that each token belongs to.
        state: sums of keys and values, as they were before the step; None where none are kept.
        data: [depth,2,tokens,width] and sums: [depth,2,tokens], what was there before; None when
            all of it was the step's own and is zeroed instead.
    """

    addresses: Tensor
    token_rows: Tensor
    state: WrittenSums | None
    data: Tensor | None = None
    sums: Tensor | None = None

    def take_back(self, pool: PagePool, row: int | None = None) -> None:
        """Zero what was written, or put back what was there, for one row or for all."""
        chosen = slice(None) if row is None else self.token_rows == row
        addresses = self.addresses[:, :, chosen].flatten()
        rows, sums = pool.data.view(-1, pool.data.shape[-1]), pool.sums.view(-1)
        with torch.inference_mode():
            if self.state is not None:
                self.state.take_back(row)
            if self.data is None or self.sums is None:
                rows.index_fill_(0, addresses, 0)
                sums.index_fill_(0, addresses, 0)
            else:
                rows.index_copy_(0, addresses, self.data[:, :, chosen].flatten(0, 2))
                sums.index_copy_(0, addresses, self.sums[:, :, chosen].flatten())


class Attempt:
    """A step from its plan to the tokens that it would release."""

    def __init__(self, parts: Parts, plan: Plan, step: int, backend: str) -> None:
        """Nothing is run yet."""
        self.step = step
        self.kind = plan.kind
        self.backend = backend
        self.request_ids = tuple(one.request_id if one else "" for one in plan.rows)
        self.logits: Tensor | None = None
        """Logits of the last run, [R,V] float32; None while there are none."""
        self._parts = parts
        self._plan = plan
        self._rows = list(plan.rows)
        self._choices: tuple[Choice | None, ...] = (None,) * len(plan.rows)
        self._written: _Written | None = None
        self._verifies_reads = parts.scrub.verifies_reads
        self._due = parts.scrub.due(plan.rows)
        self._read: KVReadCall | None = None
        self._inputs: StepInputs | None = None
        self._complete = False

    def run(self, backend: str | None = None) -> None:
        """Undo what an earlier run wrote (and zero it), then run the step (again).

        When the host-side checks veto the launch, nothing is launched and there are no tokens.

        Raises:
            BackendError: the attention backend raised; nothing of the run stays in the pages.
        """
        self.undo()
        self.backend = backend or self.backend
        self._read = None
        self.logits, self._choices = None, (None,) * len(self._rows)
        parts = self._parts
        keeps_sums = any(parts.seams.checked(*seam) for seam in _NEED_SUMS)
        with torch.inference_mode():
            if keeps_sums:
                catch_up(parts.pool, self._computed)
            inputs = build(self._plan, tuple(self._rows), parts.pool, parts.vocab_size)
            self._inputs = inputs
            self._announce(inputs)
            if not parts.gate.may_launch():
                return
            try:
                self.logits = self._forward(inputs, keeps_sums)
            except STEP_ERRORS:
                self.undo()
                raise
            self._choices = sample(self.logits, self._asks(), parts.seams)
            self._announce_ending(inputs)
        self._complete = True

    def tokens(self) -> tuple[int, ...]:
        """The token that each row would release; -1 for an idle or prefilling row."""
        return tuple(-1 if choice is None else choice.token for choice in self._choices)

    def corrupt_pages(self) -> tuple[int, ...]:
        """Pages in the rows' tables whose sums or tags are wrong."""
        pool = self._parts.pool
        suspects: dict[int, bool] = {}
        for sequence in filter(None, self._rows):
            for index, entry in enumerate(pool.entries(sequence.request_id)):
                tag = pool.tag(entry.page)
                is_right = (
                    tag.epoch == entry.epoch
                    and sequence.request_id in tag.holders
                    and (entry.shared or tag.owner == sequence.request_id)
                    and tag.first_position == index * pool.page_size
                    and not (sequence.adopted and _is_strange(pool, sequence, index))
                )
                suspects[entry.page] = suspects.get(entry.page, False) or not is_right
        wrong = {page for page, is_wrong in suspects.items() if is_wrong}
        return tuple(sorted(wrong.union(pool.verify(tuple(suspects)))))

    def quarantine(self, pages: abc.Sequence[int]) -> tuple[str, ...]:
        """Take the pages out of use and of the prefix index, zero them, verify, give them back.

        The requests that held them lose all their pages and their rows in this step; the engine
        recomputes them whatever the settlement says of their rows, unless it refuses them.
        """
        holders, kept = self._parts.pool.quarantine(pages)
        for request_id in holders:
            sequence = self._parts.find(request_id)
            if sequence is not None:
                sequence.lost_pages = True
        self._rows = [one if one and not one.lost_pages else None for one in self._rows]
        if kept:
            self._parts.sink.emit(
                Event(
                    EventKind.PAGES_QUARANTINED,
                    self._parts.clock.now_ns(),
                    self._parts.replica,
                    self.step,
                    data={"kept_out": list(kept), "holders": list(holders)},
                )
            )
        return holders

    def verify_reads(self) -> None:
        """Compare what attention would read with the sums of its writing, and launch nothing.

        A run does so by itself; this is for whoever looks at a step that was not launched.
        """
        parts, read, inputs = self._parts, self._read, self._inputs
        fused, table = operators(parts.pool.data), None
        if inputs is not None:
            table = inputs.batch.block_table
        if read is None or table is None or fused is None or not self._verifies_reads:
            return
        pool = parts.pool
        with torch.inference_mode():
            pages = table.clamp(min=0)
            changed = torch.zeros_like(pages)
            for depth in range(pool.data.shape[1]):
                fused.read_pages(pool.data, pages, depth, parts.key_heads, pool.sums, changed)
            parts.seams.emit(as_read(read, changed, pool.page_size), Phase.BEFORE)

    # --- for the engine ---

    @property
    def plan(self) -> Plan:
        """What was planned."""
        return self._plan

    @property
    def complete(self) -> bool:
        """The last run came through: its results may be committed."""
        return self._complete

    def choice(self, row: int) -> Choice | None:
        """What a row would release, None when it does not sample."""
        return self._choices[row]

    def undo(self) -> None:
        """Take back what the last run wrote: zero its own rows, restore foreign ones."""
        self._complete = False
        written, self._written = self._written, None
        if written is not None:
            written.take_back(self._parts.pool)

    def undo_row(self, row: int) -> None:
        """Take back what the last run wrote for one row, which is not released."""
        if self._written is not None:
            self._written.take_back(self._parts.pool, row)

    def _announce(self, inputs: StepInputs) -> None:
        """Everything that is known before the launch, faults first, then checks."""
        seams = self._parts.seams
        seams.emit(inputs.batch, Phase.BEFORE)
        if seams.wanted(Operator.KV_READ, Phase.BEFORE):
            self._read = kv_read(inputs, self._parts.pool, self._due)
            seams.emit(self._read, Phase.BEFORE)
        seams.emit(inputs.varlen, Phase.BEFORE)
        if seams.wanted(Operator.DEVICE_MEMORY, Phase.BEFORE):
            seams.emit(self._parts.memory.reading(), Phase.BEFORE)

    def _announce_ending(self, inputs: StepInputs) -> None:
        """The pages of a request that is about to end, before its last token may leave."""
        parts = self._parts
        tokens = [None if choice is None else choice.token for choice in self._choices]
        pages = parts.scrub.ending(self._rows, tokens)
        if pages and parts.seams.wanted(Operator.KV_READ, Phase.BEFORE):
            parts.seams.emit(kv_read(inputs, parts.pool, pages), Phase.BEFORE)

    def _computed(self, request_id: str) -> int:
        """Positions of a running request that are committed."""
        sequence = self._parts.find(request_id)
        return sequence.computed if sequence is not None else 0

    def _forward(self, inputs: StepInputs, keeps_sums: bool) -> Tensor:
        """The model over the pages: logits [R,V] of each row's last position, float32."""
        parts, batch, rows = self._parts, inputs.batch, len(inputs.rows)
        pool, device, table = parts.pool, parts.pool.data.device, inputs.batch.block_table
        if table is None:
            raise ContractError(
                "step: the batch lost its block table, expected [R,n] int64; leave it in place"
            )
        cache = PagedCache(
            pool,
            parts.seams,
            block_table=table,
            slots=inputs.slots(pool.page_size),
            seq_lens=inputs.seq_lens,
            position_ids=batch.position_ids,
            owners=inputs.owners,
            key_heads=parts.key_heads,
            places=inputs.places,
            keeps_sums=keeps_sums,
            verifies=self._verifies_reads and parts.seams.checked(Operator.KV_READ, Phase.BEFORE),
        )
        launch = launch_of(
            inputs.varlen,
            width=table.shape[1] * pool.page_size,
            positions=batch.input_ids.shape[0] // rows,
            groups=parts.groups,
            page_size=pool.page_size,
            like=pool.data,
        )
        self._remember(cache, inputs)
        output = parts.model(
            input_ids=batch.input_ids.view(rows, -1).to(device),
            position_ids=batch.position_ids.view(rows, -1).to(device),
            attention_mask=launch.mask,
            use_cache=True,
            logits_to_keep=1,
            tocsin_step=AttentionContext(self.backend, launch, parts.seams, cache.noted),
            **{parts.cache_keyword: cache},
        )
        cache.record_sums()
        if cache.changed is not None and self._read is not None:  # before a token may leave
            parts.seams.emit(as_read(self._read, cache.changed, pool.page_size), Phase.BEFORE)
        logits: Tensor = output.logits[:, -1].float()
        return logits

    def _remember(self, cache: PagedCache, inputs: StepInputs) -> None:
        """Note what is about to be written; keep the contents of rows that are not ours."""
        pool, slots = self._parts.pool, cache.slots
        per_row = len(slots) // len(inputs.rows)
        token_rows = (slots >= 0).nonzero().flatten().div(per_row, rounding_mode="floor")
        self._written = _Written(cache.addresses, token_rows, cache.state)
        if not torch.equal(slots, inputs.slots_expected):
            flat, shape = cache.addresses.flatten(), cache.addresses.shape
            width = pool.data.shape[-1]
            self._written.data = pool.data.view(-1, width)[flat].view(*shape, width)
            self._written.sums = pool.sums.view(-1)[flat].view(shape)

    def _asks(self) -> list[tuple[Sampling, int] | None]:
        """How each row samples; None where the step yields no token for it."""
        asks: list[tuple[Sampling, int] | None] = []
        for sequence, span in zip(self._rows, self._plan.positions, strict=True):
            if sequence is None or span.stop < len(sequence.request.prompt_ids):
                asks.append(None)
            else:
                index = span.stop - len(sequence.request.prompt_ids)
                asks.append((sequence.request.sampling, index))
        return asks


def _is_strange(pool: PagePool, sequence: Sequence, index: int) -> bool:
    """Whether a page from the prefix index holds another prefix than the request's own."""
    page = pool.entries(sequence.request_id)[index].page
    end = (index + 1) * pool.page_size
    return end <= sequence.computed and pool.prefix(page) != sequence.request.prompt_ids[:end]
