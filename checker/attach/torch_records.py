"""Calls of plain PyTorch functions as operator records: one builder a function.

A builder never raises and changes nothing: where a call is not an operator that a check knows, it
returns None, and where it is one that cannot be checked, a `Skip` with the reason.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.nn import Parameter, functional
from torch.utils.weak import WeakTensorKeyDictionary

from tocsin.checker.attach.references import BLOCK_SIZE, LinearReference, linear_reference
from tocsin.core.calls import (
    AttentionCall,
    Call,
    EmbeddingCall,
    LinearCall,
    ResidualCall,
    RMSNormCall,
    SamplerCall,
    SwiGLUCall,
)
from tocsin.core.terms import Operator

_GATES_REMEMBERED = 4
"""Activations that wait for their product: it follows at once, or the activation gates nothing."""


@dataclass(frozen=True, slots=True)
class Skip:
    """A call that a check would look at, and why it cannot."""

    reason: str


@dataclass(frozen=True, slots=True)
class _Trusted:
    """References of one weight, with the version that the tensor had when they were taken."""

    version: int
    reference: LinearReference


class Recorder:
    """What must be kept from one call to another: references of weights, gates without product."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._trusted: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self._gates: deque[tuple[Tensor, Tensor, str]] = deque(maxlen=_GATES_REMEMBERED)
        self._ones: dict[tuple[int, torch.dtype, torch.device], Tensor] = {}

    def forget(self) -> None:
        """A step has ended: no activation of it is kept."""
        self._gates.clear()

    def remember_gate(self, output: Tensor, gate: Tensor, activation: str) -> None:
        """An activation whose product may follow."""
        self._gates.append((output, gate, activation))

    def take_gate(self, output: Tensor) -> tuple[Tensor, str] | None:
        """Input and kind of the activation that made this tensor."""
        for index, (made, gate, activation) in enumerate(self._gates):
            if made is output:
                del self._gates[index]
                return gate, activation
        return None

    def ones(self, size: int, like: Tensor) -> Tensor:
        """The factor of a norm without one."""
        key = (size, like.dtype, like.device)
        if key not in self._ones:
            self._ones[key] = torch.ones(size, dtype=like.dtype, device=like.device)
        return self._ones[key]

    def reference(self, weight_ND: Tensor, bias_N: Tensor | None) -> LinearReference:
        """Block sums of a weight, taken at its first use and again after a declared write.

        A bit that flips in memory raises no version: then the sums of before still hold.
        """
        owner = weight_ND if weight_ND._base is None else weight_ND._base
        key = (
            tuple(weight_ND.shape),
            weight_ND.stride(),
            weight_ND.storage_offset(),
            None if bias_N is None else bias_N.data_ptr(),
        )
        version = _version(weight_ND) + (0 if bias_N is None else _version(bias_N))
        if owner not in self._trusted:
            self._trusted[owner] = {}
        known: dict[Any, _Trusted] = self._trusted[owner]
        kept = known.get(key)
        if kept is None or kept.version != version:
            with torch.inference_mode(mode=False), torch.no_grad():
                module = SimpleNamespace(weight=weight_ND, bias=bias_N)
                kept = _Trusted(version, linear_reference(cast("nn.Linear", module)))
            known[key] = kept
        return kept.reference


def _version(tensor: Tensor) -> int:
    """How often a tensor was written in place; inference tensors do not count it."""
    return 0 if tensor.is_inference() else tensor._version


Made = Call | Skip | None


@dataclass(frozen=True, slots=True)
class Builder:
    """A function's record from its arguments and result.

    Attributes:
        names: its parameters in order, as far as they are looked at.
        make: from recorder, arguments by name and result.
        remembers: it is told of every call, since a later one needs it.
    """

    names: tuple[str, ...]
    make: Callable[[Recorder, Mapping[str, Any], Any], Made]
    remembers: bool = False

    def __call__(
        self, recorder: Recorder, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> Made:
        """The record; None where this call is no operator."""
        if kwargs.get("out") is not None:
            return Skip("it writes into a given tensor, which may be one of its inputs")
        given = {**dict(zip(self.names, args, strict=False)), **kwargs}
        made = result[0] if isinstance(result, tuple) and result else result
        return self.make(recorder, given, made) if isinstance(made, Tensor) else None


def _rows(tensor: Tensor) -> int | None:
    return tensor.shape[0] if tensor.ndim > 1 else None


def _floats(*tensors: Any) -> bool:
    return all(isinstance(one, Tensor) and one.is_floating_point() for one in tensors)


def _is_parameter(value: Any) -> bool:
    """Whether a tensor is a parameter, or a view of one."""
    if not isinstance(value, Tensor):
        return False
    return isinstance(value if value._base is None else value._base, Parameter)


def _linear(recorder: Recorder, given: Mapping[str, Any], output: Tensor) -> Made:
    x, weight, bias = given["input"], given["weight"], given.get("bias")
    if not _floats(x, weight, output) or weight.ndim != 2 or weight.numel() == 0:
        return Skip("its weight is no floating matrix")
    return _linear_call(recorder, x, weight, bias, output)


def _linear_call(
    recorder: Recorder, x: Tensor, weight_ND: Tensor, bias_N: Tensor | None, output: Tensor
) -> LinearCall:
    reference = recorder.reference(weight_ND, bias_N)
    return LinearCall(
        rows=_rows(x),
        x=x,
        weight=weight_ND,
        bias=bias_N,
        output=output,
        block_sums=reference.block_sums,
        block_norms=reference.block_norms,
        bias_sums=reference.bias_sums,
        block_weights=reference.block_weights,
        block_size=BLOCK_SIZE,
    )


def _matmul(recorder: Recorder, given: Mapping[str, Any], output: Tensor) -> Made:
    x, right = given.get("input"), given.get("other", given.get("mat2"))
    if not _floats(x, right, output):
        return None
    x, right = cast("Tensor", x), cast("Tensor", right)
    # Only a parameter is the same in the next call: another factor has no trusted sums.
    if not _is_parameter(right) or right.ndim != 2 or x.ndim < 2 or right.numel() == 0:
        return None
    return _linear_call(recorder, x, right.t(), None, output)


def _addmm(recorder: Recorder, given: Mapping[str, Any], output: Tensor) -> Made:
    bias, x, right = given.get("input"), given.get("mat1"), given.get("mat2")
    if (
        not _floats(bias, x, right, output)
        or given.get("beta", 1) != 1
        or given.get("alpha", 1) != 1
    ):
        return None
    bias, x, right = cast("Tensor", bias), cast("Tensor", x), cast("Tensor", right)
    if not _is_parameter(right) or bias.ndim != 1 or bias.shape[0] != right.shape[1]:
        return None
    return _linear_call(recorder, x, right.t(), bias, output)


def _rms_norm(recorder: Recorder, given: Mapping[str, Any], output: Tensor) -> Made:
    x, weight, eps = given["input"], given.get("weight"), given.get("eps")
    shape = tuple(given["normalized_shape"])
    if not _floats(x, output):
        return None
    if len(shape) != 1:
        return Skip("it normalises more than the last axis")
    weight = recorder.ones(shape[0], x) if weight is None else weight
    eps = torch.finfo(x.dtype).eps if eps is None else float(eps)
    return RMSNormCall(rows=_rows(x), x=x, weight=weight, eps=eps, output=output)


def _embedding(recorder: Recorder, given: Mapping[str, Any], output: Tensor) -> Made:
    if given.get("max_norm") is not None:
        return Skip("max_norm rewrites the table while it is read")
    ids = given["input"]
    return EmbeddingCall(rows=_rows(ids), input_ids=ids, weight=given["weight"], output=output)


def _attention(recorder: Recorder, given: Mapping[str, Any], output: Tensor) -> Made:
    q, k, v, mask = given["query"], given["key"], given["value"], given.get("attn_mask")
    if given.get("dropout_p"):
        return Skip("dropout draws from a generator that nobody can ask again")
    if not _floats(q, k, v, output) or not q.ndim == k.ndim == v.ndim in (3, 4):
        return Skip("its tensors have other than three or four axes")
    if q.ndim == 3:
        q, k, v, output = (one[None] for one in (q, k, v, output))
    rows, _, queries, _ = q.shape
    if any(one.shape[0] not in (1, rows) for one in (k, v)) or output.shape[0] != rows:
        return Skip("its queries are broadcast over the rows of the keys")
    k, v = (one.expand(rows, *one.shape[1:]) for one in (k, v))
    causal = bool(given.get("is_causal"))
    if causal and queries != k.shape[2]:
        # PyTorch's causal mask stands at the top left, a record's at the bottom right.
        mask = torch.ones(queries, k.shape[2], dtype=torch.bool, device=q.device).tril()
        causal = False
    return AttentionCall(
        rows=rows, q=q, k=k, v=v, mask=mask, causal=causal, scale=given.get("scale"), output=output
    )


def _softmax(recorder: Recorder, given: Mapping[str, Any], output: Tensor) -> Made:
    if not _floats(output) or output.ndim == 0 or output.numel() == 0:
        return None
    dim = given.get("dim")
    if dim is None or dim % output.ndim != output.ndim - 1:
        return Skip("it sums over another axis than the last")
    return SamplerCall(rows=_rows(output), probs=output.reshape(-1, output.shape[-1]))


def _activation(kind: str) -> Callable[[Recorder, Mapping[str, Any], Any], Made]:
    def make(recorder: Recorder, given: Mapping[str, Any], output: Tensor) -> Made:
        gate = given["input"]
        if output is gate:
            return Skip("the activation overwrites its gate")
        way = kind
        if kind == "gelu" and given.get("approximate", "none") == "tanh":
            way = "gelu_tanh"
        recorder.remember_gate(output, gate, way)
        return None

    return make


def _product(recorder: Recorder, given: Mapping[str, Any], output: Tensor) -> Made:
    one, two = given.get("input"), given.get("other")
    if not _floats(one, two):
        return None
    one, two = cast("Tensor", one), cast("Tensor", two)
    for gated, up in ((one, two), (two, one)):
        found = recorder.take_gate(gated) if gated.shape == up.shape else None
        if found is not None:
            gate, activation = found
            return SwiGLUCall(
                rows=_rows(gate), gate=gate, up=up, output=output, activation=activation
            )
    return None


def _sum(recorder: Recorder, given: Mapping[str, Any], output: Tensor) -> Made:
    x, delta = given.get("input"), given.get("other")
    if not _floats(x, delta) or given.get("alpha", 1) != 1:
        return None
    x, delta = cast("Tensor", x), cast("Tensor", delta)
    # A stream and what a block adds to it: a bias or a mask is broadcast, or has fewer axes.
    if x.shape != delta.shape or x.dtype != delta.dtype or x.ndim < 2:
        return None
    return ResidualCall(rows=_rows(x), x=x, delta=delta, output=output)


def _sum_in_place(recorder: Recorder, given: Mapping[str, Any], output: Tensor) -> Made:
    x, delta = given.get("input"), given.get("other")
    if _floats(x, delta) and cast("Tensor", x).shape == cast("Tensor", delta).shape:
        return Skip("x += delta overwrites the x that a check would compare with")
    return None


def _einsum(recorder: Recorder, given: Mapping[str, Any], output: Tensor) -> Made:
    if any(_is_parameter(one) for one in given.values()):
        return Skip("einsum with a parameter: which axes it sums is not looked into")
    return None


def _whole_attention(recorder: Recorder, given: Mapping[str, Any], output: Any) -> Made:
    return Skip("multi_head_attention_forward is one function here: what it calls is not seen")


_LINEAR = Builder(("input", "weight", "bias"), _linear)
_MATMUL = Builder(("input", "other"), _matmul)
_MM = Builder(("input", "mat2"), _matmul)
_ADDMM = Builder(("input", "mat1", "mat2"), _addmm)
_NORM = Builder(("input", "normalized_shape", "weight", "eps"), _rms_norm)
_LOOKUP = Builder(("input", "weight", "padding_idx", "max_norm"), _embedding)
_ATTENTION = Builder(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), _attention)
_SOFTMAX = Builder(("input", "dim"), _softmax)
_SILU = Builder(("input",), _activation("silu"), remembers=True)
_GELU = Builder(("input",), _activation("gelu"), remembers=True)
_MUL = Builder(("input", "other"), _product)
_ADD = Builder(("input", "other"), _sum)
_ADD_IN_PLACE = Builder(("input", "other"), _sum_in_place)
_EINSUM = Builder(("equation", "one", "two", "three", "four"), _einsum)
_WHOLE_ATTENTION = Builder((), _whole_attention)

BUILDERS: Final[Mapping[Callable[..., Any], tuple[Operator, Builder]]] = {
    functional.linear: (Operator.LINEAR, _LINEAR),
    torch.matmul: (Operator.LINEAR, _MATMUL),
    Tensor.matmul: (Operator.LINEAR, _MATMUL),
    Tensor.__matmul__: (Operator.LINEAR, _MATMUL),
    torch.mm: (Operator.LINEAR, _MM),
    Tensor.mm: (Operator.LINEAR, _MM),
    torch.addmm: (Operator.LINEAR, _ADDMM),
    torch.einsum: (Operator.LINEAR, _EINSUM),
    functional.rms_norm: (Operator.RMS_NORM, _NORM),
    torch.rms_norm: (Operator.RMS_NORM, _NORM),
    functional.embedding: (Operator.EMBEDDING, _LOOKUP),
    functional.scaled_dot_product_attention: (Operator.ATTENTION, _ATTENTION),
    functional.multi_head_attention_forward: (Operator.ATTENTION, _WHOLE_ATTENTION),
    functional.softmax: (Operator.SAMPLER, _SOFTMAX),
    torch.softmax: (Operator.SAMPLER, _SOFTMAX),
    Tensor.softmax: (Operator.SAMPLER, _SOFTMAX),
    functional.silu: (Operator.SWIGLU, _SILU),
    functional.gelu: (Operator.SWIGLU, _GELU),
    torch.mul: (Operator.SWIGLU, _MUL),
    Tensor.mul: (Operator.SWIGLU, _MUL),
    Tensor.__mul__: (Operator.SWIGLU, _MUL),
    torch.add: (Operator.RESIDUAL, _ADD),
    Tensor.add: (Operator.RESIDUAL, _ADD),
    Tensor.__add__: (Operator.RESIDUAL, _ADD),
    Tensor.add_: (Operator.RESIDUAL, _ADD_IN_PLACE),
    Tensor.__iadd__: (Operator.RESIDUAL, _ADD_IN_PLACE),
}
"""Every function that is looked at: the operator that it is, and how its record is made."""
