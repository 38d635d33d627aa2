"""The verdict buffer: NaN wins, no synchronisation, fixed address, safe under torch.compile."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tocsin.checker import native as operators
from tocsin.checker.buffer import NOT_RUN, OFF, VerdictBuffer


class Dispatches(TorchDispatchMode):
    """Names of every operation that reaches the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


SYNCHRONISES = ("_local_scalar_dense", "aten::item", "nonzero", "is_nonzero", "_to_copy")


def test_a_write_neither_synchronises_nor_allocates_more_than_its_reduction() -> None:
    """Proves rule 2: nothing in a write asks the device for a number."""
    buffer = VerdictBuffer(sites_max=4, rows_max=8)
    buffer.write(0, torch.rand(16), 8)
    buffer.write(1, torch.rand(8), 8)
    address = buffer.data.data_ptr()
    with Dispatches() as seen:
        buffer.write(0, torch.rand(16), 8)
        buffer.write(1, torch.rand(8), 8)
        buffer.write(2, torch.rand(3), None)
        buffer.write(3, torch.rand(5), 2)
    assert not [name for name in seen.names if any(word in name for word in SYNCHRONISES)]
    assert buffer.data.data_ptr() == address


def test_the_mode_that_counts_would_see_a_synchronisation() -> None:
    """Proves that the test above can fail."""
    with Dispatches() as seen:
        torch.rand(3).amax().item()
    assert any("_local_scalar_dense" in name for name in seen.names)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1.5])
def test_tokens_are_reduced_to_rows_and_the_worst_stays(bad: float) -> None:
    """Proves max over tokens and over writes, and that NaN is not lost to a later maximum."""
    buffer = VerdictBuffer(sites_max=2, rows_max=4)
    ratio = torch.full((3, 5), 0.25)
    ratio[1, 2] = bad
    buffer.write(0, ratio.flatten(), 3)
    buffer.write(0, torch.full((3,), 0.5), 3)
    reading = buffer.read(2)
    assert reading.alarms() == [0]
    assert reading.rows(0) == (1,)
    worst = reading.worst(0)
    assert math.isnan(worst) if math.isnan(bad) else worst == bad


def test_the_limit_itself_is_not_an_alarm() -> None:
    """Proves `not (ratio <= 1)` at its nearest miss."""
    buffer = VerdictBuffer(sites_max=1, rows_max=2)
    buffer.write(0, torch.tensor([1.0, math.nextafter(1.0, 0.0)]), 2)
    assert buffer.read(1).alarms() == []
    buffer.write(0, torch.tensor([1.0, 1.0 + 2**-23]), 2)
    assert buffer.read(1).rows(0) == (1,)


@pytest.mark.parametrize(
    ("count", "rows"),
    [(1, 3), (7, 3), (40, None), (40, 40), (6, 0)],
    ids=["one for all", "no multiple", "too many tokens", "too many rows", "belongs to no row"],
)
def test_what_cannot_be_pinned_to_rows_concerns_the_whole_call(
    count: int, rows: int | None
) -> None:
    """Proves that such an alarm is kept, and names no row."""
    buffer = VerdictBuffer(sites_max=1, rows_max=8)
    ratio = torch.zeros(count)
    ratio[-1] = 2.0
    buffer.write(0, ratio, rows)
    reading = buffer.read(1)
    assert reading.alarms() == [0]
    assert reading.rows(0) == ()


def test_an_empty_ratio_is_a_defined_answer() -> None:
    """Proves that a call without tokens writes nothing."""
    buffer = VerdictBuffer(sites_max=1, rows_max=2)
    buffer.write(0, torch.zeros(0), 2)
    assert buffer.read(1).alarms() == []


def test_a_level_switches_a_site_off_without_a_new_capture() -> None:
    """Proves that a NaN of a site at level 0 is not read, and comes back at level 1."""
    buffer = VerdictBuffer(sites_max=2, rows_max=2)
    buffer.write(0, torch.tensor([math.nan, 0.0]), 2)
    buffer.set_level(0, 0.0)
    assert buffer.read(2).alarms() == []
    buffer.set_level(0, 1.0)
    assert buffer.read(2).alarms() == [0]


def test_reset_forgets_a_nan() -> None:
    """Proves that the next step does not inherit an alarm."""
    buffer = VerdictBuffer(sites_max=2, rows_max=2)
    buffer.write(1, torch.tensor([math.nan, 0.0]), 2)
    buffer.reset(2)
    assert buffer.read(2).alarms() == []


def test_a_reset_tells_a_graph_what_is_wanted() -> None:
    """Proves that a graph's lines begin at -1 or, switched off, at -2; others at 0."""
    buffer = VerdictBuffer(sites_max=4, rows_max=2)
    buffer.set_level(2, 0.0)
    buffer.expect([1, 2])
    buffer.set_level(0, 0.0)
    buffer.reset(4)
    assert buffer.data[:, 0].tolist() == [0.0, NOT_RUN, OFF, 0.0]
    buffer.set_level(2, 1.0)
    buffer.set_level(1, 0.0)
    assert buffer.data[:, 2].tolist() == [0.0, NOT_RUN, OFF, 0.0]  # not within a step
    buffer.reset(4)
    assert buffer.data[:, 2].tolist() == [0.0, OFF, NOT_RUN, 0.0]
    assert buffer.read(4).ran() == [False, False, False, True]


READINGS = {
    "nothing ran": [-1.0, -1.0, -1.0],
    "zero": [0.0, -1.0, -1.0],
    "last column": [-1.0, -1.0, 3.0],
    "NaN first": [math.nan, 2.0, 0.0],
    "NaN last": [0.0, 2.0, math.nan],
    "infinite": [0.5, math.inf, 0.0],
    "limit": [1.0, 0.0, 0.0],
    "switched off": [-2.0, -2.0, -2.0],
}


@pytest.mark.parametrize("native", [True, False], ids=["in C++", "in torch"])
def test_a_reading_is_the_worst_of_each_site(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that both ways of reading say the same, NaN and what did not run included."""
    if native and not operators.available():
        pytest.skip("no compiler: the buffer is read with torch")
    monkeypatch.setattr(operators, "loaded", lambda: native)
    buffer = VerdictBuffer(sites_max=2 * len(READINGS), rows_max=2)
    for site, values in enumerate(2 * [*READINGS.values()]):
        buffer.data[site] = torch.tensor(values)
        buffer.set_level(site, float(site < len(READINGS)))
    reading = buffer.read(2 * len(READINGS))
    expected = [-1.0, 0.0, 3.0, math.nan, math.nan, math.inf, 1.0, -1.0]
    found = [reading.worst(site) for site in range(len(READINGS))]
    found[-1] = max(found[-1], -1.0)
    assert found == pytest.approx(expected, nan_ok=True)
    assert reading.alarms() == [2, 3, 4, 5]
    assert [reading.rows(site) for site in range(2, 7)] == [(), (0, 1), (), (1,), ()]
    assert reading.ran() == [False, *6 * [True], False, *len(READINGS) * [False]]


def test_what_alarmed_stays_readable_when_the_next_step_has_begun() -> None:
    """Proves that a reading is a copy."""
    buffer = VerdictBuffer(sites_max=2, rows_max=2)
    buffer.write(1, torch.tensor([0.0, 2.0]), 2)
    reading = buffer.read(2)
    buffer.reset(2)
    assert (reading.alarms(), reading.rows(1), reading.worst(1)) == ([1], (1,), 2.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.bool])
def test_ratios_of_any_type_are_kept_as_float32(dtype: torch.dtype) -> None:
    """Proves that a check may return its own type."""
    buffer = VerdictBuffer(sites_max=1, rows_max=2)
    buffer.write(
        0,
        torch.tensor([0, 1]).to(dtype) * 2
        if dtype is not torch.bool
        else torch.tensor([False, True]),
        2,
    )
    expected = 1.0 if dtype is torch.bool else 2.0
    assert buffer.read(1).worst(0) == expected


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of inductor's own imports
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_write_compiles_into_one_graph(backend: str) -> None:
    """Proves fullgraph=True: no break, the same numbers, the same address."""
    buffer = VerdictBuffer(sites_max=2, rows_max=4)

    def block(x: Tensor) -> Tensor:
        y = torch.nn.functional.silu(x) * 2
        buffer.write(0, y.abs().amax(dim=-1).flatten() / 100, 4)
        buffer.write(1, y.sum(-1).abs().flatten() / 100, 4)
        return y

    x = torch.randn(4, 3, 8)
    expected = block(x)
    eager = buffer.data.clone()
    buffer.data.zero_()
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, backend=backend)
    address = buffer.data.data_ptr()
    torch.testing.assert_close(compiled(x), expected)
    torch.testing.assert_close(buffer.data, eager)
    x[2, 1, 3] = math.nan
    compiled(x)
    assert buffer.read(2).rows(0) == (2,)
    assert buffer.data.data_ptr() == address


def test_a_buffer_made_under_inference_mode_can_be_used_outside() -> None:
    """Proves that where it was built does not matter."""
    with torch.inference_mode():
        buffer = VerdictBuffer(sites_max=1, rows_max=2)
        buffer.write(0, torch.ones(2), 2)
    buffer.reset(1)
    buffer.write(0, torch.ones(2) * 2, 2)
    assert buffer.read(1).rows(0) == (0, 1)
