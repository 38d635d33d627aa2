"""Systems in one process, as a Chaos Toolkit document names them: no Ray, no model."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.chaos.fake_system import FakeSystem, Misbehaviour
from tocsin.chaos.ctk.session import Subject
from tocsin.chaos.spec import Experiment


@contextmanager
def honest(experiment: Experiment, configuration: Mapping[str, Any]) -> Iterator[Subject]:
    """A system that suffers and recovers as it should."""
    yield Subject(FakeSystem())


@contextmanager
def corrupting(experiment: Experiment, configuration: Mapping[str, Any]) -> Iterator[Subject]:
    """A system in which a flipped weight bit silently changes answers."""
    yield Subject(FakeSystem(wrong=Misbehaviour(corrupts=frozenset({"weight.bitflip"}))))


@contextmanager
def inert(experiment: Experiment, configuration: Mapping[str, Any]) -> Iterator[Subject]:
    """A system in which a flipped weight bit never comes about."""
    yield Subject(FakeSystem(wrong=Misbehaviour(never_fires=frozenset({"weight.bitflip"}))))


@contextmanager
def mute(experiment: Experiment, configuration: Mapping[str, Any]) -> Iterator[Subject]:
    """A system that falls silent under load."""
    yield Subject(FakeSystem(wrong=Misbehaviour(mute_after=20)))
