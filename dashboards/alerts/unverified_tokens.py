"""P1: a token left with no verdict behind it."""

from tocsin.core.metrics import UNVERIFIED_TOKENS
from tocsin.core.terms import Priority
from tocsin.dashboards.contract import Alert, Case
from tocsin.dashboards.promql import arrived

UNVERIFIED_TOKENS_LEFT = Alert(
    id="unverified_tokens",
    priority=Priority.P1,
    expr=arrived(UNVERIFIED_TOKENS, "5m", ("model",)),
    summary='{{ printf "%.0f" $value }} token(s) of {{ $labels.model }} left with no verdict '
    "behind them: checks are off on some replica",
    summary_zh='{{ $labels.model }} 有 {{ printf "%.0f" $value }} 个 token 未经任何检查就已输出:'
    "某个副本的检查已关闭",
    fires=Case(
        {'tocsin_unverified_tokens_total{model="m"}': "0x30 7x10"},
        at="10m",
        labels={"model": "m"},
        value=7,
    ),
    silent=Case({'tocsin_unverified_tokens_total{model="m"}': "0x10 7x60"}, at="10m"),
)
