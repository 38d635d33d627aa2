"""What a run did not show: missing data, untested faults, and the limits of its own evidence."""

from collections.abc import Iterable, Iterator, Mapping

from tocsin.chaos.case import Case, Conclusion
from tocsin.chaos.contract import Fault
from tocsin.chaos.report.model import Caveat
from tocsin.chaos.report.wording import short, visible
from tocsin.chaos.verdict import RunVerdict
from tocsin.core.history import Outcome


def caveats_of(
    case: Case, verdict: RunVerdict, catalogue: Mapping[str, Fault]
) -> tuple[Caveat, ...]:
    """Missing data first, then what was not judged, not injected, and not certain."""
    return (
        *_missing_data(case, verdict),
        *_not_judged(verdict),
        *_not_injected(case, catalogue),
        *_not_certain(case, verdict),
        *(Caveat("Note of the run", visible(note, 400)) for note in case.notes[:20]),
    )


def _missing_data(case: Case, verdict: RunVerdict) -> Iterator[Caveat]:
    def missing(topic: str, text: str) -> Caveat:
        return Caveat(topic, text, incomplete=True)

    if case.aborted:
        why = short(case.aborted, 300)
        yield missing("run aborted", f"{why}. Everything after that moment is unknown.")
    if not case.records:
        yield missing(
            "no requests", "No request was recorded: no answer was seen, none was judged."
        )
    without = {
        record.prompt_id
        for record in case.records
        if not record.malformed and record.prompt_id not in case.golden
    }
    if without:
        names = _names(without)
        yield missing(
            "golden answers", f"{len(without)} prompts have none, so no verdict: {names}."
        )
    still_open = sum(record.outcome is Outcome.OPEN for record in case.records)
    if still_open:
        yield missing("open requests", f"{still_open:,} requests have no end in the history.")
    if case.records and not case.events:
        yield missing("service events", "None arrived: nothing is known of what the service saw.")
    if not case.certificate:
        yield missing("certificate", "Bit-equality of answers under batching was not established.")
    if not verdict.self_test:
        yield missing(
            "oracle self-test", "It did not run: whether the oracle can object is unknown."
        )


def _not_judged(verdict: RunVerdict) -> Iterator[Caveat]:
    for row in verdict.properties:
        if row.conclusion in (Conclusion.UNKNOWN, Conclusion.VACUOUS):
            why = short(row.reason, 300) or "no reason was recorded"
            yield Caveat(f"{row.id} is {row.conclusion}", f"{why}. This is not a pass.")
    for reason in verdict.reasons[:20]:
        yield Caveat(f"why {verdict.conclusion}", visible(reason, 400))


def _not_injected(case: Case, catalogue: Mapping[str, Fault]) -> Iterator[Caveat]:
    planned = {record.planned.kind for record in case.occurrences}
    absent = sorted(set(catalogue) - planned)
    if absent:
        yield Caveat("faults not in this run", f"{len(absent)} declared faults: {_names(absent)}.")
    never = {one.planned.kind for one in case.occurrences if not one.fired}
    if never:
        yield Caveat("planned, never fired", f"Nothing is shown about {_names(never)}.")
    simulated = {
        one.planned.kind
        for one in case.occurrences
        if one.evidence and "simulated" in one.evidence.place
    }
    if simulated:
        yield Caveat(
            "simulated faults",
            f"{_names(simulated)}: the reading was changed, not the thing that it reads.",
        )


def _not_certain(case: Case, verdict: RunVerdict) -> Iterator[Caveat]:
    fired = sum(fault.fired for fault in verdict.faults if fault.required)
    missed = sum(max(0, f.fired - f.detected) for f in verdict.faults if f.required)
    if fired and not missed:
        bound = 1 - 0.05 ** (1 / fired)
        yield Caveat(
            "how sure “none missed” is",
            f"{fired} of {fired} faults were detected. From that many, a true miss rate of up to "
            f"{100 * bound:.2g} % cannot be excluded (95 % confidence); more runs lower it.",
        )
    if case.certificate and not case.certificate.get("bit_exact", False):
        yield Caveat(
            "not bit-exact",
            "The certificate failed on this machine, so a differing token counts as corruption "
            "only where the golden margin is above the tolerance.",
        )
    yield Caveat(
        "one configuration",
        f"Engine {verdict.engine or 'unknown'}, model {verdict.model or 'unknown'}, profile "
        f"{verdict.profile or 'unknown'}, seed {verdict.seed}. Other engines, dtypes, devices and "
        "seeds are not covered.",
    )
    yield Caveat(
        "replay",
        "A replay has the same plan and should reach the same class of outcome for every fault; "
        "the interleaving of processes is the operating system's and is not repeated.",
    )
    yield Caveat(
        "isolation",
        "Small models seldom echo canaries, so their absence alone is weak evidence; equality with "
        "the golden answers and the owners of KV pages carry the claim.",
    )


def _names(names: Iterable[str], most: int = 12) -> str:
    ordered = sorted(names)
    rest = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return ", ".join(short(name, 40) or "(no name)" for name in ordered[:most]) + rest
