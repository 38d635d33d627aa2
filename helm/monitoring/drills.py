"""Marks the alerts of an experiment's time as a drill's, when the experiment attacks what serves.

The mark is made by the rules and not by a label of the target: a target that is relabelled is a new
series, and to a rule about a counter's growth a new series is news. Arming would report failures of
last month, and disarming would page for the drill's own, hours later.
"""

import re

from tocsin.core.metrics import CHAOS_RUNNING
from tocsin.dashboards.contract import Alert
from tocsin.dashboards.promql import DRILL, MEMORY

_SHORTEST_S = 360
"""What needs no range is shown for up to five minutes after its cause; and a minute of patience."""
_MARGIN_S = 120
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_BACK = re.compile(r"(?:\[|offset )(\d+)([smhd])(?!:)")
_BURN = re.compile(r"ratio_rate(\d+)([smhd])")


def marked(unit: Alert) -> str:
    """The alert's expression with `chaos="true"` on what belongs to an experiment.

    What stood in earnest before it began stays in earnest. `ALERTS` is what the rule itself said at
    its last evaluation.
    """
    labels = ", ".join(unit.fires.labels)
    standing = f'ALERTS{{alertname="{unit.name}", {DRILL}=""}}'
    running = f"max (max_over_time({CHAOS_RUNNING.name}[{look_back(unit)}])) == 1"
    mark = f'label_replace({running}, "{DRILL}", "true", "", "") or on () vector(1)'
    return (
        f"(\n{unit.expr}\n) and on ({labels}) {standing}\n"
        f"or on ({labels})\n"
        f"(\n{unit.expr}\n) * on () group_left ({DRILL}) (\n  {mark}\n)"
    )


def look_back(unit: Alert) -> str:
    """How long after an experiment the expression can still be true because of it, in seconds.

    Of two windows that must both be exceeded the shorter one ends first.
    """
    burns = [int(number) * _UNITS_S[letter] for number, letter in _BURN.findall(unit.expr)]
    spans = [min(pair) for pair in zip(burns[::2], burns[1::2], strict=True)]
    spans += [
        int(number) * _UNITS_S[letter]
        for number, letter in _BACK.findall(unit.expr)
        if number + letter != MEMORY
    ]
    return f"{max([_SHORTEST_S, *(span + _MARGIN_S for span in spans)])}s"
