"""What the checks say of one run of a step: at once, or together at its end."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tocsin.checker import batching
from tocsin.checker.buffer import Reading, VerdictBuffer
from tocsin.checker.collection import Collection
from tocsin.checker.counters import Counters
from tocsin.checker.finding import make_finding
from tocsin.checker.forms import Form, SoundForms, form_of
from tocsin.checker.lanes import Entry, Lane, Plan, unlike
from tocsin.checker.sites import Group, Site, SiteTable
from tocsin.checker.structure import assume_sound
from tocsin.core.calls import Call
from tocsin.core.terms import Layer, Operator
from tocsin.core.verdict import Finding, Verdict

WATERMARK = "memory.watermark"
"""Low memory asks for a lighter step, not for the same step again: it never vetoes a launch."""

IN_PLACE = "a tensor was written in place after its operator: checked at once now"

_WHOLE = frozenset({Operator.WEIGHT, Operator.DEVICE_MEMORY})
"""Operators whose ratios belong to no row."""


class Evaluation:
    """Runs checks on records, keeps their ratios in the buffer, and reads it once.

    Attributes:
        veto: a host-side check alarmed.
        kept: the calls of the run by reference, for whoever must tell what failed.

    Args:
        defer: check small calls of equal form together at the end of the step.
        broken: told of a check that raised.
    """

    def __init__(
        self,
        buffer: VerdictBuffer,
        sites: SiteTable,
        counters: Counters,
        *,
        defer: bool,
        broken: Callable[[Site, Exception], None],
        prepare: Callable[[Plan], None],
        record: Callable[[Plan, tuple[Any, ...]], None],
    ) -> None:
        """Nothing was heard yet."""
        self.buffer = buffer
        self.veto = False
        self._sites = sites
        self._counters = counters
        self._tell_broken = broken
        self._run_number = 0
        self._idle: set[int] = set()
        self._verdict: Verdict | None = None
        self._deferred = batching.Deferred()
        self._alone: set[str] = set()
        self.collection = Collection(
            counters,
            defer=defer,
            prepare=prepare,
            record=record,
            check=self._check,
            flush=self._check_lanes,
            lost=self._lost,
        )
        self.kept = self.collection.kept
        self._order = self.collection.order
        self._reading: Reading | None = None
        # What a graph wrote in the last run, as long as it writes the same.
        self._ran, self._ran_of = torch.empty(0, dtype=torch.bool), -1
        self._ran_sites: list[Site] = []
        self._ran_groups: Counter[Group] = Counter()
        self._layers = torch.empty(0, dtype=torch.int64)

    def again(self) -> None:
        """A run begins: forget what was heard."""
        self.buffer.reset(len(self._sites))
        self._deferred.clear()
        self.collection.again()
        self._idle = set()
        self._verdict, self.veto = None, False
        self._run_number += 1

    def hear(
        self,
        call: Call,
        by_form: tuple[Site, ...],
        by_value: tuple[Site, ...],
        known: SoundForms,
        *,
        before: bool,
    ) -> None:
        """Run the checks of one call, or keep its record for the end of the step.

        Args:
            by_form: sites of checks that look at metadata only; by_value: of the others.
            known: forms on which the former were clean.
            before: host-side, may veto the launch.
        """
        form = form_of(call)
        sound = form is not None and self._check_form(call, by_form, form, known)
        if form is None:
            by_value = by_form + by_value
        if not by_value:
            self.kept.keep(call)
            return
        alone = self.collection.stands_alone(call.module, call.depth)
        waits = self.collection.defer and not before and not alone
        if form is not None and waits and self._deferred.take(call, by_value, form, sound=sound):
            self._order.extend(by_value)
            self.kept.keep_small(call)
            return
        self.kept.keep(call)
        assume_sound(call if sound else None)
        for site in by_value:
            self._run(site, call, before)
        assume_sound(None)

    def verdict(self, in_graphs: Sequence[Site] = ()) -> Verdict:
        """What was found; the one device-to-host copy happens here, once a run.

        Args:
            in_graphs: sites that a compiled model writes to by itself.
        """
        if self._verdict is None:
            with torch.no_grad():
                heard = self.collection.sort()
                self.collection.finish()
                self._check_lanes()
                self._check_deferred()
            self._verdict = self._read(heard, in_graphs)
        return self._verdict

    def peaks(self) -> dict[Layer, float]:
        """The largest ratio of each layer that did not alarm, in the verdict read last."""
        if self._reading is None:
            return {}
        ratios = self._reading.ratios
        if len(self._layers) < len(ratios):
            layers = list(Layer)
            self._layers = torch.tensor([layers.index(site.unit.layer) for site in self._sites.all])
        worst = ratios.amax(dim=1)  # one pass over all; the rest is one number a site
        worst = torch.where(worst <= 1.0, worst, 0.0)  # NaN is not within
        peaks = torch.zeros(len(Layer)).scatter_reduce(
            0, self._layers[: len(ratios)], worst, "amax"
        )
        # No synchronisation: the reading is the host's copy, taken when the verdict was read.
        return dict(zip(Layer, peaks.tolist(), strict=True))

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
            self._order.extend(sites)
            return bool(sites)
        clean = bool(sites)
        for site in sites:
            ratio = self._run(site, call, before=False)
            on_host = ratio is not None and ratio.device.type == "cpu"
            clean = clean and on_host and ratio is not None and bool((ratio <= 1.0).all())
        if clean:
            known.add(form)
        return clean

    def _check_lanes(self) -> None:
        """Run the checks of all calls that were sorted."""
        lanes = self.collection.lanes
        busy, lanes.busy = lanes.busy, []
        for lane in busy:
            entries, lane.entries = lane.entries, []
            if not lane.all_fit(entries):
                entries = [entry for entry in entries if self._fits(lane, entry)]
            lane.unseen = False
            if entries:
                self._check(lane, entries)

    def _fits(self, lane: Lane, entry: Entry) -> bool:
        """Whether a call has the form of its lane; one that has not is checked here, by itself."""
        plan, tensors = entry
        if lane.unseen:
            written = unlike(plan, tensors, plan.expected)
            if written and not self.collection.still_good(plan, written, told=False):
                return False
        if lane.fits(tensors):
            return True
        plan.lanes.pop(tensors[0].shape, None)
        call = plan.build(*tensors)
        for site in plan.sites:
            self._run(site, call, before=False, known=True)
        return False

    def _check(self, lane: Lane, entries: list[Entry]) -> None:
        """Run the checks of calls of one form: in one native call where there is one."""
        if lane.fused is not None:
            try:
                self._idle.update(lane.run(self.buffer.data, entries))
            except Exception as error:  # noqa: BLE001 - then Python decides, which says why
                lane.fused = None
                reason = f"{lane.kind.__name__} is not checked natively: {error}"[:200]
                self._counters.skipped[reason] += 1
            else:
                return
        lane.count(len(entries))
        if not entries[0][0].by_value:
            return
        group = batching.group_of(lane, entries)
        if len(entries) >= batching.GROUP_MIN:
            self._run_group(group)
            return
        for sites, call in zip(group.sites, group.calls, strict=True):
            for site in sites:
                self._run(site, call, before=False, known=True)

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
                    self._counters.skipped[reason] += 1
                else:
                    self._tally(sites, ran=ratio.numel() > 0)
                    continue
            for one, call in zip(sites, group.calls, strict=True):
                self._run(one, call, before=False, known=True)

    def _tally(self, sites: Sequence[Site], *, ran: bool) -> None:
        """Count the runs of deferred sites; those with nothing to check did not run."""
        for site in sites:
            site.runs += ran
        if not ran:
            self._idle.update(site.index for site in sites)

    def _mark_changed(self, group: batching.Group, sound: set[int]) -> None:
        for index, call in enumerate(group.calls):
            if index not in sound:
                self.collection.set_alone(call.module, call.depth)
                self._tally(group.sites[index], ran=False)
                self._counters.skipped[IN_PLACE] += 1

    def _lost(self, plan: Plan) -> None:
        """A call that was put down has changed since: its values can say nothing."""
        self._order.append(plan)
        self._tally(plan.by_form, ran=True)
        self._tally(plan.by_value, ran=False)
        self._counters.skipped[IN_PLACE] += 1

    def _run(self, site: Site, call: Call, before: bool, known: bool = False) -> Tensor | None:
        """Run one check; one that raises fails open, loudly, and is out for this step.

        Args:
            before: it may veto the launch.
            known: it is in the order of execution already.

        Returns:
            the ratio; None where there was none.
        """
        if site.broken_in == self._run_number:
            return None
        try:
            ratio = site.unit.ratio(call, **site.thresholds)
            if ratio.numel() == 0:  # nothing to check here
                if known:
                    self._idle.add(site.index)
                return None
            rows = 0 if site.operator in _WHOLE else call.rows
            self.buffer.write(site.index, ratio, rows)
            if before and site.unit.id != WATERMARK and ratio.device.type == "cpu":
                self.veto = self.veto or not bool((ratio <= 1.0).all())
        except Exception as error:  # noqa: BLE001 - the edge between a check's bug and serving
            site.broken_in = self._run_number
            site.errors += 1
            self._tell_broken(site, error)
            if known:
                self._idle.add(site.index)
            return None
        site.runs += 1
        if not known:
            self._order.append(site)
        return ratio

    def _written_by(
        self, in_graphs: Sequence[Site], order: list[Site | Plan], reading: Reading
    ) -> list[Site]:
        """Sites that a graph wrote to in this run; their count is kept here."""
        ran = reading.ran_at()  # of the host's copy, as all that is asked of it here
        known = not order and self._ran_of == len(in_graphs) and torch.equal(ran, self._ran)
        if not known:
            heard, written = _heard(order), ran.tolist()
            self._ran_sites = [
                site for site in in_graphs if written[site.index] and site.index not in heard
            ]
            self._ran_groups = Counter(site.group for site in self._ran_sites)
            self._ran, self._ran_of = ran, -1 if order else len(in_graphs)
        for group, count in self._ran_groups.items():
            group.ok += count
        return self._ran_sites

    def _read(self, order: list[Site | Plan], in_graphs: Sequence[Site]) -> Verdict:
        """Copy the buffer once and turn its alarms into findings, first operator first."""
        if not order and not in_graphs:
            return Verdict()
        reading = self._reading = self.buffer.read(len(self._sites))
        if in_graphs:
            order = [*order, *self._written_by(in_graphs, order, reading)]
        over, idle = set(reading.alarms()), self._idle
        course = self.collection.course
        if not over and course is not None and not in_graphs:
            return Verdict(checks_run=course.checks - len(idle))
        if not over and not idle:
            count = sum(1 if isinstance(one, Site) else len(one.sites) for one in order)
            return Verdict(checks_run=count)
        sites = [
            site
            for one in order
            for site in ((one,) if isinstance(one, Site) else one.sites)
            if site.index not in idle
        ]
        findings: list[Finding] = []
        for site in sites if over else ():
            if site.index in over:
                over.discard(site.index)
                site.alarms += 1
                findings.append(
                    _finding_of(site, reading.worst(site.index), reading.rows(site.index))
                )
        return Verdict(tuple(findings), len(sites))


def _heard(order: list[Site | Plan]) -> set[int]:
    """Lines of all sites that were heard of."""
    return {
        site.index for one in order for site in ((one,) if isinstance(one, Site) else one.sites)
    }


def _finding_of(site: Site, ratio: float, rows: tuple[int, ...]) -> Finding:
    """The finding of one site."""
    return make_finding(site.unit, site.operator, ratio, rows, module=site.module, depth=site.depth)
