"""Where a replica computes: the GPU that it was given, or a clear word why not."""

import platform

import pytest
import torch

from tocsin.core.errors import EnvironmentFault, SpecError
from tocsin.ray_jobs.devices import build_facts, choose_device, device_of


@pytest.mark.parametrize(
    ("wanted", "given", "found", "device"),
    [
        ("auto", False, False, "cpu"),
        ("auto", False, True, "cpu"),  # somebody else's
        ("auto", True, True, "cuda"),
        ("cpu", True, True, "cpu"),
        ("cuda", True, True, "cuda"),
        ("cuda", False, True, "cuda"),
    ],
)
def test_a_device_follows_from_what_is_wanted_given_and_found(
    wanted: str, given: bool, found: bool, device: str
) -> None:
    """`auto` takes a GPU only where the cluster gave one."""
    assert device_of(wanted, given=given, found=found) == device


@pytest.mark.parametrize(
    ("wanted", "given", "why"),
    [("cuda", False, "device is cuda"), ("auto", True, "this replica was given a GPU")],
)
def test_a_gpu_that_cannot_be_used_is_an_error(wanted: str, given: bool, why: str) -> None:
    """An image without CUDA on a GPU node would serve slowly, and nobody would know."""
    with pytest.raises(EnvironmentFault, match=why) as caught:
        device_of(wanted, given=given, found=False)
    assert torch.__version__ in str(caught.value)


def test_an_unknown_device_is_an_error() -> None:
    """With those that are known."""
    with pytest.raises(SpecError, match="expected one of auto, cpu, cuda"):
        device_of("tpu", given=False, found=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_here_auto_is_the_processor() -> None:
    """And its facts are those that decide bits."""
    assert choose_device("auto") == "cpu"
    facts = build_facts("cpu")
    assert facts["torch"] == torch.__version__
    assert facts["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    assert facts["machine"] == platform.machine()
    assert (facts["device"], facts["device_name"]) == ("cpu", "")
