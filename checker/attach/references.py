"""Trusted references: what a check compares with, taken once, while the model is known good."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tocsin.checker.checks.numerical.linear_checksum import signed_weights

BLOCK_SIZE = 128
"""Output features a linear checksum covers: small blocks see small errors, 128 costs 0.8 %."""


@dataclass(frozen=True, slots=True)
class LinearReference:
    """Weighted sums over blocks of output features, accumulated in float64.

    Attributes:
        block_weights: [block_size] float32 factors of the features of a block.
        block_sums: [G,D] float32.
        block_norms: [G] float32, Frobenius.
        bias_sums, bias_norms: [G] float32, None without a bias.
    """

    block_weights: Tensor
    block_sums: Tensor
    block_norms: Tensor
    bias_sums: Tensor | None
    bias_norms: Tensor | None


def linear_reference(module: nn.Linear, block_size: int = BLOCK_SIZE) -> LinearReference:
    """Block sums of a linear module's weight and bias."""
    weight_ND = module.weight.detach()
    factors = signed_weights(block_size).to(weight_ND.device)
    wide = factors.double()
    sums, norms = [], []
    for block in torch.split(weight_ND, block_size):
        # Block by block: float64 copies of a whole vocabulary would not fit everywhere.
        block_BD = block.double()
        sums.append((wide[: len(block)] @ block_BD).float())
        norms.append(torch.linalg.vector_norm(block_BD).float())
    bias_sums = bias_norms = None
    if module.bias is not None:
        blocks = torch.split(module.bias.detach().double(), block_size)
        bias_sums = torch.stack([wide[: len(block)] @ block for block in blocks]).float()
        bias_norms = torch.stack([torch.linalg.vector_norm(block) for block in blocks]).float()
    return LinearReference(factors, torch.stack(sums), torch.stack(norms), bias_sums, bias_norms)


def row_norm_max(module: nn.Linear) -> Tensor:
    """Largest Euclidean norm of a weight row, float32 scalar: bounds every logit."""
    weight_VD = module.weight.detach()
    starts = range(0, weight_VD.shape[0], 4096)
    norms = [torch.linalg.vector_norm(weight_VD[i : i + 4096].float(), dim=1) for i in starts]
    return torch.cat(norms).amax()


def row_sums(module: nn.Linear) -> Tensor:
    """[V] float32 sum of each weight row, accumulated in float64."""
    parts = torch.split(module.weight.detach(), 4096)
    return torch.cat([part.double().sum(dim=1).float() for part in parts])


@dataclass(frozen=True, slots=True)
class NormForm:
    """How an RMSNorm module uses its parameter.

    Attributes:
        eps: added to the mean square.
        offset: 0 for a factor `weight`, 1 for Gemma's factor `1 + weight`.
        effective: copy of the effective factor when the model was known good.
    """

    eps: float
    offset: float
    effective: Tensor


def norm_form(module: nn.Module) -> NormForm | str:
    """Find out by trying whether a module is an RMSNorm, and of which form.

    Returns:
        the form, or the reason why the module is none.
    """
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not isinstance(weight, Tensor) or weight.dim() != 1:
        return "has no weight of one axis"
    if isinstance(module, nn.LayerNorm) or getattr(module, "bias", None) is not None:
        return "subtracts a mean or adds a bias, so it is not an RMSNorm"
    if eps is None:
        eps = torch.finfo(weight.dtype).eps
    weight_D = weight.detach()
    # An alternating ramp: a mean square that is not one, and no two channels alike.
    probe_D = torch.linspace(0.5, 2.0, weight_D.numel(), device=weight_D.device)
    probe_D = (probe_D * (1 - 2 * (torch.arange(weight_D.numel(), device=weight_D.device) % 2))).to(
        weight_D.dtype
    )
    with torch.no_grad():
        output_D = type(module).forward(module, probe_D[None])[0].float()
    unit_D = probe_D.float() * torch.rsqrt(probe_D.float().pow(2).mean() + float(eps))
    tolerance = 8 * torch.finfo(weight_D.dtype).eps
    for offset in (0.0, 1.0):
        factor_D = weight_D.float() + offset
        expected_D = unit_D * factor_D
        scale = expected_D.abs().amax().clamp_min(1e-12)
        if bool((output_D - expected_D).abs().amax() <= tolerance * scale):
            return NormForm(float(eps), offset, factor_D.to(weight_D.dtype).clone())
    return "computes neither x/rms * weight nor x/rms * (1 + weight)"


def has_norm_shape(module: nn.Module) -> bool:
    """Whether a module looks like an RMSNorm: the word in its class name, or torch's own."""
    return isinstance(module, nn.RMSNorm) or "RMSNorm" in type(module).__name__
