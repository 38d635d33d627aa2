"""How often a step waits for the device: for the verdict once, and for the tokens that it releases.

Counted on a device that needs no hardware: whatever brings a number or a tensor of it to the host.
"""

import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicLayer

import tocsin
from tests.engine import other_device as elsewhere
from tests.engine.other_device import Remote, other_device
from tests.ray_jobs.tiny_model import save_tiny_model
from tocsin.core.requests import Request
from tocsin.core.terms import Profile
from tocsin.ray_jobs.options import ServeOptions
from tocsin.ray_jobs.stack import build

pytestmark = pytest.mark.filterwarnings("ignore")  # torch says that this door is a new one

ROOT = Path(__file__).resolve().parents[2]
STEPS = 3
VERDICT = ("checker/buffer.py", "read")
TOKENS = ("tocsin/engine/sampler.py", "sample")
OURS = ("tocsin", "checker")


def place() -> tuple[str, str]:
    """File and function of the innermost line of ours."""
    for frame in reversed(traceback.extract_stack()):
        path = Path(frame.filename).resolve()
        if path.is_relative_to(ROOT):
            name = path.relative_to(ROOT)
            if name.parts[0] in OURS:
                return str(name), frame.name
    return "", ""


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """Places from which the device was read, and how often."""
    counted: Counter[tuple[str, str]] = Counter()
    run = elsewhere.run

    def counting(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        result = run(func, args, kwargs)
        reads = any(isinstance(one, Remote) for one in tree_flatten((args, kwargs))[0])
        if str(func).startswith("aten.copy_"):
            reads = reads and not isinstance(args[0], Remote)
        elif str(func).startswith(("aten.nonzero", "aten.masked_select")):
            pass  # how many there are must be known on the host
        else:
            reads = reads and not any(isinstance(one, Remote) for one in tree_flatten(result)[0])
        if reads and result is not None:
            counted[place()] += 1
        return result

    def tolist(self: Remote) -> Any:
        counted[place()] += 1
        return self.here.tolist()

    monkeypatch.setattr(elsewhere, "run", counting)
    monkeypatch.setattr(Remote, "tolist", tolist)
    return counted


@pytest.mark.parametrize("profile", list(Profile), ids=str)
def test_a_decode_step_reads_its_verdict_once(
    tmp_path: Path, looks: Counter[tuple[str, str]], profile: Profile
) -> None:
    """Nothing besides the tokens and the one verdict, whichever checks run."""
    torch.set_num_threads(1)
    path = save_tiny_model(tmp_path)
    options = ServeOptions(
        path=str(path), model="m", slots=4, pages=64, max_length=256, profile=profile
    )
    with other_device() as device:
        stack = build(options, device=str(device))
        stack.gate.guard.runtime.evaluation._defer = False  # torch.vmap does not see through it
        stack.engine.submit(Request("q", (1, 2, 3, 4, 5), 20, ignore_eos=True))
        for _ in range(4):
            stack.engine.step()
        looks.clear()
        for _ in range(STEPS):
            stack.engine.step()
    checked = profile is not Profile.OFF
    assert looks == {TOKENS: 2 * STEPS, **({VERDICT: STEPS} if checked else {})}
    assert not stack.gate.guard.counters.failures


@pytest.mark.parametrize("profile", [Profile.GUARD, Profile.FULL], ids=str)
def test_an_attached_model_reads_its_verdict_once(
    tmp_path: Path,
    looks: Counter[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    profile: Profile,
) -> None:
    """A decode step of a plain model has no tokens to release: the verdict is all."""

    def begin(self: Any, keys: torch.Tensor, values: torch.Tensor) -> None:
        """As it is, but for a constructor that this device lacks."""
        self.device, self.is_initialized = keys.device, True
        self.keys, self.values = keys[:, :, :0], values[:, :, :0]

    monkeypatch.setattr(DynamicLayer, "lazy_initialization", begin)
    torch.set_num_threads(1)
    path = save_tiny_model(tmp_path)
    with other_device() as device, torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(path).eval().to(device)
        guard = tocsin.attach(model, profile)
        guard.runtime.evaluation._defer = False  # torch.vmap does not see through it
        ids = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]).to(device)
        with guard.step() as step:
            cache = model(input_ids=ids, use_cache=True).past_key_values
        assert step.verdict.ok
        for at in range(STEPS):
            looks.clear()
            positions = torch.full((2, 1), 5 + at).to(device)
            with guard.step() as step:
                model(input_ids=ids[:, at : at + 1], position_ids=positions, past_key_values=cache)
            verdict = step.verdict
            assert looks == {VERDICT: 1}
            assert verdict.ok
            assert verdict.checks_run > 0
    guard.detach()
