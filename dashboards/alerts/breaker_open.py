"""P1: an operator has been served by its fallback for ten minutes."""

from tocsin.core.metrics import BREAKER_STATE
from tocsin.core.terms import Priority
from tocsin.dashboards.contract import Alert, Case
from tocsin.dashboards.promql import by, select

# Half-open is the breaker's short look whether the backend works again: it is not a recovery.
BREAKER_OPEN = Alert(
    id="breaker_open",
    priority=Priority.P1,
    expr=f"max {by('model', 'operator', 'backend')} "
    f"({select(BREAKER_STATE, {'state': '~open|half_open'})}) == 1",
    hold="10m",
    summary="{{ $labels.operator }} of {{ $labels.model }} has been served without its backend "
    "{{ $labels.backend }} for 10 minutes",
    summary_zh="{{ $labels.model }} 的算子 {{ $labels.operator }} 的后端 {{ $labels.backend }} "
    "已熔断 10 分钟,正由后备实现服务",
    fires=Case(  # it opens, tries, and opens again: out of service all the same
        {
            'tocsin_breaker_state{model="m",operator="attention",backend="flash",state="open",'
            'replica="r"}': "0x3 1x20 0x1 1x40",
            'tocsin_breaker_state{model="m",operator="attention",backend="flash",'
            'state="half_open",replica="r"}': "0x23 0 1x1 0x40",
        },
        at="12m",
        labels={"model": "m", "operator": "attention", "backend": "flash"},
    ),
    silent=Case(
        {
            'tocsin_breaker_state{model="m",operator="attention",backend="flash",state="open",'
            'replica="r"}': "1x60"
        },
        at="9m",
    ),
)
