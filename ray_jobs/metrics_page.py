"""The page of metrics: every series that Tocsin exports, as Markdown (`docs/metrics.md`)."""

from tocsin.core.markdown import cell, code
from tocsin.core.metrics import CATALOGUE, Metric, MetricType
from tocsin.ray_jobs.places import LINGER_S, METRICS_PORT

HEAD = f"""# Metrics

Every series that Tocsin exports. This page is written by `make docs` from the catalogue in
`tocsin/core/metrics.py`; edit that, not this page.

Each node has a *hub*, which serves what all processes of the node have counted at
`http://127.0.0.1:{METRICS_PORT}/metrics` (OpenMetrics with exemplars for who asks for it). The
gateway's `/metrics` is the sum over all hubs.

- **A killed process loses nothing.** Processes count in mapped files; the hub adds up the living
  and archives the dead, so that a counter never falls. If the hub dies, Ray starts it anew and it
  reads the same files.
- **Discovery**: one machine: `static_configs` with the address above; several: HTTP service
  discovery at `/sd` of any hub, or the file `metrics/targets.json` of the node folder.
- **Windows are exact.** `tocsin_operator_failures_window` is the worst minute of the last two, from
  the times of the failures themselves, so that a rule `> 10` is right at any scrape interval up to
  a minute. Each process keeps the last 1,024 failures of an operator: above that it is "at least".
  Windows of several nodes are as exact as their clocks agree.
- **Failures of one replica** in a minute beyond ten degrade it in the same step; of all replicas
  together, within about a tenth of a second.

| variable | default | meaning |
|---|---|---|
| `TOCSIN_METRICS_PORT` | {METRICS_PORT} | port of the hub; 0, or one that is taken: any free one |
| `TOCSIN_METRICS_HOST` | 127.0.0.1 | address that it listens on; `node`: the node's own |
| `TOCSIN_HUB_LINGER_S` | {LINGER_S:g} | when a worker node without replicas loses its hub |
| `TOCSIN_STATE` | a folder of the user below the temporary one | the node folder |
| `TOCSIN_DRILL` | | 1: targets carry `chaos="true"`, and with them every alert |
"""


def metrics_page() -> str:
    """The page as text."""
    rows = [
        f"| `{metric.name}` | {metric.type} | {_labels(metric)} | {cell(metric.help)} |"
        for metric in CATALOGUE
    ]
    table = ["| metric | type | labels | meaning |", "|---|---|---|---|", *rows]
    edges = [
        f"| `{metric.name}` | {', '.join(f'{edge:g}' for edge in metric.buckets)} |"
        for metric in CATALOGUE
        if metric.type is MetricType.HISTOGRAM
    ]
    buckets = ["## Buckets", "", "| histogram | upper edges |", "|---|---|", *edges]
    return "\n".join([HEAD, "## Series", "", *table, "", *buckets, ""])


def _labels(metric: Metric) -> str:
    """Labels, with the values of those that are known beforehand."""
    named = [
        f"`{label}` ({', '.join(metric.values[label])})"
        if label in metric.values
        else code([label])
        for label in metric.labels
    ]
    return cell(", ".join(named))
