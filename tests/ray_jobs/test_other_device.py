"""The whole checked engine on a device whose tensors do not mix with the host's: as on a GPU."""

import pytest
import torch

from tests.engine.other_device import ELSEWHERE, Remote, other_device
from tests.ray_jobs.tiny_model import save_tiny_model
from tocsin.core.calls import Call
from tocsin.core.requests import Request, TokenEvent
from tocsin.core.terms import Operator, Phase
from tocsin.ray_jobs.options import ServeOptions
from tocsin.ray_jobs.stack import Stack, build

pytestmark = pytest.mark.filterwarnings("ignore")  # torch says that this door is a new one


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> ServeOptions:
    torch.set_num_threads(1)
    path = save_tiny_model(tmp_path_factory.mktemp("tiny"))
    return ServeOptions(path=str(path), model="m", slots=4, pages=64, max_length=256)


def on(device: str, options: ServeOptions) -> Stack:
    """Checks run call by call: torch.vmap does not see through the stand-in's tensors."""
    stack = build(options, device=device)
    stack.gate.guard.runtime.evaluation.collection.defer = False
    return stack


def serve(stack: Stack, name: str = "q") -> list[int]:
    """Greedy, over two prefill chunks and four pages."""
    stack.engine.submit(Request(name, (1, 2, 3, 4, 5) * 9, 6, ignore_eos=True))
    tokens = []
    while stack.engine.has_work:
        tokens += [one.token for one in stack.engine.step() if isinstance(one, TokenEvent)]
    return tokens


def test_tensors_of_two_devices_do_not_mix() -> None:
    """The stand-in refuses what a GPU refuses, and allows what it allows."""
    with other_device() as device:
        there, here = torch.ones(3, device=device), torch.ones(3)
        with pytest.raises(RuntimeError, match="tensors of two devices"):
            there + here
        assert isinstance(there + 1, Remote)
        assert (there + torch.tensor(2.0)).tolist() == [3.0] * 3
        assert there[torch.tensor([0, 1])].device == ELSEWHERE
        assert there.cpu().add(here).tolist() == [2.0] * 3


def test_everything_goes_where_the_weights_are(options: ServeOptions) -> None:
    """Pages, sums and verdicts too; the same tokens, each check as often, and none alarms."""
    here = on("cpu", options)
    tokens = serve(here)
    with other_device() as device:
        there = on(str(device), options)
        assert {one.device for one in there.engine.model.parameters()} == {ELSEWHERE}
        pool, verdicts = there.engine.pages, there.gate.guard.runtime.evaluation.buffer.data
        assert pool.data.device == pool.sums.device == verdicts.device == ELSEWHERE
        assert serve(there) == tokens
    counters = there.gate.guard.counters
    assert not counters.failures
    assert not counters.check_errors
    assert not counters.skipped
    # Pages are looked at once more here, with attention's own copy: by a native operator.
    once_more = ("kv_read", "state", "ok")
    counts, counts_here = dict(counters.checks), dict(here.gate.guard.counters.checks)
    assert 0 < counts.pop(once_more) <= counts_here.pop(once_more)
    assert counts == counts_here
    assert counters.verified_tokens == len(tokens)
    assert there.weights.digest() == here.weights.digest()


def test_a_corrupted_step_is_found_and_run_again_there(options: ServeOptions) -> None:
    """The ladder's first rung; the answer is the right one."""
    golden = serve(on("cpu", options))
    with other_device() as device:
        stack, spoilt = on(str(device), options), []

        def spoil(call: Call) -> None:
            if stack.engine.stats().step == 4 and not spoilt:
                spoilt.append(call)
                call.output.mul_(3.0)  # type: ignore[attr-defined]

        stack.engine.seams.add_fault(Operator.RMS_NORM, Phase.AFTER, spoil)
        assert serve(stack) == golden
        assert stack.gate.counters.causes == {"transient": 1}
        assert stack.gate.counters.reruns == 1
