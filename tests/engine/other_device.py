"""A second device that needs no hardware: tensors on it do not mix with those of the host.

It computes on the host. What it is there for is what a GPU refuses: an operation on tensors of two
devices, unless it is a copy, one of them is a number, or the other holds indices.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _DummyDeviceGuard

ELSEWHERE = torch.device("privateuseone", 0)
_COPIES = ("aten._to_copy", "aten.to.", "aten.copy_")
_INDEXED = ("aten.index.", "aten.index_put", "aten._index_put", "aten._unsafe_index")
_LOOKS = ("aten._local_scalar_dense", "aten.equal", "aten.is_nonzero")


class _Module:
    """What torch asks of a device's Python module."""

    @staticmethod
    def is_available() -> bool:
        return False

    @staticmethod
    def is_initialized() -> bool:
        return True

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        """The module stays known for the rest of the process, whose other tests seed torch."""


class Remote(Tensor):
    """A tensor of the other device; `here` is what it holds."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> "Remote":
        """Looks like `here`, elsewhere."""
        with torch.inference_mode(mode=False), torch.no_grad():
            made: Remote = Tensor._make_wrapper_subclass(
                cls, here.shape, strides=here.stride(), dtype=here.dtype, device=ELSEWHERE
            )
        made.here = here
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Remote({self.here!r})"

    def tolist(self) -> Any:
        """As any tensor: it is copied to the host."""
        return self.here.tolist()

    def __getitem__(self, index: Any) -> Tensor:
        """A list of indices is one on the host."""
        return super().__getitem__(torch.tensor(index) if isinstance(index, list) else index)

    def untyped_storage(self) -> torch.UntypedStorage:
        """Where its bytes are."""
        return self.here.untyped_storage()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Outside the mode as inside."""
        return run(func, args, kwargs or {})


class OtherDevice(TorchDispatchMode):
    """While it is on, tensors can be made on ELSEWHERE."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every operation of this thread."""
        return run(func, args, kwargs or {})


@contextmanager
def other_device() -> Iterator[torch.device]:
    """The device, usable inside."""
    if not hasattr(torch, ELSEWHERE.type):
        torch._register_device_module(ELSEWHERE.type, _Module)
        torch._C._acc.register_python_privateuseone_device_guard(_DummyDeviceGuard())
    with OtherDevice():
        yield ELSEWHERE


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """One operation, on the host, with its results where they belong."""
    name = str(func)
    flat, _ = tree_flatten((args, kwargs))
    remote = any(isinstance(one, Remote) for one in flat)
    wanted = next((one for one in flat if isinstance(one, torch.device)), None)
    if remote and not name.startswith(_COPIES):
        _refuse_mixed(name, args, flat)
    inner_args, inner_kwargs = tree_map(_inner, (args, kwargs))
    result = func(*inner_args, **inner_kwargs)
    if "out" in kwargs:
        return kwargs["out"]
    if name.split(".")[1].endswith("_") and not name.split(".")[1].endswith("__"):
        return args[0]  # in place
    there = remote if wanted is None else wanted.type == ELSEWHERE.type
    if not there:
        return result
    return tree_map(lambda one: Remote(one) if isinstance(one, Tensor) else one, result)


def _refuse_mixed(name: str, args: Any, flat: list[Any]) -> None:
    hosts = [one for one in flat if isinstance(one, Tensor) and not isinstance(one, Remote)]
    if name.startswith(_INDEXED) and isinstance(args[0], Remote):
        hosts = [one for one in hosts if one.dtype not in (torch.int64, torch.bool)]
    if any(one.dim() for one in hosts):
        shapes = [tuple(one.shape) for one in hosts]
        raise RuntimeError(f"{name}: tensors of two devices, on the host are {shapes}")


def _inner(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value.here if isinstance(value, Remote) else value
