"""From a recorded run and its verdict to everything that the report says."""

import datetime
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tocsin.chaos.case import Case
from tocsin.chaos.contract import Fault, Property
from tocsin.chaos.report.answers import degraded_answers, differing, triages_of
from tocsin.chaos.report.caveats import caveats_of
from tocsin.chaos.report.incidents import false_alarms_of, fault_rows
from tocsin.chaos.report.lifecycle import active_windows, fault_lanes
from tocsin.chaos.report.manifest import read_manifest, replay_command
from tocsin.chaos.report.model import Span, Timeline, View
from tocsin.chaos.report.replicas import replica_lanes
from tocsin.chaos.report.reproductions import reproductions_of
from tocsin.chaos.report.samples import phases_of, samples_of, series_of
from tocsin.chaos.report.summary import (
    banner_of,
    facts_of,
    figures_of,
    next_steps,
    property_rows,
    sin_rows,
)
from tocsin.chaos.report.wording import visible
from tocsin.chaos.verdict import RunVerdict


def view_of(
    recorded: Case,
    verdict: RunVerdict,
    run_dir: Path,
    *,
    catalogue: Mapping[str, Fault],
    rules: Mapping[str, Property],
    written: datetime.datetime,
    marks_most: int,
) -> View:
    """All sections of the report.

    Args:
        recorded: the run; may lack anything that an early end leaves out.
        run_dir: its folder, for the commands that a reader can paste.
        catalogue: declared faults; rules: declared properties.
        written: when the report is made.
        marks_most: how many marks the timeline may have.
    """
    case, manifest = with_bounds(recorded), read_manifest(run_dir)
    end_s = (case.t_end_ns - case.t_start_ns) / 1e9
    samples = samples_of(case.records, case.t_start_ns)
    diffs, diffs_total = differing(case, triages_of(case))
    false_alarms, false_alarms_total = false_alarms_of(case, verdict)
    degraded, by_label, degraded_total = degraded_answers(case)
    return View(
        title=case.spec.name,
        hypothesis=visible(" ".join(case.spec.hypothesis.split()), 600),
        written_at=written.strftime("%Y-%m-%d %H:%M:%S %Z").strip(),
        banner=banner_of(case, verdict, run_dir, replay_command(manifest, case)),
        figures=figures_of(case, verdict),
        properties=property_rows(verdict, rules, diffs),
        timeline=Timeline(
            end_s=end_s,
            faults=fault_lanes(case, verdict, end_s, marks_most),
            replicas=replica_lanes(case.events, case.t_start_ns, end_s),
            windows=active_windows(case),
            series=series_of(samples, end_s),
        ),
        faults=fault_rows(case, verdict, catalogue),
        false_alarms=false_alarms,
        false_alarms_total=false_alarms_total,
        phases=phases_of(case.records, samples, phase_spans(case), case.t_start_ns),
        diffs=diffs,
        diffs_total=diffs_total,
        degraded=degraded,
        degraded_by_label=by_label,
        degraded_total=degraded_total,
        sins=sin_rows(verdict),
        caveats=caveats_of(case, verdict, catalogue),
        steps=next_steps(verdict, rules),
        reproductions=reproductions_of(run_dir),
        environment=facts_of({**_ours(manifest), **case.facts}),
        certificate=facts_of(case.certificate),
    )


def _ours(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Versions and host on our side; the system under test tells its own."""
    return {key: manifest[key] for key in ("host", "versions") if key in manifest}


def with_bounds(case: Case) -> Case:
    """The case with a start and an end, found in its history where the run did not set them."""
    times = [event.t_ns for event in case.events]
    for record in case.records:
        times += [record.t_invoke_ns, record.t_end_ns or record.t_invoke_ns]
    for one in case.occurrences:
        times += [t_ns for t_ns in (one.fired_ns, one.healed_ns) if t_ns]
    start_ns = case.t_start_ns or min(times, default=0)
    end_ns = max(case.t_end_ns, start_ns, max(times, default=0) if not case.t_end_ns else 0)
    return replace(case, t_start_ns=start_ns, t_end_ns=end_ns)


def phase_spans(case: Case) -> tuple[Span, ...]:
    """Before the first order, until the last heal, and after it; one phase without faults."""
    end_s = (case.t_end_ns - case.t_start_ns) / 1e9 + 1e-6
    if not case.t_faults_ns:
        return (Span(0.0, end_s, "whole run", ""),)
    begin_s = max(0.0, (case.t_faults_ns - case.t_start_ns) / 1e9)
    healed_s = (case.t_healed_ns - case.t_start_ns) / 1e9 if case.t_healed_ns else end_s
    healed_s = min(max(begin_s, healed_s), end_s)
    spans = (
        Span(0.0, begin_s, "before", ""),
        Span(begin_s, healed_s, "during", ""),
        Span(healed_s, end_s, "after", ""),
    )
    return tuple(span for span in spans if span.end_s > span.start_s)
