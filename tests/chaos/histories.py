"""Recorded runs made by hand: clean answers of a pretended model and one fault, all in order."""

from dataclasses import replace
from typing import Any

from tests.chaos.experiments import small
from tests.chaos.fake_system import golden_answer
from tocsin.chaos.case import Case, OccurrenceRecord, Prompt
from tocsin.chaos.plan import make_plan
from tocsin.chaos.spec_file import parse_experiment
from tocsin.core.faulting import Evidence
from tocsin.core.history import Chunk, Event, EventKind, Outcome, RequestRecord

MS = 1_000_000
LENGTH = 8
PROMPTS = {f"p{i}": Prompt(f"p{i}", f"Question {i}", f"canary{i}") for i in range(6)}


def clean_record(index: int, t_ns: int, prompt_id: str | None = None) -> RequestRecord:
    """A streamed golden answer that began at a time and took 10 ms a token."""
    name = prompt_id or f"p{index % len(PROMPTS)}"
    golden = golden_answer(name, LENGTH)
    chunks = [
        Chunk(t_ns + (i + 1) * 10 * MS, i, token, f" t{token}")
        for i, token in enumerate(golden.tokens)
    ]
    return RequestRecord(
        f"r{index:05d}",
        name,
        t_ns,
        stream=True,
        max_new_tokens=LENGTH,
        outcome=Outcome.OK,
        t_first_ns=chunks[0].t_ns,
        t_end_ns=chunks[-1].t_ns,
        http_status=200,
        finish_reason="length",
        usage_tokens=LENGTH,
        chunks=chunks,
        text=golden.text,
        terminals=1,
        attempts=("replica-0",),
    )


def clean_case(**changes: Any) -> Case:
    """Forty clean answers in four seconds and one fault at 1 s: seen, healed, recovered from."""
    spec = parse_experiment(small(faults=small()["faults"][:1]))
    plan = make_plan(spec)
    t0 = 10**12
    records = tuple(clean_record(i, t0 + i * 100 * MS) for i in range(40))
    fired_ns = t0 + 1000 * MS
    occurrence = OccurrenceRecord(
        planned=plan.occurrences[0],
        replica="replica-0",
        state="healed",
        ordered_ns=fired_ns - 50 * MS,
        fired_ns=fired_ns,
        fired_step=11,
        healed_ns=fired_ns + 200 * MS,
        evidence=Evidence("weight[0, 0] bit 30", "0.1", "1e38"),
        orders=1,
    )
    case = Case(
        spec=spec,
        plan=plan,
        facts={"engine": "hand-made", "model": "echo", "profile": "full"},
        records=records,
        requests={},
        events=(
            alarm(fired_ns + 20 * MS, "state.weight_sum"),
            Event(EventKind.PAGE_AUDIT, t0 + 5000 * MS, "replica-0", data=audit()),
        ),
        golden={name: golden_answer(name, LENGTH) for name in PROMPTS},
        certificate={"bit_exact": True, "tau": 1e-3},
        occurrences=(occurrence,),
        prompts=PROMPTS,
        warmup=(clean_record(90, t0 - 1000 * MS),),
        t_start_ns=t0,
        t_faults_ns=occurrence.ordered_ns,
        t_healed_ns=occurrence.healed_ns,
        t_end_ns=t0 + 5000 * MS,
    )
    return replace(case, **changes)


def with_record(case: Case, index: int, **fields: Any) -> Case:
    """The case with some fields of one record replaced."""
    records = list(case.records)
    records[index] = replace(records[index], **fields)
    return replace(case, records=tuple(records))


def with_occurrence(case: Case, **fields: Any) -> Case:
    """The case with some fields of its only occurrence replaced."""
    return replace(case, occurrences=(replace(case.occurrences[0], **fields),))


def with_expectation(case: Case, **fields: Any) -> Case:
    """The case with other expectations of its only occurrence."""
    planned = case.occurrences[0].planned
    changed = replace(planned, expect=replace(planned.expect, **fields))
    return with_occurrence(case, planned=changed)


def alarm(t_ns: int, *checks: str, replica: str = "replica-0", **data: Any) -> Event:
    """A failed step."""
    findings = [{"check": check, "priority": "P0"} for check in checks]
    return Event(EventKind.CHECK_FAILED, t_ns, replica, 11, data={"findings": findings, **data})


def audit(**changes: int) -> dict[str, int]:
    """Page counts of a replica at rest."""
    reading = {
        "pages_total": 10,
        "pages_free": 6,
        "pages_used": 0,
        "pages_cached": 3,
        "pages_quarantined": 1,
        "running": 0,
        "waiting": 0,
    }
    return {**reading, **changes}
