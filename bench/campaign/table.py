"""The tables of a campaign: coverage beside overhead of the same profile, ablation, the rest."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tocsin.bench.campaign.schema import CoverageRow
from tocsin.bench.campaign.statistics import wilson_high, zero_high
from tocsin.bench.campaign.summary import ALL, TOCSIN, UNIFORM, Summary

_BATCH_MIN = 8
"""Overhead is quoted for eager decode at the largest batch from here on."""


def show(summary: Summary, console: Console, overhead: Path | None = None) -> None:
    """Print everything.

    Args:
        overhead: `overhead.json` of the same build; where there is none the column stays empty.
    """
    costs = costs_of(overhead) if overhead is not None and overhead.is_file() else {}
    console.print(_headline(summary, costs))
    console.print(_sites(summary))
    console.print(_ablation(summary))
    console.print(_stored(summary))
    _lines(summary, console)


def costs_of(path: Path) -> dict[tuple[str, str, str], float]:
    """(name, profile, dtype) → median ratio of a checked to an unchecked eager decode step."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    found: dict[tuple[str, str, str], tuple[int, float]] = {}
    for row in rows:
        if row["mode"] == "eager" and row["phase"] == "decode" and row["batch"] >= _BATCH_MIN:
            key = (row["name"], row["profile"], row["dtype"])
            found[key] = max(found.get(key, (0, 0.0)), (row["batch"], row["ratio_median"]))
    return {key: ratio for key, (_, ratio) in found.items()}


def _headline(summary: Summary, costs: Mapping[tuple[str, str, str], float]) -> Table:
    table = Table(
        title="harmful single-bit faults caught before the first wrong token leaves",
        caption="% · ≥: lower bound, 95 % · uniform: every bit as likely, with so many effective "
        "cases · overhead: eager decode; –: not measured",
        box=SIMPLE_HEAD,
        collapse_padding=True,
    )
    for name in ("detector", "profile", "dtype"):
        table.add_column(name, no_wrap=True)
    for name in ("trials", "harmful", "caught", "%", "≥", "uniform", "≥", "cases", "late"):
        table.add_column(name, justify="right")
    table.add_column("overhead", justify="right")
    for row in summary.coverage.rows:
        if (row.site, row.bits) != (ALL, ALL):
            continue
        key = (row.name, row.profile, row.dtype)
        weighed = summary.weighed.get(key)
        table.add_row(
            *key,
            str(row.trials),
            str(row.harmful),
            str(row.caught_before_release),
            f"{100 * row.caught_before_release / row.harmful:.1f}" if row.harmful else "–",
            f"{100 * row.low95:.1f}",
            f"{100 * weighed.coverage:.1f}" if weighed else "–",
            f"{100 * weighed.low95:.1f}" if weighed else "–",
            f"{weighed.effective:.0f}" if weighed else "–",
            str(row.caught - row.caught_before_release),
            f"{100 * (costs[key] - 1):+.1f} %" if key in costs else "–",
        )
    return table


def _sites(summary: Summary) -> Table:
    """Ours at `full` by site, single bits and the further models."""
    table = Table(title="tocsin full by site: caught/harmful trials", box=SIMPLE_HEAD)
    rows = [
        row
        for row in summary.coverage.rows
        if row.name == TOCSIN and row.profile == "full" and row.bits not in (UNIFORM, "state")
    ]
    columns = sorted({(row.dtype, row.bits) for row in rows if row.site == ALL or row.bits == ALL})
    columns = [one for one in columns if one[1] != f"{ALL} decode" and one[1] != f"{ALL} prefill"]
    table.add_column("site", no_wrap=True)
    for dtype, bits in columns:
        table.add_column(f"{dtype} {bits}", justify="right", no_wrap=True)
    by_key: dict[tuple[str, str, str], CoverageRow] = {
        (row.site, row.dtype, row.bits): row for row in rows
    }
    for site in sorted({row.site for row in rows}, key=lambda name: (name == ALL, name)):
        cells = []
        for dtype, bits in columns:
            row = by_key.get((site, dtype, bits))
            cells.append(f"{row.caught_before_release}/{row.harmful} {row.trials}" if row else "–")
        table.add_row(site, *cells)
    return table


def _ablation(summary: Summary) -> Table:
    table = Table(
        title="one check removed: coverage of full, and what it alone caught", box=SIMPLE_HEAD
    )
    table.add_column("check")
    dtypes = sorted(summary.ablation)
    for dtype in dtypes:
        table.add_column(f"{dtype} without", justify="right")
        table.add_column("alone", justify="right")
    for check in sorted({check for one in summary.ablation.values() for check in one}):
        cells = []
        for dtype in dtypes:
            share, alone = summary.ablation[dtype].get(check, (None, 0))
            cells += [f"{100 * share:.1f} %" if share is not None else "–", str(alone)]
        table.add_row(check, *cells)
    return table


def _stored(summary: Summary) -> Table:
    table = Table(
        title="stored state, shown to the engine's checks before a step reads it", box=SIMPLE_HEAD
    )
    for name in ("what", "trials", "caught", "named to page and request"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for kind in ("pages", "state"):
        for group, counts in summary.extra[kind].items():
            table.add_row(
                f"{kind} {group}",
                str(counts["trials"]),
                percent(counts["caught"], counts["trials"]),
                percent(counts["named"], counts["trials"]),
            )
    return table


def _lines(summary: Summary, console: Console) -> None:
    alarms = summary.coverage.false_alarms
    bound = (
        zero_high(alarms.evaluations)
        if not alarms.alarms
        else wilson_high(alarms.alarms, alarms.evaluations)
    )
    console.print(
        f"false alarms: {alarms.alarms} in {alarms.evaluations:,} evaluations over "
        f"{len(summary.extra['alarms'])} configurations (rate below {bound:.1e}, 95 %)"
    )
    repaired: Mapping[str, Any] = summary.extra["repair"]
    console.print(
        f"repaired: {repaired['identical']} of {repaired['trials']} bit-identical to golden "
        f"({repaired['faults']} transient faults, {repaired['transient']} named so, "
        f"{repaired['missed']} changed a logit unseen); "
        f"extra runs at most {repaired['extra_runs']['max']}; settling took "
        f"{_ms(repaired['settle_s']['median'])} (p99 {_ms(repaired['settle_s']['p99'])}), "
        f"a step without a fault {_ms(repaired['step_s']['median'])}"
    )
    for dtype, counts in sorted(summary.outcomes.items()):
        shown = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        console.print(f"outcomes {dtype}: {shown}")
    for name, why in sorted(summary.absent.items()):
        console.print(f"not run: {name}: {why}")
    for trial in summary.misses[:12]:
        console.print(
            f"missed: {trial['dtype']} {trial['phase']} {trial['site']} {trial['bits']} "
            f"({trial['outcome']}, first wrong token after {trial['wrong']} steps) {trial['key']}",
            highlight=False,
        )


def percent(part: int, whole: int) -> str:
    """A share with its count, or a dash."""
    return f"{100 * part / whole:.1f} % ({part})" if whole else "–"


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{1000 * seconds:.0f} ms"
