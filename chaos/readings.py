"""A reading of a run under way, for whoever watches it."""

from tocsin.chaos.dispatch import Dispatcher
from tocsin.chaos.load import Load
from tocsin.chaos.progress import ProgressState
from tocsin.chaos.spec import Experiment
from tocsin.chaos.watch import Watch
from tocsin.core.history import Outcome

_TOO_EARLY = 0.05


def progress_state(
    phase: str,
    spec: Experiment,
    load: Load | None,
    dispatcher: Dispatcher | None,
    watch: Watch,
    *,
    planned: int,
    begun_ns: int,
    start_ns: int,
    now_ns: int,
) -> ProgressState:
    """The state of a run.

    Args:
        planned: number of occurrences of the plan.
        begun_ns: when the run began; start_ns: when its load began, 0 before that.
    """
    records = list(load.records.values()) if load else []
    occurrences = dispatcher.records if dispatcher else []
    settled = sum(one.settled for one in occurrences)
    warmup = phase == "warm-up"
    wanted = spec.steady_state.warmup if warmup else spec.workload.requests
    return ProgressState(
        phase=phase,
        requests_done=sum(r.outcome is not Outcome.OPEN for r in records),
        requests_total=max(wanted, load.sent if load else 0),
        tokens=sum(len(record.chunks) for record in records),
        ok=sum(record.outcome is Outcome.OK for record in records),
        failed=sum(r.outcome in (Outcome.FAIL, Outcome.INFO) for r in records),
        occurrences_done=settled,
        occurrences_total=planned,
        active=tuple(
            f"{one.planned.kind} on {one.replica}"
            for one in (dispatcher.active if dispatcher else ())
        ),
        detections=watch.detections,
        last_detection=watch.last,
        elapsed_s=(now_ns - begun_ns) / 1e9,
        left_s=_left_s(spec, load, settled, planned, (now_ns - start_ns) / 1e9)
        if start_ns and not warmup
        else None,
    )


def _left_s(
    spec: Experiment, load: Load | None, settled: int, planned: int, spent_s: float
) -> float | None:
    """From the pace so far: whichever of requests and faults is further from its end."""
    if load is None:
        return None
    shares = [min(1.0, load.sent / spec.workload.requests)]
    if planned:
        shares.append(settled / planned)
    share = min(shares)
    return spent_s * (1.0 - share) / share if share > _TOO_EARLY else None
