"""A compiled model keeps all its checks: one graph, no retracing by switches, one read a step."""

import copy
import math
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import tocsin
from tocsin.checker import native
from tocsin.core.terms import Operator, Phase

Build = Callable[..., nn.Module]
IDS = torch.arange(2, 26).view(3, 8)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the compiler's own imports
    pytest.mark.skipif(not native.available(), reason="no compiler: the checks run in Python"),
]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No graph of another test."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def graphs() -> int:
    """How many graphs were made since the test began."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def compiled(model: nn.Module, backend: str = "aot_eager") -> Callable[[], Any]:
    """One forward pass of the compiled model; it raises where the graph would break."""
    function = torch.compile(model, fullgraph=True, backend=backend)
    return lambda: function(IDS, use_cache=False)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_an_attached_model_compiles_into_one_graph_and_is_checked(
    backend: str, family_model: Build
) -> None:
    """Proves no graph break, the outputs of the bare model, and every native check of the step."""
    model: Any = family_model("llama")
    run = compiled(model, backend)
    bare = run().logits.detach()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    guard = tocsin.attach(model)
    with guard.step() as eager:
        model(IDS, use_cache=False)
    in_eager = eager.verdict.checks_run
    expected = {
        site.unit.id
        for site in guard.runtime.sites.all
        if not site.unit.id.startswith(("memory", "state", "semantic"))
        and site.operator is not Operator.EMBEDDING
    }
    run = compiled(model, backend)
    for _ in range(2):
        with guard.step() as step:
            output = run()
        assert step.verdict.ok
        torch.testing.assert_close(output.logits, bare)
    assert graphs() == 1
    assert not torch._dynamo.utils.counters["graph_break"]
    known = {site.unit.id for site in guard.runtime.compiled.sites}
    assert known | {"numerical.attention_scores"} >= expected
    of_logits = {
        site.unit.id for site in guard.runtime.compiled.sites if site.operator is Operator.LOGITS
    }
    assert of_logits == {"numerical.logits_bound", "numerical.logits_winner", "numerical.finite"}
    assert 40 < step.verdict.checks_run < in_eager
    guard.detach()


@pytest.mark.parametrize("rows", [1, 2])
def test_what_a_compiler_does_not_round_is_no_alarm(rows: int, family_model: Build) -> None:
    """bfloat16: at batch 1 Inductor adds what a product gave before that is rounded."""
    model: Any = family_model("llama").bfloat16()
    guard = tocsin.attach(model)
    function = torch.compile(model, fullgraph=True)

    def told(seed: int) -> list[str]:
        ids = torch.randint(0, 90, (rows, 1), generator=torch.Generator().manual_seed(seed))
        with torch.inference_mode(), guard.step() as taken:
            function(ids, use_cache=False)
        return [finding.message for finding in taken.verdict.findings]

    assert [message for seed in range(10) for message in told(seed)] == []
    assert "numerical.residual" in {one.unit.id for one in guard.runtime.compiled.sites}
    guard.detach()


def test_a_changed_weight_is_found_where_it_is_first_used(family_model: Build) -> None:
    """Proves that a graph's findings name module, depth and rows, first operator first."""
    model: Any = family_model("llama")
    guard = tocsin.attach(model)
    run = compiled(model)
    with guard.step() as step:
        run()
    assert step.verdict.ok
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 5] += 8.0
    with guard.step() as step:
        run()
    first = step.verdict.findings[0]
    assert first.check == "numerical.linear_checksum"
    assert first.module == "model.layers.1.mlp.up_proj"
    assert first.depth == 1
    assert graphs() == 1
    guard.detach()


def test_a_nan_alarms_in_the_rows_that_have_it(family_model: Build) -> None:
    """Proves that NaN is not lost on its way through the graph's operators."""
    model: Any = family_model("llama")
    guard = tocsin.attach(model)
    run = compiled(model)
    with guard.step():
        run()
    with torch.no_grad():
        model.model.embed_tokens.weight[IDS[1, 2]] = math.nan
    with guard.step() as step:
        run()
    assert step.verdict.rows() == {1}
    guard.detach()


def test_switching_profiles_traces_nothing_again(family_model: Build) -> None:
    """Proves that levels in device memory do it: fewer checks count, the graph stays."""
    model: Any = family_model("llama")
    guard = tocsin.attach(model)
    run = compiled(model)
    counts = []
    for profile in ("full", "guard", "off", "full"):
        guard.switchboard.set_profile(profile, "test")
        with guard.step() as step:
            run()
        counts.append(step.verdict.checks_run)
    assert graphs() == 1
    full, guarded, off, again = counts
    assert full == again > guarded > off == 0
    with torch.no_grad():
        model.model.layers[0].self_attn.o_proj.weight[0, 0] += 8.0
    guard.switchboard.set_profile("off", "test")
    with guard.step() as step:
        run()
    assert step.verdict.vacuous
    guard.switchboard.set_profile("full", "test")
    with guard.step() as step:
        run()
    assert not step.verdict.ok
    assert graphs() == 1
    guard.detach()


def test_what_is_switched_off_is_not_computed_and_comes_back_with_the_next_step(
    family_model: Build,
) -> None:
    """Proves both directions on one graph: its operators leave alone what nobody wants."""
    model: Any = family_model("llama")
    guard = tocsin.attach(model)
    run = compiled(model)
    with guard.step():
        run()
    sites = guard.runtime.compiled.sites
    buffer = guard.runtime.evaluation.buffer

    def written(profile: str) -> set[int]:
        guard.switchboard.set_profile(profile, "test")
        with guard.step() as step:
            run()
        assert step.verdict.ok
        return {site.index for site in sites if bool((buffer.data[site.index] >= 0).any())}

    chosen = {
        profile: written(profile) for profile in ("full", "off", "guard", "full", "off", "guard")
    }
    assert chosen["off"] == set()
    logits = {s.index for s in sites if s.operator is Operator.LOGITS}
    ranges = {s.index for s in sites if s.operator is Operator.ATTENTION and "finite" in s.unit.id}
    assert chosen["guard"] == ranges | logits
    assert len(chosen["full"]) > 40
    assert graphs() == 1
    with torch.no_grad():
        model.model.embed_tokens.weight[IDS[1, 2]] = math.nan
    with guard.step() as step:
        run()
    of_guard = {"numerical.finite", "numerical.logits_bound", "numerical.logits_winner"}
    assert {finding.check for finding in step.verdict.findings} == of_guard
    assert step.verdict.rows() == {1}
    guard.switchboard.set_profile("full", "test")
    with guard.step() as step:
        run()
    assert {finding.operator for finding in step.verdict.findings} > {Operator.ATTENTION}
    assert graphs() == 1
    guard.detach()


def test_a_changed_row_of_the_head_is_found_in_the_graph(family_model: Build) -> None:
    """Proves that a graph looks at the winner of each token, under the guard profile, too."""
    model: Any = family_model("llama")
    guard = tocsin.attach(model)
    run = compiled(model)
    with guard.step() as step:
        output = run()
    assert step.verdict.ok
    winner = int(output.logits[2, -1].argmax())
    guard.switchboard.set_profile("guard", "test")
    with torch.no_grad():
        model.lm_head.weight[winner] += 8.0 * model.lm_head.weight[winner].sign()
    with guard.step() as step:
        run()
    found = {finding.check: finding for finding in step.verdict.findings}
    assert 2 in found["numerical.logits_winner"].rows
    assert found["numerical.logits_winner"].module == "lm_head"
    assert graphs() == 1
    guard.detach()


def test_twins_are_compiled_once_each_whatever_is_attached_after(family_model: Build) -> None:
    """Proves that an attach and a switch concern no other graph: bare, off and checked."""
    bare, off, full = (family_model("llama") for _ in range(3))
    idle = tocsin.attach(off, "off")
    runs: list[Callable[[], Any]] = [compiled(off), compiled(bare)]
    with torch.no_grad():
        for run in runs:
            run()
    assert graphs() == 2
    guard = tocsin.attach(full)
    runs.append(compiled(full))
    for profile in ("full", "guard", "off", "full"):
        guard.switchboard.set_profile(profile, "test")
        for run in runs:
            with guard.step() as checked, idle.step() as unchecked:
                run()
        assert unchecked.verdict.vacuous
        assert checked.verdict.vacuous == (profile == "off")
        assert graphs() == 3
    guard.detach()
    with torch.no_grad():
        for run in runs[:2]:
            run()
    assert graphs() == 3
    idle.detach()


def test_a_copy_of_an_attached_module_belongs_to_no_guard(family_model: Build) -> None:
    """Proves that what a model has while it is attached neither goes with a copy nor stays."""
    model: Any = family_model("llama")
    guard = tocsin.attach(model, "off")
    attention = model.model.layers[0].self_attn
    assert attention.tocsin_site is not None
    assert copy.deepcopy(attention).tocsin_site is None
    assert pickle.loads(pickle.dumps(attention)).tocsin_site is None
    guard.detach()
    assert "tocsin_site" not in vars(attention)


def test_a_detached_graph_leaves_the_buffer_alone_and_its_last_verdict_readable(
    family_model: Build,
) -> None:
    """Proves that a graph which somebody kept computes nothing once nobody reads it."""
    model: Any = family_model("llama")
    guard = tocsin.attach(model)
    run = compiled(model)
    with guard.step() as step:
        run()
    runtime = guard.runtime
    runtime.uninstall()
    with torch.no_grad():
        run()
    assert graphs() == 1
    lines = [site.index for site in runtime.compiled.sites]
    assert bool((runtime.evaluation.buffer.data[lines] < 0).all())
    assert step.verdict.checks_run > 40
    guard.detach()


def test_a_second_attach_is_traced_anew_with_references_of_its_own(family_model: Build) -> None:
    """Proves that a graph does not go on with the references of an attach that is over."""
    model: Any = family_model("llama")
    run = compiled(model)
    for change in (0.0, 8.0):
        with torch.no_grad():
            model.model.layers[1].mlp.up_proj.weight[3, 5] += change
        guard = tocsin.attach(model)
        with guard.step() as step:
            run()
        assert step.verdict.ok
        assert step.verdict.checks_run > 40
        guard.detach()


def test_a_step_without_the_graph_is_not_taken_for_a_checked_one(family_model: Build) -> None:
    """Proves rule 6 for graphs: what did not run in a step does not count in it."""
    model: Any = family_model("llama")
    guard = tocsin.attach(model)
    run = compiled(model)
    with guard.step() as step:
        run()
    assert step.verdict.checks_run
    with guard.step() as step:
        pass
    assert step.verdict.vacuous
    before = guard.counters.checks["linear", "numerical", "ok"]
    with guard.step() as step:
        run()
    assert step.verdict.ok
    assert guard.counters.checks["linear", "numerical", "ok"] == before + 22
    guard.detach()


class Reads(TorchDispatchMode):
    """Operations that bring a number, or a copy, from the device to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        name = str(func)
        to_host = name.startswith("aten._to_copy") and given.get("device") == torch.device("cpu")
        if to_host or any(word in name for word in ("_local_scalar_dense", "nonzero", "equal.")):
            self.names.append(name)
        return func(*args, **given)


def test_a_step_reads_nothing_before_its_verdict(family_model: Build) -> None:
    """Proves that no check waits for the device: the first number is read with the verdict."""
    model: Any = family_model("llama")
    guard = tocsin.attach(model)
    for _ in range(2):  # the first step learns the forms of the calls
        with guard.step() as step:
            model(IDS, use_cache=False)
        assert step.verdict.ok
    with guard.step() as step:
        with Reads() as bare_reads:
            guard.runtime.active = False
            model(IDS, use_cache=False)
        guard.runtime.active = True
        with Reads() as reads:
            model(IDS, use_cache=False)
    assert reads.names == bare_reads.names
    assert step.verdict.ok
    guard.detach()


def test_off_leaves_nothing_in_the_model_and_full_comes_back(family_model: Build) -> None:
    """Proves that a switched-off guard costs no frame: no hook, no forward of ours."""
    model: Any = family_model("llama")
    guard = tocsin.attach(model, "off")

    def dressed() -> int:
        return sum("forward" in vars(module) for module in model.modules())

    assert dressed() == 0
    assert not any(module._forward_hooks for module in model.modules())
    guard.switchboard.set_profile("full", "test")
    with guard.step() as step:
        model(IDS)
    assert step.verdict.ok
    assert dressed() > 20
    guard.switchboard.set_profile("off", "test")
    with guard.step() as step:
        model(IDS)
    assert step.verdict.vacuous
    assert dressed() == 0
    remove = guard.seams.add_fault(Operator.LINEAR, Phase.AFTER, lambda call: None)
    assert dressed() > 20
    remove()
    assert dressed() == 0
    guard.detach()


def test_hooks_that_were_there_first_are_looked_at_as_before(family_model: Build) -> None:
    """Proves that what somebody's hook does to an output is what the checks see."""
    model: Any = family_model("llama")

    def spoil(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output.index_fill(-1, torch.tensor([0]), 50.0)

    handle = model.model.layers[1].mlp.up_proj.register_forward_hook(spoil)
    guard = tocsin.attach(model)
    with guard.step() as step:
        model(IDS)
    assert step.verdict.findings[0].module == "model.layers.1.mlp.up_proj"
    handle.remove()
    guard.detach()
    assert all(not module._forward_hooks for module in model.modules())
