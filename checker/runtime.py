"""The runtime: hears every operator call of a step and hands it to the checks in force."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.compiler import is_compiling

from tocsin.checker import native
from tocsin.checker.buffer import ROWS_MAX, SITES_MAX, VerdictBuffer
from tocsin.checker.collection import AUTOGRAD
from tocsin.checker.compiled import Compiled, limits_in_graphs
from tocsin.checker.contract import Check, phase_of, registry
from tocsin.checker.counters import Counters
from tocsin.checker.evaluation import Evaluation
from tocsin.checker.forms import METADATA_ONLY, SoundForms
from tocsin.checker.lanes import READ_THE_CACHE, Entry, Plan, update_fields, update_plan
from tocsin.checker.sites import Site, SiteTable
from tocsin.checker.switchboard import Switchboard
from tocsin.core.calls import Call, KVUpdateCall
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

_PLAIN = METADATA_ONLY | {"numerical.finite", "numerical.attention_mask"}
"""Checks that look at nothing that an engine would have to work out for them."""

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
            prepare=self._prepare,
            record=self._hear,
        )
        self.active = False
        self.step = -1
        self.installs = 0
        self.compiled = Compiled(self.evaluation.buffer.data, seams.plans, self._native_sites)
        seams.traced, seams.around = self.compiled.take, self._around
        seams.entry_of = self._entry_of
        self._chosen: frozenset[tuple[Operator, str]] = frozenset()
        self._clock: Clock = clock or SystemClock()
        self._sink = sink
        self._replica = replica
        self._units = checks_with(thresholds or {})
        self._essential_only = False
        self._revision = -1
        self._removers: list[Callable[[], None]] = []
        self._units_at: dict[Operator, tuple[Check, ...]] = {}
        self._hearers: dict[Operator, Callable[[Call], None]] = {}
        self._updates: dict[tuple[str, int | None], Plan] = {}
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
        self.evaluation.collection.end()

    def may_launch(self) -> bool:
        """Whether no host-side check alarmed so far; reads no device memory."""
        return not self.evaluation.veto

    def verdict(self) -> Verdict:
        """What the checks of this step found; the one device-to-host copy happens here, once."""
        verdict = self.evaluation.verdict(self.compiled.sites)
        if self.evaluation.collection.news:
            self.evaluation.collection.news = False
            self.seams.tell_watchers()
        return verdict

    def checking(self) -> bool:
        """Whether any check listens at all."""
        return bool(self._removers)

    def set_essential_only(self, essential_only: bool) -> None:
        """Keep only the memory and state checks of the guard profile, or run all again."""
        if essential_only != self._essential_only:
            self._essential_only = essential_only
            self._install()

    def adopt(self, units: Mapping[str, Check]) -> None:
        """Go on with the checks of `checks_with`: other limits, between two steps."""
        self._units = dict(units)
        self.sites.adopt(self._units)
        self._install()

    def flush(self) -> Counters:
        """The counters, with everything that was tallied so far."""
        return self.sites.flush()

    def uninstall(self) -> None:
        """Stop listening for good: a graph that somebody still has leaves its lines alone."""
        if self.compiled.sites:
            self.verdict()  # it stays readable
            self._chosen = frozenset()
            self._set_levels(self.compiled.sites)
            self.evaluation.buffer.reset(len(self.sites))
        self.end()
        with self.seams.changing():
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
        with self.seams.changing():
            self._choose()

    def _choose(self) -> None:
        self._unlisten()
        self.installs += 1
        self.evaluation.collection.other_checks()
        self._revision = self.switchboard.revision
        wanted: dict[tuple[Operator, Phase], list[Check]] = {}
        for unit in sorted(self._units.values(), key=lambda u: (list(Layer).index(u.layer), u.id)):
            for operator in unit.operators:
                if self._wants(unit, operator):
                    wanted.setdefault((operator, phase_of(operator)), []).append(unit)
        heard = {(operator, unit.id) for (operator, _), units in wanted.items() for unit in units}
        chosen: set[tuple[Operator, str]] = set()
        for (operator, phase), units in wanted.items():
            if all(implied in heard for implied in _IMPLIED.get(operator, ((operator, ""),))):
                units = [unit for unit in units if unit.id != "numerical.finite"]
            chosen.update((operator, unit.id) for unit in units)
            self._units_at[operator] = tuple(units)
            listener, collector = self._listener(operator, tuple(units), phase)
            plain = _PLAIN.issuperset(unit.id for unit in units)
            log = self.evaluation.collection.log
            self._removers.append(
                self.seams.add_check(operator, phase, listener, collector, log=log, plain=plain)
            )

        self._chosen = frozenset(chosen)
        if chosen and self.evaluation.buffer.data.device.type == "cpu":
            self.compiled.ready = native.available()
        self.compiled.limits = limits_in_graphs(self._units.values())
        self._set_levels(self.compiled.sites)

    def _unlisten(self) -> None:
        """Take every listener out of the seams."""
        for remove in self._removers:
            remove()
        self._removers = []

    def _listener(
        self, operator: Operator, units: tuple[Check, ...], phase: Phase
    ) -> tuple[Callable[[Call], None], Callable[..., None]]:
        """Closures for one seam, for records and for tensors; sites are looked up once a module."""
        table: dict[tuple[str, int | None], tuple[tuple[Site, ...], tuple[Site, ...]]] = {}
        before = phase is Phase.BEFORE
        known = SoundForms()
        evaluation, collect_call = self.evaluation, self.evaluation.collection.collect

        def hear(call: Call) -> None:
            key = (call.module, call.depth)
            found = table.get(key)
            if found is None:
                found = table[key] = self._sites_of(units, operator, *key)
            evaluation.hear(call, *found, known, before=before)

        def listen(call: Call) -> None:
            if not self.active:
                return
            if torch.is_grad_enabled():
                self.counters.skipped[AUTOGRAD] += 1
            elif not (call.depth and isinstance(call, KVUpdateCall) and self._take_update(call)):
                hear(call)

        def collect(plan: Plan, *tensors: Any) -> None:
            if self.active and not collect_call(plan, tensors):
                listen(plan.build(*tensors))

        self._hearers[operator] = hear
        return listen, collect

    def _take_update(self, call: KVUpdateCall) -> bool:
        """Take an update of the cache below the first depth as tensors."""
        key = (call.module, call.depth)
        plan = self._updates.get(key)
        if plan is None:
            plan = self._updates[key] = update_plan(*key)
        return self.evaluation.collection.collect(plan, update_fields(call))

    def _entry_of(self, call: Call) -> Entry | None:
        """An update of the cache as it may be put down, once its depth's were seen to be sound.

        The first depth is heard at its time: its checks look at what all depths share.
        """
        if not (call.depth and isinstance(call, KVUpdateCall)):
            return None
        plan = self._updates.get((call.module, call.depth))
        if plan is None or not plan.settled or plan.at_once:
            return None
        if self.evaluation.collection.stands_alone(call.module, call.depth):
            return None
        return plan, update_fields(call)

    def _prepare(self, plan: Plan) -> None:
        """Find the sites of a plan for the checks in force."""
        operator = plan.kind.operator
        units = self._units_at.get(operator, ())
        plan.lanes.clear()
        plan.by_form, plan.by_value = self._sites_of(units, operator, plan.module, plan.depth)
        plan.sites = plan.by_form + plan.by_value
        # Where the buffer has no line left for all its checks, those that have one run.
        plan.whole = len(plan.sites) == len(units)
        at_once = any(unit.id in READ_THE_CACHE for unit in units)
        if plan.at_once != at_once:
            plan.at_once, self.evaluation.collection.news = at_once, True
        plan.revision = self.evaluation.collection.revision

    def _hear(self, plan: Plan, tensors: tuple[Any, ...]) -> None:
        """A call that was put down, but must be heard as a record."""
        hear = self._hearers.get(plan.kind.operator)
        if hear is not None:
            hear(plan.build(*tensors))

    def _around(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """A model's forward: its first call decides how the others are taken."""
        traced = self.compiled.around(forward)
        begin = self.evaluation.collection.begin_forward

        def whole(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return traced(*args, **kwargs)
            begin()
            return forward(*args, **kwargs)

        return whole

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

    def _native_sites(self, plan: Plan) -> tuple[Site, ...]:
        """Sites of all native checks of a plan, also of those that are not wanted now."""
        fused, declared = plan.fused, registry()
        units = [
            self._units[check_id]
            for check_id in (fused.units if fused else ())
            if check_id in self._units and self._units[check_id].ratio is declared[check_id].ratio
        ]
        operator = plan.kind.operator
        got = [self.sites.get(unit, operator, plan.module, plan.depth) for unit in units]
        sites = tuple(site for site in got if site is not None)
        self.evaluation.buffer.expect([site.index for site in sites])
        self._set_levels(sites)
        return sites

    def _set_levels(self, sites: Sequence[Site]) -> None:
        """What a graph writes counts where the profile in force wants it."""
        for site in sites:
            wanted = (site.operator, site.unit.id) in self._chosen
            self.evaluation.buffer.set_level(site.index, float(wanted))

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


def checks_with(thresholds: Mapping[str, Mapping[str, float]]) -> dict[str, Check]:
    """Every check by id, with limits that differ from the declared ones.

    Raises:
        ValueError: an unknown check or an unknown limit.
    """
    units = dict(registry())
    unknown = sorted(set(thresholds) - set(units))
    if unknown:
        raise ValueError(f"thresholds: no check {unknown}; known are {sorted(units)}")
    for check_id, limits in thresholds.items():
        units[check_id] = units[check_id].with_thresholds(**limits)
    return units
