"""P0: requests fail so fast that the error budget of a month will be gone in days."""

from tocsin.core.terms import Priority
from tocsin.dashboards.contract import Alert, Case
from tocsin.dashboards.recordings import burning

ERROR_BUDGET_BURN_FAST = Alert(
    id="error_budget_burn_fast",
    priority=Priority.P0,
    expr=f"{burning(14.4, '1h', '5m')}\nor {burning(6, '6h', '30m')}",
    summary="{{ $labels.model }}: requests fail more than 6 times faster than the 99.9 % objective "
    "allows, over hours and still now",
    summary_zh="{{ $labels.model }}:请求失败速度超过 99.9 % 目标允许值的 6 倍以上,"
    "持续数小时且仍在发生",
    fires=Case(  # 2 of 100 fail: 20 times too fast
        {
            'tocsin_requests_total{model="m",outcome="ok"}': "0+98x70",
            'tocsin_requests_total{model="m",outcome="refused"}': "0+2x70",
        },
        at="65m",
        labels={"model": "m"},
        interval="1m",
    ),
    silent=Case(  # 5 of 1,000: too fast, but a ticket's business; bad requests do not count
        {
            'tocsin_requests_total{model="m",outcome="ok"}': "0+995x70",
            'tocsin_requests_total{model="m",outcome="failed"}': "0+5x70",
            'tocsin_requests_total{model="m",outcome="rejected"}': "0+500x70",
        },
        at="65m",
        interval="1m",
    ),
)
