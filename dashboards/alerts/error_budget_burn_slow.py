"""P1: requests fail steadily enough that the error budget of a month will not last."""

from tocsin.core.terms import Priority
from tocsin.dashboards.contract import Alert, Case
from tocsin.dashboards.recordings import burning

ERROR_BUDGET_BURN_SLOW = Alert(
    id="error_budget_burn_slow",
    priority=Priority.P1,
    expr=f"{burning(3, '1d', '2h')}\nor {burning(1, '3d', '6h')}",
    summary="{{ $labels.model }}: at this rate of failed requests the month's error budget "
    "(99.9 %) will not last",
    summary_zh="{{ $labels.model }}:按当前失败率,本月 99.9 % 目标的错误预算将被耗尽",
    fires=Case(  # 4 of 1,000
        {
            'tocsin_requests_total{model="m",outcome="ok"}': "0+4980x40",
            'tocsin_requests_total{model="m",outcome="failed"}': "0+20x40",
        },
        at="3h",
        labels={"model": "m"},
        interval="5m",
    ),
    silent=Case(  # 0.8 of 1,000
        {
            'tocsin_requests_total{model="m",outcome="ok"}': "0+4996x40",
            'tocsin_requests_total{model="m",outcome="failed"}': "0+4x40",
        },
        at="3h",
        interval="5m",
    ),
)
