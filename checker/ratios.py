"""Residual over limit, without a synchronisation, and so that no fault can talk its way under it.

A ratio is float32; `not (ratio <= 1)` is an alarm. Zero elements mean: nothing to check here.
"""

import torch
from torch import Tensor

from tocsin.core.calls import Call

_SCALE_MAX = 1e30  # the largest exponent bit makes 3e38 of 1, and this of 3e-9
_LIMIT_MAX = 1e37  # a larger limit has no say: its scale has overflowed, or was made to


def over(residual: Tensor, limit: Tensor | float) -> Tensor:
    """|residual| / limit, float32; a limit that is not finite is an alarm, never a wide gate.

    Args:
        residual: any shape, floating.
        limit: greater than 0 (add the dtype's smallest step), broadcastable to it.
    """
    ratio = residual.abs().div(limit)
    if isinstance(limit, Tensor):
        # Adds nothing to a ratio, unless the limit is as large as that, infinite or NaN.
        ratio = torch.add(ratio, limit, alpha=1 / _LIMIT_MAX)
    return ratio.to(torch.float32)


def bounded(scale: Tensor, reach: Tensor) -> Tensor:
    """A scale seen in an output, but at most what the input allows; NaN stays NaN."""
    return torch.minimum(scale, reach)


def scale_of(trusted: Tensor) -> Tensor:
    """A size that was kept, float32; NaN, and so an alarm, where it cannot be one any more.

    That is where its sign was turned, or its largest exponent bit was set: no sum of squares of a
    model's numbers comes near that, and the limit would pass everything.
    """
    wide = trusted.to(torch.float32)
    return torch.where((wide >= 0) & (wide < _SCALE_MAX), wide, torch.nan)


def violated(bad: Tensor) -> Tensor:
    """Infinity where `bad` is true, 0 elsewhere, in float32; for rules without a tolerance."""
    ratio = torch.zeros_like(bad, dtype=torch.float32)
    return ratio.masked_fill_(bad, torch.inf)


def alarm(call: Call) -> Tensor:
    """[1] infinity: the call as a whole breaks a rule."""
    return torch.full((1,), torch.inf, dtype=torch.float32, device=device_of(call))


def clear(call: Call) -> Tensor:
    """[1] zero: the call as a whole keeps the rule."""
    return torch.zeros(1, dtype=torch.float32, device=device_of(call))


def nothing(call: Call) -> Tensor:
    """[0]: there is nothing to check here."""
    return torch.zeros(0, dtype=torch.float32, device=device_of(call))


def device_of(call: Call) -> torch.device:
    """Where the first tensor of a call lives; the host for a call without tensors."""
    for name in field_names(type(call)):
        value = getattr(call, name)
        if isinstance(value, Tensor):
            return value.device
    return torch.device("cpu")


def field_names(kind: type[Call]) -> tuple[str, ...]:
    """Names of a record's own fields, in the order of its declaration."""
    return tuple(name for name in kind.__dataclass_fields__ if name not in _COMMON)


_COMMON = frozenset(Call.__dataclass_fields__)
