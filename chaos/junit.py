"""The verdict as JUnit XML: one case for each property and each occurrence of a fault."""

from pathlib import Path
from xml.etree import ElementTree as ET

from tocsin.chaos.attribution import attribute
from tocsin.chaos.case import Case, Conclusion, OccurrenceRecord, PropertyVerdict
from tocsin.chaos.store import write_atomic
from tocsin.chaos.verdict import RunVerdict


def write_junit(path: Path, case: Case, verdict: RunVerdict, replay: str) -> None:
    """Write `junit.xml`.

    Args:
        replay: command that runs the same plan again; it stands in every failure.
    """
    suite = ET.Element("testsuite", name=f"chaos.{case.spec.name}")
    settings = ET.SubElement(suite, "properties")
    for name, value in (
        ("seed", verdict.seed),
        ("plan_digest", verdict.plan_digest),
        ("engine", verdict.engine),
        ("model", verdict.model),
        ("profile", verdict.profile),
        ("bit_exact", case.certificate.get("bit_exact", "unknown")),
        ("verdict", verdict.conclusion),
    ):
        ET.SubElement(settings, "property", name=name, value=str(value))
    for one in verdict.properties:
        _property(suite, one, replay)
    found = attribute(case)
    for record in case.occurrences:
        first = found.first_expected(record.planned.id)
        _occurrence(suite, record, first.detector if first else "", replay)
    for sin in verdict.self_test:
        unit = _case(suite, "oracle_self_test", sin.sin)
        if not sin.caught:
            _failure(unit, f"expected {list(sin.expected)} to flag it: {list(sin.flagged)} did", "")
    _run(suite, verdict, replay)
    failures, skipped = len(suite.findall("*/failure")), len(suite.findall("*/skipped"))
    suite.set("tests", str(len(suite.findall("testcase"))))
    suite.set("failures", str(failures))
    suite.set("errors", "0")
    suite.set("skipped", str(skipped))
    suite.set("time", f"{max(0, case.t_end_ns - case.t_start_ns) / 1e9:.3f}")
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    write_atomic(path, ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n")


def _property(suite: ET.Element, one: PropertyVerdict, replay: str) -> None:
    unit = _case(suite, "properties", one.id)
    if one.conclusion is Conclusion.FAIL:
        first = one.violations[0]
        lines = [f"{violation.message}" for violation in one.violations[:20]]
        _failure(unit, first.message, "\n".join([*lines, f"advice: {first.advice}", replay]))
    elif one.conclusion is not Conclusion.PASS:
        ET.SubElement(unit, "skipped", message=_clean(f"{one.conclusion}: {one.reason}"))


def _occurrence(suite: ET.Element, record: OccurrenceRecord, detector: str, replay: str) -> None:
    unit = _case(suite, "faults", record.planned.id)
    expect = record.planned.expect
    wrong = [] if record.fired else [f"did not fire {record.error}".strip()]
    if record.fired and not record.verified:
        wrong.append("left no evidence")
    if record.fired and expect.detect == "required" and not detector:
        wrong.append(f"was not seen by {' or '.join(expect.detectors)}")
    if record.fired and not record.healed:
        wrong.append(f"was not shown to be healed {record.error}".strip())
    if wrong:
        _failure(unit, f"{record.planned.id} {', '.join(wrong)}", replay)
        return
    text = (
        f"{record.evidence.place}: {record.evidence.before} -> {record.evidence.after}\n"
        if (record.evidence)
        else ""
    )
    ET.SubElement(unit, "system-out").text = _clean(f"{text}seen by {detector or 'nobody'}")


def _run(suite: ET.Element, verdict: RunVerdict, replay: str) -> None:
    """The run itself: a green suite must mean exit code 0."""
    unit = _case(suite, "run", "verdict")
    if verdict.exit_code:
        _failure(unit, verdict.sentence, "\n".join([*verdict.reasons, replay]))


def _case(suite: ET.Element, group: str, name: str) -> ET.Element:
    classname = f"{suite.get('name')}.{group}"
    return ET.SubElement(suite, "testcase", classname=classname, name=_clean(name), time="0")


def _failure(unit: ET.Element, message: str, text: str) -> None:
    ET.SubElement(unit, "failure", message=_clean(message), type="violated").text = _clean(text)


def _clean(text: str) -> str:
    """The text without characters that XML 1.0 does not allow."""
    return (
        "".join(
            letter
            for letter in text
            if letter in "\t\n\r" or " " <= letter <= "\ud7ff" or letter >= "\ue000"
        )
        .replace("\ufffe", "")
        .replace("\uffff", "")
    )
