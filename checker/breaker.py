"""The circuit breaker over the attention backends: closed, open after failures, half-open."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tocsin.core.clock import Clock, SystemClock
from tocsin.core.history import Event, EventKind
from tocsin.core.protocols import Sink
from tocsin.core.terms import BreakerState, Operator

CHAIN = ("flash", "sdpa", "math")


@dataclass(slots=True)
class _Circuit:
    """State of one backend.

    Attributes:
        failures: failures in a row.
        since_ns: when the state was entered.
        trial_ns: when a half-open trial was handed out, -1 while there is none.
    """

    state: BreakerState = BreakerState.CLOSED
    failures: int = 0
    since_ns: int = 0
    trial_ns: int = -1


class Breaker:
    """Chooses the first backend of the chain whose circuit is closed; `core.BackendChoice`.

    Args:
        chain: backends from the preferred one to the last resort, which is never opened.
        failures_max: failures in a row that open a circuit.
        cooldown_s: how long a circuit stays open before one trial is let through.

    Attributes:
        transitions: changes so far, by backend and what it became.
    """

    def __init__(
        self,
        chain: Sequence[str] = CHAIN,
        *,
        failures_max: int = 3,
        cooldown_s: float = 30.0,
        clock: Clock | None = None,
        sink: Sink | None = None,
        replica: str = "",
    ) -> None:
        """All circuits closed.

        Raises:
            ValueError: the chain is empty or holds a name twice.
        """
        if not chain or len(set(chain)) != len(chain):
            raise ValueError(f"breaker: chain is {list(chain)}, expected different names")
        self.chain = tuple(chain)
        self._failures_max = failures_max
        self._cooldown_ns = int(cooldown_s * 1e9)
        self._clock: Clock = clock or SystemClock()
        self._sink = sink
        self._replica = replica
        self._circuits = {backend: _Circuit() for backend in self.chain}
        self._forced: dict[str, str] = {}
        self.transitions: Counter[tuple[str, str]] = Counter()

    def limit(self, *, failures_max: int, cooldown_s: float) -> None:
        """Other limits from now on; circuits stay as they are, an open one waits the new time."""
        self._failures_max = failures_max
        self._cooldown_ns = int(cooldown_s * 1e9)

    @property
    def primary(self) -> str:
        """The backend that serves when nothing is wrong."""
        return self.chain[0]

    def choose(self) -> str:
        """Backend of the next step; hands out the trial when a cooldown has passed."""
        allowed = self.chain[self._floor() :]
        for backend in allowed[:-1]:
            if self._admits(backend):
                return backend
        return allowed[-1]

    def fallback(self, backend: str) -> str | None:
        """The next backend down the chain whose circuit is not open, None at its end."""
        below = self.chain[self.chain.index(backend) + 1 :] if backend in self.chain else ()
        for candidate in below:
            if self._circuits[candidate].state is not BreakerState.OPEN:
                return candidate
        return below[-1] if below else None

    def succeeded(self, backend: str) -> None:
        """Forget the failures; a trial that went well closes the circuit."""
        circuit = self._circuits.get(backend)
        if circuit is None:
            return
        circuit.failures = 0
        if circuit.state is not BreakerState.CLOSED:
            self._move(backend, BreakerState.CLOSED, "a trial step was clean")

    def failed(self, backend: str, reason: str) -> None:
        """Count a failure; too many in a row, or a failed trial, open the circuit."""
        circuit = self._circuits.get(backend)
        if circuit is None:
            return
        circuit.failures += 1
        half_open = circuit.state is BreakerState.HALF_OPEN
        if half_open or circuit.failures >= self._failures_max:
            self._move(backend, BreakerState.OPEN, reason)

    def force(self, reason: str, backend: str) -> None:
        """Serve from `backend` or below as long as the reason lasts."""
        if backend not in self.chain:
            backend = self.chain[-1]
        if self._forced.get(reason) != backend:
            self._forced = {**self._forced, reason: backend}
            self._tell(self.primary, "allowed", "forced", reason)

    def unforce(self, reason: str) -> None:
        """The reason is gone."""
        if reason in self._forced:
            self._forced = {key: value for key, value in self._forced.items() if key != reason}
            self._tell(self.primary, "forced", "allowed", reason)

    def allows(self, backend: str) -> bool:
        """Whether nothing forces the step onto a lighter backend than this one."""
        return backend not in self.chain or self.chain.index(backend) >= self._floor()

    def state(self, backend: str | None = None) -> BreakerState:
        """State of one circuit, by default the primary's."""
        return self._circuits[backend or self.primary].state

    def degraded(self, backend: str) -> tuple[str, ...]:
        """The label of answers made by this backend: none for the primary."""
        return () if backend in ("", self.primary) else (f"attention:{backend}",)

    def status(self) -> dict[str, object]:
        """JSON-safe reading."""
        return {
            "serving": self.peek(),
            "circuits": {
                backend: {"state": str(circuit.state), "failures": circuit.failures}
                for backend, circuit in self._circuits.items()
            },
            "forced": dict(self._forced),
        }

    def peek(self) -> str:
        """The backend that would serve now, without handing out a trial."""
        allowed = self.chain[self._floor() :]
        closed = [b for b in allowed if self._circuits[b].state is BreakerState.CLOSED]
        return closed[0] if closed else allowed[-1]

    def _floor(self) -> int:
        return max((self.chain.index(backend) for backend in self._forced.values()), default=0)

    def _admits(self, backend: str) -> bool:
        circuit = self._circuits[backend]
        if circuit.state is BreakerState.CLOSED:
            return True
        now_ns = self._clock.now_ns()
        if circuit.state is BreakerState.OPEN and now_ns - circuit.since_ns < self._cooldown_ns:
            return False
        if circuit.state is BreakerState.OPEN:
            self._move(backend, BreakerState.HALF_OPEN, "the cooldown has passed")
        # One trial at a time; one whose end was never told is given up after a cooldown.
        if circuit.trial_ns >= 0 and now_ns - circuit.trial_ns < self._cooldown_ns:
            return False
        circuit.trial_ns = now_ns
        return True

    def _move(self, backend: str, after: BreakerState, reason: str) -> None:
        circuit = self._circuits[backend]
        before = circuit.state
        circuit.state, circuit.trial_ns = after, -1
        circuit.since_ns = self._clock.now_ns()
        if before is not after:
            self._tell(backend, str(before), str(after), reason)

    def _tell(self, backend: str, before: str, after: str, reason: str) -> None:
        self.transitions[backend, after] += 1
        if self._sink is None:
            return
        data = {
            "operator": str(Operator.ATTENTION),
            "backend": backend,
            "before": before,
            "after": after,
            "reason": reason,
            "serving": self.peek(),
        }
        self._sink.emit(Event(EventKind.BREAKER, self._clock.now_ns(), self._replica, data=data))
