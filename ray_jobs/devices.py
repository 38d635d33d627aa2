"""Which device a replica computes on, and the facts of build and host that decide the bits."""

import platform
import socket
from dataclasses import replace
from importlib import metadata

import ray
import torch
import transformers

from tocsin.core.errors import EnvironmentFault, SpecError
from tocsin.ray_jobs.options import ServeOptions

DEVICES = ("auto", "cpu", "cuda")


def device_of(wanted: str, *, given: bool, found: bool) -> str:
    """The device to compute on.

    Args:
        wanted: one of DEVICES.
        given: whether the cluster gave this process a GPU.
        found: whether torch can use one here.

    Raises:
        SpecError: an unknown name.
        EnvironmentFault: a GPU is wanted, or was given, and cannot be used.
    """
    if wanted not in DEVICES:
        raise SpecError(f"device: found {wanted!r}, expected one of {', '.join(DEVICES)}")
    if wanted == "cpu" or (wanted == "auto" and not given):
        return "cpu"
    if found:
        return "cuda"
    why = "device is cuda" if wanted == "cuda" else "this replica was given a GPU"
    raise EnvironmentFault(
        f"worker: {why}, but torch {torch.__version__} finds none that it can use; give the "
        "replica a GPU (ray_actor_options: num_gpus) and an image with CUDA, or set device: cpu"
    )


def choose_device(wanted: str) -> str:
    """The same, for a replica of Serve."""
    given = bool(ray.get_gpu_ids()) if ray.is_initialized() else torch.cuda.is_available()
    return device_of(wanted, given=given, found=torch.cuda.is_available())


def on_its_device(options: ServeOptions) -> ServeOptions:
    """The options with a device that is there, instead of `auto`."""
    return replace(options, device=choose_device(options.device))


def build_facts(device: str) -> dict[str, str]:
    """Versions and processor of this process, JSON-safe: the same facts, the same bits."""
    return {
        "tocsin": metadata.version("tocsin"),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "ray": ray.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": device,
        "device_name": torch.cuda.get_device_name() if device.startswith("cuda") else "",
    }


def whereabouts() -> dict[str, str]:
    """Where a replica runs: ids of its actor and Ray node, its address, its host or pod."""
    return {
        "node": ray.get_runtime_context().get_node_id(),
        "actor": ray.get_runtime_context().get_actor_id() or "",
        "ip": str(ray.util.get_node_ip_address()),  # type: ignore[no-untyped-call]
        "host": socket.gethostname(),
    }
