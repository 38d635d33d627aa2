"""The runtime: hears every operator call of a step and hands it to the checks in force."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tocsin.checker.buffer import ROWS_MAX, SITES_MAX, VerdictBuffer
from tocsin.checker.contract import Check, phase_of, registry
from tocsin.checker.counters import Counters
from tocsin.checker.evaluation import Evaluation
from tocsin.checker.forms import METADATA_ONLY, SoundForms
from tocsin.checker.sites import Site, SiteTable
from tocsin.checker.switchboard import Switchboard
from tocsin.core.calls import Call
from tocsin.core.clock import Clock, SystemClock
from tocsin.core.history import Event, EventKind
from tocsin.core.protocols import Sink
from tocsin.core.seams import Seams
from tocsin.core.terms import Layer, Operator, Phase, Priority, Profile
from tocsin.core.verdict import Verdict

_CHECKSUM = (Operator.LINEAR, "numerical.linear_checksum")
_ROTATION = (Operator.ROPE, "numerical.rope_norm")
_IMPLIED: dict[Operator, tuple[tuple[Operator, str], ...]] = {
    Operator.LINEAR: (_CHECKSUM,),
    Operator.RMS_NORM: ((Operator.RMS_NORM, "numerical.rms_dot"),),
    Operator.RESIDUAL: ((Operator.RESIDUAL, "numerical.residual"),),
    Operator.SWIGLU: ((Operator.SWIGLU, "numerical.swiglu"),),
    Operator.ROPE: (_ROTATION,),
    Operator.KV_UPDATE: (_CHECKSUM, _ROTATION),  # values come from a linear, keys are rotated
}
"""Where these run `numerical.finite` adds nothing: what is not finite has no residual."""

_REPORT_EVERY = 100  # a broken check raises in every step; one event in so many is enough


class Runtime:
    """Runs the checks of one engine or one attached model.

    Args:
        seams: where the operator calls are announced.
        switchboard: which profile is in force for which operator and layer.
        thresholds: limits by check id that differ from the declared ones.
        device: where the ratios are kept: the model's.
        defer: check small calls of equal form together at the end of the step.

    Attributes:
        installs: how often the set of checks was chosen: it may have changed when this has.
    """

    def __init__(
        self,
        seams: Seams,
        switchboard: Switchboard,
        *,
        thresholds: Mapping[str, Mapping[str, float]] | None = None,
        device: torch.device | str = "cpu",
        clock: Clock | None = None,
        sink: Sink | None = None,
        replica: str = "",
        counters: Counters | None = None,
        sites_max: int = SITES_MAX,
        rows_max: int = ROWS_MAX,
        defer: bool = True,
    ) -> None:
        """Listen to the seams that the profile in force asks for.

        Raises:
            ValueError: `thresholds` names an unknown check or an unknown limit.
        """
        self.seams = seams
        self.switchboard = switchboard
        self.counters = counters or Counters()
        self.sites = SiteTable(sites_max, self.counters)
        self.evaluation = Evaluation(
            VerdictBuffer(device, sites_max, rows_max),
            self.sites,
            self.counters,
            defer=defer,
            broken=self._broken,
        )
        self.active = False
        self.step = -1
        self.installs = 0
        self._clock: Clock = clock or SystemClock()
        self._sink = sink
        self._replica = replica
        self._units = _with_thresholds(thresholds or {})
        self._essential_only = False
        self._revision = -1
        self._removers: list[Callable[[], None]] = []
        self._install()

    def begin(self, step: int = -1) -> None:
        """A step begins: take over switches, forget what was heard."""
        self.switchboard.expire()
        if self._revision != self.switchboard.revision:
            self._install()
        self.step = step
        self.again()

    def again(self) -> None:
        """The same step is run again: forget what was heard, keep the set of checks."""
        self.evaluation.again()
        self.active = True

    def end(self) -> None:
        """No call is checked until the next step begins."""
        self.active = False

    def may_launch(self) -> bool:
        """Whether no host-side check alarmed so far; reads no device memory."""
        return not self.evaluation.veto

    def verdict(self) -> Verdict:
        """What the checks of this step found; the one device-to-host copy happens here, once."""
        return self.evaluation.verdict()

    def checking(self) -> bool:
        """Whether any check listens at all."""
        return bool(self._removers)

    def set_essential_only(self, essential_only: bool) -> None:
        """Keep only the memory and state checks of the guard profile, or run all again."""
        if essential_only != self._essential_only:
            self._essential_only = essential_only
            self._install()

    def flush(self) -> Counters:
        """The counters, with everything that was tallied so far."""
        return self.sites.flush()

    def uninstall(self) -> None:
        """Stop listening for good."""
        self.active = False
        self._unlisten()

    @property
    def units(self) -> Mapping[str, Check]:
        """Every check by id, with the limits in force."""
        return self._units

    def running(self) -> tuple[str, ...]:
        """Ids of the checks that listen now."""
        return tuple(unit.id for unit in self._units.values() if self._wants(unit))

    def _wants(self, unit: Check, operator: Operator | None = None) -> bool:
        operators = unit.operators if operator is None else (operator,)
        if self._essential_only:
            if unit.layer not in (Layer.MEMORY, Layer.STATE):
                return False
            operators = tuple(one for one in operators if _is_guarded(unit, one))
        return any(
            self.switchboard.profile_for(one, unit.layer).includes(unit.profile_at(one))
            for one in operators
        )

    def _install(self) -> None:
        """Listen exactly where the profile in force wants it."""
        self._unlisten()
        self.installs += 1
        self._revision = self.switchboard.revision
        wanted: dict[tuple[Operator, Phase], list[Check]] = {}
        for unit in sorted(self._units.values(), key=lambda u: (list(Layer).index(u.layer), u.id)):
            for operator in unit.operators:
                if self._wants(unit, operator):
                    wanted.setdefault((operator, phase_of(operator)), []).append(unit)
        heard = {(operator, unit.id) for (operator, _), units in wanted.items() for unit in units}
        for (operator, phase), units in wanted.items():
            if all(implied in heard for implied in _IMPLIED.get(operator, ((operator, ""),))):
                units = [unit for unit in units if unit.id != "numerical.finite"]
            listener = self._listener(operator, tuple(units), phase)
            self._removers.append(self.seams.add_check(operator, phase, listener))

    def _unlisten(self) -> None:
        """Take every listener out of the seams."""
        for remove in self._removers:
            remove()
        self._removers = []

    def _listener(
        self, operator: Operator, units: tuple[Check, ...], phase: Phase
    ) -> Callable[[Call], None]:
        """A closure for one seam; its sites are looked up once for each module."""
        table: dict[tuple[str, int | None], tuple[tuple[Site, ...], tuple[Site, ...]]] = {}
        before = phase is Phase.BEFORE
        known = SoundForms()
        evaluation = self.evaluation

        def listen(call: Call) -> None:
            if not self.active:
                return
            if torch.is_grad_enabled():
                self.counters.skipped["autograd is on: checks are for inference"] += 1
                return
            key = (call.module, call.depth)
            found = table.get(key)
            if found is None:
                found = table[key] = self._sites_of(units, operator, *key)
            evaluation.hear(call, *found, known, before=before)

        return listen

    def _sites_of(
        self, units: tuple[Check, ...], operator: Operator, module: str, depth: int | None
    ) -> tuple[tuple[Site, ...], tuple[Site, ...]]:
        """Sites of the checks that look at metadata only, and of the others."""
        sites = [self.sites.get(unit, operator, module, depth) for unit in units]
        known = [site for site in sites if site is not None]
        return (
            tuple(site for site in known if site.unit.id in METADATA_ONLY),
            tuple(site for site in known if site.unit.id not in METADATA_ONLY),
        )

    def _broken(self, site: Site, error: Exception) -> None:
        """Count a check that raised, and say so."""
        total = self.counters.check_errors[site.unit.id]
        self.counters.check_errors[site.unit.id] = total + 1
        if self._sink is None or total % _REPORT_EVERY:
            return
        data: dict[str, Any] = {
            "check": site.unit.id,
            "operator": str(site.operator),
            "layer": str(site.unit.layer),
            "module": site.module,
            "priority": str(Priority.P1),
            "cause": "check_error",
            "action": "disabled for this step",
            "error": f"{type(error).__name__}: {error}",
            "findings": [],
            "total": total + 1,
        }
        event = Event(
            EventKind.CHECK_FAILED, self._clock.now_ns(), self._replica, self.step, data=data
        )
        self._sink.emit(event)


def _is_guarded(unit: Check, operator: Operator) -> bool:
    return Profile.GUARD.includes(unit.profile_at(operator))


def _with_thresholds(thresholds: Mapping[str, Mapping[str, float]]) -> dict[str, Check]:
    units = dict(registry())
    unknown = sorted(set(thresholds) - set(units))
    if unknown:
        raise ValueError(f"thresholds: no check {unknown}; known are {sorted(units)}")
    for check_id, limits in thresholds.items():
        units[check_id] = units[check_id].with_thresholds(**limits)
    return units
