"""A guarded `flash_attn_varlen_func`: inputs checked before the launch, one owner, a way out.

Works on any callable with flash-attn's signature. What it adds to a launch: the checks of
`FLASH_ATTN_VARLEN` on the metadata (a bad cu_seqlens never reaches the kernel), a lock so that
two threads cannot edit the same metadata, the memory watermark, and a breaker that moves to
PyTorch's own attention after repeated failures.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tocsin.checker.breaker import Breaker
from tocsin.checker.contract import checks_for
from tocsin.checker.finding import make_finding
from tocsin.checker.varlen import VarlenLock, VarlenMetadata
from tocsin.checker.watermark import REASON, Level, Watermark
from tocsin.core.calls import VarlenAttentionCall
from tocsin.core.errors import BackendError, CheckFailed
from tocsin.core.terms import Operator
from tocsin.core.verdict import Finding

Kernel = Callable[..., Tensor]

PRIMARY, FALLBACK = "flash", "sdpa"
_ESSENTIAL = frozenset({"memory", "state"})


class GuardedVarlen:
    """A flash-attn varlen function that is checked before it is launched.

    Args:
        kernel: `flash_attn_varlen_func`, or anything that is called alike.
        breaker: chain `("flash", "sdpa")`; None: one of its own.
        watermark: fed by whoever reads free memory; None: memory is not looked at.
        catches: exceptions of the kernel that count as its failure.
    """

    def __init__(
        self,
        kernel: Kernel,
        *,
        breaker: Breaker | None = None,
        watermark: Watermark | None = None,
        lock: VarlenLock | None = None,
        catches: tuple[type[Exception], ...] = (RuntimeError, BackendError),
    ) -> None:
        """Nothing is launched yet."""
        self.breaker = breaker or Breaker((PRIMARY, FALLBACK))
        self.lock = lock or VarlenLock()
        self.degraded: tuple[str, ...] = ()
        self._kernel = kernel
        self._watermark = watermark
        self._catches = catches
        self._units = checks_for(Operator.FLASH_ATTN_VARLEN)

    def __call__(
        self,
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
        **kwargs: Any,
    ) -> Tensor:
        """Attention over packed sequences: q [Tq,H,E], k and v [Tk,K,E] → [Tq,H,E].

        Raises:
            CheckFailed: an input is wrong; nothing was launched. Or the output is, on both ways.
            ContractError: another thread owns or edited the metadata.
        """
        metadata = VarlenMetadata(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        with self.lock.hold(metadata) as held:
            call = VarlenAttentionCall(
                q=q,
                k=k,
                v=v,
                cu_seqlens_q=cu_seqlens_q,
                cu_seqlens_k=cu_seqlens_k,
                max_seqlen_q=max_seqlen_q,
                max_seqlen_k=max_seqlen_k,
            )
            self._demand(call)
            if q.shape[0] == 0:
                return torch.empty_like(q)  # an empty batch is a defined answer
            options = {"softmax_scale": softmax_scale, "causal": causal}
            if dropout_p:
                options["dropout_p"] = dropout_p
            return self._launch(call, held, {**options, **kwargs})

    def _launch(
        self, call: VarlenAttentionCall, held: VarlenLock, options: dict[str, Any]
    ) -> Tensor:
        """The kernel while it may be trusted, PyTorch's attention otherwise."""
        self._heed_memory()
        if self.breaker.choose() == PRIMARY:
            # Read back under the lock: what is launched is what was checked.
            now = held.launch()
            try:
                output = self._kernel(
                    call.q,
                    call.k,
                    call.v,
                    now.cu_seqlens_q,
                    now.cu_seqlens_k,
                    now.max_seqlen_q,
                    now.max_seqlen_k,
                    **options,
                )
            except self._catches as error:
                self.breaker.failed(PRIMARY, f"{type(error).__name__}: {error}")
            else:
                if not self._findings(call, output):
                    self.breaker.succeeded(PRIMARY)
                    self.degraded = ()
                    return output
                self.breaker.failed(PRIMARY, "its output was found wrong")
        output = sdpa_varlen(call, options.get("softmax_scale"), causal=bool(options["causal"]))
        if findings := self._findings(call, output):
            raise CheckFailed(findings)
        self.degraded = self.breaker.degraded(FALLBACK)
        return output

    def _demand(self, call: VarlenAttentionCall) -> None:
        if findings := self._findings(call, None):
            raise CheckFailed(findings)

    def _findings(self, call: VarlenAttentionCall, output: Tensor | None) -> tuple[Finding, ...]:
        """What the checks say of the inputs, or of the output."""
        call.output = output
        tight = self._watermark is not None and self._watermark.level is Level.ESSENTIAL
        found: list[Finding] = []
        for unit in self._units:
            if tight and str(unit.layer) not in _ESSENTIAL:
                continue
            ratio = unit(call)
            if ratio.numel() and not bool((ratio <= 1.0).all()):
                found.append(make_finding(unit, Operator.FLASH_ATTN_VARLEN, float(ratio.amax())))
        return tuple(found)

    def _heed_memory(self) -> None:
        if self._watermark is None:
            return
        if self._watermark.level >= Level.DEGRADE:
            self.breaker.force(REASON, FALLBACK)
        else:
            self.breaker.unforce(REASON)


def sdpa_varlen(
    call: VarlenAttentionCall, softmax_scale: float | None = None, *, causal: bool = False
) -> Tensor:
    """The same by PyTorch, sequence by sequence; causal is bottom-right aligned as in flash-attn.

    A query without any key gets zeros, as flash-attn gives them.
    """
    q, k, v = call.q, call.k, call.v
    if q is None or k is None or v is None:
        raise CheckFailed(())
    output = torch.zeros(*q.shape[:2], v.shape[2], dtype=q.dtype, device=q.device)
    groups = q.shape[1] // k.shape[1]
    starts_q, starts_k = call.cu_seqlens_q.tolist(), call.cu_seqlens_k.tolist()
    for row in range(len(starts_q) - 1):
        q_span = slice(starts_q[row], starts_q[row + 1])
        k_span = slice(starts_k[row], starts_k[row + 1])
        count_q, count_k = q_span.stop - q_span.start, k_span.stop - k_span.start
        if count_q == 0 or count_k == 0:
            continue
        mask = None
        if causal:
            mask = torch.ones(count_q, count_k, dtype=torch.bool, device=q.device)
            mask = mask.tril(count_k - count_q)
        seen = functional.scaled_dot_product_attention(
            q[q_span].transpose(0, 1)[None],
            k[k_span].transpose(0, 1).repeat_interleave(groups, dim=0)[None],
            v[k_span].transpose(0, 1).repeat_interleave(groups, dim=0)[None],
            attn_mask=mask,
            scale=softmax_scale,
        )[0].transpose(0, 1)
        if mask is not None:
            seen = torch.where(mask.any(dim=1)[:, None, None], seen, 0.0)
        output[q_span] = seen
    return output
