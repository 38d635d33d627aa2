"""After a fault is gone, service is steady again in time."""

from tocsin.chaos.case import Case, OccurrenceRecord, PropertyVerdict, Violation, conclude
from tocsin.chaos.contract import prop
from tocsin.chaos.steady import Timeline, probe_readings, recovered_after_s
from tocsin.core.faulting import Scope


@prop(
    "recovery.bound",
    sins=("slow_recovery", "unhealed_occurrence"),
    advice="see what served between heal and recovery: restarts, open breakers, empty pools",
)
def judge(case: Case) -> PropertyVerdict:
    """From heal to steady state takes each fault no longer than its `recover_within`.

    Steady is several good windows in a row, not the first good one; the probes of the steady
    state must hold over the phase after the last fault. Without data it is unknown, never fine.
    """
    timeline = Timeline.of(case.records)
    fired = [r for r in case.occurrences if r.fired and r.planned.scope is not Scope.CLIENT]
    violations: list[Violation] = []
    unknown: list[str] = []
    for record in fired:
        reason, doubt = _occurrence(case, timeline, record)
        if reason:
            text = f"{record.planned.id}: {reason}"
            violations.append(Violation(text, occurrence=record.planned.id))
        if doubt:
            unknown.append(f"{record.planned.id}: {doubt}")
    for probe, reading in probe_readings(case, "after") if fired and not case.aborted else ():
        if reading is None:
            unknown.append(f"probe {probe.name}: no data after the last fault")
        elif not probe.holds(reading):
            text = f"{probe.metric} is {reading:.4g}, expected {probe.op} {probe.value:g}"
            violations.append(Violation(f"probe {probe.name}, after the last fault: {text}"))
    return conclude(
        judge.id, len(fired), violations, unknown="; ".join(unknown), nothing="no fault fired"
    )


def _occurrence(case: Case, timeline: Timeline, record: OccurrenceRecord) -> tuple[str, str]:
    """What one fault violates, and why it cannot be told; empty when neither."""
    if not record.healed:
        return f"was not shown to be healed ({record.state})", ""
    settings = case.spec.steady_state
    limit_s = record.planned.expect.recover_within_s
    took_s = recovered_after_s(
        timeline, record.healed_ns, case.t_end_ns, settings.window_s, settings.good_windows
    )
    if took_s is None:
        observed_s = (case.t_end_ns - record.healed_ns) / 1e9
        if case.aborted or observed_s <= limit_s + settings.window_s * settings.good_windows:
            return "", f"only {max(0.0, observed_s):.1f} s were observed after its heal"
        return f"steady never, expected within {limit_s:g} s", ""
    if took_s > limit_s:
        return f"steady after {took_s:.1f} s, expected within {limit_s:g} s", ""
    return "", ""
