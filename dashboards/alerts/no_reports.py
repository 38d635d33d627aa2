"""P1: a node's metrics cannot be read, or nobody reports: every other alert is blind there."""

from tocsin.core.terms import Priority
from tocsin.dashboards.contract import Alert, Case

# `up` is Prometheus' own. Without this alert a fleet whose hubs are all gone is a quiet fleet.
NO_REPORTS = Alert(
    id="no_reports",
    priority=Priority.P1,
    expr='min by (instance, chaos) (up{job="tocsin"}) == 0\nor absent(up{job="tocsin"})',
    hold="2m",
    summary="the metrics of {{ $labels.instance }} (no name: of every node) cannot be read; "
    "no other alert can fire for what is served there",
    summary_zh="无法读取 {{ $labels.instance }}(无名称则为所有节点)的指标,其它告警在该处均失效",
    fires=Case(
        {'up{job="tocsin",instance="10.0.0.7:9464"}': "1x4 0x20"},
        at="4m",
        labels={"instance": "10.0.0.7:9464"},
    ),
    silent=Case(
        {
            'up{job="tocsin",instance="10.0.0.7:9464"}': "1x4 0x7 1x20",
            'up{job="other",instance="10.0.0.9:80"}': "0x30",
        },
        at="4m",
    ),
)
