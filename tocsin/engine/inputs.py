"""What one step puts into the model, built from the ledger and announced at the seams.

Axes: R rows · S positions a row · T = R*S tokens · n pages a row · P pages.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tocsin.core.calls import BatchCall, KVReadCall, VarlenAttentionCall
from tocsin.engine.attention import varlen_call
from tocsin.engine.pages import NULL_PAGE, SHARED, PagePool
from tocsin.engine.scheduler import Plan
from tocsin.engine.sequence import Sequence
from tocsin.engine.written import Places

OWNER_SHARED, OWNER_ELSEWHERE, OWNER_NOBODY = -1, -2, -3
"""Owners in a KV_READ record that are not a row: the prefix index, a request that is not in this
step, nobody (a free page)."""


@dataclass(slots=True)
class StepInputs:
    """Host-side inputs of one run of a step.

    Attributes:
        rows: the request of each row, None where idle or taken out of the step.
        batch: what the model is fed; a fault's change of it is what is used.
        varlen: metadata of the attention launch, likewise.
        slots_expected: [T] slots that the ledger says will be written, -1 where none.
        seq_lens: [R] length of each row after the step, 0 for an idle row.
        owners: [P] row that owns each page.
        places: where the ledger says that the step writes.
    """

    rows: tuple[Sequence | None, ...]
    batch: BatchCall
    varlen: VarlenAttentionCall
    slots_expected: Tensor
    seq_lens: Tensor
    owners: Tensor
    places: Places

    def slots(self, page_size: int) -> Tensor:
        """[T] flat slot of each token by the block table and positions *as they are now*."""
        table = self.batch.block_table
        return slots_of(self.batch.position_ids, table, self.rows, page_size)


def build(plan: Plan, rows: tuple[Sequence | None, ...], pool: PagePool, vocab: int) -> StepInputs:
    """Inputs of a step as the ledger has them."""
    size = len(plan.positions[0])
    tokens, positions, lengths = [], [], []
    for sequence, span in zip(rows, plan.positions, strict=True):
        tokens += [sequence.token_at(p) for p in span] if sequence else [0] * size
        positions += list(span) if sequence else [0] * size
        lengths.append(span.stop if sequence else 0)
    table = _block_table(rows, pool)
    input_ids, position_ids = torch.tensor(tokens), torch.tensor(positions)
    batch = BatchCall(
        input_ids=input_ids,
        input_ids_expected=input_ids.clone(),
        position_ids=position_ids,
        position_ids_expected=position_ids.clone(),
        vocab_size=vocab,
        request_ids=tuple(one.request_id if one else "" for one in rows),
        block_table=table,
        rows=len(rows),
    )
    owners = torch.full((pool.data.shape[0],), -1)
    for row, sequence in enumerate(rows):
        for entry in pool.entries(sequence.request_id) if sequence else ():
            if not entry.shared:
                owners[entry.page] = row
    return StepInputs(
        rows=rows,
        batch=batch,
        # An idle row looks at one key, of the null page.
        varlen=varlen_call([size] * len(rows), [length or 1 for length in lengths]),
        slots_expected=slots_of(position_ids, table, rows, pool.page_size),
        seq_lens=torch.tensor(lengths),
        owners=owners,
        places=Places(
            table=table.clone(),
            starts=tuple(span.start for span in plan.positions),
            counts=tuple(size if one else 0 for one in rows),
        ),
    )


def slots_of(
    position_ids: Tensor, table: Tensor | None, rows: tuple[Sequence | None, ...], page_size: int
) -> Tensor:
    """[T] flat slot of each position by a block table [R,n]; -1 for an idle row or no page."""
    if table is None:
        return torch.full_like(position_ids, -1)
    position_RS = position_ids.view(len(rows), -1)
    block_RS = position_RS.div(page_size, rounding_mode="floor")
    page_RS = table.gather(1, block_RS.clamp(0, table.shape[1] - 1))
    live_R1 = torch.tensor([[one is not None] for one in rows])
    inside = live_R1 & (block_RS >= 0) & (block_RS < table.shape[1]) & (page_RS > NULL_PAGE)
    slot_RS = page_RS * page_size + position_RS % page_size
    return torch.where(inside, slot_RS, -1).flatten()


def kv_read(inputs: StepInputs, pool: PagePool, due: Collection[int] | None = None) -> KVReadCall:
    """What the rows' tables promise against what the pages in the step's block table hold.

    Args:
        due: pages whose contents are read; the sums of the others repeat the recorded ones.
            None: all. None of them: there are no sums, which is one zero a page.
    """
    number = {one.request_id: row for row, one in enumerate(inputs.rows) if one}
    table = None if inputs.batch.block_table is None else inputs.batch.block_table.tolist()
    found: list[tuple[int, ...]] = []
    for row, sequence in enumerate(inputs.rows):
        if sequence is None or table is None:
            continue
        for index, entry in enumerate(pool.entries(sequence.request_id)):
            page = table[row][index]
            tag = pool.tag(page)
            first = index * pool.page_size
            length = max(0, min(pool.page_size, sequence.computed - first))
            expected = (OWNER_SHARED if entry.shared else row, entry.epoch, first, length)
            owner = OWNER_NOBODY
            if tag.owner == SHARED:  # by those who hold it: another prompt's prefix is elsewhere
                held = sequence.request_id in tag.holders
                owner = OWNER_SHARED if held else OWNER_ELSEWHERE
            elif tag.owner:
                owner = number.get(tag.owner, OWNER_ELSEWHERE)
            found.append((row, page, owner, tag.epoch, tag.first_position, tag.length, *expected))
    columns = torch.tensor(found, dtype=torch.int64).view(-1, 10).unbind(1)
    if due is not None and not due:
        expected_sums = sums = torch.zeros((len(found), 1), dtype=torch.int64)
    else:
        expected_sums = pool.sums[columns[1]].flatten(1)
    if due is None:
        unique, inverse = torch.unique(columns[1], return_inverse=True)
        sums = pool.read_sums(unique.tolist()).flatten(1)[inverse]
    elif due:
        sums = expected_sums.clone()
        at = [index for index, one in enumerate(found) if one[1] in due]
        if at:
            sums[at] = pool.read_sums([found[index][1] for index in at]).flatten(1)
    prefixes = _prefixes(inputs, pool, found)
    return KVReadCall(
        rows=len(inputs.rows),
        entry_rows=columns[0],
        pages=columns[1],
        sums=sums,
        sums_expected=expected_sums,
        owners=columns[2],
        epochs=columns[3],
        first_positions=columns[4],
        lengths=columns[5],
        owners_expected=columns[6],
        epochs_expected=columns[7],
        first_positions_expected=columns[8],
        lengths_expected=columns[9],
        prefixes=prefixes[0],
        prefixes_expected=prefixes[1],
    )


def _prefixes(
    inputs: StepInputs, pool: PagePool, found: list[tuple[int, ...]]
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Tokens that shared pages were written with, and those of the rows, [n,L] padded with -1.

    Only in the first step of a request that took pages from the prefix index: no other step can
    meet a prefix that is not its own, and this one is never a decode step.
    """
    if not any(sequence and sequence.adopted for sequence in inputs.rows):
        return None, None
    written: list[tuple[int, ...]] = []
    expected: list[tuple[int, ...]] = []
    for row, page, *_, owner_expected, _epoch, first, _length in found:
        sequence = inputs.rows[row]
        shared = owner_expected == OWNER_SHARED and sequence is not None and sequence.adopted
        end = first + pool.page_size
        written.append(pool.prefix(page) if shared else ())
        expected.append(sequence.request.prompt_ids[:end] if shared and sequence else ())
    width = max(map(len, (*written, *expected)), default=0)
    table = torch.tensor(
        [[*tokens, *[-1] * (width - len(tokens))] for tokens in (*written, *expected)],
        dtype=torch.int64,
    ).view(2, len(found), width)
    return table[0], table[1]


def as_read(call: KVReadCall, changed: Tensor, page_size: int) -> KVReadCall:
    """The record again, once attention has read the pages.

    Args:
        changed: [R,n] token rows of each page that were read with another sum than the recorded.

    Returns:
        `sums` is their number, [entries,1], and what is expected is none.
    """
    index = call.first_positions_expected.div(page_size, rounding_mode="floor")
    counted = changed[call.entry_rows, index][:, None]
    return replace(call, sums=counted, sums_expected=torch.zeros_like(counted))


def _block_table(rows: tuple[Sequence | None, ...], pool: PagePool) -> Tensor:
    """[R,n] pages of each row, -1 beyond its end; idle rows have the null page."""
    tables = [pool.table(one.request_id) if one else (NULL_PAGE,) for one in rows]
    width = max(len(table) for table in tables)
    return torch.tensor([[*table, *[-1] * (width - len(table))] for table in tables])
