"""A failure again on the whole model: the recorded requests, and the recorded fault if one was."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pprint import pformat
from typing import Any

import torch

from tocsin.checker.reproduce import Reproduction
from tocsin.checker.reproduction.archive import Recorded
from tocsin.checker.snapshot import REQUEST
from tocsin.core.errors import EnvironmentFault, SpecError
from tocsin.core.faulting import Order
from tocsin.core.requests import Finish, FinishEvent, Request, Sampling
from tocsin.core.terms import Profile
from tocsin.core.verdict import Failure, Settlement
from tocsin.engine.weights import prepare
from tocsin.ray_jobs.options import ServeOptions
from tocsin.ray_jobs.prompting import Prompting
from tocsin.ray_jobs.stack import Stack, build

NAME = "replay_on_the_engine.py"
_LEASE_S = 600.0
_DECODE_STEPS = 2
"""Decode steps that pass before the fault is let in: the pages hold something by then."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay came to.

    Attributes:
        checks: ids of the checks that alarmed, in order.
        finishes: how each request ended.
        evidence: what the fault changed; empty where none was armed or it did not fire.
    """

    checks: tuple[str, ...]
    finishes: Mapping[str, Finish] = field(default_factory=dict)
    evidence: str = ""


def write_replay(recorded: Recorded, made: Reproduction) -> Path:
    """Write the script that runs the recorded requests through the engine; returns its path.

    Raises:
        SpecError: neither the prompts were recorded nor the run that sent them.
    """
    scenario = scenario_of(recorded)
    text = _SCRIPT.format(
        failure_id=recorded.failure_id,
        check=made.check,
        scenario=pformat(scenario, width=96, sort_dicts=False),
        how="with the chaos order that was in force" if scenario["order"] else "without a fault",
    )
    path = made.folder / NAME
    path.write_text(text, encoding="utf-8")
    return path


def scenario_of(recorded: Recorded) -> dict[str, Any]:
    """All that a replay needs, JSON-safe: options of the engine, requests, chaos order, check.

    Raises:
        SpecError: the prompts are not to be found, or the recorded request is damaged.
    """
    path = recorded.folder / REQUEST
    try:
        return _scenario(recorded, path)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise SpecError(
            f"reproduce: {path} is not the request of a failure ({type(error).__name__}), expected "
            "it as it was recorded; copy its snapshot again"
        ) from error


def _scenario(recorded: Recorded, path: Path) -> dict[str, Any]:
    document: dict[str, Any] = (
        json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    )
    wanted = list(document.get("request_ids") or recorded.facts.get("request_ids") or [])
    run_dir = _run_dir(recorded.folder)
    base = {"check": recorded.facts.get("check"), "order": None}
    prompts = document.get("prompt_ids")
    if prompts:
        engine = document.get("engine") or {}
        options = {key: value for key, value in engine.items() if key in _OPTIONS}
        requests = _from_document(document, prompts, wanted)
        return {**base, "options": options, "requests": requests, **_chaos(run_dir, recorded)}
    if run_dir is None:
        raise SpecError(
            f"reproduce: failure {recorded.failure_id} holds no prompts, expected them for a "
            "replay on the engine; switch on the journal's setting journal_prompts and record "
            "it again, or replay a chaos run's failure, whose prompts are public"
        )
    return {**base, **_from_run(run_dir, wanted), **_chaos(run_dir, recorded)}


def replay(scenario: Mapping[str, Any], *, stack: Stack | None = None) -> Replayed:
    """Serve the requests on a one-process engine under full checks.

    Args:
        scenario: as `scenario_of` gives it.
        stack: an engine that is there already; None: built from the scenario's options.

    Raises:
        EnvironmentFault: the model is missing.
    """
    stack = stack or _stack(scenario["options"])
    engine = stack.engine
    heard: list[Failure] = []
    _listen(stack, heard)
    for one in scenario["requests"]:
        engine.submit(_request(one, stack))
    order = scenario.get("order")
    armed = False
    finishes: dict[str, Finish] = {}
    while engine.has_work:
        step = engine.stats().step
        if order is not None and not armed and engine.stats().tokens_released >= _DECODE_STEPS:
            armed = True
            stack.armoury.arm(
                Order("replay@0", order["kind"], order["seed"], step, _LEASE_S, order["params"])
            )
        stack.armoury.tick(step)
        for event in engine.step():
            if isinstance(event, FinishEvent):
                finishes[event.request_id] = event.finish
    evidence = [
        f"{one.evidence.place}: {one.evidence.before} -> {one.evidence.after}"
        for one in stack.armoury.statuses()
        if one.evidence is not None and one.evidence.fired
    ]
    stack.armoury.disarm_all()
    checks = dict.fromkeys(finding.check for one in heard for finding in one.findings)
    return Replayed(tuple(checks), finishes, "; ".join(evidence))


_OPTIONS = frozenset(ServeOptions.__dataclass_fields__)


def _stack(options: Mapping[str, Any]) -> Stack:
    known = {key: value for key, value in options.items() if key in _OPTIONS}
    model = str(known.get("model") or "smollm2-135m")
    path = str(known.get("path") or "")
    if not path or not Path(path).is_dir():
        path = str(prepare(model))
    chosen = {**known, "model": model, "path": path, "profile": Profile.FULL, "threads": 1}
    return build(ServeOptions(**chosen), replica="replay")


def _listen(stack: Stack, heard: list[Failure]) -> None:
    """Hear of every failure that the gate settles."""
    gate: Any = stack.engine.gate

    class Listening:
        """The engine's gate, overheard; implements `core.protocols.Gate`."""

        def open(self, attempt: Any) -> None:
            gate.open(attempt)

        def may_launch(self) -> bool:
            return bool(gate.may_launch())

        def settle(self, attempt: Any, error: Exception | None) -> Settlement:
            settlement: Settlement = gate.settle(attempt, error)
            heard.extend(settlement.failures)
            return settlement

    stack.engine.gate = Listening()


def _request(one: Mapping[str, Any], stack: Stack) -> Request:
    prompt_ids = tuple(one.get("prompt_ids") or ())
    stop_ids: tuple[int, ...] = tuple(one.get("stop_ids") or ())
    if not prompt_ids:
        model: Any = stack.engine.model
        prompting = Prompting(
            stack.tokenizer, int(model.config.vocab_size), stack.engine.config.max_model_len
        )
        prompt_ids, stop_ids = prompting.chat(one["messages"]), prompting.stop_ids
    return Request(
        str(one["request_id"]),
        prompt_ids,
        int(one["max_new_tokens"]),
        sampling=Sampling(**one.get("sampling") or {}),
        stop_ids=stop_ids,
        ignore_eos=True,
    )


def _from_document(
    document: Mapping[str, Any], prompts: Any, wanted: Sequence[str]
) -> list[dict[str, Any]]:
    """Requests of a snapshot whose prompts were journalled: a list, or one list a request."""
    if isinstance(prompts, Mapping):
        rows = {str(name): list(ids) for name, ids in prompts.items()}
    elif prompts and isinstance(prompts[0], list):
        rows = {str(name): ids for name, ids in zip(wanted, prompts, strict=False)}
    else:
        rows = {str(wanted[0] if wanted else "request"): list(prompts)}
    sampling = document.get("sampling") or {}
    found = []
    for name, ids in rows.items():
        if not ids:
            continue
        own = sampling.get(name, sampling) if isinstance(sampling, Mapping) else {}
        kept = {key: own[key] for key in Sampling.__dataclass_fields__ if key in own}
        found.append(
            {"request_id": name, "prompt_ids": ids, "max_new_tokens": 16, "sampling": kept}
        )
    return found


def _run_dir(snapshot: Path) -> Path | None:
    """The chaos run that a snapshot lies in."""
    for folder in snapshot.resolve().parents[:4]:
        if (folder / "manifest.json").is_file() and (folder / "history.parquet").is_file():
            return folder
    return None


def _from_run(run_dir: Path, wanted: Sequence[str]) -> dict[str, Any]:
    """Options and requests of a chaos run."""
    from tocsin.chaos.store import load_case

    case = load_case(run_dir)
    names = [name.partition("#")[0] for name in wanted]
    chosen = [case.requests[name] for name in dict.fromkeys(names) if name in case.requests]
    # A weight or the memory concerns everybody: then the first requests of the run will do.
    chosen = chosen or [one for one in case.requests.values() if not one.malformed][:4]
    requests = [
        {
            "request_id": one.request_id,
            "messages": one.body["messages"],
            "max_new_tokens": one.max_new_tokens,
        }
        for one in chosen
        if "messages" in one.body
    ]
    system = case.spec.system
    options = {
        "model": system.model,
        "dtype": system.dtype,
        "slots": system.slots,
        "pages": system.pages,
        "page_size": system.page_size,
        "max_length": system.max_length,
    }
    return {"options": options, "requests": requests}


def _chaos(run_dir: Path | None, recorded: Recorded) -> dict[str, Any]:
    """The chaos order that was in force when the failure was recorded."""
    if run_dir is None:
        return {}
    from tocsin.chaos.store import load_case

    step, replica = recorded.facts.get("step"), recorded.facts.get("replica")
    fired = [
        one
        for one in load_case(run_dir).occurrences
        if one.fired and one.replica == replica and 0 <= one.fired_step <= (step or 0)
    ]
    if not fired:
        return {}
    last = max(fired, key=lambda one: one.fired_step).planned
    order = {"kind": last.kind, "seed": last.seed, "params": dict(last.params)}
    return {"order": order}


def run_script(scenario: Mapping[str, Any]) -> int:
    """Replay, say what happened, and return 0 when the recorded check alarmed again."""
    torch.set_num_threads(1)
    try:
        found = replay(scenario)
    except EnvironmentFault as error:
        raise SystemExit(f"tocsin: {error}") from error
    if scenario.get("order"):
        _say(f"fault {scenario['order']['kind']}: {found.evidence or 'did not fire'}")
    _say(f"alarms: {', '.join(found.checks) or 'none'}")
    ends = ", ".join(f"{name} {finish}" for name, finish in found.finishes.items())
    _say(f"requests: {ends}")
    again = scenario["check"] in found.checks
    _say("reproduced on the engine" if again else "not reproduced on the engine")
    return 0 if again else 1


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


_SCRIPT = '''"""Replay of failure {failure_id} on the whole engine: {check}.

It builds one engine in this process, serves the recorded requests under full checks, {how},
and ends with 0 if {check} alarms again. Needs tocsin[serve] and the model; no Ray, no GPU.
A fault that came and went by itself (a flipped bit) does not come back without its order.

    python {{name}}
"""

import sys

from tocsin.ray_jobs.model_replay import run_script

SCENARIO = {scenario}


def test_the_failure_comes_back_on_the_engine() -> None:
    """The same check alarms when the recorded requests are served again."""
    assert run_script(SCENARIO) == 0


if __name__ == "__main__":
    sys.exit(run_script(SCENARIO))
'''.replace("{{name}}", NAME)
