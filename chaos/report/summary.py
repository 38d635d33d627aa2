"""The banner, the numbers and the tables that repeat the verdict in words."""

import shlex
from collections.abc import Mapping
from pathlib import Path

from tocsin.chaos.case import Case, Conclusion, PropertyVerdict
from tocsin.chaos.contract import Property
from tocsin.chaos.report.manifest import near
from tocsin.chaos.report.model import (
    Banner,
    Fact,
    Figure,
    NextStep,
    PropertyRow,
    SinRow,
    TokenDiff,
    Tone,
)
from tocsin.chaos.report.wording import flat_facts, rate, share, short, visible
from tocsin.chaos.verdict import EXIT_ABORTED, EXIT_UNHEALED, RunVerdict

_TONES = {
    Conclusion.PASS: Tone.GOOD,
    Conclusion.UNKNOWN: Tone.DOUBT,
    Conclusion.VACUOUS: Tone.DOUBT,
}
_WORDS = {
    Conclusion.PASS: "Pass",
    Conclusion.FAIL: "Violated",
    Conclusion.UNKNOWN: "Unknown",
    Conclusion.VACUOUS: "Vacuous",
    Conclusion.INVALID: "Invalid run",
    Conclusion.ABORTED: "Aborted by safety",
    Conclusion.UNHEALED: "Not healed",
}
_EXIT_WORDS = {
    EXIT_ABORTED: _WORDS[Conclusion.ABORTED],
    EXIT_UNHEALED: _WORDS[Conclusion.UNHEALED],
}
"""What may still be broken, or cut the run short, is said before what was found until then."""
_FACTS_MOST = 60
_STEPS_MOST, _VIOLATIONS_SHOWN = 12, 3


def tone_of(conclusion: Conclusion, exit_code: int = 0) -> Tone:
    """Good, bad or in doubt; only a pass that also exits with 0 is good."""
    tone = _TONES.get(conclusion, Tone.BAD)
    return Tone.BAD if tone is Tone.GOOD and exit_code else tone


def banner_of(case: Case, verdict: RunVerdict, run_dir: Path, replay: str) -> Banner:
    """The verdict and how to see it again."""
    run = shlex.quote(near(run_dir))
    facts = (
        Fact("Engine", verdict.engine or "unknown"),
        Fact("Model", verdict.model or "unknown"),
        Fact("Profile", str(verdict.profile) or "unknown"),
        Fact("Seed", str(verdict.seed)),
        Fact("Plan digest", verdict.plan_digest[:16] or "unknown"),
        Fact("Length", f"{max(0, case.t_end_ns - case.t_start_ns) / 1e9:.1f} s"),
    )
    sentences = _sentences(verdict)
    return Banner(
        verdict=_EXIT_WORDS.get(verdict.exit_code, _WORDS[verdict.conclusion]),
        exit_code=verdict.exit_code,
        tone=tone_of(verdict.conclusion, verdict.exit_code),
        sentence=sentences[0],
        reasons=sentences[1:],
        commands=(
            Fact("Replay", short(replay, 400)),
            Fact("Re-judge", f"tocsin chaos check {run}"),
        ),
        facts=tuple(Fact(fact.name, short(fact.value, 80)) for fact in facts),
    )


def figures_of(case: Case, verdict: RunVerdict) -> tuple[Figure, ...]:
    """The ten numbers that say how the run went."""
    planned = sum(fault.planned for fault in verdict.faults)
    fired = sum(fault.fired for fault in verdict.faults)
    seconds = (case.t_end_ns - case.t_start_ns) / 1e9
    speed = f"{rate(verdict.tokens / seconds)}/s" if seconds > 0 and verdict.tokens else ""
    answered = (
        f"{share(round(verdict.availability * 1000), 1000)} answered"
        if (verdict.availability is not None)
        else ""
    )
    required = [fault for fault in verdict.faults if fault.required]
    must = sum(fault.fired for fault in required)
    return (
        Figure("Requests", f"{verdict.requests:,}", answered),
        Figure("Tokens", f"{verdict.tokens:,}", speed),
        _none_wanted("Silent corruptions", verdict.silent_corruptions, bool(verdict.tokens)),
        _none_wanted("Lost requests", verdict.lost, bool(verdict.requests)),
        _none_wanted("Duplicated tokens", verdict.duplicated, bool(verdict.requests)),
        _all_wanted("Faults fired", fired, planned, "planned"),
        _all_wanted("Verified", sum(fault.verified for fault in verdict.faults), fired, "fired"),
        _all_wanted("Detected", sum(min(f.detected, f.fired) for f in required), must, "required"),
        _all_wanted("Healed", sum(fault.healed for fault in verdict.faults), fired, "fired"),
        _none_wanted("False alarms", verdict.false_alarms, bool(case.events)),
    )


def property_rows(
    verdict: RunVerdict, declared: Mapping[str, Property], diffs: tuple[TokenDiff, ...]
) -> tuple[PropertyRow, ...]:
    """Violated properties first, then those in doubt, then those that hold."""
    order = (Tone.BAD, Tone.DOUBT, Tone.IDLE, Tone.GOOD)
    anchors = {diff.request_id: diff.anchor for diff in diffs}
    rows = [
        _property_row(row, verdict, declared.get(row.id), anchors) for row in verdict.properties
    ]
    return tuple(sorted(rows, key=lambda row: order.index(row.tone)))


def sin_rows(verdict: RunVerdict) -> tuple[SinRow, ...]:
    """The oracle self-test, sins that went unnoticed first."""
    rows = [
        SinRow(
            sin=short(result.sin.replace("_", " "), 80),
            meaning=short(result.meaning, 200),
            properties=tuple(result.expected),
            flagged=tuple(result.flagged),
            caught=result.caught,
        )
        for result in verdict.self_test
    ]
    return tuple(sorted(rows, key=lambda row: row.caught))


def next_steps(verdict: RunVerdict, declared: Mapping[str, Property]) -> tuple[NextStep, ...]:
    """What to do about each violated property."""
    steps = []
    for row in verdict.properties:
        if row.conclusion is not Conclusion.FAIL:
            continue
        rule = declared.get(row.id)
        special = next((one.advice for one in row.violations if one.advice), "")
        advice = special or (rule.advice if rule else "") or "Look at the violations below."
        steps.append(
            NextStep(
                property_id=row.id,
                advice=short(advice[:1].upper() + advice[1:], 400),
                violations=tuple(
                    short(one.message, 260) for one in row.violations[:_VIOLATIONS_SHOWN]
                ),
                more=max(0, len(row.violations) - _VIOLATIONS_SHOWN),
            )
        )
    return tuple(steps[:_STEPS_MOST])


def facts_of(values: Mapping[str, object]) -> tuple[Fact, ...]:
    """A JSON object as a table."""
    return tuple(Fact(short(name, 60), text) for name, text in flat_facts(values)[:_FACTS_MOST])


def _sentences(verdict: RunVerdict) -> tuple[str, ...]:
    """What to say first and what next: harm done to users before everything else."""
    silent, harm = verdict.silent_corruptions, ""
    if silent and "wrong answer" not in verdict.sentence:
        answers = "wrong answers" if silent > 1 else "wrong answer"
        harm = f"{silent:,} {answers} reached users as if nothing had happened."
    reasons = [one for one in verdict.reasons if one.rstrip(".") not in verdict.sentence]
    said = [text for text in (harm, verdict.sentence, *reasons[:4]) if text]
    return tuple(_begun(visible(text, 300)) for text in said) or ("Nothing could be concluded.",)


def _begun(sentence: str) -> str:
    """With a capital, unless it begins with an id."""
    return sentence if "." in sentence.partition(" ")[0] else sentence[:1].upper() + sentence[1:]


def _property_row(
    row: PropertyVerdict, verdict: RunVerdict, rule: Property | None, anchors: Mapping[str, str]
) -> PropertyRow:
    first = row.violations[0] if row.violations else None
    sins = [result for result in verdict.self_test if row.id in result.expected]
    return PropertyRow(
        id=row.id,
        summary=rule.summary if rule else "",
        verdict=_WORDS[row.conclusion].lower(),
        tone=tone_of(row.conclusion),
        checked=row.checked,
        violations=len(row.violations),
        reason=short(row.reason, 300),
        first=short(first.message, 260) if first else "",
        first_anchor=anchors.get(first.request_id, "") if first else "",
        advice=rule.advice if rule else "",
        self_test=tuple((result.sin, row.id in result.flagged) for result in sins),
    )


def _none_wanted(name: str, count: int, known: bool) -> Figure:
    if not known:
        return Figure(name, "–", "no data", Tone.DOUBT)
    return Figure(name, f"{count:,}", "", Tone.BAD if count else Tone.GOOD)


def _all_wanted(name: str, count: int, whole: int, of: str) -> Figure:
    if not whole:
        return Figure(name, "–", f"none {of}", Tone.DOUBT)
    return Figure(
        name, f"{count:,}", f"of {whole:,} {of}", Tone.GOOD if count == whole else Tone.BAD
    )
