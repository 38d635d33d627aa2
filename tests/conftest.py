"""What every test relies on: one thread, fixed seeds, and a clear word about missing weights."""

import os
import random
import sys
from collections.abc import Iterator
from functools import cache

import hypothesis
import numpy as np
import pytest
import torch

# Ray reads these at import; a test must neither join a cluster of the person who runs it nor
# phone home, and nothing is fetched from a hub at run time.
os.environ.pop("RAY_ADDRESS", None)
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# The same examples on every run: a test that fails here fails on the machine of the reader too.
hypothesis.settings.register_profile("tocsin", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("tocsin")


def pytest_configure() -> None:
    """One compute thread: sums have one order, and neighbours keep their cores."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    """Global generators start each test at the same place, whatever ran before."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test that needs the weights is skipped without them, except in CI, where it fails."""
    if item.get_closest_marker("model") is None:
        return
    problem = _weights_problem()
    if problem and os.environ.get("CI"):
        pytest.fail(f"CI must have the weights: {problem}", pytrace=False)
    if problem:
        pytest.skip(problem)


@cache
def _weights_problem() -> str:
    """Why the SmolLM2 weights cannot be prepared; empty when they can."""
    from tocsin.core.errors import TocsinError
    from tocsin.engine.weights import prepare

    try:
        prepare()
    except TocsinError as error:
        return str(error)
    return ""


@pytest.fixture(autouse=True, scope="module")
def _no_ray_left_behind() -> Iterator[None]:
    """A module that started Ray and did not stop it does not reach into the next one."""
    yield
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return
    serve = sys.modules.get("ray.serve")
    if serve is not None:
        serve.shutdown()
    ray.shutdown()
