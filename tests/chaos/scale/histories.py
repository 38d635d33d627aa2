"""Small random histories full of sins, and the folder that a recorder makes of one."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hypothesis import strategies as st

from tests.chaos.histories import clean_case
from tocsin.chaos.case import Case, Prompt
from tocsin.chaos.scale.recorder import Recorder
from tocsin.chaos.store import write_frame
from tocsin.core.history import Chunk, Outcome, RequestRecord
from tocsin.core.system import GoldenAnswer

PROMPTS = ("p0", "p1", "p2")
TAU = 0.5
_STEP = 10


@st.composite
def golden_sets(draw: st.DrawFn) -> dict[str, GoldenAnswer]:
    """Golden answers of few different tokens: runs are shared, margins are near tau."""
    found = {}
    for name in PROMPTS:
        tokens = tuple(draw(st.lists(st.integers(0, 5), max_size=12)))
        margins = draw(
            st.lists(st.sampled_from([0.0, TAU, 0.6]), min_size=len(tokens), max_size=len(tokens))
        )
        known = draw(st.integers(0, len(margins)))
        text = "".join(f" {token}" for token in tokens)
        finish = draw(st.sampled_from(["stop", "length"]))
        found[name] = GoldenAnswer(name, tokens, tuple(margins[:known]), tokens, text, finish)
    return found


def golden_record(number: int, golden: GoldenAnswer, *, stream: bool = True) -> RequestRecord:
    """The record of a right answer."""
    t_ns = 1_000 + 1_000 * number
    chunks = [
        Chunk(t_ns + _STEP * (i + 1), i, token, f" {token}")
        for i, token in enumerate(golden.tokens)
    ]
    return RequestRecord(
        f"r{number:05d}",
        golden.prompt_id,
        t_ns,
        stream=stream,
        max_new_tokens=16,
        outcome=Outcome.OK,
        t_first_ns=chunks[0].t_ns if chunks else 0,
        t_end_ns=t_ns + _STEP * (len(chunks) + 1),
        http_status=200,
        finish_reason=golden.finish_reason,
        usage_tokens=len(chunks),
        chunks=chunks,
        text=golden.text,
        terminals=1,
        attempts=("replica-0",),
    )


@st.composite
def chunk_sins(draw: st.DrawFn, chunks: Sequence[Chunk]) -> list[Chunk]:
    """The tokens of an answer with something done to them."""
    kind = draw(st.sampled_from(["token", "drop", "repeat", "again", "swap", "add", "text", "cut"]))
    found = [replace(chunk) for chunk in chunks]
    if not found or kind == "add":
        last = found[-1].t_ns if found else 2_000
        token = draw(st.integers(0, 6))
        return [*found, Chunk(last + 1, len(found), token, f" {token}")]
    at = draw(st.integers(0, len(found) - 1))
    if kind == "token":
        found[at].token = draw(st.integers(0, 70_000))
    elif kind == "text":
        found[at].text = draw(st.sampled_from(["", " x", " CANARY1", " canary2 9"]))
    elif kind == "repeat":
        found.insert(at, replace(found[at], token=draw(st.integers(0, 6))))
    elif kind == "swap":
        found[0].index, found[at].index = found[at].index, found[0].index
    cut = {"drop": found[:at] + found[at + 1 :], "again": found[:at] + found, "cut": found[:at]}
    return cut.get(kind, found)


_FIELDS = {
    "outcome": st.sampled_from(list(Outcome)),
    "finish_reason": st.sampled_from(["", "stop", "length", "content_filter"]),
    "terminals": st.integers(0, 300),
    "usage_tokens": st.integers(-1, 4),
    "text": st.sampled_from(["", " 1 2", "canary0", " 3 CANARY2"]),
    "degraded": st.sampled_from([(), ("attention:math",)]),
    "malformed": st.sampled_from(["", "empty"]),
    "prompt_id": st.sampled_from([*PROMPTS, "unheard-of"]),
    "t_end_ns": st.sampled_from([0, 1_001, 5_000, 10**6]),
    "stream": st.booleans(),
    "request_id": st.sampled_from(["r00000", "again", "m-fault@0"]),
}


@st.composite
def records(draw: st.DrawFn, golden: dict[str, GoldenAnswer]) -> tuple[RequestRecord, ...]:
    """Up to nine requests, most of them sinful."""
    found = []
    for number in range(draw(st.integers(1, 9))):
        record = golden_record(number, golden[draw(st.sampled_from(PROMPTS))])
        donor = golden[draw(st.sampled_from(PROMPTS))]
        if draw(st.integers(0, 3)) == 0:
            record = replace(record, chunks=golden_record(number, donor).chunks)
        for _ in range(draw(st.integers(0, 2))):
            record = replace(record, chunks=draw(chunk_sins(record.chunks)))
        for _ in range(draw(st.integers(0, 2))):
            name = draw(st.sampled_from(sorted(_FIELDS)))
            record = replace(record, **{name: draw(_FIELDS[name])})
        found.append(record)
    return tuple(found)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A history, what is known of its engine, and perhaps an early end."""
    golden = draw(golden_sets())
    made = draw(records(golden))
    aborted = draw(st.booleans())
    return case_of(
        made,
        golden,
        certificate={"bit_exact": draw(st.booleans()), "tau": TAU},
        aborted="planted" if aborted else "",
        t_aborted_ns=3_000 if aborted else 0,
    )


def case_of(
    made: tuple[RequestRecord, ...], golden: dict[str, GoldenAnswer], **changes: object
) -> Case:
    """A recorded run of some requests."""
    base = clean_case()
    workload = base.spec.workload.model_copy(update={"requests": len(made)})
    prompts = {name: Prompt(name, name, f"canary{i}") for i, name in enumerate(sorted(golden))}
    return replace(
        base,
        spec=base.spec.model_copy(update={"workload": workload}),
        records=made,
        golden=golden,
        prompts=prompts,
        warmup=(),
        **changes,
    )


def recorded(
    folder: Path, case: Case, *, share: float = 0.0, shards: int = 3, chunk_rows: int = 4
) -> Path:
    """The case as a recorder writes it, watched token by token."""
    write_frame(folder, case, {})
    with Recorder(
        folder, case.golden, seed=1, share=share, shards=shards, chunk_rows=chunk_rows
    ) as recorder:
        for record in case.records:
            recorder.watch(record)
    return folder
