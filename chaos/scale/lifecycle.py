"""The properties that a request's ending decides, over columns."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tocsin.chaos.scale.rows import OUTCOMES, Keys, name_of
from tocsin.chaos.scale.tally import DUPLICATE, LOST, SHOWN, TERMINAL, Mask, Tallies
from tocsin.core.history import Outcome

OK, FAIL, INFO, CANCELLED, OPEN = (
    OUTCOMES.index(one)
    for one in (Outcome.OK, Outcome.FAIL, Outcome.INFO, Outcome.CANCELLED, Outcome.OPEN)
)


def judge_endings(
    tally: Tallies,
    outcome_R: NDArray[np.int64],
    terminals_R: NDArray[np.int64],
    finished_R: Mask,
    t_end_ns_R: NDArray[np.int64],
    aborted_ns: int | None,
    name: Callable[[int], str],
) -> None:
    """`lifecycle.exactly_one_terminal` and `lifecycle.no_lost` over R requests.

    Args:
        finished_R: whether there is a finish reason.
        aborted_ns: when the run was stopped early; what it cut off is not held against anybody.
        name: request id of a row.
    """
    unanswered = (outcome_R == OPEN) | (outcome_R == INFO)
    judged = np.ones(len(outcome_R), np.bool_)
    if aborted_ns is not None:
        judged = ~(unanswered & ((t_end_ns_R == 0) | (t_end_ns_R >= aborted_ns)))
    answered = (outcome_R == OK) | (outcome_R == FAIL)
    broken_off = (outcome_R == INFO) | (outcome_R == CANCELLED)
    wrong = (outcome_R == OPEN) | (answered & (terminals_R != 1))
    wrong |= broken_off & (terminals_R > 1)
    wrong |= (outcome_R == OK) & ~finished_R
    for property_id in (TERMINAL, LOST):
        tally[property_id].checked += len(outcome_R)
    tally[TERMINAL].add(
        wrong & judged,
        lambda row: (
            name(row),
            f"ended {OUTCOMES[outcome_R[row]]} with {terminals_R[row]} last events",
        ),
    )
    tally[LOST].add(
        unanswered & judged,
        lambda row: (
            name(row),
            "no end within the deadline" if outcome_R[row] == OPEN else "the connection broke",
        ),
    )


def judge_repeated(tally: Tallies, keys: Sequence[Keys]) -> None:
    """The part of `exec.no_duplicate_effect` that looks at all requests: no id twice.

    Args:
        keys: of all requests of a shard; records of one id are in one shard.
    """
    if not keys:
        return
    ordered = np.sort(np.concatenate(keys))
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    found, extra = np.unique(again, return_counts=True)
    tally[DUPLICATE].violations += len(found)
    room = SHOWN - len(tally[DUPLICATE].first)
    tally[DUPLICATE].first += [
        (name_of(int(key)), f"recorded {count + 1} times")
        for key, count in zip(found[:room], extra[:room], strict=True)
    ]
