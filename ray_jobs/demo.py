"""The first story: a transient NaN with checks off and with checks on, side by side."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tocsin.core.calls import AttentionCall, Call
from tocsin.core.faulting import Order
from tocsin.core.history import Event, EventKind
from tocsin.core.requests import Finish, FinishEvent, Request, TokenEvent
from tocsin.core.terms import Operator, Phase, Profile
from tocsin.engine.weights import prepare
from tocsin.ray_jobs.options import ServeOptions
from tocsin.ray_jobs.prompting import Prompting
from tocsin.ray_jobs.stack import Stack, build

QUESTIONS = (
    "What is the capital of France?",
    "Why is the sky blue?",
    "What does a thermometer measure?",
    "Who wrote Hamlet?",
    "Name three primary colours.",
)
STRUCK = 1
"""The question in whose answer one attention output becomes NaN for one step."""
POISONED = 3
"""The question in whose answer a NaN is left in a KV page; all others are clean requests."""

_TOKENS = 8
_DEPTH = 15
_STRIKE_AT_STEP = 3
_LEASE_S = 60.0
_HTTP = {Finish.STOP: 200, Finish.LENGTH: 200}


@dataclass(frozen=True, slots=True)
class Told:
    """One answer as a client would get it."""

    status: int
    text: str
    right: bool


@dataclass(slots=True)
class Side:
    """One column of the story.

    Attributes:
        healthy: whether the generation probe behind `GET /health` still gets a token at the end.
        struck: evidence of each fault: its place, before and after.
    """

    profile: Profile
    told: list[Told] = field(default_factory=list)
    healthy: bool = False
    struck: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def emit(self, event: Event) -> None:
        """Take one event of the engine or its gate; implements `core.protocols.Sink`."""
        self.events.append(event)

    @property
    def wrong_200(self) -> int:
        """Answers that said 200 and were not the right ones."""
        return sum(one.status == 200 and not one.right for one in self.told)

    def of_kind(self, kind: EventKind) -> list[Event]:
        """Events of one kind."""
        return [event for event in self.events if event.kind is kind]


class TransientNaN:
    """Sets one element of one attention output to NaN, once; a fault listener."""

    def __init__(self, after_steps: int) -> None:
        """Let `after_steps` decode steps pass first."""
        self.evidence = ""
        self._left = after_steps

    def __call__(self, call: Call) -> None:
        """Strike row 0 of a decode step at one depth."""
        if not isinstance(call, AttentionCall) or call.depth != _DEPTH or call.output is None:
            return
        if self.evidence or call.output.shape[2] != 1:  # a prefill chunk has more positions
            return
        self._left -= 1
        if self._left >= 0:
            return
        element = call.output.detach()[0, 0, 0]
        before = float(element[0])
        with torch.inference_mode():
            element[0] = torch.nan
        self.evidence = f"{call.module}: output[0, 0, 0, 0] {before:.4g} -> {float(element[0])}"


def tell(model: str = "smollm2-135m", console: Console | None = None) -> int:
    """Tell the story.

    Returns:
        0 when it went as it must: checks off let wrong answers out, checks on let none.

    Raises:
        EnvironmentFault: the model is missing.
    """
    screen = console or Console(highlight=False)
    began_s = time.monotonic()
    path = str(prepare(model))
    screen.print(
        "One number of one attention output becomes NaN for one step; later another is left in a "
        "KV page. The model and the engine are real, and the only difference is the profile.\n"
    )
    off, full = (_side(screen, path, model, profile) for profile in (Profile.OFF, Profile.FULL))
    screen.print(story_table(off, full))
    for line in conclusion(off, full):
        screen.print(Text(line))
    screen.print(Text(f"{time.monotonic() - began_s:.0f} s", style="dim"))
    return 0 if is_as_told(off, full) else 1


def play(options: ServeOptions) -> Side:
    """One column: every question in peace, then again with two of them struck, then the probe.

    The quiet round gives the right answers, and a prefix cache as warm as that of any server that
    has been up for a while: what a question adds to it goes to the page that was freed last.
    """
    side = Side(options.profile)
    stack = build(options, replica="demo", sink=side)
    golden = [_ask(stack, f"quiet-{i}", one)[1] for i, one in enumerate(QUESTIONS)]
    side.events.clear()
    for number, question in enumerate(QUESTIONS):
        strike = TransientNaN(_STRIKE_AT_STEP)
        remove: Callable[[], None] = _nothing
        if number == STRUCK:
            remove = stack.engine.seams.add_fault(Operator.ATTENTION, Phase.AFTER, strike)
        if number == POISONED:
            first = stack.engine.stats().step + _STRIKE_AT_STEP
            stack.armoury.arm(Order("poison@0", "kv.poisoned_page", 1, first, _LEASE_S))
        status, text = _ask(stack, f"question-{number}", question)
        remove()
        if strike.evidence:
            side.struck.append(strike.evidence)
        side.told.append(Told(status, text, status == 200 and text == golden[number]))
    side.struck += [
        f"{one.evidence.place}: {one.evidence.before} -> {one.evidence.after}"
        for one in stack.armoury.statuses()
        if one.evidence is not None and one.evidence.fired
    ]
    status, _ = _ask(stack, "probe", "Hello", 1)
    side.healthy = status == 200
    return side


def _side(screen: Console, path: str, model: str, profile: Profile) -> Side:
    options = ServeOptions(
        path=path,
        model=model,
        profile=profile,
        slots=1,
        pages=48,
        max_length=128,
        threads=1,
    )
    with screen.status(f"profile {profile}: five questions in peace, then two of them struck …"):
        return play(options)


def story_table(off: Side, full: Side) -> Table:
    """The two columns."""
    table = Table("question", "checks off", "checks on (full)", show_lines=True)
    for number, (before, after) in enumerate(zip(off.told, full.told, strict=True)):
        mark = {STRUCK: "\nNaN in one attention output", POISONED: "\nNaN left in a KV page"}
        table.add_row(
            Text.assemble(QUESTIONS[number], (mark.get(number, ""), "red")),
            _cell(before),
            _cell(after),
        )
    table.add_row(
        "GET /health (generation probe)", *(_health(side) for side in (off, full)), style="dim"
    )
    return table


def conclusion(off: Side, full: Side) -> list[str]:
    """What happened, in sentences; every number is counted."""
    lines = [f"struck, checks {side.profile}: {one}" for side in (off, full) for one in side.struck]
    lines += [
        f"checks off: {off.wrong_200} of {len(off.told)} answers were wrong with HTTP 200, "
        f"{len(off.of_kind(EventKind.CHECK_FAILED))} alarms; health "
        f"{'ok' if off.healthy else 'failing'}",
        f"checks on: {full.wrong_200} of {len(full.told)} answers were wrong",
    ]
    for event in full.of_kind(EventKind.CHECK_FAILED):
        checks = list(dict.fromkeys(finding["check"] for finding in event.data["findings"]))
        others = f" and {len(checks) - 1} more" if len(checks) > 1 else ""
        lines.append(
            f"  step {event.step}: caught by {checks[0]}{others}; {event.data['cause']}, "
            f"settled on {event.data['settled_on']} in run {event.data['runs']}; "
            f"failure {event.data['failure_id']}"
        )
    for event in full.of_kind(EventKind.PAGES_QUARANTINED):
        pages = ", ".join(str(page) for page in event.data["pages"])
        lines.append(f"  page {pages}: quarantined, zeroed, verified; its request was recomputed")
    return lines


def is_as_told(off: Side, full: Side) -> bool:
    """Whether the poison spread without checks, and touched nobody with them."""
    spread = all(not one.right and one.status == 200 for one in off.told[STRUCK:])
    unharmed = all(one.right for one in full.told)
    seen = len(full.of_kind(EventKind.CHECK_FAILED)) >= len(full.struck)
    repaired = bool(full.of_kind(EventKind.PAGES_QUARANTINED))
    fired = len(off.struck) == len(full.struck) == 2
    return fired and off.healthy and spread and unharmed and seen and repaired


def _cell(told: Told) -> Text:
    text = told.text.strip().replace("\n", " ")
    words = f"{told.status}  " + (f"“{text}”" if text else "(empty)")
    return Text(words, style="green" if told.right else "bold red")


def _health(side: Side) -> str:
    return "200 ok" if side.healthy else "503 failing"


def _ask(
    stack: Stack, request_id: str, question: str, max_new_tokens: int = _TOKENS
) -> tuple[int, str]:
    """Status and text that the gateway would answer with."""
    engine = stack.engine
    model: Any = engine.model
    prompting = Prompting(
        stack.tokenizer, int(model.config.vocab_size), engine.config.max_model_len
    )
    prompt_ids = prompting.chat([{"role": "user", "content": question}])
    engine.submit(Request(request_id, prompt_ids, max_new_tokens, stop_ids=prompting.stop_ids))
    answer: list[int] = []
    finish = Finish.ERROR
    while engine.has_work:
        stack.armoury.tick(engine.stats().step)
        for event in engine.step():
            if isinstance(event, TokenEvent):
                answer.append(event.token)
            elif isinstance(event, FinishEvent):
                finish = event.finish
    text = str(stack.tokenizer.decode(answer, skip_special_tokens=True))
    return _HTTP.get(finish, 500), text


def _nothing() -> None:
    """There is no listener to take out."""
