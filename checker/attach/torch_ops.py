"""`tocsin.checking`: the checks of plain PyTorch operators, wherever they are called from.

A torch-function mode hears `F.linear`, `F.scaled_dot_product_attention`, `F.rms_norm`,
`F.embedding`, softmax, gated activations, residual adds and products with a parameter, without a
change to the code that calls them. Every operator runs as it would: same inputs, same bits.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from tocsin.checker.attach.torch_records import BUILDERS, Recorder, Skip
from tocsin.checker.counters import Counters
from tocsin.checker.runtime import Runtime
from tocsin.checker.switchboard import Switchboard
from tocsin.core.clock import Clock
from tocsin.core.errors import ContractError
from tocsin.core.protocols import Sink
from tocsin.core.seams import Seams
from tocsin.core.terms import Operator, Phase, Profile
from tocsin.core.verdict import Verdict

_PLAIN = frozenset({Tensor, Parameter})


def checking(
    profile: Profile | str = Profile.FULL,
    *,
    seams: Seams | None = None,
    thresholds: Mapping[str, Mapping[str, float]] | None = None,
    switchboard: Switchboard | None = None,
    device: torch.device | str = "cpu",
    clock: Clock | None = None,
    sink: Sink | None = None,
    replica: str = "",
) -> "Checking":
    """Check the operators that are called inside `with checking() as step:`.

    Nothing raises in there: `step.verdict` afterwards says what was found. The object may be
    entered again and again, one after the other; each entry is a step of its own. Autograd stays
    as it is. Code that is being compiled is not looked at.

    Args:
        profile: `off`, `guard` or `full`.
        seams: where to announce the calls; None: of its own. Faults may listen there.
        thresholds: limits by check id that differ from the declared ones.
        switchboard: an existing one, whose profile then counts; None: a new one.
        device: where the ratios are kept: the tensors' own.

    Raises:
        ValueError: an unknown profile, check or limit.
    """
    return Checking(
        profile,
        seams=seams,
        thresholds=thresholds,
        switchboard=switchboard,
        device=device,
        clock=clock,
        sink=sink,
        replica=replica,
    )


class Checking(TorchFunctionMode):
    """Checks of plain operators; `checker.fault_checker.FaultChecker`.

    Attributes:
        seams: where the operator calls are announced.
        runtime: the checks that run.
        skipped: operator → why a call of it was not looked at.
    """

    def __init__(
        self,
        profile: Profile | str = Profile.FULL,
        *,
        seams: Seams | None = None,
        thresholds: Mapping[str, Mapping[str, float]] | None = None,
        switchboard: Switchboard | None = None,
        device: torch.device | str = "cpu",
        clock: Clock | None = None,
        sink: Sink | None = None,
        replica: str = "",
    ) -> None:
        """See `checking`."""
        super().__init__()
        self.seams = seams if seams is not None else Seams()
        self.switchboard = switchboard or Switchboard(
            profile, clock=clock, sink=sink, replica=replica
        )
        self.runtime = Runtime(
            self.seams,
            self.switchboard,
            thresholds=thresholds,
            device=device,
            clock=clock,
            sink=sink,
            replica=replica,
        )
        self.skipped: dict[str, str] = {}
        self._recorder = Recorder()
        self._numbers: Counter[Operator] = Counter()
        self._verdict: Verdict | None = None
        self._begun = False
        self._attached = True

    def step(self) -> Self:
        """A context around one piece of work: the object itself."""
        return self

    def __enter__(self) -> Self:
        """Begin a step.

        Raises:
            ContractError: it is entered already, or was detached.
        """
        if self.runtime.active:
            raise ContractError(
                "checking: a step began inside another of the same object, expected one after the "
                "other; make a second tocsin.checking() for the inner one"
            )
        if not self._attached:
            raise ContractError("checking: it was detached; call tocsin.checking again")
        self._verdict, self._begun = None, True
        self._numbers.clear()
        self.runtime.begin()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the step; the verdict stays readable until the next one begins."""
        super().__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        self.runtime.end()
        self._recorder.forget()

    @property
    def verdict(self) -> Verdict:
        """What the checks found; the one device-to-host read happens at the first access.

        Raises:
            ContractError: no step has ended yet.
        """
        if self.runtime.active or not self._begun:
            raise ContractError(
                "checking: the verdict was read before the step ended, expected after; "
                "leave the `with` block first"
            )
        if self._verdict is None:
            self._verdict = self.runtime.verdict()
        return self._verdict

    @property
    def counters(self) -> Counters:
        """What the checks did so far."""
        return self.runtime.flush()

    def status(self) -> dict[str, Any]:
        """JSON-safe: switchboard, the checks that listen, what was skipped."""
        return {
            **self.switchboard.status(),
            "checks": list(self.runtime.running()),
            "skipped": dict(self.skipped),
        }

    def detach(self) -> None:
        """Stop listening; calling it again does nothing."""
        self._attached = False
        self.runtime.uninstall()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the operator as it is, then tell what it did."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        builder = BUILDERS.get(func)
        if builder is None or torch.compiler.is_compiling():
            return result
        operator, build = builder
        if (operator, Phase.AFTER) not in self.seams.listening and not build.remembers:
            return result
        if not all(one in _PLAIN for one in types):
            self.skipped[str(operator)] = (
                "a tensor of a class of its own: its arithmetic is unknown"
            )
            return result
        with torch.no_grad():  # a look is no part of anybody's graph
            made = build(self._recorder, args, kwargs, result)
            if isinstance(made, Skip):
                self.skipped[str(operator)] = made.reason
            elif made is not None:
                made.module = f"{operator}.{self._numbers[operator]}"
                self._numbers[operator] += 1
                self.seams.emit(made)
        return result
