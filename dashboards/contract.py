"""How an alert is declared: its rule, its words in two languages, and the cases that prove it."""

import re
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from tocsin.core.discovery import discover
from tocsin.core.terms import Priority

SEVERITIES: Mapping[Priority | None, str] = types.MappingProxyType(
    {Priority.P0: "critical", Priority.P1: "warning", Priority.P2: "info", None: "none"}
)
"""The word that other people's routes go by, for each priority of ours."""

_LABEL = re.compile(r"\{\{ \$labels\.(\w+) \}\}")
_VALUE = re.compile(r'\{\{ printf "(%\.\df)" \$value \}\}')


@dataclass(frozen=True, slots=True)
class Case:
    """Series over time, and whether the alert stands at the end of it.

    Attributes:
        series: selector → values in promtool's notation, one an `interval`.
        at: when to look.
        labels: what the firing alert carries besides the labels of its rule.
        value: what `$value` is then, where the texts show it.
        interval: between two values.
    """

    series: Mapping[str, str]
    at: str
    labels: Mapping[str, str] = field(default_factory=dict)
    value: float = 0.0
    interval: str = "15s"


@dataclass(frozen=True, slots=True)
class Alert:
    """One declared alert.

    Attributes:
        id: name of its file, and of its runbook in docs/runbooks.
        priority: who is told; None tells nobody, it only proves that alerts flow or informs.
        expr: PromQL of the subset that 2.42 and 3.x read alike; aggregated `by (…, chaos)`.
        hold: how long the expression must be true before anybody is told.
        keep_firing: how long the alert stays after it has become false.
        summary, summary_zh: templates of `{{ $labels.… }}` and `{{ printf "%.0f" $value }}`.
        fires: a case in which it fires; silent: the nearest miss, in which it must not (None only
            for an alert that always fires).
        detector: what it speaks for where its labels do not say: they do by `check` or `detector`.
    """

    id: str
    priority: Priority | None
    expr: str
    summary: str
    summary_zh: str
    fires: Case
    silent: Case | None
    hold: str = "0s"
    keep_firing: str = ""
    detector: str = ""

    @property
    def name(self) -> str:
        """Its name in Prometheus: `operator_failing` is `TocsinOperatorFailing`."""
        return "Tocsin" + "".join(word.capitalize() for word in self.id.split("_"))

    @property
    def labels(self) -> dict[str, str]:
        """The labels that its rule adds."""
        return {
            "priority": "none" if self.priority is None else str(self.priority),
            "severity": SEVERITIES[self.priority],
        }

    @property
    def names_operator(self) -> bool:
        """Whether it says which operator is meant, so that there is something to reproduce."""
        return "operator" in self.fires.labels

    @property
    def reproduce(self) -> str:
        """The command that makes the newest failure behind it run again, as a template."""
        return "tocsin reproduce latest" + (
            ":{{ $labels.operator }}" if self.names_operator else ""
        )


@dataclass(frozen=True, slots=True)
class RecordingRule:
    """A query whose answer is kept as a series of its own."""

    record: str
    expr: str


def filled(template: str, labels: Mapping[str, str], value: float) -> str:
    """A template as Prometheus fills it in; a missing label becomes nothing, as there.

    Raises:
        ValueError: it uses more of the template language than labels and one number.
    """
    text = _LABEL.sub(lambda found: labels.get(found[1], ""), template)
    text = _VALUE.sub(lambda found: found[1] % value, text)
    if "{{" in text:
        raise ValueError(
            f"{template}: holds a template that is not {{{{ $labels.name }}}} or "
            f'{{{{ printf "%.0f" $value }}}}; use only these two, tests and pushes fill them in'
        )
    return text


@cache
def alerts() -> Mapping[str, Alert]:
    """Every declared alert by id."""
    return types.MappingProxyType(discover("tocsin.dashboards.alerts", Alert))
