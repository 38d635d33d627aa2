"""Transient faults under the engine's real gate: what is repaired has the golden bits."""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from tocsin.bench.campaign.injector import Injector
from tocsin.bench.campaign.serving import RecordingGate, StepRecord, engine_of, guard_gate, submit
from tocsin.bench.campaign.sites import Fault
from tocsin.bench.campaign.words import EXPONENT_TOP, SIGN
from tocsin.core.terms import Cause, Profile
from tocsin.engine.engine import ReferenceEngine
from tocsin.engine.gate import FixedChoice, OpenGate

SITES_REPAIRED = (
    "linear_out",
    "accumulator",
    "rope_q",
    "rope_k",
    "attention_out",
    "norm_out",
    "swiglu",
    "residual",
    "logits",
    "cos_sin",
)
"""Places that hold a value for one step only."""


def repair_trials(
    model: nn.Module, prompts: Sequence[Sequence[int]], trials: int, seed: int, key: str
) -> dict[str, Any]:
    """One transient fault a decode step; a repaired step must give the golden logits and tokens.

    A fault that no check saw ends its episode, whether a logit changed or not: what the step wrote
    into a page may stay, and no later repair would have the golden bits.

    Returns:
        faults injected; trials: of them those that were seen and so repaired; identical: of these
        those whose step has the golden logits, bit for bit, and whose answer has no other token;
        extra_runs: of each repaired step; settle_s and step_s; unseen: faults that no check saw;
        missed: of these those that changed a logit of their step.
    """
    total: dict[str, Any] = {
        "faults": 0,
        "trials": 0,
        "identical": 0,
        "transient": 0,
        "unseen": 0,
        "missed": 0,
        "extra_runs": [],
        "settle_s": [],
        "step_s": [],
    }
    tokens = max(8, min(trials + 2, 64))
    golden = _serve(model, prompts, tokens, None)[1]
    episode = 0
    while total["faults"] < trials and episode < trials:
        left = trials - total["faults"]
        _episode(model, prompts, tokens, golden, left, (seed, f"{key}-{episode}"), total)
        episode += 1
    return total


def _episode(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    golden: dict[int, StepRecord],
    left: int,
    source: tuple[int, str],
    total: dict[str, Any],
) -> None:
    """Serve once, with a fault in each step, until one was not seen."""
    for record, fault, step_s in _steps(model, prompts, tokens, left, source):
        right = golden[record.step]
        same = (
            record.logits is not None
            and right.logits is not None
            and torch.equal(record.logits, right.logits)
        )
        if fault is not None:
            total["faults"] += 1
            if record.failures:
                total["trials"] += 1
                total["identical"] += same
                total["transient"] += all(f.cause is Cause.TRANSIENT for f in record.failures)
                total["extra_runs"].append(record.runs - 1)
                total["settle_s"].append(round(record.settle_s, 6))
            else:
                total["unseen"] += 1
                total["missed"] += not same
                return
        else:
            total["step_s"].append(round(step_s, 6))
        if not same:
            return


def _steps(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    left: int,
    source: tuple[int, str],
) -> Any:
    """Settled steps in order: the record, its fault (None: none was armed), seconds of the step."""
    engine, guard = engine_of(model, len(prompts), max(map(len, prompts)) + tokens)
    injector = Injector(model, engine.seams)
    gate = RecordingGate(guard_gate(engine, guard))
    engine.gate = gate
    made = 0
    try:
        submit(engine, prompts, tokens)
        while engine.has_work and made < left:
            # Every fourth decode step is left alone: what a step takes when nothing is wrong.
            decoding = _decoding(engine, len(prompts))
            fault = _fault(len(prompts), source, made) if decoding and len(gate.steps) % 4 else None
            injector.arm([fault] if fault is not None else [])
            began = time.perf_counter()
            engine.step()
            took = time.perf_counter() - began
            if fault is not None:
                injector.require_fired([fault])
                made += 1
            if decoding and gate.steps:
                yield gate.steps[-1], fault, took
    finally:
        injector.close()
        guard.detach()


def _serve(
    model: nn.Module, prompts: Sequence[Sequence[int]], tokens: int, gate: Any
) -> tuple[ReferenceEngine, dict[int, StepRecord]]:
    """The same requests without faults and without checks: the golden steps by number."""
    engine, guard = engine_of(model, len(prompts), max(map(len, prompts)) + tokens)
    guard.switchboard.set_profile(Profile.OFF, "golden")
    recording = RecordingGate(gate or OpenGate(FixedChoice(engine.config.backends)))
    engine.gate = recording
    try:
        submit(engine, prompts, tokens)
        while engine.has_work:
            engine.step()
    finally:
        guard.detach()
    return engine, {record.step: record for record in recording.steps}


def _decoding(engine: ReferenceEngine, rows: int) -> bool:
    """Whether the next step is a decode step of all rows."""
    stats = engine.stats()
    held = [engine.pages.table(f"r{row}") for row in range(rows)]
    lengths = [sum(engine.pages.tag(page).length for page in pages) for pages in held]
    asked = [engine.request(f"r{row}") for row in range(rows)]
    return stats.running == rows and all(
        request is not None and length >= len(request.prompt_ids)
        for request, length in zip(asked, lengths, strict=True)
    )


def _fault(rows: int, source: tuple[int, str], number: int) -> Fault:
    seed, key = source
    key = f"{key}-{number}"
    picker = Fault("", "", 0, seed, key)
    site = SITES_REPAIRED[picker.below(len(SITES_REPAIRED), "site")]
    bits = (SIGN, EXPONENT_TOP)[picker.below(2, "stratum")]
    return Fault(site, bits, picker.below(rows, "row"), seed, key)
