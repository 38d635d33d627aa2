"""A fingerprint of the logits that a token was chosen from."""

from zlib import crc32

import torch
from torch import Tensor

_TOP = 64


def logits_crc(logits_V: Tensor) -> int:
    """The crc32 of the 64 largest logits, largest first, as float32 in little-endian order.

    Of the numbers alone: which of two equal ones comes first differs between kernels. It reads
    them to the host, and so waits for the device.

    Args:
        logits_V: of one row, any floating dtype.
    """
    top = torch.topk(logits_V, min(_TOP, logits_V.shape[-1])).values.float().cpu()
    return crc32(top.numpy().astype("<f4", copy=False).tobytes())


def is_told(index: int, request_id: str, every: int) -> bool:
    """Whether the fingerprint of a token is told: each `every`-th, from a place of the request's.

    Args:
        index: of the token in its answer.
        every: 0: never.
    """
    return every > 0 and (index + crc32(request_id.encode())) % every == 0
