"""Pushing everything to a Grafana, in an order in which nothing refers to what is missing."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from tocsin.core.errors import EnvironmentFault
from tocsin.dashboards.grafana.alerting import contact_point, rules
from tocsin.dashboards.grafana.client import GrafanaServer, Written
from tocsin.dashboards.grafana.files import (
    FOLDER_TITLE,
    FOLDER_UID,
    SOURCE_UID,
    Addresses,
    committed,
    datasource,
)


@dataclass(frozen=True, slots=True)
class Step:
    """One object that was written, or found to be as it should."""

    name: str
    written: Written


def push(
    server: GrafanaServer, addresses: Addresses, *, alerts: bool = False, webhook: str = ""
) -> Iterator[Step]:
    """Write folder, data source and dashboards, and on request the alerts; yields each when done.

    Args:
        alerts: also make Grafana evaluate our alert rules, for installations without Alertmanager.
        webhook: whom Grafana tells then; empty: its own default.

    Raises:
        EnvironmentFault: a write failed; the message says what is written and what is not.
            Pushing again goes on from there.
    """
    server.health()
    plan = list(_plan(server, addresses, alerts, webhook))
    for done, (name, write) in enumerate(plan):
        try:
            written = write()
        except EnvironmentFault as error:
            left = ", ".join(name for name, _ in plan[done:])
            raise EnvironmentFault(
                f"{error} [{done} of {len(plan)} objects stand, not written: {left}; push again, "
                "what stands is left alone]"
            ) from error
        yield Step(name, written)


def _plan(
    server: GrafanaServer, addresses: Addresses, alerts: bool, webhook: str
) -> Iterable[tuple[str, Callable[[], Written]]]:
    yield f"folder {FOLDER_UID}", partial(server.put_folder, FOLDER_UID, FOLDER_TITLE)
    source = datasource(addresses)
    yield f"data source {SOURCE_UID}", partial(server.put_datasource, source)
    for model in committed(addresses.docs):
        yield f"dashboard {model['uid']}", partial(server.put_dashboard, model, FOLDER_UID)
    if not alerts:
        return
    if webhook:
        point = contact_point(webhook)
        yield f"contact point {point['uid']}", partial(server.put_contact_point, point)
    for rule in rules(addresses):
        yield f"alert rule {rule['uid']}", partial(server.put_alert_rule, rule)
