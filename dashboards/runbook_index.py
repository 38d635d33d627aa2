"""The index of the runbooks (`docs/runbooks/README.md`): every alert, gravest first."""

from tocsin.core.markdown import cell
from tocsin.dashboards.contract import Alert, alerts

HEAD = """# Runbooks

One page an alert: what it means, what it does to users, how to find out more, what to do, and how
to make it happen again. This index is written by `make docs` from `dashboards/alerts/`; the pages
are written by hand, and a test demands them. P0 pages, P1 is a ticket, P2 goes to the archive and
the weekly digest.

- `tocsin alerts render --out DIR` writes rules, routes and their tests for a place; `--help` lists
  addresses, channels and where secrets lie.
- `tocsin alerts check DIR --grid` has promtool and amtool judge them.
- The digest comes by cron, every Monday at nine in Shanghai:

```
CRON_TZ=Asia/Shanghai
0 9 * * 1  tocsin digest --since 7d --out /var/lib/tocsin/digest
```

| alert | priority | after | what it says |
|---|---|---|---|
"""


def runbook_index() -> str:
    """The page as text."""
    order = ("P0", "P1", "P2", "none")
    units = sorted(alerts().values(), key=lambda unit: order.index(unit.labels["priority"]))
    return HEAD + "".join(f"{_row(unit)}\n" for unit in units)


def _row(unit: Alert) -> str:
    hold = "at once" if unit.hold == "0s" else unit.hold
    said = unit.summary.replace("{{ $labels.", "*").replace(" }}", "*")
    said = said.replace('{{ printf "%.0f" $value*', "*n*").replace(
        '{{ printf "%.2f" $value*', "*n*"
    )
    return f"| [{unit.name}]({unit.id}.md) | {unit.labels['priority']} | {hold} | {cell(said)} |"
