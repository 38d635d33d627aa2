"""Bits of tensors of any dtype: a place that a fault overwrote, and how to take the damage away.

Recovery may have repaired the place, or new data may have been written there by the time that
the fault is healed; so only elements that still read what the fault left there are put back.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_INT_OF_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def width(dtype: torch.dtype) -> int:
    """Number of bits of one element."""
    return dtype.itemsize * 8


def chosen_bit(param: int | None, element: Tensor) -> int:
    """The bit that a spec names; without one, the bit that makes this element enormous.

    That is the highest exponent bit that is not set: in a float below 2 the one next to the sign.
    To flip a set one would make the number tiny, and most models would not mind.
    """
    if param is not None:
        return param
    top = width(element.dtype) - 2
    bits = int(bits_of(element))
    if not element.dtype.is_floating_point:
        return top
    return next((bit for bit in range(top, 0, -1) if not bits >> bit & 1), top)


def bits_of(tensor: Tensor) -> Tensor:
    """A copy of the tensor's bits as integers, so that NaN equals itself and -0 is not 0."""
    return tensor.detach().clone().contiguous().view(_INT_OF_WIDTH[tensor.element_size()])


@dataclass(slots=True)
class Patch:
    """A region of a live tensor, with its bits before and after the fault.

    Attributes:
        region: a *view* [...] of the tensor that the model works with.
        before, after: bits [...], integers as wide as the region's elements.
    """

    region: Tensor
    before: Tensor
    after: Tensor

    @classmethod
    def overwrite(cls, region: Tensor, value: Tensor | float) -> "Patch":
        """Write a value into the region in place, outside autograd."""
        before = bits_of(region)
        with torch.inference_mode():
            if isinstance(value, Tensor):
                region.detach().copy_(value)
            else:
                region.detach().fill_(value)
        return cls(region, before, bits_of(region))

    @classmethod
    def flip(cls, element: Tensor, bit: int) -> "Patch":
        """Flip one bit of an element, given as a view of one element.

        Raises:
            ValueError: the dtype has no such bit.
        """
        width = element.element_size() * 8
        if not 0 <= bit < width:
            raise ValueError(
                f"flip: bit is {bit}, {element.dtype} has bits 0 to {width - 1}; choose one of them"
            )
        before = bits_of(element)
        mask = (1 << bit) - (1 << width if bit == width - 1 and width > 8 else 0)
        return cls.overwrite(element, (before ^ mask).view(element.dtype))

    @property
    def fired(self) -> bool:
        """The region reads otherwise than before."""
        return not torch.equal(self.before, self.after)

    def gone(self) -> bool:
        """Nothing that the fault changed still reads what it left there."""
        return not bool(self._standing().any())

    def undone(self) -> bool:
        """The region reads exactly as before the fault."""
        return torch.equal(bits_of(self.region), self.before)

    def undo(self) -> None:
        """Put back what still reads as the fault left it; leave what was written since."""
        bits = torch.where(self._standing(), self.before, bits_of(self.region))
        with torch.inference_mode():
            self.region.detach().copy_(bits.view(self.region.dtype))

    def words(self, bits: Tensor) -> str:
        """A reading in words: the value of one element, or a digest of several; JSON-safe.

        The digest weighs each element by its place, so that two that change places change it.
        """
        if bits.numel() == 1:
            value = bits.reshape(1).view(self.region.dtype).item()
            shown = f"{value:.6g}" if self.region.dtype.is_floating_point else str(value)
            digits = self.region.element_size() * 2
            raw = int(bits.item()) & ((1 << (4 * digits)) - 1)
            return f"{shown} (0x{raw:0{digits}x})"
        words = bits.to(torch.int64).flatten()
        places = 2 * torch.arange(len(words), device=words.device) + 1
        total = int((words * places).sum().item()) & ((1 << 64) - 1)
        return f"{bits.numel()} values, digest 0x{total:016x}"

    def _standing(self) -> Tensor:
        """Elements that the fault changed and that still read what it left, bool [...]."""
        return (bits_of(self.region) == self.after) & (self.after != self.before)
