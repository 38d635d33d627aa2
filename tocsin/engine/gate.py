"""The engine's own stand-ins for the checker: a gate that lets all pass, a constant backend."""

from dataclasses import dataclass

from tocsin.core.protocols import BackendChoice, StepAttempt
from tocsin.core.terms import Action
from tocsin.core.verdict import Settlement
from tocsin.engine.config import BACKENDS


@dataclass(slots=True)
class FixedChoice:
    """Always the first backend of the chain; implements `core.protocols.BackendChoice`."""

    chain: tuple[str, ...] = BACKENDS

    def choose(self) -> str:
        """The first of the chain."""
        return self.chain[0]

    def fallback(self, backend: str) -> str | None:
        """The next backend down the chain, None at its end."""
        below = self.chain[self.chain.index(backend) + 1 :] if backend in self.chain else ()
        return below[0] if below else None

    def succeeded(self, backend: str) -> None:
        """Nothing is counted."""

    def failed(self, backend: str, reason: str) -> None:
        """Nothing is counted."""


@dataclass(slots=True)
class OpenGate:
    """No checks: every token of a step that came through is released, unverified.

    A step that raised ends its requests with an error; nothing is run again.
    """

    choice: BackendChoice

    def open(self, attempt: StepAttempt) -> None:
        """Nothing to forget."""

    def may_launch(self) -> bool:
        """Always."""
        return True

    def settle(self, attempt: StepAttempt, error: Exception | None) -> Settlement:
        """Release all rows, or refuse all when the step raised."""
        if error is None:
            self.choice.succeeded(attempt.backend)
        else:
            self.choice.failed(attempt.backend, str(error))
        action = Action.RELEASE if error is None else Action.REFUSE
        return Settlement(actions=(action,) * len(attempt.request_ids), verified=False)
