"""P1: tokens are served, and the checks of a layer do not run: the forgotten back-door switch."""

from tocsin.core.metrics import CHECKS, TOKENS
from tocsin.core.terms import Priority
from tocsin.dashboards.contract import Alert, Case
from tocsin.dashboards.promql import DRILL, by, select

_SERVED = f"sum {by('model')} (increase({select(TOKENS)}[2m])) > 0"
_RAN = f"sum {by('model', 'layer')} (increase({select(CHECKS)}[2m]))"

# Series of the cases below.
_NUMERICAL = 'tocsin_checks_total{model="m",operator="rope",layer="numerical",result="ok"}'
_SEMANTIC = 'tocsin_checks_total{model="m",operator="sampler",layer="semantic",result="ok"}'

BLIND = Alert(
    id="blind",
    priority=Priority.P1,
    # Two minutes until the increase is gone and one of patience: told within four.
    expr=f"({_RAN} == 0 and on (model, {DRILL}) {_SERVED})\n"
    f"or ({_SERVED} unless on (model, {DRILL}) {_RAN} >= 0)",
    hold="1m",
    summary="{{ $labels.model }} serves tokens and no {{ $labels.layer }} check has run for "
    "minutes",
    summary_zh="{{ $labels.model }} 正在输出 token,但 {{ $labels.layer }} 检查已数分钟未运行",
    fires=Case(
        {
            'tocsin_tokens_generated_total{model="m"}': "0+50x40",
            _NUMERICAL: "0+9x8 72x32",
            _SEMANTIC: "0+9x40",
        },
        at="6m",  # the last check ran at 2m
        labels={"model": "m", "layer": "numerical"},
    ),
    silent=Case(  # nobody asks: nothing is served, nothing needs a check
        {
            'tocsin_tokens_generated_total{model="m"}': "0+50x8 400x32",
            _NUMERICAL: "0+9x8 72x32",
        },
        at="6m",
    ),
)
