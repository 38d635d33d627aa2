"""Each property by itself: silent on the nearest miss, loud on the nearest hit."""

from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.fake_system import golden_answer
from tests.chaos.histories import (
    LENGTH,
    MS,
    alarm,
    audit,
    clean_case,
    clean_record,
    with_expectation,
    with_occurrence,
    with_record,
)
from tocsin.chaos.case import Case, Conclusion, PropertyVerdict
from tocsin.chaos.contract import properties
from tocsin.core.history import Chunk, Event, EventKind, Outcome

EVENTS = clean_case().events
T0 = clean_case().t_start_ns


def judge(property_id: str, case: Case) -> PropertyVerdict:
    return properties()[property_id].judge(case)


def conclusion(property_id: str, case: Case) -> str:
    return str(judge(property_id, case).conclusion)


@pytest.mark.parametrize("property_id", [*properties()])
def test_a_clean_history_passes_or_is_vacuous(property_id: str) -> None:
    """What the clean history does not hold is vacuous: labels, and what few systems tell."""
    unit = properties()[property_id]
    silent = unit.conditional and property_id != "plan.reproducible"
    expected = "vacuous" if silent else "pass"
    assert conclusion(property_id, clean_case()) == expected


@pytest.mark.parametrize("property_id", [*properties()])
def test_an_empty_history_is_vacuous_and_never_pass(property_id: str) -> None:
    """No data is never fine."""
    plan = replace(clean_case().plan, occurrences=())
    empty = clean_case(records=(), events=(), occurrences=(), warmup=(), plan=plan)
    assert conclusion(property_id, empty) == "vacuous"


def test_golden_tokens_lets_a_near_tie_of_a_labelled_answer_pass_and_counts_it() -> None:
    """The same flip without the label, under a bit-exact certificate, is silent corruption."""
    case = _near_tie(clean_case())
    labelled = with_record(case, 0, degraded=("attention:sdpa",))
    verdict = judge("golden.tokens", labelled)
    assert verdict.conclusion is Conclusion.PASS
    assert "1 near ties" in verdict.notes[0]
    assert verdict.classes == {"tie_flip": 1}
    silent = judge("golden.tokens", case).violations[0]
    assert silent.evidence["silent"] is True
    assert silent.evidence["category"] == "tie_flip"


def test_golden_tokens_without_a_certificate_triages_by_margin() -> None:
    """A near tie passes, a confident flip does not."""
    vague = {"bit_exact": False, "tau": 1e-3}
    assert conclusion("golden.tokens", replace(_near_tie(clean_case()), certificate=vague)) == (
        "pass"
    )
    flipped = _flip(clean_case(certificate=vague), 0, 3)
    assert conclusion("golden.tokens", flipped) == "fail"


def test_golden_tokens_holds_labelled_answers_to_their_tokens() -> None:
    """A label does not excuse a confident flip, but then it is not silent."""
    verdict = judge(
        "golden.tokens", with_record(_flip(clean_case(), 0, 3), 0, degraded=("attention:sdpa",))
    )
    assert verdict.violations[0].evidence["silent"] is False


def test_golden_tokens_without_a_golden_answer_is_unknown() -> None:
    """An answer that cannot be compared is not right by that."""
    golden = {name: answer for name, answer in clean_case().golden.items() if name != "p0"}
    assert conclusion("golden.tokens", clean_case(golden=golden)) == "unknown"


def test_golden_tokens_leaves_cancelled_and_malformed_requests_alone() -> None:
    """They are held to the beginning of the golden answer, or to nothing."""
    case = _flip(clean_case(), 0, 3)
    assert conclusion("golden.tokens", with_record(case, 0, outcome=Outcome.CANCELLED)) == "pass"
    assert conclusion("golden.tokens", with_record(case, 0, malformed="ragged")) == "pass"


def test_stream_prefix_takes_a_cancelled_golden_beginning() -> None:
    """Cut anywhere it is a prefix; with its last token changed it is not."""
    record = clean_case().records[0]
    cut = with_record(
        clean_case(), 0, outcome=Outcome.CANCELLED, chunks=record.chunks[:3], terminals=0
    )
    assert conclusion("stream.prefix", cut) == "pass"
    assert conclusion("stream.prefix", _flip(cut, 0, 2)) == "fail"


@pytest.mark.parametrize(
    "fields",
    [
        {"usage_tokens": LENGTH + 1},
        {"text": "another text"},
        {"t_end_ns": 1},
    ],
)
def test_stream_prefix_compares_count_text_and_end(fields: dict[str, Any]) -> None:
    """The parts must add up to what the end of the stream says."""
    assert conclusion("stream.prefix", with_record(clean_case(), 0, **fields)) == "fail"


def test_stream_prefix_does_not_need_the_text_of_a_request_that_does_not_stream() -> None:
    """A whole answer has its text once, not in parts."""
    chunks = [replace(chunk, text="") for chunk in clean_case().records[0].chunks]
    case = with_record(clean_case(), 0, stream=False, chunks=chunks)
    assert conclusion("stream.prefix", case) == "pass"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"outcome": Outcome.OPEN, "terminals": 0}, "fail"),
        ({"terminals": 2}, "fail"),
        ({"terminals": 0}, "fail"),
        ({"finish_reason": ""}, "fail"),
        ({"outcome": Outcome.CANCELLED, "terminals": 0}, "pass"),
        ({"outcome": Outcome.INFO, "terminals": 0}, "pass"),
        ({"outcome": Outcome.FAIL, "terminals": 1, "finish_reason": ""}, "pass"),
    ],
)
def test_every_request_has_exactly_one_end(fields: dict[str, Any], expected: str) -> None:
    """A broken connection and a cancel are ends, too."""
    case = with_record(clean_case(), 0, **fields)
    assert conclusion("lifecycle.exactly_one_terminal", case) == expected


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Outcome.OPEN, "fail"),
        (Outcome.INFO, "fail"),
        (Outcome.FAIL, "pass"),
        (Outcome.CANCELLED, "pass"),
    ],
)
def test_lost_is_whoever_does_not_know(outcome: Outcome, expected: str) -> None:
    """An explicit refusal is an answer; a time-out is not."""
    assert conclusion("lifecycle.no_lost", with_record(clean_case(), 0, outcome=outcome)) == (
        expected
    )


@pytest.mark.parametrize(("late_ms", "expected"), [(0, "pass"), (-1, "fail")])
def test_a_request_cut_off_by_the_end_of_the_run_itself_is_not_lost(
    late_ms: int, expected: str
) -> None:
    """What broke before the run was stopped still counts."""
    stopped_ns = T0 + 500 * MS
    case = with_record(
        clean_case(aborted="SIGINT was received", t_aborted_ns=stopped_ns),
        0,
        outcome=Outcome.INFO,
        t_end_ns=stopped_ns + late_ms * MS,
    )
    assert conclusion("lifecycle.no_lost", case) == expected


def test_a_second_attempt_may_go_on_but_not_repeat() -> None:
    """Two replicas worked on it: fine, as long as no index comes twice."""
    record = clean_case().records[0]
    resumed = with_record(clean_case(), 0, attempts=("replica-0", "replica-1"))
    assert conclusion("exec.no_duplicate_effect", resumed) == "pass"
    again = with_record(resumed, 0, chunks=[*record.chunks, record.chunks[-1]])
    assert conclusion("exec.no_duplicate_effect", again) == "fail"


def test_a_request_id_is_recorded_once() -> None:
    """Two records of one id are two executions."""
    case = clean_case()
    twice = replace(case, records=(*case.records, case.records[0]))
    assert conclusion("exec.no_duplicate_effect", twice) == "fail"


def test_a_canary_of_its_own_is_no_leak() -> None:
    """The model may repeat the word of its own prompt, not that of another."""
    case = clean_case()
    own = with_record(case, 0, text=f"{case.records[0].text} canary0")
    assert conclusion("isolation.canary", own) == "pass"
    other = with_record(case, 0, text=f"{case.records[0].text} Canary1")
    verdict = judge("isolation.canary", other)
    assert verdict.violations[0].evidence["owner"] == "p1"


def test_a_canary_that_the_golden_answer_holds_is_no_leak() -> None:
    """What the quiet engine says by itself proves nothing."""
    case = clean_case()
    golden = dict(case.golden)
    golden["p0"] = replace(golden["p0"], text=f"{golden['p0'].text} canary1")
    said = with_record(replace(case, golden=golden), 0, text=golden["p0"].text)
    assert conclusion("isolation.canary", said) == "pass"


def test_a_run_of_anothers_tokens_is_a_leak_and_three_are_none() -> None:
    """Four tokens in a row that only another prompt's answer holds."""
    case = clean_case()
    other = golden_answer("p1", LENGTH).tokens

    def mixed(count: int) -> Case:
        chunks = [
            replace(chunk, token=other[i]) if i < count else chunk
            for i, chunk in enumerate(case.records[0].chunks)
        ]
        return with_record(case, 0, chunks=chunks)

    assert conclusion("isolation.canary", mixed(3)) == "pass"
    assert conclusion("isolation.canary", mixed(4)) == "fail"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "pass"),
        ({"pages_free": 5, "pages_quarantined": 2}, "pass"),
        ({"pages_free": 5}, "fail"),
        ({"pages_cached": 4}, "fail"),
        ({"pages_free": 5, "pages_used": 1}, "fail"),
        ({"pages_free": 10, "pages_cached": -1}, "fail"),
        ({"pages_used": 1, "pages_free": 5, "running": 1}, "vacuous"),
    ],
)
def test_pages_add_up_at_rest(changes: dict[str, int], expected: str) -> None:
    """A replica that still works is not at rest, and proves nothing."""
    events = (Event(EventKind.PAGE_AUDIT, 1, "replica-0", data=audit(**changes)),)
    assert conclusion("kv.conservation", clean_case(events=events)) == expected


def test_only_the_last_audit_of_a_replica_counts() -> None:
    """Early readings may see a step half done."""
    events = (
        Event(EventKind.PAGE_AUDIT, 1, "replica-0", data=audit(pages_free=1)),
        Event(EventKind.PAGE_AUDIT, 2, "replica-0", data=audit()),
    )
    assert conclusion("kv.conservation", clean_case(events=events)) == "pass"


@pytest.mark.parametrize(
    ("labels", "start_ms", "end_ms", "expected"),
    [
        (("why",), -10, 200, "pass"),
        ((), -10, 200, "fail"),
        ((), 20, 200, "vacuous"),
        (("why",), 20, 60, "pass"),
        (("why",), 3000, 3500, "fail"),
        (("other",), -10, 200, "fail"),
    ],
)
def test_labels_and_degraded_intervals_agree(
    labels: tuple[str, ...], start_ms: int, end_ms: int, expected: str
) -> None:
    """Wholly inside: must be labelled; partly: may be; far away: must not be."""
    events = (
        *EVENTS,
        Event(
            EventKind.DEGRADED,
            T0 + start_ms * MS,
            "replica-0",
            data={"reason": "why", "on": True},
        ),
        Event(
            EventKind.DEGRADED, T0 + end_ms * MS, "replica-0", data={"reason": "why", "on": False}
        ),
    )
    case = with_record(clean_case(events=events), 0, degraded=labels)
    case = replace(case, records=case.records[:1])
    assert conclusion("degraded.labelled", case) == expected


def test_a_request_that_an_event_names_must_be_labelled() -> None:
    """Its own event binds it, whatever the times."""
    named = Event(
        EventKind.DEGRADED, T0, "replica-0", request_id="r00000", data={"reason": "why", "on": True}
    )
    case = clean_case(events=(*EVENTS, named))
    assert conclusion("degraded.labelled", case) == "fail"
    assert conclusion("degraded.labelled", with_record(case, 0, degraded=("why",))) == "pass"


def test_the_header_says_no_more_than_the_body() -> None:
    """A label in the header alone is lost on a client that reads the body."""
    case = with_record(clean_case(), 0, degraded_header="why")
    assert conclusion("degraded.labelled", case) == "fail"


def test_detection_in_time_passes_and_a_moment_later_does_not() -> None:
    """The limit of the small experiment is 500 ms."""
    fired_ns = clean_case().occurrences[0].fired_ns
    for late_ms, expected in ((499, "pass"), (501, "fail")):
        case = clean_case(events=(alarm(fired_ns + late_ms * MS, "state.weight_sum"),))
        assert conclusion("detection.matrix", case) == expected


def test_an_alarm_after_the_window_is_a_false_alarm() -> None:
    """The window ends when the fault is healed and its time to be seen is over (200 + 500 ms)."""
    fired_ns = clean_case().occurrences[0].fired_ns
    inside = (*EVENTS, alarm(fired_ns + 690 * MS, "numerical.finite"))
    outside = (*EVENTS, alarm(fired_ns + 710 * MS, "numerical.finite"))
    assert conclusion("detection.matrix", clean_case(events=inside)) == "pass"
    assert conclusion("detection.matrix", clean_case(events=outside)) == "fail"


def test_false_alarms_may_be_allowed_by_number() -> None:
    """`max_false_alarms` is a limit of the check in the experiment file."""
    case = clean_case(events=(*EVENTS, alarm(T0, "numerical.finite", replica="replica-1")))
    spec = case.spec.model_copy(
        update={
            "checks": (
                case.spec.checks[0].model_copy(
                    update={"id": "detection.matrix", "params": {"max_false_alarms": 1}}
                ),
            )
        }
    )
    assert conclusion("detection.matrix", case) == "fail"
    assert conclusion("detection.matrix", replace(case, spec=spec)) == "pass"


def test_a_fault_that_must_not_be_seen_is_not_seen() -> None:
    """`detect: forbidden`."""
    case = with_expectation(clean_case(), detect="forbidden")
    assert conclusion("detection.matrix", case) == "fail"
    assert conclusion("detection.matrix", replace(case, events=())) == "pass"


def test_a_check_that_raised_is_noted_and_is_no_alarm() -> None:
    """A mistake in the checker is told apart from a finding."""
    broken = Event(
        EventKind.CHECK_FAILED,
        T0,
        "replica-1",
        data={"check": "numerical.finite", "cause": "check_error", "findings": [], "error": "E"},
    )
    verdict = judge("detection.matrix", clean_case(events=(*EVENTS, broken)))
    assert verdict.conclusion is Conclusion.PASS
    assert "checks that raised" in verdict.notes[0]


def test_a_stall_outside_all_faults_is_noted_and_is_no_false_alarm() -> None:
    """The replica did stall: the host was busy."""
    stall = Event(EventKind.REPLICA_STALLED, T0, "board", data={"replica": "replica-1"})
    verdict = judge("detection.matrix", clean_case(events=(*EVENTS, stall)))
    assert verdict.conclusion is Conclusion.PASS
    assert "heartbeats" in verdict.notes[0]


def test_recovery_without_a_second_of_data_is_unknown() -> None:
    """The run ended with the heal: nobody knows."""
    case = clean_case()
    short = replace(case, t_end_ns=case.occurrences[0].healed_ns + 20 * MS)
    assert conclusion("recovery.bound", short) == "unknown"


def test_recovery_that_takes_too_long_fails() -> None:
    """Nothing arrives for three seconds after the heal; two are allowed."""
    case = clean_case()
    healed_ns = case.occurrences[0].healed_ns
    stuck = clean_record(99, healed_ns - 10 * MS)
    stuck = replace(
        stuck,
        chunks=[Chunk(healed_ns + 3000 * MS, 0, 1, "")],
        t_end_ns=healed_ns + 3000 * MS,
    )
    before = tuple(record for record in case.records if record.t_end_ns < healed_ns)
    after = tuple(clean_record(200 + i, healed_ns + (3000 + 50 * i) * MS) for i in range(20))
    slow = replace(case, records=(*before, stuck, *after), t_end_ns=healed_ns + 6000 * MS)
    assert conclusion("recovery.bound", slow) == "fail"
    assert conclusion("recovery.bound", with_expectation(slow, recover_within_s=4.0)) == "pass"


def test_a_fault_that_was_not_healed_has_no_recovery() -> None:
    """It is said, whatever the clients saw."""
    case = with_occurrence(clean_case(), state="unhealed", healed_ns=0)
    assert conclusion("recovery.bound", case) == "fail"


@pytest.mark.parametrize(("refused", "expected"), [(4, "pass"), (5, "fail")])
def test_availability_is_held_to_the_budget(refused: int, expected: str) -> None:
    """Four of forty refused are 90 %, five are not; cancelled requests do not count."""
    case = clean_case()
    for i in range(refused):
        case = with_record(case, i, outcome=Outcome.FAIL)
    assert conclusion("service.availability", case) == expected


def _near_tie(case: Case) -> Case:
    """Record 0 differs from golden where the golden decode was not sure."""
    golden = dict(case.golden)
    margins = list(golden["p0"].margins)
    margins[3] = 5e-4
    golden["p0"] = replace(golden["p0"], margins=tuple(margins))
    return _flip(replace(case, golden=golden), 0, 3)


def _flip(case: Case, record: int, index: int) -> Case:
    """One token of one record is another one."""
    chunks = list(case.records[record].chunks)
    chunks[index] = replace(chunks[index], token=chunks[index].token + 1)
    return with_record(case, record, chunks=chunks)
