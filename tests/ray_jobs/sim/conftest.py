"""One simulator of each model for all tests: golden answers are found out once."""

from pathlib import Path

import pytest

from tests.ray_jobs.sim.little import prompt_file
from tocsin.ray_jobs.sim.replica import Pace
from tocsin.ray_jobs.sim.simulate import Simulator


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prompt_file(tmp_path_factory.mktemp("prompts"))


@pytest.fixture(scope="session")
def stub() -> Simulator:
    return Simulator("stub")


@pytest.fixture(scope="session")
def tiny() -> Simulator:
    return Simulator("tiny", Pace(break_s=0.2, restart_s=0.4))
