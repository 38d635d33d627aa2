"""A second model on the same weights: its own modules, hooks and configuration, no more memory."""

import copy
from typing import Any

from torch import nn

from tocsin.core.errors import ContractError


def twin(model: nn.Module, layers: int | None = None) -> nn.Module:
    """Copy the module tree and share every parameter and buffer.

    Args:
        model: a model without hooks of anybody.
        layers: keep only so many decoder layers; None: all.

    Raises:
        ContractError: the model has fewer layers.
    """
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    made: Any = copy.deepcopy(model, shared)
    if layers is not None:
        if layers > len(made.model.layers):
            raise ContractError(
                f"twin: {layers} layers were asked for, the model has {len(made.model.layers)}; "
                "ask for at most as many"
            )
        made.model.layers = made.model.layers[:layers]
        made.config.num_hidden_layers = layers
        if getattr(made.config, "layer_types", None):
            made.config.layer_types = made.config.layer_types[:layers]
    result: nn.Module = made
    return result.eval()
