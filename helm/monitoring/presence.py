"""Whether a pod can be read, where pods may rightly have nothing to say.

Outside of a cluster whoever is scraped serves, and `up == 0` is an outage. Here a worker without
a replica has no hub (it would keep the autoscaler from taking the pod), a chaos driver answers
only while it strikes, and every pod is silent while its image is pulled. So head and relay must
answer once they have, and a worker must when the last that was heard of it is that a replica lived
there: a hub that leaves an idle pod has said for minutes that none does. Somebody always answers.
"""

from tocsin.core.metrics import REPLICA_UP
from tocsin.dashboards.contract import Alert

ID = "no_reports"
"""The declared alert that asks this."""
_UP = 'up{job="tocsin"}'
_HEARD = "1d"
_WITHIN = "3h:1m"


def pods_unread(unit: Alert) -> str:
    """The expression of the declared alert for pods."""
    if unit.id != ID:
        raise ValueError(f"presence: the alert is {unit.id}, expected {ID}")
    serves = 'up{job="tocsin", component=~"head|relay"}'
    return (
        f"(min by (instance, chaos) ({serves}) == 0\n"
        f"  and on (instance) max by (instance) (max_over_time({_UP}[{_HEARD}])) == 1)\n"
        f"or (min by (instance, chaos) ({_UP}) == 0\n"
        f"  and on (instance) max by (instance) ({_last(f'{REPLICA_UP.name} == 1')})\n"
        f"    >= on (instance) max by (instance) ({_last(f'{_UP} == 1')}))\n"
        f"or on () absent({_UP} == 1)"
    )


def _last(condition: str) -> str:
    """When a condition was last true, to the minute."""
    return f"max_over_time(timestamp({condition})[{_WITHIN}])"
