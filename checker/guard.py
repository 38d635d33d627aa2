"""`tocsin.attach`: checks on every operator of a model, and the guard that reads their verdict."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from tocsin.checker.attach.modules import ModuleAdapter
from tocsin.checker.counters import Counters
from tocsin.checker.runtime import Runtime
from tocsin.checker.switchboard import Switchboard
from tocsin.core.clock import Clock
from tocsin.core.errors import ContractError
from tocsin.core.protocols import Sink
from tocsin.core.seams import Seams
from tocsin.core.terms import Profile
from tocsin.core.verdict import Verdict


def attach(
    model: nn.Module,
    profile: Profile | str = Profile.FULL,
    *,
    seams: Seams | None = None,
    thresholds: Mapping[str, Mapping[str, float]] | None = None,
    switchboard: Switchboard | None = None,
    clock: Clock | None = None,
    sink: Sink | None = None,
    replica: str = "",
) -> "Guard":
    """Attach checks to every known operator of a model; its outputs stay the same bits.

    Hooks that change what a module makes must be there before: one that comes later and changes
    the residual stream is found as a sum that is not right.

    Args:
        model: any module with linear, embedding or RMSNorm modules; for a Transformers decoder
            also its attention, rotary embedding, gated activation, residuals and logits.
        profile: `off`, `guard` or `full`; may be changed later through the switchboard.
        seams: where to announce the calls, an engine's own; None: the guard's own.
        thresholds: limits by check id that differ from the declared ones.
        switchboard: an existing one, whose profile then counts; None: a new one.

    Raises:
        ContractError: the model is attached already.
        ValueError: an unknown profile, check or limit.
    """
    return Guard(
        model,
        profile,
        seams=seams,
        thresholds=thresholds,
        switchboard=switchboard,
        clock=clock,
        sink=sink,
        replica=replica,
    )


class GuardStep:
    """One forward pass under checks."""

    def __init__(self, guard: "Guard") -> None:
        """Not begun yet."""
        self._guard = guard
        self._verdict: Verdict | None = None
        self._grad: torch.autograd.grad_mode.set_grad_enabled | None = None

    def __enter__(self) -> Self:
        """Begin the step; autograd is off inside it, checks are for inference."""
        self._guard._begin(self)
        self._grad = torch.autograd.grad_mode.set_grad_enabled(False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the step; the verdict stays readable until the next one begins."""
        if self._grad is not None:
            self._grad.__exit__(kind, error, traceback)
        self._guard.runtime.end()

    @property
    def verdict(self) -> Verdict:
        """What the checks found; the one device-to-host read happens at the first access.

        Raises:
            ContractError: another step has begun since, and its ratios took the place.
        """
        if self._verdict is None:
            if self._guard._current is not self:
                raise ContractError(
                    "guard: step.verdict was read after another step began, expected before; "
                    "read each verdict before the next step"
                )
            self._verdict = self._guard.runtime.verdict()
        return self._verdict


class Guard:
    """Checks attached to one model.

    Attributes:
        seams: where the model's operator calls are announced; faults may listen here too.
        runtime: the checks that run; `gate.GuardGate` drives it inside an engine.
        skipped: what could not be attached, and why; never silently.
    """

    def __init__(
        self,
        model: nn.Module,
        profile: Profile | str = Profile.FULL,
        *,
        seams: Seams | None = None,
        thresholds: Mapping[str, Mapping[str, float]] | None = None,
        switchboard: Switchboard | None = None,
        clock: Clock | None = None,
        sink: Sink | None = None,
        replica: str = "",
    ) -> None:
        """See `attach`."""
        self.model = model
        self.seams = seams if seams is not None else Seams()
        self.switchboard = switchboard or Switchboard(
            profile, clock=clock, sink=sink, replica=replica
        )
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self.runtime = Runtime(
            self.seams,
            self.switchboard,
            thresholds=thresholds,
            device=device,
            clock=clock,
            sink=sink,
            replica=replica,
        )
        try:
            self._adapter = _adapter_for(model, self.seams)
        except ContractError:
            self.runtime.uninstall()
            raise
        self.runtime.compiled.traced = self._adapter.taps.freeze
        self._current: GuardStep | None = None

    @property
    def counters(self) -> Counters:
        """What the checks did so far."""
        return self.runtime.flush()

    @property
    def skipped(self) -> Mapping[str, str]:
        """Module or operator → the reason that it has no seam."""
        return self._adapter.skipped

    def step(self) -> GuardStep:
        """A context around one forward pass.

        Raises:
            ContractError: on entry, when the model is in training mode or detached.
        """
        return GuardStep(self)

    def status(self) -> dict[str, Any]:
        """JSON-safe: switchboard, the checks that listen, what was skipped."""
        return {
            **self.switchboard.status(),
            "checks": list(self.runtime.running()),
            "skipped": dict(self.skipped),
        }

    def detach(self) -> None:
        """Restore the model exactly; calling it again does nothing."""
        self.runtime.uninstall()
        self._adapter.detach()

    def _begin(self, step: GuardStep) -> None:
        if not self._adapter.attached:
            raise ContractError("guard: the model was detached; call tocsin.attach again")
        if self.model.training:
            raise ContractError(
                "guard: the model is in training mode, expected evaluation: the checks compare "
                "against weights taken at attach; call model.eval()"
            )
        if self.runtime.active:
            raise ContractError(
                "guard: a step began inside another, expected one forward pass a step; "
                "leave the first `with guard.step()` before"
            )
        self._current = step
        self.runtime.begin()


def _adapter_for(model: nn.Module, seams: Seams) -> ModuleAdapter:
    """The Transformers adapter where the model has an attention implementation to wrap."""
    config = getattr(model, "config", None)
    if getattr(config, "_attn_implementation", None) is not None:
        from tocsin.checker.attach.transformers import TransformersAdapter

        return TransformersAdapter(model, seams)
    return ModuleAdapter(model, seams)
