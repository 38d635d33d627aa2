"""A store with three runs: two of one plan, the second with wrong answers, and one of another."""

from pathlib import Path

from tests.chaos.experiments import patient
from tests.chaos.fake_system import FakeSystem, Misbehaviour
from tocsin.chaos.run import run
from tocsin.chaos.spec_file import parse_experiment

_WRONG = Misbehaviour(
    corrupts=frozenset({"weight.bitflip"}), undetected=frozenset({"weight.bitflip"})
)


def make_store(folder: Path) -> dict[str, Path]:
    """The folder of each run by name, and of the store."""
    found = {"store": folder}
    for name, experiment, seed, wrong in (
        ("clean", "small", 5, Misbehaviour()),
        ("wrong", "small", 5, _WRONG),
        ("other", "other", 6, Misbehaviour()),
    ):
        spec = parse_experiment(patient(name=experiment, seed=seed))
        run(spec, FakeSystem(wrong=wrong), folder)
        found[name] = (folder / "latest").resolve()
    return found
