"""Rounds with a fault against rounds without: was it explained, repaired, and how soon?"""

import statistics
from collections.abc import Callable, Sequence

from tocsin.bench.recovery.desk import VICTIM, Desk, Round, median_ms
from tocsin.bench.recovery.rungs import RUNGS, Rung
from tocsin.bench.recovery.schema import Recovery, RecoveryRow
from tocsin.core.errors import ContractError, FaultDidNotFire
from tocsin.core.requests import Finish


def measure(
    desk: Desk,
    trials: int,
    *,
    model_name: str,
    rungs: Sequence[Rung] = RUNGS,
    told: Callable[[str], None] = lambda text: None,
) -> Recovery:
    """Every rung so many times, one after the other, each round judged by the clean one.

    Args:
        told: hears a word about each rung when it is done.

    Raises:
        ContractError: a clean round alarms, or two of them differ: nothing can be judged by it.
        FaultDidNotFire: a fault did nothing.
    """
    golden = desk.serve()
    again = desk.serve()
    if golden.failures or again.failures or golden.answers != again.answers:
        raise ContractError(
            f"recovery: two clean rounds gave {len(golden.failures) + len(again.failures)} alarms "
            f"and equal answers is {golden.answers == again.answers}, expected none and True; "
            "look at the checks before the ladder"
        )
    rows = []
    for rung in rungs:
        rounds = [_round(desk, rung) for _ in range(trials)]
        rows.append(_row(rung, golden, rounds))
        told(f"{rung.id}: {rows[-1].attributed}/{trials} attributed")
    clean = median_ms(golden.step_ns + again.step_ns)
    return Recovery(model=model_name, clean_step_ms=clean, rows=tuple(rows))


def _round(desk: Desk, rung: Rung) -> Round:
    before, undo = rung.arm(desk)
    try:
        round_ = desk.serve(before)
    finally:
        undo()
    if round_.fired_ns < 0:
        raise FaultDidNotFire(
            f"recovery: the fault of {rung.id} did nothing, expected a change in its step; "
            "look for the module or page that it aims at"
        )
    return round_


def _row(rung: Rung, golden: Round, rounds: list[Round]) -> RecoveryRow:
    seen = [round_ for round_ in rounds if round_.failures]
    ended = [round_ for round_ in seen if round_.over_ns >= 0]
    detect = [(round_.alarm_ns - round_.fired_ns) / 1e6 for round_ in seen]
    repair = [(round_.over_ns - round_.alarm_ns) / 1e6 for round_ in ended]
    return RecoveryRow(
        rung=rung.id,
        remedy=rung.says,
        cause=str(rung.cause),
        trials=len(rounds),
        detected=len(seen),
        attributed=sum(attributed(rung, round_) for round_ in rounds),
        as_golden=sum(as_golden(rung, golden, round_) for round_ in rounds),
        runs_max=max((failure.runs for round_ in seen for failure in round_.failures), default=0),
        steps_more_max=max(round_.steps - golden.steps for round_ in rounds),
        mttd_ms_median=statistics.median(detect) if detect else None,
        mttr_ms_median=statistics.median(repair) if repair else None,
        mttr_ms_max=max(repair) if repair else None,
    )


def attributed(rung: Rung, round_: Round) -> bool:
    """One failure, with the rung's cause and the rung's action."""
    return [(one.cause, one.action) for one in round_.failures] == [(rung.cause, rung.action)]


def as_golden(rung: Rung, golden: Round, round_: Round) -> bool:
    """Every answer is bit for bit the clean one; a refused victim has the start of it, no more."""
    for row, expected in enumerate(golden.answers):
        answer, finish = round_.answers[row], round_.finishes[row]
        if rung.refuses and row == VICTIM:
            if finish is not Finish.REFUSED or answer != expected[: len(answer)]:
                return False
        elif answer != expected or finish is not golden.finishes[row]:
            return False
    return True
