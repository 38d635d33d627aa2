"""Native checks of many calls of one form in one call of an operator: `tocsin::…_into`.

What a native operator gives is what the Python checks give, up to the rounding of float32; each
one reads its tensors once for all checks of its kind and keeps the worst ratio of a row in the
verdict buffer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tocsin.checker import native
from tocsin.checker.contract import registry
from tocsin.checker.sites import Site
from tocsin.core.calls import (
    AttentionCall,
    Call,
    KVUpdateCall,
    LinearCall,
    LogitsCall,
    ResidualCall,
    RMSNormCall,
    RopeCall,
    SwiGLUCall,
)
from tocsin.core.errors import ContractError

Columns = Sequence[Any]
"""One list a tensor of the call, with one entry a call; a setting stands as it is in the first."""


@dataclass(slots=True, eq=False)
class Job:
    """What stays the same while the same modules come in the same order.

    Attributes:
        sites: [k,n] int64, line of the verdict buffer of each result and call; -1: not wanted.
        rows: of a call, -1 where every token is its own row.
        trusted: references of each call, column by column; empty where there are none.
        limits: thresholds by check id.
        idle: lines of the sites that have nothing to say to such calls.
        options: what a launch has worked out from the limits, for the next one.
    """

    sites: Tensor
    rows: int
    trusted: tuple[list[Tensor], ...]
    settings: tuple[Any, ...]
    limits: dict[str, dict[str, float]]
    idle: tuple[int, ...]
    options: dict[str, float] = field(default_factory=dict)

    def limit(self, check_id: str, name: str) -> float:
        """A threshold in force; the declared one where the check is not wanted."""
        return self.limits[check_id][name]


Launch = Callable[[Tensor, Job, Any, Columns], None]
"""`(buffer, job, rows, columns)`: checks the calls and keeps their worst ratios."""


@dataclass(frozen=True, slots=True)
class Fused:
    """The native form of the checks of one kind of call.

    Attributes:
        units: ids of the checks, as the operator orders its results.
        idle: which of them have nothing to say to a call of these tensors and settings.
        read: how many of a call's tensors have a dtype that the operator must know; those behind
            have one of their own.
    """

    units: tuple[str, ...]
    launch: Launch
    idle: Callable[[tuple[Any, ...]], tuple[str, ...]] = lambda tensors: ()
    read: int | None = None


def fused_for(kind: type[Call], sites: Sequence[Site], tensors: tuple[Any, ...]) -> Fused | None:
    """The native form of all these checks; None where one of them has none, or there is none."""
    ids = {site.unit.id for site in sites}
    fused = _FINITE.get(kind) if ids == {"numerical.finite"} else _FUSED.get(kind)
    if not ids or fused is None or not native.available():
        return None
    declared = registry()
    for site in sites:
        unit = declared.get(site.unit.id)
        known = unit is not None and unit.id in fused.units and unit.ratio is site.unit.ratio
        if not known:
            return None
    read = [one for one in tensors[: fused.read] if isinstance(one, Tensor)]
    floats = [one for one in read if one.is_floating_point()]
    return fused if native.takes(*floats) else None


def fused_of(kind: type[Call]) -> Fused | None:
    """The native form of all checks of one kind of call, whoever wants which."""
    return _FUSED.get(kind)


def job_of(
    fused: Fused,
    sites: Sequence[Sequence[Site]],
    rows: int | None,
    trusted: Sequence[Sequence[Tensor | None]],
    settings: tuple[Any, ...],
    silent: tuple[str, ...],
) -> Job:
    """Everything that does not depend on the tensors of a step.

    Args:
        sites: of each call, all of the same checks; trusted: of each call.
        silent: ids of checks that have nothing to say to such calls.
    """
    limits = {check_id: dict(registry()[check_id].thresholds) for check_id in fused.units}
    for site in sites[0]:
        limits[site.unit.id] = dict(site.thresholds)
    columns = tuple(
        [one for one in column if one is not None] for column in zip(*trusted, strict=True)
    )
    idle = tuple(site.index for of_call in sites for site in of_call if site.unit.id in silent)
    count = -1 if rows is None else rows
    return Job(lines_of(fused, sites), count, columns, settings, limits, idle)


def lines_of(fused: Fused, sites: Sequence[Sequence[Site]]) -> Tensor:
    """[k,n] int64 line of the verdict buffer for each result and call; -1: it is not kept."""
    lines: list[list[int]] = [[-1] * len(sites) for _ in fused.units]
    for call, of_call in enumerate(sites):
        for site in of_call:
            lines[fused.units.index(site.unit.id)][call] = site.index
    with torch.inference_mode(mode=False):
        return torch.tensor(lines, dtype=torch.int64)


def _linear(buffer: Tensor, job: Job, rows: Any, columns: Columns) -> None:
    x, y = columns
    sums, norms, bias_sums, bias_norms, weights = job.trusted
    torch.ops.tocsin.linear_checksum_into(
        buffer,
        job.sites,
        rows,
        x,
        y,
        sums,
        norms,
        bias_sums,
        bias_norms,
        block_size=job.settings[0],
        limit_ulp=job.limit("numerical.linear_checksum", "limit_ulp"),
        accumulation=job.limit("numerical.linear_checksum", "accumulation"),
        headroom=job.limit("numerical.finite", "headroom"),
        block_weights=weights[0] if weights else None,
    )


def _rms_norm(buffer: Tensor, job: Job, rows: Any, columns: Columns) -> None:
    x, y = columns
    torch.ops.tocsin.rms_norm_into(
        buffer,
        job.sites,
        rows,
        x,
        y,
        job.trusted[0],
        eps=job.settings[0],
        dot_ulp=job.limit("numerical.rms_dot", "limit_ulp"),
        range_ulp=job.limit("numerical.rms_range", "limit_ulp"),
        headroom=job.limit("numerical.finite", "headroom"),
    )


def _residual(buffer: Tensor, job: Job, rows: Any, columns: Columns) -> None:
    x, delta, y = columns
    torch.ops.tocsin.residual_into(
        buffer,
        job.sites,
        rows,
        x,
        delta,
        y,
        limit_ulp=job.limit("numerical.residual", "limit_ulp"),
        terms_ulp=job.limit("numerical.residual", "terms_ulp"),
        headroom=job.limit("numerical.finite", "headroom"),
    )


def _swiglu(buffer: Tensor, job: Job, rows: Any, columns: Columns) -> None:
    gate, up, y = columns
    torch.ops.tocsin.swiglu_into(
        buffer,
        job.sites,
        rows,
        gate,
        up,
        y,
        activation=job.settings[0],
        limit_ulp=job.limit("numerical.swiglu", "limit_ulp"),
        headroom=job.limit("numerical.finite", "headroom"),
    )


def _rope(buffer: Tensor, job: Job, rows: Any, columns: Columns) -> None:
    q, k, cos, sin, position_ids, q_out, k_out = columns
    scale = job.settings[0]
    torch.ops.tocsin.rope_into(
        buffer,
        job.sites[:3],
        rows,
        q,
        k,
        q_out,
        k_out,
        cos,
        sin,
        table_scale=scale,
        norm_ulp=job.limit("numerical.rope_norm", "limit_ulp"),
        sum_ulp=job.limit("numerical.rope_signed_sum", "limit_ulp"),
        headroom=job.limit("numerical.finite", "headroom"),
    )
    trusted = job.trusted[0]
    # One table for all layers of a kind, as a rule; else each call is held to its own.
    shared = all(
        cos[call] is cos[0] and sin[call] is sin[0] and position_ids[call] is position_ids[0]
        for call in range(len(cos))
    )
    for first in (0,) if shared else range(len(cos)):
        ratio = torch.ops.tocsin.rope_table(
            cos[first],
            sin[first],
            position_ids[first],
            trusted[0] if trusted else None,
            rows=q[first].shape[0],
            table_scale=scale,
            limit_ulp=job.limit("numerical.rope_table", "limit_ulp"),
            spot_rows=job.limit("numerical.rope_table", "spot_rows"),
        )
        lines = job.sites[3:] if shared else job.sites[3:, first : first + 1]
        torch.ops.tocsin.write_into(buffer, lines, rows, ratio.expand(1, lines.shape[1], -1))


def _attention(buffer: Tensor, job: Job, rows: Any, columns: Columns) -> None:
    k, q, v, output, mask, causal, scale, _, softcap, *written = columns
    if not job.options:  # once a job: this runs between two operators, where each frame is dear
        job.options = _attention_options(job)
    torch.ops.tocsin.attention_into(
        buffer,
        job.sites,
        rows,
        q,
        k,
        v,
        output,
        [] if mask[0] is None else mask,
        [],
        [] if written[0][0] is None else [one for column in written for one in column],
        causal=causal[0],
        scale=scale[0],
        softcap=softcap[0],
        **job.options,
    )


def _attention_options(job: Job) -> dict[str, float]:
    return {
        "row_ulp": job.limit("numerical.attention_row_sum", "limit_ulp"),
        "scores_max": job.limit("numerical.attention_row_sum", "scores_max"),
        "hull_ulp": job.limit("numerical.attention_hull", "limit_ulp"),
        "headroom": job.limit("numerical.finite", "headroom"),
        "score_roundings": job.limit("numerical.attention_scores", "roundings"),
        "score_per_key": job.limit("numerical.attention_scores", "per_key"),
    }


def _attention_idle(like: tuple[Any, ...]) -> tuple[str, ...]:
    """Without a mask there is none to check, without sums of the keys none to compare with."""
    unmasked = ("numerical.attention_mask",) if like[4] is None and not like[5] else ()
    return unmasked + (("numerical.attention_scores",) if like[9] is None else ())


def _logits(buffer: Tensor, job: Job, rows: Any, columns: Columns) -> None:
    norm_max, row_sums = job.trusted
    for call, (hidden, logits, weight) in enumerate(zip(*columns, strict=True)):
        torch.ops.tocsin.logits_into(
            buffer,
            job.sites if len(columns[0]) == 1 else job.sites[:, call : call + 1].contiguous(),
            rows,
            logits,
            hidden,
            norm_max[call],
            None,
            limit=job.limit("numerical.logits_bound", "limit"),
            headroom=job.limit("numerical.finite", "headroom"),
            weight=weight,
            weight_row_sums=row_sums[call],
            winner_ulp=job.limit("numerical.logits_winner", "limit_ulp"),
            winner_accumulation=job.limit("numerical.logits_winner", "accumulation"),
        )


def _kv_update(buffer: Tensor, job: Job, rows: Any, columns: Columns) -> None:
    _, new_key, new_value, key_cache, value_cache, slots, *_ = columns
    if any(one is not slots[0] for one in slots):
        raise ContractError(
            "kv update: depths have slot mappings of their own, expected one for all; "
            "checked in Python"
        )
    torch.ops.tocsin.kv_written_into(
        buffer,
        job.sites[:2],
        rows,
        key_cache,
        value_cache,
        new_key,
        new_value,
        slots[0],
        headroom=job.limit("numerical.finite", "headroom"),
    )


def _below_the_first(like: tuple[Any, ...]) -> tuple[str, ...]:
    """What all depths share is looked at where the first one is, by its record."""
    return ("state.slot_mapping", "state.position_ledger")


def _finite_of(at: int, heads: int) -> Fused:
    """The range of an output alone, at this position among the tensors of a call."""

    def launch(buffer: Tensor, job: Job, rows: Any, columns: Columns) -> None:
        headroom = job.limit("numerical.finite", "headroom")
        torch.ops.tocsin.magnitude_into(
            buffer, job.sites, rows, columns[at], heads=heads, headroom=headroom
        )

    return Fused(("numerical.finite",), launch, read=at + 1)


_FINITE: Mapping[type[Call], Fused] = {
    LinearCall: _finite_of(1, 0),
    RMSNormCall: _finite_of(1, 0),
    ResidualCall: _finite_of(2, 0),
    SwiGLUCall: _finite_of(2, 0),
    AttentionCall: _finite_of(3, 1),
}

_FUSED: Mapping[type[Call], Fused] = {
    LinearCall: Fused(("numerical.linear_checksum", "numerical.finite"), _linear),
    RMSNormCall: Fused(("numerical.rms_dot", "numerical.rms_range", "numerical.finite"), _rms_norm),
    ResidualCall: Fused(("numerical.residual", "numerical.finite"), _residual),
    SwiGLUCall: Fused(("numerical.swiglu", "numerical.finite"), _swiglu),
    RopeCall: Fused(
        (
            "numerical.rope_norm",
            "numerical.rope_signed_sum",
            "numerical.finite",
            "numerical.rope_table",
        ),
        _rope,
    ),
    AttentionCall: Fused(
        (
            "numerical.attention_row_sum",
            "numerical.attention_hull",
            "numerical.attention_mask",
            "numerical.attention_scores",
            "numerical.finite",
        ),
        _attention,
        _attention_idle,
        read=5,
    ),
    LogitsCall: Fused(
        ("numerical.logits_bound", "numerical.logits_winner", "numerical.finite"), _logits
    ),
    KVUpdateCall: Fused(
        (
            "state.kv_page_sum",
            "numerical.finite",
            "state.slot_mapping",
            "state.position_ledger",
        ),
        _kv_update,
        _below_the_first,
    ),
}
