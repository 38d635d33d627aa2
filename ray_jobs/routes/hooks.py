"""`/degrade`: a person or Alertmanager has every replica serve an operator from its fallback."""

import json
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ray import serve

from tocsin.checker.breaker import CHAIN
from tocsin.core.degrade import DEGRADE_TTL_S, DegradeOrder
from tocsin.core.terms import Operator
from tocsin.ray_jobs.bodies import error_body, validation_message
from tocsin.ray_jobs.routes.bearer import unauthorised

router = APIRouter()


class _Alert(BaseModel):
    """What `/degrade` reads of an alert; the format is Alertmanager's and may grow."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    status: str
    labels: dict[str, str]
    annotations: dict[str, str] = Field(default_factory=dict)


class _Notification(BaseModel):
    """Alertmanager's webhook, version 4."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    version: str = Field(pattern="^4$")
    alerts: tuple[_Alert, ...] = Field(min_length=1)


@router.post("/degrade")
async def degrade(request: Request) -> Response:
    """Put an order in force on every replica, or what the alerts of a notification ask for.

    The body is a DegradeOrder (`ttl_s` 0 takes it back) or an Alertmanager webhook body: each
    firing alert that names an operator is an order for ten minutes, renewed by each repetition.
    """
    gateway: Any = serve.get_replica_context().servable_object
    if (refusal := unauthorised(request, gateway.token)) is not None:
        return refusal
    try:
        orders, ignored = orders_of(await request.body())
    except ValueError as error:
        return JSONResponse(error_body(str(error), "invalid_request_error"), status_code=400)
    actor = "auto" if ignored is not None else "api"
    return JSONResponse(
        {
            "accepted": [order.model_dump(mode="json") for order in orders],
            "ignored": ignored or [],
            "revision": await gateway.board.degrade_all.remote(
                [order.model_dump(mode="json") for order in orders], actor
            ),
        }
    )


@router.delete("/degrade")
async def take_back(request: Request, operator: str = "", reason: str = "") -> Response:
    """Take back all orders, or those of an operator, of a reason, or of both."""
    gateway: Any = serve.get_replica_context().servable_object
    if (refusal := unauthorised(request, gateway.token)) is not None:
        return refusal
    if operator and operator not in tuple(Operator):
        known = ", ".join(Operator)
        message = f"operator: found {operator!r}, expected one of {known}"
        return JSONResponse(error_body(message, "invalid_request_error"), status_code=400)
    known_orders = (await gateway.board.degradations.remote())["orders"]
    orders = [
        {**one["order"], "ttl_s": 0.0}
        for one in known_orders
        if operator in ("", one["order"]["operator"]) and reason in ("", one["order"]["reason"])
    ]
    revision = await gateway.board.degrade_all.remote(orders, "api")
    return JSONResponse({"taken_back": orders, "revision": revision})


@router.get("/degrade")
async def degradations() -> Response:
    """Orders in force with the seconds left, and the last orders given and taken back."""
    gateway: Any = serve.get_replica_context().servable_object
    return JSONResponse(await gateway.board.degradations.remote())


def orders_of(body: bytes) -> tuple[list[DegradeOrder], list[str] | None]:
    """Orders of a body; why alerts were left aside, None for a body that is no notification.

    Raises:
        ValueError: it is neither an order nor a notification; one line.
    """
    try:
        data = json.loads(body)
    except ValueError as error:
        raise ValueError(f"body: not JSON ({error}), expected a degrade order") from error
    if not isinstance(data, dict):
        raise ValueError(f"body: found {type(data).__name__}, expected a degrade order")  # noqa: TRY004 - a body, not an argument
    try:
        if "alerts" in data:
            return _of_alerts(_Notification.model_validate(data))
        order = DegradeOrder.model_validate(data)
    except ValidationError as error:
        raise ValueError(validation_message(error.errors())) from error
    if order.backend is not None and order.backend not in CHAIN:
        known = ", ".join(CHAIN)
        raise ValueError(f"backend: found {order.backend!r}, expected one of {known}, or none")
    return [order], None


def _of_alerts(notification: _Notification) -> tuple[list[DegradeOrder], list[str]]:
    orders: dict[str, DegradeOrder] = {}
    ignored = []
    for alert in notification.alerts:
        name, operator = alert.labels.get("alertname", ""), alert.labels.get("operator", "")
        if alert.status != "firing":
            ignored.append(f"{name}: {alert.status}; an order ends when its time is over")
        elif operator not in tuple(Operator):
            ignored.append(f"{name}: operator is {operator!r}, expected one that Tocsin knows")
        else:
            orders[operator] = DegradeOrder(
                operator=Operator(operator),
                reason=f"alert:{name}"[:500],
                ttl_s=DEGRADE_TTL_S,
                failure_id=alert.annotations.get("failure_id", "")[:64] or None,
            )
    return list(orders.values()), ignored
