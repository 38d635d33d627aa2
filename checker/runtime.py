"""The runtime: hears every operator call of a step, runs the checks on it, keeps their ratios."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tocsin.checker import batching
from tocsin.checker.buffer import ROWS_MAX, SITES_MAX, VerdictBuffer
from tocsin.checker.contract import Check, phase_of, registry
from tocsin.checker.counters import Counters
from tocsin.checker.finding import make_finding
from tocsin.checker.forms import METADATA_ONLY, Form, SoundForms, form_of
from tocsin.checker.structure import assume_sound
from tocsin.checker.switchboard import Switchboard
from tocsin.core.calls import Call
from tocsin.core.clock import Clock, SystemClock
from tocsin.core.history import Event, EventKind
from tocsin.core.protocols import Sink
from tocsin.core.seams import Seams
from tocsin.core.terms import Layer, Operator, Phase, Priority, Profile
from tocsin.core.verdict import Finding, Verdict

WATERMARK = "memory.watermark"
"""Low memory asks for a lighter step, not for the same step again: it never vetoes a launch."""

_WHOLE = frozenset({Operator.WEIGHT, Operator.DEVICE_MEMORY})
"""Operators whose ratios belong to no row."""

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


@dataclass(slots=True, eq=False)
class Site:
    """One check on one module: a line of the verdict buffer."""

    index: int
    unit: Check
    operator: Operator
    module: str
    depth: int | None
    thresholds: dict[str, float]
    runs: int = 0
    alarms: int = 0
    errors: int = 0
    broken_in: int = -1


@dataclass(slots=True)
class _Heard:
    """What was written since the step began.

    Attributes:
        order: sites in order of execution.
        idle: sites in `order` that in the end had nothing to check.
    """

    order: list[Site] = field(default_factory=list)
    idle: set[int] = field(default_factory=set)
    veto: bool = False
    verdict: Verdict | None = None


class Runtime:
    """Runs the checks of one engine or one attached model.

    Args:
        seams: where the operator calls are announced.
        switchboard: which profile is in force for which operator and layer.
        thresholds: limits by check id that differ from the declared ones.
        device: where the ratios are kept: the model's.
        defer: check small calls of equal form together at the end of the step.
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
        self.buffer = VerdictBuffer(device, sites_max, rows_max)
        self.active = False
        self.step = -1
        self._serial = 0
        self._clock: Clock = clock or SystemClock()
        self._sink = sink
        self._replica = replica
        self._units = _with_thresholds(thresholds or {})
        self._sites: list[Site] = []
        self._by_key: dict[tuple[str, str, str, int | None], Site] = {}
        self._essential_only = False
        self._revision = -1
        self._removers: list[Callable[[], None]] = []
        self._heard = _Heard()
        self._defer = defer
        self._deferred = batching.Deferred()
        self._alone: set[str] = set()
        self._at_once: set[tuple[str, int | None]] = set()
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
        self.buffer.reset(len(self._sites))
        self._heard = _Heard()
        self._deferred.clear()
        self._serial += 1
        self.active = True

    def end(self) -> None:
        """No call is checked until the next step begins."""
        self.active = False

    def may_launch(self) -> bool:
        """Whether no host-side check alarmed so far; reads no device memory."""
        return not self._heard.veto

    def verdict(self) -> Verdict:
        """What the checks of this step found; the one device-to-host copy happens here, once."""
        heard = self._heard
        if heard.verdict is None:
            with torch.no_grad():
                self._check_deferred()
            heard.verdict = self._read(heard.order)
        return heard.verdict

    def checking(self) -> bool:
        """Whether any check listens at all."""
        return bool(self._removers)

    def set_essential_only(self, essential_only: bool) -> None:
        """Keep only the memory and state checks of the guard profile, or run all again."""
        if essential_only != self._essential_only:
            self._essential_only = essential_only
            self._install()

    def flush(self) -> Counters:
        """Fold the tallies of the sites into the counters and return these."""
        for site in self._sites:
            if site.runs or site.errors:
                operator, layer = str(site.operator), str(site.unit.layer)
                self.counters.checks[operator, layer, "ok"] += site.runs - site.alarms
                self.counters.checks[operator, layer, "alarm"] += site.alarms
                self.counters.checks[operator, layer, "error"] += site.errors
                site.runs = site.alarms = site.errors = 0
        return self.counters

    def uninstall(self) -> None:
        """Stop listening for good."""
        self.active = False
        self._unlisten()

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
        defer = self._defer and not before
        sound_forms = SoundForms()

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
            by_form, by_value = found
            form = form_of(call)
            sound = form is not None and self._check_form(call, by_form, form, sound_forms)
            if form is None:
                by_value = by_form + by_value
            if not by_value:
                return
            waits = defer and form is not None and key not in self._at_once
            if (
                waits
                and form is not None
                and self._deferred.take(call, by_value, form, sound=sound)
            ):
                self._heard.order.extend(by_value)
                return
            assume_sound(call if sound else None)
            for site in by_value:
                self._run(site, call, before)
            assume_sound(None)

        return listen

    def _sites_of(
        self, units: tuple[Check, ...], operator: Operator, module: str, depth: int | None
    ) -> tuple[tuple[Site, ...], tuple[Site, ...]]:
        """Sites of the checks that look at metadata only, and of the others."""
        sites = [self._site(unit, operator, module, depth) for unit in units]
        known = [site for site in sites if site is not None]
        return (
            tuple(site for site in known if site.unit.id in METADATA_ONLY),
            tuple(site for site in known if site.unit.id not in METADATA_ONLY),
        )

    def _check_form(
        self, call: Call, sites: tuple[Site, ...], form: Form, known: SoundForms
    ) -> bool:
        """Run the metadata checks, once for each form; returns whether the form is sound.

        A form of tensors on a device is looked at each time: to learn that it is clean would
        take a synchronisation.
        """
        if form in known:
            for site in sites:
                site.runs += 1
            self._heard.order.extend(sites)
            return bool(sites)
        clean = bool(sites)
        for site in sites:
            ratio = self._run(site, call, before=False)
            on_host = ratio is not None and ratio.device.type == "cpu"
            clean = clean and on_host and ratio is not None and bool((ratio <= 1.0).all())
        if clean:
            known.add(form)
        return clean

    def _check_deferred(self) -> None:
        """Run the checks that waited for the end of the step, each once for all its calls."""
        for group in self._deferred.drain():
            sound = [index for index in range(len(group.calls)) if batching.unchanged(group, index)]
            if len(sound) < len(group.calls):
                self._mark_changed(group, set(sound))
            elif len(group.calls) >= batching.GROUP_MIN:
                self._run_group(group)
                continue
            for index in sound:
                for site in group.sites[index]:
                    self._run(site, group.calls[index], before=False, known=True)

    def _run_group(self, group: batching.Group) -> None:
        shared, stacks = self._deferred.stack(group)
        for column, site in enumerate(group.sites[0]):
            sites: list[Site] = [row[column] for row in group.sites]
            if stacks and site.unit.id not in self._alone:
                try:
                    ratio = batching.ratios(group, column, shared, stacks, sound=group.sound)
                    indices = tuple(one.index for one in sites)
                    self.buffer.write_many(indices, ratio, group.calls[0].rows)
                except Exception as error:  # noqa: BLE001 - then it runs alone, which decides
                    self._alone.add(site.unit.id)
                    reason = f"{site.unit.id} runs call by call: {error}"[:200]
                    self.counters.skipped[reason] += 1
                else:
                    self._tally(sites, ran=ratio.numel() > 0)
                    continue
            for one, call in zip(sites, group.calls, strict=True):
                self._run(one, call, before=False, known=True)

    def _tally(self, sites: list[Site], *, ran: bool) -> None:
        """Count the runs of deferred sites; those with nothing to check did not run."""
        for site in sites:
            site.runs += ran
        if not ran:
            self._heard.idle.update(site.index for site in sites)

    def _mark_changed(self, group: batching.Group, sound: set[int]) -> None:
        """A model that writes into activations in place is checked call by call from now on."""
        for index, call in enumerate(group.calls):
            if index not in sound:
                self._at_once.add((call.module, call.depth))
                self._tally(list(group.sites[index]), ran=False)
                reason = "a tensor was written in place after its operator: checked at once now"
                self.counters.skipped[reason] += 1

    def _run(self, site: Site, call: Call, before: bool, known: bool = False) -> Tensor | None:
        """Run one check; one that raises fails open, loudly, and is out for this step.

        Args:
            before: it may veto the launch.
            known: it is in the order of execution already.

        Returns:
            the ratio; None where there was none.
        """
        if site.broken_in == self._serial:
            return None
        try:
            ratio = site.unit.ratio(call, **site.thresholds)
            if ratio.numel() == 0:  # nothing to check here
                if known:
                    self._heard.idle.add(site.index)
                return None
            rows = 0 if site.operator in _WHOLE else call.rows
            self.buffer.write(site.index, ratio, rows)
            if before and site.unit.id != WATERMARK and ratio.device.type == "cpu":
                self._heard.veto = self._heard.veto or not bool((ratio <= 1.0).all())
        except Exception as error:  # noqa: BLE001 - the edge between a check's bug and serving
            site.broken_in = self._serial
            self._broken(site, error)
            if known:
                self._heard.idle.add(site.index)
            return None
        site.runs += 1
        if not known:
            self._heard.order.append(site)
        return ratio

    def _site(self, unit: Check, operator: Operator, module: str, depth: int | None) -> Site | None:
        """The site of a check on a module; None when the buffer has no line left."""
        key = (unit.id, str(operator), module, depth)
        site = self._by_key.get(key)
        if site is not None:
            return site
        if len(self._sites) >= self.buffer.sites_max:
            self.counters.skipped["the verdict buffer has no line left: raise sites_max"] += 1
            return None
        site = Site(len(self._sites), unit, operator, module, depth, dict(unit.thresholds))
        self._sites.append(site)
        self._by_key[key] = site
        return site

    def _read(self, order: list[Site]) -> Verdict:
        """Copy the buffer once and turn its alarms into findings, first operator first."""
        if not order:
            return Verdict()
        if idle := self._heard.idle:
            order = [site for site in order if site.index not in idle]
        reading = self.buffer.read(len(self._sites))
        over = set(reading.alarms())
        if not over:
            return Verdict(checks_run=len(order))
        findings: list[Finding] = []
        for site in order:
            if site.index in over:
                over.discard(site.index)
                site.alarms += 1
                findings.append(
                    _finding_of(site, reading.worst(site.index), reading.rows(site.index))
                )
        return Verdict(tuple(findings), len(order))

    def _broken(self, site: Site, error: Exception) -> None:
        """Count a check that raised, and say so."""
        total = self.counters.check_errors[site.unit.id]
        self.counters.check_errors[site.unit.id] = total + 1
        site.errors += 1
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


def _finding_of(site: Site, ratio: float, rows: tuple[int, ...]) -> Finding:
    """The finding of one site."""
    return make_finding(site.unit, site.operator, ratio, rows, module=site.module, depth=site.depth)


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
