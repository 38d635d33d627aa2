"""From the journal's records to the rows of `coverage.json`, the ablation and what was missed."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tocsin.bench.campaign.outcome import Outcome
from tocsin.bench.campaign.plan import DTYPES
from tocsin.bench.campaign.schema import Coverage, CoverageRow, FalseAlarms, Repaired
from tocsin.bench.campaign.sites import PAGE_SITES, SITES
from tocsin.bench.campaign.statistics import Stratum, Weighed, weigh, wilson_low
from tocsin.bench.campaign.trial import caught_at
from tocsin.bench.campaign.words import STRATA, share_of

Record = Mapping[str, Any]
Word = Callable[[Record], tuple[bool, bool] | None]
"""What a detector said of a trial: caught, and before release; None: not shown to it."""

TOCSIN = "tocsin"
ALL, UNIFORM = "all", "uniform"
_MISSES_KEPT = 200


@dataclass(slots=True)
class Summary:
    """All that the tables show.

    Attributes:
        weighed: (name, profile, dtype) → what uniformly chosen bits would give, over the headline.
        ablation: dtype → check → (coverage without it, harmful trials that it alone caught).
        outcomes: dtype → class → trials.
        misses: harmful trials of the headline that `full` did not catch in time.
        absent: competitor → why it was not run.
        extra: alarms by configuration, pages, state and repair, JSON-safe.
    """

    coverage: Coverage
    weighed: dict[tuple[str, str, str], Weighed] = field(default_factory=dict)
    ablation: dict[str, dict[str, tuple[float, int]]] = field(default_factory=dict)
    outcomes: dict[str, dict[str, int]] = field(default_factory=dict)
    misses: list[dict[str, Any]] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)


def summarise(records: Mapping[str, Record]) -> Summary:
    """Add up the finished shards.

    Args:
        records: of the journal, by shard key.
    """
    trials: dict[str, list[Record]] = defaultdict(list)
    absent: dict[str, str] = {}
    for key, record in sorted(records.items()):
        kind, dtype = key.split("/")[:2]
        if kind == "coverage":
            trials[dtype] += record["trials"]
            absent.update({f"{name} ({dtype})": why for name, why in record["absent"].items()})
    rows: list[CoverageRow] = []
    summary = Summary(
        Coverage(
            rows=(),
            false_alarms=FalseAlarms(evaluations=0, alarms=0),
            repaired=Repaired(trials=0, identical=0),
        ),
        absent=absent,
    )
    for dtype, known in trials.items():
        summary.outcomes[dtype] = dict(Counter(trial["outcome"] for trial in known))
        for name, profile, word in detectors_of(known):
            rows += _rows(name, profile, dtype, known, word)
            weighed = _weighed(dtype, headline(known), word)
            if weighed is not None:
                summary.weighed[name, profile, dtype] = weighed
                rows.append(_uniform_row(name, profile, dtype, known, word, weighed))
        summary.ablation[dtype] = ablation(headline(known))
        summary.misses += [
            {"dtype": dtype, **trial}
            for trial in headline(known)
            if _is_harmful(trial) and not _in_time(trial)
        ][:_MISSES_KEPT]
    pages = _stored(records, "pages")
    state = _stored(records, "state")
    rows += [*_stored_rows(pages, "page_"), *_stored_rows(state, "state_")]
    alarms = _alarms(records)
    repaired = _repaired(records)
    summary.extra = {"pages": pages, "state": state, "alarms": alarms, "repair": repaired}
    summary.coverage = Coverage(
        rows=tuple(rows),
        false_alarms=FalseAlarms(
            evaluations=sum(one["evaluations"] for one in alarms.values()),
            alarms=sum(one["alarms"] for one in alarms.values()),
        ),
        repaired=Repaired(trials=repaired["trials"], identical=repaired["identical"]),
    )
    return summary


def headline(trials: Iterable[Record]) -> list[Record]:
    """Single-bit trials outside stored pages: what the goal speaks of."""
    return [
        trial for trial in trials if trial["bits"] in STRATA and trial["site"] not in PAGE_SITES
    ]


def detectors_of(trials: Sequence[Record]) -> list[tuple[str, str, Word]]:
    """Ours at each profile, then every competitor that was shown something."""
    rivals = sorted({key for trial in trials for key in trial["flagged"]})
    ours = [(TOCSIN, profile, _tocsin(profile)) for profile in ("full", "guard")]
    others = [(*key.split("/", 1), _rival(key)) for key in rivals]
    return [*ours, *[(name, profile, word) for name, profile, word in others]]


def ablation(trials: Sequence[Record]) -> dict[str, tuple[float, int]]:
    """Coverage of `full` without one check at a time, from the alarms of the same trials."""
    harmful = [trial for trial in trials if _is_harmful(trial)]
    checks = sorted({n.partition("@")[0] for trial in harmful for n in trial["alarms"]["full"]})
    whole = sum(map(_in_time, harmful))
    found: dict[str, tuple[float, int]] = {}
    for check in checks:
        left = sum(
            caught_at(trial["alarms"]["full"], trial["wrong"], check) is not None
            for trial in harmful
        )
        found[check] = (left / len(harmful), whole - left)
    return found


def _tocsin(profile: str) -> Word:
    def word(trial: Record) -> tuple[bool, bool] | None:
        if profile not in trial["alarms"]:
            return _unasked(profile, trial)
        alarms = trial["alarms"][profile]
        return bool(alarms), caught_at(alarms, trial["wrong"]) is not None

    return word


def _unasked(key: str, trial: Record) -> tuple[bool, bool] | None:
    """A harmless trial of a batch whose harmful ones a detector was shown counts as a trial."""
    return (False, False) if key in trial["asked"] and not _is_harmful(trial) else None


def _in_time(trial: Record) -> bool:
    """Whether `full` caught it at or before its first wrong token."""
    return caught_at(trial["alarms"]["full"], trial["wrong"]) is not None


def _rival(key: str) -> Word:
    def word(trial: Record) -> tuple[bool, bool] | None:
        if key not in trial["flagged"]:
            return _unasked(key, trial)
        step = trial["flagged"][key]
        return step >= 0, 0 <= step <= trial["wrong"]

    return word


def _is_harmful(trial: Record) -> bool:
    return Outcome(trial["outcome"]).counts


def _row(
    names: tuple[str, str, str, str, str], trials: Sequence[Record], word: Word
) -> CoverageRow | None:
    """One row; None where the detector was shown nothing harmful of it and can say nothing."""
    said = [(_is_harmful(trial), word(trial)) for trial in trials]
    shown = [(harmful, one) for harmful, one in said if one is not None]
    known = [one for harmful, one in shown if harmful]
    if not shown or (not known and any(harmful for harmful, _ in said)):
        return None
    caught, in_time = sum(one[0] for one in known), sum(one[1] for one in known)
    name, profile, dtype, site, bits = names
    return CoverageRow(
        name=name,
        profile=profile,
        dtype=dtype,
        site=site,
        bits=bits,
        trials=len(shown),
        harmful=len(known),
        caught=caught,
        caught_before_release=in_time,
        low95=round(wilson_low(in_time, len(known)), 6),
    )


def _rows(
    name: str, profile: str, dtype: str, trials: Sequence[Record], word: Word
) -> list[CoverageRow]:
    """By site and stratum, by fault model, and pooled over the headline."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for trial in trials:
        groups[trial["site"], trial["bits"]].append(trial)
        if trial["bits"] not in STRATA:
            groups[ALL, trial["bits"]].append(trial)
        else:
            groups[trial["site"], ALL].append(trial)
    for trial in headline(trials):
        groups[ALL, ALL].append(trial)
        groups[ALL, f"{ALL} {trial['phase']}"].append(trial)
    made = [
        _row((name, profile, dtype, site, bits), group, word)
        for (site, bits), group in sorted(groups.items())
    ]
    return [row for row in made if row is not None]


def _weighed(dtype: str, trials: Sequence[Record], word: Word) -> Weighed | None:
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for trial in trials:
        groups[trial["site"], trial["bits"]].append(trial)
    strata = []
    for (site, bits), group in groups.items():
        said = [word(trial) for trial in group if _is_harmful(trial)]
        known = [one for one in said if one is not None]
        share = share_of(SITES[site].word or DTYPES[dtype], bits)
        strata.append(
            Stratum(share, len(group), len(said), len(known), sum(one[1] for one in known))
        )
    return weigh(strata)


def _uniform_row(
    name: str, profile: str, dtype: str, trials: Sequence[Record], word: Word, weighed: Weighed
) -> CoverageRow:
    pooled = _row((name, profile, dtype, ALL, UNIFORM), headline(trials), word)
    if pooled is None:
        raise ValueError(f"summary: {name} was weighed without a trial, expected at least one")
    return pooled.model_copy(update={"low95": round(weighed.low95, 6)})


def _stored(records: Mapping[str, Record], kind: str) -> dict[str, dict[str, Any]]:
    """Counts by dtype and group of page flips or state faults."""
    total: dict[str, dict[str, Any]] = {}
    for key, record in sorted(records.items()):
        if not key.startswith(f"{kind}/"):
            continue
        dtype = key.split("/")[1]
        for group, counts in record.items():
            sums = total.setdefault(
                f"{dtype}/{group}", {"trials": 0, "caught": 0, "named": 0, "misses": []}
            )
            for name in ("trials", "caught", "named"):
                sums[name] += counts[name]
            sums["misses"] = [*sums["misses"], *counts["misses"]][:8]
    return total


def _stored_rows(groups: Mapping[str, Mapping[str, Any]], prefix: str) -> list[CoverageRow]:
    """Every change of what is stored counts as harmful."""
    made = []
    for name, counts in groups.items():
        dtype, group = name.split("/")
        made.append(
            CoverageRow(
                name=TOCSIN,
                profile="full",
                dtype=dtype,
                site=prefix + group,
                bits=UNIFORM if prefix == "page_" else "state",
                trials=counts["trials"],
                harmful=counts["trials"],
                caught=counts["caught"],
                caught_before_release=counts["caught"],
                low95=round(wilson_low(counts["caught"], counts["trials"]), 6),
            )
        )
    return made


def _alarms(records: Mapping[str, Record]) -> dict[str, dict[str, Any]]:
    """Clean runs by dtype, path and rows."""
    total: dict[str, dict[str, Any]] = {}
    for key, record in sorted(records.items()):
        if key.startswith("alarms/"):
            sums = total.setdefault(
                key.removeprefix("alarms/").rpartition("/")[0],
                {"evaluations": 0, "calls": 0, "alarms": 0, "tokens": 0, "messages": []},
            )
            for name in ("evaluations", "calls", "alarms", "tokens"):
                sums[name] += record[name]
            sums["messages"] = [*sums["messages"], *record["messages"]][:8]
    return total


def _repaired(records: Mapping[str, Record]) -> dict[str, Any]:
    """Counts of all episodes, and what a repair takes: quantiles in seconds."""
    found = [record for key, record in sorted(records.items()) if key.startswith("repair/")]
    numbers = ("faults", "trials", "identical", "transient", "missed")
    total: dict[str, Any] = {name: sum(one[name] for one in found) for name in numbers}
    for name in ("extra_runs", "settle_s", "step_s"):
        values = sorted(value for one in found for value in one[name])
        total[name] = {
            "median": values[len(values) // 2] if values else None,
            "p99": values[min(len(values) - 1, len(values) * 99 // 100)] if values else None,
            "max": values[-1] if values else None,
        }
    return total
