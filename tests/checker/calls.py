"""Makers of valid calls: operands drawn from a generator, outputs computed as the models do it.

Axes: see tocsin/core/calls.py.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Generator, Tensor
from torch.nn import functional

from tocsin.checker.checks.numerical.linear_checksum import checksums, signed_weights
from tocsin.core import calls
from tocsin.core.calls import Call

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def generator(seed: int = 0) -> Generator:
    """A private stream, so that one case never moves another."""
    return torch.Generator().manual_seed(seed)


def normal(g: Generator, dtype: torch.dtype, *shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape, generator=g) * scale).to(dtype)


def integers(g: Generator, high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape, generator=g)


# --- tokens -------------------------------------------------------------------------------------


def tokenizer(g: Generator, lengths: tuple[int, ...], side: str = "") -> Call:
    """One row a length; padded on one side to the longest, with positions made from the mask."""
    longest = max(lengths)
    steps = torch.arange(longest)
    real = torch.stack(
        [steps >= longest - n if side == "left" else steps < n for n in lengths]
    ).long()
    positions = (real.cumsum(1) - 1).masked_fill(real == 0, 1)
    return calls.TokenizerOutputCall(
        input_ids=integers(g, 100, len(lengths), longest),
        attention_mask=real if side else None,
        position_ids=positions,
        vocab_size=100,
        max_length=64,
        rows=len(lengths),
    )


def embedding(g: Generator, dtype: torch.dtype, *shape: int) -> Call:
    ids, weight = integers(g, 50, *shape), normal(g, dtype, 50, 24)
    output = functional.embedding(ids, weight)
    return calls.EmbeddingCall(input_ids=ids, weight=weight, output=output)


def batch(g: Generator, rows: int, each: int) -> Call:
    ids, start = integers(g, 100, rows * each), integers(g, 40, rows)
    positions = (start[:, None] + torch.arange(each)).flatten()
    return calls.BatchCall(
        input_ids=ids,
        input_ids_expected=ids.clone(),
        position_ids=positions,
        position_ids_expected=positions.clone(),
        vocab_size=100,
        request_ids=tuple(f"r{row}" for row in range(rows)),
        rows=rows,
    )


# --- the layers ---------------------------------------------------------------------------------


def rope(
    g: Generator,
    dtype: torch.dtype,
    positions: Tensor,
    heads: tuple[int, int] = (4, 2),
    size: int = 16,
    turned: int | None = None,
    table_scale: float = 1.0,
    table_dtype: torch.dtype | None = None,
    scale: float = 1.0,
) -> calls.RopeCall:
    """Rotated as Transformers does it: the table in float32 and cast, products in the dtype."""
    rows, steps = positions.shape
    turned = size if turned is None else turned
    inv_freq = 1.0 / 10_000.0 ** (torch.arange(0, turned, 2).float() / turned)
    angles = positions[..., None].float() * inv_freq
    angles = torch.cat((angles, angles), dim=-1)
    cos = (angles.cos() * table_scale).to(table_dtype or dtype)
    sin = (angles.sin() * table_scale).to(table_dtype or dtype)
    q = normal(g, dtype, rows, heads[0], steps, size, scale=scale)
    k = normal(g, dtype, rows, heads[1], steps, size, scale=scale)
    q[0, 0, 0] = 0
    return calls.RopeCall(
        q=q,
        k=k,
        cos=cos,
        sin=sin,
        position_ids=positions,
        q_out=rotated(q, cos, sin).to(dtype),
        k_out=rotated(k, cos, sin).to(dtype),
        inv_freq=inv_freq.double(),
        table_scale=table_scale,
        rows=rows,
    )


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turned = cos.shape[-1]
    part, rest = x[..., :turned], x[..., turned:]
    half = torch.cat((-part[..., turned // 2 :], part[..., : turned // 2]), dim=-1)
    return torch.cat((part * cos[:, None] + half * sin[:, None], rest), dim=-1)


def consecutive(g: Generator, rows: int, steps: int, high: int = 2048) -> Tensor:
    return integers(g, high, rows, 1) + torch.arange(steps)


def rms_norm(
    g: Generator, dtype: torch.dtype, *shape: int, scale: float = 1.0, gemma: bool = False
) -> calls.RMSNormCall:
    """Llama rounds before the weight, Gemma after it; one row is all zero."""
    x = normal(g, dtype, *shape, scale=scale)
    if x.ndim > 1:
        x.flatten(0, -2)[0] = 0
    weight = normal(g, dtype, shape[-1], scale=0.3) + 1
    wide = x.float()
    normed = wide * (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    output = (normed * weight.float()).to(dtype) if gemma else weight * normed.to(dtype)
    return calls.RMSNormCall(x=x, weight=weight, eps=1e-5, output=output)


def linear(
    g: Generator,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    features: int,
    bias: bool = False,
    scale: float = 1.0,
) -> calls.LinearCall:
    x = normal(g, dtype, *shape, scale=scale)
    if x.ndim > 1:
        x.flatten(0, -2)[0] = 0
    weight = normal(g, dtype, features, shape[-1], scale=shape[-1] ** -0.5)
    offset = normal(g, dtype, features) if bias else None
    output = functional.linear(x, weight, offset)
    return calls.LinearCall(x=x, weight=weight, bias=offset, output=output)


def trusted(call: calls.LinearCall) -> calls.LinearCall:
    """With sums kept from now on, under weights for which no two errors cancel."""
    call.block_weights = signed_weights(call.block_size)
    call.block_sums, call.block_norms, call.bias_sums, _ = checksums(call)
    return call


def swiglu(
    g: Generator,
    dtype: torch.dtype,
    *shape: int,
    activation: str = "silu",
    fused: bool = False,
    scale: float = 2.0,
) -> calls.SwiGLUCall:
    act: Mapping[str, Callable[[Tensor], Tensor]] = {
        "silu": functional.silu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    }
    gate, up = normal(g, dtype, *shape, scale=scale), normal(g, dtype, *shape, scale=scale)
    if gate.ndim > 1:
        gate.flatten(0, -2)[0] = 0
    chosen = act[activation]
    output = (chosen(gate.float()) * up.float()).to(dtype) if fused else chosen(gate) * up
    return calls.SwiGLUCall(gate=gate, up=up, output=output, activation=activation)


def residual(g: Generator, dtype: torch.dtype, *shape: int) -> calls.ResidualCall:
    x, delta = normal(g, dtype, *shape, scale=8.0), normal(g, dtype, *shape)
    if x.ndim > 1:
        x.flatten(0, -2)[0] = 0
        delta.flatten(0, -2)[0] = 0
    return calls.ResidualCall(x=x, delta=delta, output=x + delta)


def logits(g: Generator, dtype: torch.dtype, *lead: int) -> calls.LogitsCall:
    hidden, weight = normal(g, dtype, *lead, 32, scale=4.0), normal(g, dtype, 90, 32)
    hidden.flatten(0, -2)[0] = 0
    return calls.LogitsCall(logits=hidden @ weight.T, hidden=hidden, weight=weight)


def trusted_logits(call: calls.LogitsCall) -> calls.LogitsCall:
    """With norm and sums of the weight's rows kept from now on."""
    assert call.weight is not None
    call.weight_norm_max = call.weight.float().norm(dim=1).amax()
    call.weight_row_sums = call.weight.double().sum(dim=1).float()
    return call


def all_reduce(g: Generator, dtype: torch.dtype, ranks: int, *shape: int) -> calls.AllReduceCall:
    """Summed rank after rank in the dtype, as a ring does it."""
    partials = normal(g, dtype, ranks, *shape)
    output = partials[0].clone()
    for partial in partials[1:]:
        output = output + partial
    return calls.AllReduceCall(partials=partials, output=output)


# --- attention ----------------------------------------------------------------------------------


def attention(
    g: Generator,
    dtype: torch.dtype,
    lengths: tuple[int, int] = (6, 6),
    *,
    heads: tuple[int, int] = (4, 2),
    rows: int = 2,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    eager: bool = False,
    size: int = 16,
    sharp: float = 1.0,
) -> calls.AttentionCall:
    """The kernel's own arithmetic (SDPA), or eager attention with scores rounded to the dtype."""
    queries, keys = lengths
    q = normal(g, dtype, rows, heads[0], queries, size, scale=sharp)
    k = normal(g, dtype, rows, heads[1], keys, size, scale=sharp)
    v = normal(g, dtype, rows, heads[1], keys, size)
    v[0, :, 0] = 0
    if mask is not None and mask.is_floating_point():
        mask = mask.to(dtype)
    call = calls.AttentionCall(
        q=q, k=k, v=v, mask=mask, causal=causal, scale=scale, softcap=softcap, rows=rows
    )
    if eager or softcap is not None:
        call.output, call.lse = _eager(call)
    else:
        full = mask
        if causal:
            full = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
            full = full if mask is None else full & mask
        call.output = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=full, scale=scale, enable_gqa=True
        )
    return call


def as_written(call: calls.AttentionCall) -> calls.AttentionCall:
    """With the sums that an engine keeps when it writes, one query a row, the mask a tail."""
    allowed = torch.ones(call.k.shape[0], 1, call.k.shape[2], 1, dtype=torch.bool)
    if call.mask is not None:
        allowed = call.mask[:, :, 0, :, None]
    values = call.v.float()
    call.key_sums = call.k.double().masked_fill(~allowed, 0).sum(dim=2)
    call.key_reach = call.k.float().norm(dim=-1).masked_fill(~allowed[..., 0], 0).amax(dim=-1)
    call.value_sums, call.value_norms = values.sum(dim=-1), values.norm(dim=-1)
    call.value_low = values.masked_fill(~allowed, torch.inf).amin(dim=2)
    call.value_high = values.masked_fill(~allowed, -torch.inf).amax(dim=2)
    return call


def _eager(call: calls.AttentionCall) -> tuple[Tensor, Tensor]:
    groups = call.q.shape[1] // call.k.shape[1]
    k, v = call.k.repeat_interleave(groups, 1), call.v.repeat_interleave(groups, 1)
    factor = call.q.shape[-1] ** -0.5 if call.scale is None else call.scale
    scores = (call.q @ k.transpose(-1, -2)) * factor
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    if call.mask is not None:
        if call.mask.dtype is torch.bool:
            scores = scores.masked_fill(~call.mask, float("-inf"))
        else:
            scores = scores + call.mask
    if call.causal:
        queries, keys = scores.shape[-2:]
        seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        scores = scores.masked_fill(~seen, float("-inf"))
    weights = scores.softmax(-1, dtype=torch.float32)
    return weights.to(v.dtype) @ v, scores.float().logsumexp(-1)


def left_padded(steps: int, pads: tuple[int, ...]) -> Tensor:
    """[R,1,S,S] bool: causal, the first `pads` keys of a row hidden."""
    causal = torch.ones(steps, steps, dtype=torch.bool).tril()
    real = torch.stack([torch.arange(steps) >= pad for pad in pads])
    return causal & real[:, None, None, :]


def paged_tail(positions: tuple[int, ...], keys: int) -> Tensor:
    """[R,1,1,L] bool: decoding rows of different lengths, keys rounded up to whole pages."""
    return (torch.arange(keys) <= torch.tensor(positions)[:, None])[:, None, None, :]


def additive(mask: Tensor, floor: float) -> Tensor:
    return torch.zeros(mask.shape).masked_fill(~mask, floor)


def varlen(
    g: Generator, dtype: torch.dtype, q_lens: tuple[int, ...], k_lens: tuple[int, ...], form: str
) -> calls.VarlenAttentionCall:
    """Packed lengths with their tensors (`qkv`, `q k v`), or the metadata alone (`none`)."""

    def cumulative(lengths: tuple[int, ...]) -> Tensor:
        total = torch.tensor([0, *lengths]).cumsum(0)
        return total.to(torch.int32)

    call = calls.VarlenAttentionCall(
        cu_seqlens_q=cumulative(q_lens),
        cu_seqlens_k=cumulative(k_lens),
        max_seqlen_q=max(q_lens),
        max_seqlen_k=max(k_lens),
        total_q=sum(q_lens),
        total_k=sum(k_lens),
    )
    if form == "qkv":
        call.qkv = normal(g, dtype, sum(q_lens), 3, 2, 8)
    elif form == "q k v":
        call.q = normal(g, dtype, sum(q_lens), 4, 8)
        call.k, call.v = normal(g, dtype, sum(k_lens), 2, 8), normal(g, dtype, sum(k_lens), 2, 8)
        call.output = normal(g, dtype, sum(q_lens), 4, 8)
    return call


def computed(call: calls.VarlenAttentionCall) -> calls.VarlenAttentionCall:
    """With the output of its sequences, causal at the bottom right."""
    assert call.q is not None
    assert call.k is not None
    assert call.v is not None
    q_at, k_at, parts = call.cu_seqlens_q.tolist(), call.cu_seqlens_k.tolist(), []
    for row in range(len(q_at) - 1):
        q, k, v = (
            tensor[at[row] : at[row + 1]].transpose(0, 1)
            for tensor, at in ((call.q, q_at), (call.k, k_at), (call.v, k_at))
        )
        seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
        output = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        parts.append(output.transpose(0, 1))
    call.output = torch.cat(parts)
    return call


# --- the KV cache -------------------------------------------------------------------------------


def kv_update(
    g: Generator,
    dtype: torch.dtype,
    lengths: tuple[int, ...],
    new: int,
    pads: tuple[int, ...] | None = None,
    side: str = "left",
    page_size: int = 4,
) -> calls.KVUpdateCall:
    """Append `new - pad` tokens to each row of a length after the update; 0 is an idle row."""
    rows, blocks = len(lengths), -(-max(lengths) // page_size) + 1
    pool = torch.randperm(rows * blocks, generator=g) + 1  # page 0 is the null page
    table = torch.full((rows, blocks), -1)
    owners = torch.full((rows * blocks + 2,), -1)
    slots = torch.full((rows, new), -1)
    positions = torch.zeros(rows, new, dtype=torch.int64)
    for row, length in enumerate(lengths):
        used = -(-length // page_size)
        table[row, :used] = pool[row * blocks : row * blocks + used]
        owners[table[row, :used]] = row
        count = 0 if length == 0 else new - (pads[row] if pads else 0)
        first = new - count if side == "left" else 0
        for index in range(count):
            position = length - count + index
            positions[row, first + index] = position
            slots[row, first + index] = table[row, position // page_size] * page_size + (
                position % page_size
            )
    new_key = normal(g, dtype, rows * new, 2, 8)
    new_value = normal(g, dtype, rows * new, 2, 8)
    key_cache = normal(g, dtype, rows * blocks + 2, page_size, 2, 8)
    value_cache = normal(g, dtype, rows * blocks + 2, page_size, 2, 8)
    flat, real = slots.flatten(), slots.flatten() >= 0
    key_cache.flatten(0, 1)[flat[real]] = new_key[real]
    value_cache.flatten(0, 1)[flat[real]] = new_value[real]
    return calls.KVUpdateCall(
        key_cache=key_cache,
        value_cache=value_cache,
        new_key=new_key,
        new_value=new_value,
        slot_mapping=flat,
        block_table=table,
        seq_lens=torch.tensor(lengths),
        position_ids=positions.flatten(),
        owners=owners,
        rows=rows,
    )


def kv_read(g: Generator, pages_a_row: tuple[int, ...], shared: int = 0) -> calls.KVReadCall:
    """Private pages of each row, the first `shared` pages of every row being the same ones."""
    rows: list[int] = []
    pages: list[int] = []
    owners: list[int] = []
    places: list[int] = []
    next_page = shared + 1
    for row, count in enumerate(pages_a_row):
        for place in range(count):
            is_shared = place < shared
            rows.append(row)
            owners.append(-1 if is_shared else row)
            places.append(place)
            pages.append(place + 1 if is_shared else next_page)
            next_page += not is_shared
    entries = len(rows)
    sums = torch.randint(-(2**62), 2**62, (entries, 6), generator=g)
    epochs, lengths = integers(g, 9, entries), torch.full((entries,), 16)
    first = torch.tensor(places, dtype=torch.int64) * 16
    owner = torch.tensor(owners, dtype=torch.int64)
    return calls.KVReadCall(
        entry_rows=torch.tensor(rows, dtype=torch.int64),
        pages=torch.tensor(pages, dtype=torch.int64),
        sums=sums,
        sums_expected=sums.clone(),
        owners=owner,
        owners_expected=owner.clone(),
        epochs=epochs,
        epochs_expected=epochs.clone(),
        first_positions=first,
        first_positions_expected=first.clone(),
        lengths=lengths,
        lengths_expected=lengths.clone(),
        rows=len(pages_a_row),
    )


def taken_prefix(g: Generator, call: calls.KVReadCall) -> calls.KVReadCall:
    """The same in the first step of a request whose shared pages come from the prefix index."""
    tokens = integers(g, 5000, 8)
    ends = torch.where(call.owners == -1, 4 * (call.first_positions // 16 + 1), 0)
    call.prefixes = torch.where(torch.arange(8) < ends[:, None], tokens, -1)
    call.prefixes_expected = call.prefixes.clone()
    return call


def weight(g: Generator, count: int) -> calls.WeightCall:
    sums = torch.randint(-(2**62), 2**62, (count,), generator=g)
    return calls.WeightCall(sums=sums, sums_expected=sums.clone())


# --- sampling and answers -----------------------------------------------------------------------


def logit_processor(
    g: Generator, dtype: torch.dtype, rows: int, floor: float, allowed: bool = True
) -> calls.LogitProcessorCall:
    before = normal(g, dtype, rows, 40)
    kept = torch.rand(rows, 40, generator=g) < 0.3
    kept[:, 7] = True
    after = before.masked_fill(~kept, floor if floor < -1e30 else torch.finfo(dtype).min)
    return calls.LogitProcessorCall(before=before, after=after, allowed=kept if allowed else None)


def sampler(
    g: Generator, dtype: torch.dtype, rows: int, temperature: float, top_k: int = -1
) -> calls.SamplerCall:
    scores = torch.randn(rows, 40, generator=g)
    scores[0] = 0  # all equal: every id is an argmax
    if top_k > 0:
        kept = scores.topk(top_k, dim=-1).indices
        scores = torch.full_like(scores, -torch.inf).scatter(1, kept, scores.gather(1, kept))
    probs = scores.softmax(-1).to(dtype)
    ids = (
        probs.argmax(-1)
        if temperature == 0
        else torch.multinomial(probs.float(), 1, generator=g)[:, 0]
    )
    return calls.SamplerCall(
        probs=probs, token_ids=ids, temperature=temperature, top_p=1.0, top_k=top_k
    )


def one_setting_a_row(call: calls.SamplerCall) -> calls.SamplerCall:
    """Parameters as tensors, as an engine hands them over."""
    rows = call.probs.shape[0]
    call.temperature = torch.full((rows,), float(call.temperature or 0.0))
    call.top_p, call.top_k = torch.ones(rows), torch.full((rows,), -1)
    return call


def drawn(g: Generator, call: calls.SamplerCall) -> calls.SamplerCall:
    """Tokens at which the distribution function passes a draw, as the engine takes them."""
    mass = call.probs.double().cumsum(dim=-1)
    call.draws = torch.rand(call.probs.shape[0], generator=g, dtype=torch.float64)
    point = call.draws[:, None] * mass[:, -1:]
    call.token_ids = torch.searchsorted(mass, point, right=True)[:, 0]
    return call


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "number"}},
    "required": ["city"],
    "additionalProperties": False,
}


def answer(text: str) -> calls.StructuredOutputCall:
    return calls.StructuredOutputCall(text=text, json_schema=SCHEMA)
