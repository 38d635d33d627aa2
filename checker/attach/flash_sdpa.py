"""flash-attn's public functions in plain PyTorch: stand-in on a CPU, way out of a bad kernel.

Names, parameters, their order and defaults are those of `flash_attn_interface.py`, and are held to
`flash_attn_signatures.json`. Axes: B batch · S queries · L keys · T packed tokens · H query heads ·
K key heads · E head size · R rows of a batch or of a packed one.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tocsin.core.errors import ContractError

Window = tuple[int, int]
Attended = Tensor | tuple[Tensor, ...]
"""The output, or (output, lse, dropout mask) where the caller asked for more."""

UNLIMITED: Window = (-1, -1)


@dataclass(frozen=True, slots=True)
class Form:
    """How scores become weights, as flash-attn's arguments say it.

    Attributes:
        scale: None means E ** -0.5; softcap: 0 means none.
        causal: bottom-right aligned; window: keys to the left and right of the diagonal, -1 all.
        slopes: ALiBi slopes [H] or [R,H].
    """

    scale: float | None = None
    causal: bool = False
    window: Window = UNLIMITED
    softcap: float = 0.0
    slopes: Tensor | None = None

    def allowed(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """[S,L] bool, True = may attend; None where everything may."""
        left, right = self.window[0], 0 if self.causal else self.window[1]
        if left < 0 and right < 0:
            return None
        away = _away(queries, keys, device)
        allowed = torch.ones_like(away, dtype=torch.bool)
        if left >= 0:
            allowed &= away >= -left
        if right >= 0:
            allowed &= away <= right
        return allowed

    def bias(self, queries: int, keys: int, row: int, device: torch.device) -> Tensor | None:
        """[H,S,L] float32, what ALiBi adds to the scores of one row; None without."""
        if self.slopes is None:
            return None
        slopes = self.slopes if self.slopes.ndim == 1 else self.slopes[row]
        return -slopes.float()[:, None, None] * _away(queries, keys, device).abs()


def _away(queries: int, keys: int, device: torch.device) -> Tensor:
    """[S,L]: how far a key lies to the right of its query's own place."""
    own = torch.arange(queries, device=device)[:, None] + keys - queries
    return torch.arange(keys, device=device)[None] - own


def attend(q_SHE: Tensor, k_LKE: Tensor, v_LKE: Tensor, form: Form, row: int = 0) -> Attended:
    """One sequence: output [S,H,E] and lse [H,S] float32.

    A query without any key gets zeros and an lse of infinity, as flash-attn gives them.
    """
    queries, heads, size = q_SHE.shape
    keys, kv_heads = k_LKE.shape[:2]
    work = torch.promote_types(q_SHE.dtype, torch.float32)
    k, v = (
        one.to(work).repeat_interleave(heads // kv_heads, dim=1).transpose(0, 1)
        for one in (k_LKE, v_LKE)
    )
    scale = size**-0.5 if form.scale is None else form.scale
    scores_HSL = (q_SHE.to(work).transpose(0, 1) * scale) @ k.transpose(1, 2)
    if form.softcap > 0:
        scores_HSL = torch.tanh(scores_HSL / form.softcap) * form.softcap
    bias = form.bias(queries, keys, row, q_SHE.device)
    if bias is not None:
        scores_HSL = scores_HSL + bias
    allowed = form.allowed(queries, keys, q_SHE.device)
    if allowed is not None:
        scores_HSL = scores_HSL.masked_fill(~allowed, -torch.inf)
    live = torch.full((queries,), keys > 0, device=q_SHE.device)
    live = live if allowed is None else live & allowed.any(dim=1)
    lse = scores_HSL.logsumexp(dim=-1).masked_fill(~live, torch.inf)
    weights = scores_HSL.softmax(dim=-1).masked_fill(~live[:, None], 0.0)
    return (weights @ v).transpose(0, 1).to(q_SHE.dtype), lse.float()


def _attend_plain(q_SHE: Tensor, k_LKE: Tensor, v_LKE: Tensor, form: Form, row: int) -> Tensor:
    """The same by PyTorch's fused attention, which keeps no score; neither lse nor softcap."""
    groups = q_SHE.shape[1] // k_LKE.shape[1]
    allowed = form.allowed(q_SHE.shape[0], k_LKE.shape[0], q_SHE.device)
    mask = form.bias(q_SHE.shape[0], k_LKE.shape[0], row, q_SHE.device)
    if mask is not None and allowed is not None:
        mask = mask.masked_fill(~allowed, -torch.inf)
    mask = allowed if mask is None else mask.to(q_SHE.dtype)[None]
    output_SHE = functional.scaled_dot_product_attention(
        q_SHE.transpose(0, 1)[None],
        k_LKE.transpose(0, 1).repeat_interleave(groups, dim=0)[None],
        v_LKE.transpose(0, 1).repeat_interleave(groups, dim=0)[None],
        attn_mask=mask,
        scale=form.scale,
    )[0].transpose(0, 1)
    if allowed is None:
        return output_SHE
    return torch.where(allowed.any(dim=1)[:, None, None], output_SHE, 0.0)


def _one(
    q: Tensor, k: Tensor, v: Tensor, form: Form, row: int, wants_lse: bool
) -> tuple[Tensor, Tensor]:
    """Output and lse of one sequence; the lse is empty where nobody wants it."""
    if q.shape[0] == 0 or k.shape[0] == 0:
        lse = torch.full((q.shape[1], q.shape[0]), torch.inf, device=q.device)
        return q.new_zeros(*q.shape[:2], v.shape[2]), lse
    if wants_lse or form.softcap > 0:
        output, lse = attend(q, k, v, form, row)
        return output, lse
    return _attend_plain(q, k, v, form, row), q.new_empty(0)


def _refuse_dropout(dropout_p: float) -> None:
    if dropout_p:
        raise ContractError(
            f"flash_sdpa: dropout_p is {dropout_p}, expected 0.0: dropout draws from the kernel's "
            "own generator; leave it out in inference"
        )


def _dense(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float, form: Form, return_attn_probs: bool
) -> Attended:
    _refuse_dropout(dropout_p)
    made = [_one(q[r], k[r], v[r], form, r, return_attn_probs) for r in range(q.shape[0])]
    output = torch.stack([one[0] for one in made]) if made else torch.empty_like(q)
    if not return_attn_probs:
        return output
    lse = torch.stack([one[1] for one in made]) if made else q.new_empty(0, dtype=torch.float32)
    return output, lse, output.new_empty(0)


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Attended:
    """Attention of q [B,S,H,E] over k and v [B,L,K,E] → [B,S,H,E] (lse [B,H,S])."""
    form = Form(softmax_scale, causal, window_size, softcap, alibi_slopes)
    return _dense(q, k, v, dropout_p, form, return_attn_probs)


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Attended:
    """The same with kv [B,L,2,K,E]."""
    form = Form(softmax_scale, causal, window_size, softcap, alibi_slopes)
    k, v = kv.unbind(2)
    return _dense(q, k, v, dropout_p, form, return_attn_probs)


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Attended:
    """The same with qkv [B,S,3,H,E]."""
    form = Form(softmax_scale, causal, window_size, softcap, alibi_slopes)
    q, k, v = qkv.unbind(2)
    return _dense(q, k, v, dropout_p, form, return_attn_probs)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Attended:
    """Packed sequences: q [T,H,E], k and v [T,K,E], or pages [P,B,K,E] with a block_table [R,n].

    Returns:
        [T,H,E] (lse [H,T]).
    """
    _refuse_dropout(dropout_p)
    form = Form(softmax_scale, causal, window_size, softcap, alibi_slopes)
    output = q.new_zeros(*q.shape[:2], v.shape[-1])
    lse = torch.full((q.shape[1], q.shape[0]), torch.inf, device=q.device)
    # One read of the device a launch: this way out cuts each row by itself.
    starts_q, starts_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    for row in range(len(starts_q) - 1):
        span = slice(starts_q[row], starts_q[row + 1])
        span_k = slice(starts_k[row], starts_k[row + 1])
        if block_table is None:
            keys, values = k[span_k], v[span_k]
        else:
            keys, values = (
                from_pages(one, block_table[row], span_k.stop - span_k.start) for one in (k, v)
            )
        output[span], row_lse = _one(q[span], keys, values, form, row, return_attn_probs)
        if return_attn_probs:
            lse[:, span] = row_lse
    return (output, lse, output.new_empty(0)) if return_attn_probs else output


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Attended:
    """The same with kv [T,2,K,E]."""
    k, v = kv.unbind(1)
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale,
        causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Attended:
    """The same with qkv [T,3,H,E] and one set of lengths."""
    q, k, v = qkv.unbind(1)
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale,
        causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Attended:
    """Decode: q [B,S,H,E] over a cache [B,L,K,E], or pages with block_table [B,n] int32.

    k and v [B,S',K,E] are appended in place at cache_seqlens; doing so again writes the same.

    Returns:
        [B,S,H,E] (lse [B,H,S]).
    """
    form = Form(softmax_scale, causal, window_size, softcap, alibi_slopes)
    turned = rotary_cos is not None and rotary_sin is not None
    fixed = not causal and window_size == UNLIMITED  # then all queries stand at one position
    layout = CacheLayout.of(k_cache, q.shape[0], cache_seqlens, cache_batch_idx, block_table)
    made = []
    for row, start in enumerate(layout.lengths):
        queries, length = q[row], start
        if turned:
            at = torch.full((q.shape[1],), start) if fixed else start + torch.arange(q.shape[1])
            queries = rotate(queries, rotary_cos, rotary_sin, at, rotary_interleaved)
        if k is not None and v is not None:
            length = start + k.shape[1]
            at = torch.arange(start, length)
            new = rotate(k[row], rotary_cos, rotary_sin, at, rotary_interleaved)
            place = layout.place(row, at)
            k_cache[place], v_cache[place] = new.to(k_cache.dtype), v[row].to(v_cache.dtype)
        first = 0 if cache_leftpad is None else int(cache_leftpad[row])
        place = layout.place(row, torch.arange(first, length))
        made.append(_one(queries, k_cache[place], v_cache[place], form, row, return_softmax_lse))
    output = torch.stack([one[0] for one in made]) if made else torch.empty_like(q)
    if not return_softmax_lse:
        return output
    return output, torch.stack([one[1] for one in made])


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Where each position of each row lies: lengths before the call, table [B,n], page size."""

    lengths: tuple[int, ...]
    table: Tensor
    page_size: int

    @classmethod
    def of(
        cls,
        k_cache: Tensor,
        rows: int,
        cache_seqlens: int | Tensor | None,
        cache_batch_idx: Tensor | None,
        block_table: Tensor | None,
    ) -> "CacheLayout":
        """A cache without pages is one whose pages are its rows."""
        size = k_cache.shape[1]
        if block_table is not None:
            table = block_table
        elif cache_batch_idx is not None:
            table = cache_batch_idx[:, None]
        else:
            table = torch.arange(rows, device=k_cache.device)[:, None]
        if isinstance(cache_seqlens, Tensor):
            lengths = tuple(cache_seqlens.tolist())  # likewise: rows are cut one by one
        else:
            whole = table.shape[1] * size
            lengths = (whole if cache_seqlens is None else cache_seqlens,) * rows
        return cls(lengths, table.to(torch.int64), size)

    def place(self, row: int, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Page and offset of positions [n] of a row."""
        positions = positions.to(self.table.device)
        return self.table[row, positions // self.page_size], positions % self.page_size


def from_pages(pages_PBKE: Tensor, table_n: Tensor, length: int) -> Tensor:
    """[length,K,E]: a row's own keys or values, in order."""
    size = pages_PBKE.shape[1]
    used = table_n[: -(-length // size)].to(torch.int64)
    return pages_PBKE[used].flatten(0, 1)[:length]


def rotate(
    x_SHE: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    at_S: Tensor,
    interleaved: bool,
) -> Tensor:
    """The first 2 * cos.shape[1] features turned at these positions; the rest passes through.

    Args:
        cos, sin: [positions, turned / 2]; None: nothing is turned.
        interleaved: pairs are neighbours (2i, 2i+1), else (i, i + turned / 2).
    """
    if cos is None or sin is None:
        return x_SHE
    at_S = at_S.to(cos.device)
    cos_S1E, sin_S1E = cos[at_S][:, None].float(), sin[at_S][:, None].float()
    turned = 2 * cos.shape[1]
    x, rest = x_SHE[..., :turned].float(), x_SHE[..., turned:]
    first, second = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    pair = (first * cos_S1E - second * sin_S1E, first * sin_S1E + second * cos_S1E)
    made = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    return torch.cat((made.to(x_SHE.dtype), rest), dim=-1)
