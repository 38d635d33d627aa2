"""What is wrong with the form of a call to one of a model's layers, in words or empty.

Axes: see tocsin/core/calls.py.
"""

from tocsin.checker.operands import (
    apart,
    mixed_dtypes,
    no_axis,
    not_floating,
    not_integer,
    strided,
    wrong_axes,
    wrong_shape,
)
from tocsin.core.calls import (
    AllReduceCall,
    EmbeddingCall,
    LinearCall,
    LogitsCall,
    ResidualCall,
    RMSNormCall,
    RopeCall,
    SwiGLUCall,
)


def embedding(call: EmbeddingCall) -> str:
    """The rule of EmbeddingCall."""
    found = not_integer(input_ids=call.input_ids) or not_floating(weight=call.weight)
    found = found or wrong_axes(2, weight=call.weight) or apart(call)
    if not found and call.output is not None:
        expected = (*call.input_ids.shape, call.weight.shape[1])
        found = not_floating(output=call.output) or wrong_shape("output", call.output, expected)
    return found


def rope(call: RopeCall) -> str:
    """The rule of RopeCall."""
    q, k, cos = call.q, call.k, call.cos
    found = not_floating(q=q, k=k, cos=cos, sin=call.sin) or not_integer(
        position_ids=call.position_ids
    )
    found = found or wrong_axes(4, q=q, k=k) or wrong_axes(3, cos=cos, sin=call.sin)
    found = found or wrong_axes(2, position_ids=call.position_ids) or mixed_dtypes(q=q, k=k)
    found = found or apart(call) or strided(q=q, k=k)
    if found:
        return found
    rows, _, positions, size = q.shape
    if k.shape[0] != rows or k.shape[2:] != q.shape[2:]:
        return f"k is {list(k.shape)}, expected [{rows},K,{positions},{size}] as in q"
    if cos.shape != call.sin.shape or cos.shape[0] not in (1, rows) or cos.shape[1] != positions:
        return f"cos is {list(cos.shape)}, sin {list(call.sin.shape)}, expected [R|1,{positions},E]"
    if cos.shape[2] > size or cos.shape[2] % 2:
        return f"cos has {cos.shape[2]} columns, expected an even number up to {size}"
    if call.position_ids.shape[0] not in (1, rows) or call.position_ids.shape[1] != positions:
        return f"position_ids is {list(call.position_ids.shape)}, expected [R|1,{positions}]"
    if call.inv_freq is not None:
        found = not_floating(inv_freq=call.inv_freq) or wrong_shape(
            "inv_freq", call.inv_freq, (cos.shape[2] // 2,)
        )
    for name, out, like in (("q_out", call.q_out, q), ("k_out", call.k_out, k)):
        if out is not None:
            found = found or not_floating(**{name: out}) or wrong_shape(name, out, like.shape)
    return found


def rms_norm(call: RMSNormCall) -> str:
    """The rule of RMSNormCall."""
    x = call.x
    found = not_floating(x=x, weight=call.weight) or apart(call) or no_axis(x=x)
    found = found or strided(x=x) or wrong_shape("weight", call.weight, x.shape[-1:])
    if not found and call.weight_trusted is not None:
        found = not_floating(weight_trusted=call.weight_trusted) or wrong_shape(
            "weight_trusted", call.weight_trusted, x.shape[-1:]
        )
    if not found and call.output is not None:
        found = not_floating(output=call.output) or wrong_shape("output", call.output, x.shape)
    return found


def linear(call: LinearCall) -> str:
    """The rule of LinearCall."""
    x, weight = call.x, call.weight
    found = not_floating(x=x, weight=weight) or wrong_axes(2, weight=weight) or no_axis(x=x)
    found = found or mixed_dtypes(x=x, weight=weight) or apart(call) or strided(x=x)
    if found:
        return found
    features, hidden = weight.shape
    if x.shape[-1] != hidden:
        return f"x has {x.shape[-1]} columns, weight {hidden}, expected the same"
    if call.bias is not None:
        found = not_floating(bias=call.bias) or wrong_shape("bias", call.bias, (features,))
    if call.block_size < 1:
        return f"block_size is {call.block_size}, expected at least 1"
    blocks = -(-features // call.block_size)
    for name, tensor, shape in (
        ("block_sums", call.block_sums, (blocks, hidden)),
        ("block_norms", call.block_norms, (blocks,)),
        ("bias_sums", call.bias_sums, (blocks,)),
        ("block_weights", call.block_weights, (call.block_size,)),
    ):
        if tensor is not None:
            found = found or not_floating(**{name: tensor}) or wrong_shape(name, tensor, shape)
    if not found and call.output is not None:
        expected = (*x.shape[:-1], features)
        found = not_floating(output=call.output) or wrong_shape("output", call.output, expected)
    return found


def swiglu(call: SwiGLUCall) -> str:
    """The rule of SwiGLUCall."""
    found = not_floating(gate=call.gate, up=call.up) or mixed_dtypes(gate=call.gate, up=call.up)
    found = found or apart(call) or no_axis(gate=call.gate)
    found = found or wrong_shape("up", call.up, call.gate.shape)
    if not found and call.output is not None:
        found = not_floating(output=call.output) or wrong_shape(
            "output", call.output, call.gate.shape
        )
    return found


def residual(call: ResidualCall) -> str:
    """The rule of ResidualCall."""
    found = not_floating(x=call.x, delta=call.delta) or apart(call) or no_axis(x=call.x)
    found = found or wrong_shape("delta", call.delta, call.x.shape)
    if not found and call.output is not None:
        found = not_floating(output=call.output) or wrong_shape("output", call.output, call.x.shape)
    return found


def logits(call: LogitsCall) -> str:
    """The rule of LogitsCall."""
    logits = call.logits
    found = not_floating(logits=logits) or no_axis(logits=logits) or apart(call)
    if not found and call.hidden is not None:
        found = not_floating(hidden=call.hidden) or no_axis(hidden=call.hidden)
        if not found and call.hidden.shape[:-1] != logits.shape[:-1]:
            found = f"hidden is {list(call.hidden.shape)}, logits {list(logits.shape)}: other rows"
    if not found and call.weight is not None:
        found = not_floating(weight=call.weight) or wrong_axes(2, weight=call.weight)
        hidden = call.hidden.shape[-1] if call.hidden is not None else call.weight.shape[-1]
        found = found or wrong_shape("weight", call.weight, (logits.shape[-1], hidden))
    if not found and call.weight_norm_max is not None:
        found = not_floating(weight_norm_max=call.weight_norm_max) or (
            "" if call.weight_norm_max.numel() == 1 else "weight_norm_max: expected one number"
        )
    if not found and call.weight_row_sums is not None:
        found = not_floating(weight_row_sums=call.weight_row_sums) or wrong_shape(
            "weight_row_sums", call.weight_row_sums, logits.shape[-1:]
        )
    return found


def all_reduce(call: AllReduceCall) -> str:
    """The rule of AllReduceCall."""
    found = not_floating(partials=call.partials, output=call.output)
    found = found or no_axis(partials=call.partials, output=call.output) or apart(call)
    return found or wrong_shape("output", call.output, call.partials.shape[1:])
