"""Whether a service is what it says: healthy, checked as declared, and able to answer."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from tocsin.core.clock import Clock
from tocsin.core.terms import Profile

_PAUSE_S = 1.0
_PROMPT = "Ring the bell"
_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Observation:
    """One thing that was looked at.

    Attributes:
        what: health, profile, checks or completion.
        ok: whether it is as it must be.
        message: what was found; where it is wrong, also what was expected and what to do.
    """

    what: str
    ok: bool
    message: str

    def line(self) -> str:
        """As it is printed: `ok      health: …`."""
        return f"{'ok' if self.ok else 'FAILED':<6}  {self.what}: {self.message}"


def probe(
    client: httpx.Client,
    *,
    profile: Profile | None,
    completion: bool,
    within_s: float,
    clock: Clock,
) -> tuple[Observation, ...]:
    """Look until everything is well, or until the time is over.

    Args:
        client: with the service's address as its base.
        profile: what must be checked; None: whatever the service says.
        completion: whether a real answer is asked for too.
        within_s: a service that has just been installed is still loading its model.

    Returns:
        What was seen at the last look.
    """
    until_ns = clock.now_ns() + int(within_s * 1e9)
    while True:
        seen = tuple(_look(client, profile, completion))
        if all(one.ok for one in seen) or clock.now_ns() >= until_ns:
            return seen
        clock.sleep(_PAUSE_S)


def _look(client: httpx.Client, profile: Profile | None, completion: bool) -> Iterator[Observation]:
    """Everything once; the completion comes first, because the checks are then known to run."""
    looks: list[tuple[str, Callable[[], Observation]]] = [
        ("health", lambda: _health(client)),
        ("status", lambda: _profile(client, profile)),
        ("checks", lambda: _checks(client)),
    ]
    if completion:
        looks.insert(1, ("completion", lambda: _completion(client)))
    for what, look in looks:
        try:
            yield look()
        except httpx.HTTPError as error:
            where = f"{client.base_url}"
            reason = f"{type(error).__name__}: {error}"
            yield Observation(what, False, f"{where} does not answer ({reason}); is it running?")


def _health(client: httpx.Client) -> Observation:
    answer = client.get("/health")
    body = _object(answer)
    ready, wanted = body.get("replicas"), body.get("replicas_expected")
    told = f"{ready} of {wanted} replicas, last token {body.get('last_token_age_s')} s ago"
    if answer.status_code == 200 and body.get("status") == "ok":
        return Observation("health", True, told)
    found = f"HTTP {answer.status_code}, status {body.get('status')!r}, {told}"
    return Observation("health", False, f"{found}; expected ok: look at the workers' logs")


def _profile(client: httpx.Client, expected: Profile | None) -> Observation:
    body = _object(client.get("/health/checker_status"))
    found, orders = body.get("profile"), body.get("orders")
    if found is None:
        where = f"{client.base_url}health/checker_status"
        return Observation(
            "profile", False, f"{where} tells no profile, expected one; is this a tocsin gateway?"
        )
    if expected is not None and found != str(expected):
        told = f"the service checks {found!r}, expected {str(expected)!r}"
        return Observation("profile", False, f"{told}; apply the values again")
    count = len(orders) if isinstance(orders, list | dict) else 0
    in_force = f", {count} switch order(s) in force" if count else ""
    return Observation("profile", True, f"{found}{in_force}")


def _checks(client: httpx.Client) -> Observation:
    """Checks that have never been evaluated say nothing; only the profile off may have none."""
    body = _object(client.get("/health/checker_status"))
    if body.get("profile") == Profile.OFF:
        return Observation("checks", True, "off, as the profile says")
    made = {operator: _evaluations(layers) for operator, layers in _mapping(body, "table").items()}
    busy = sum(count > 0 for count in made.values())
    told = f"{sum(made.values())} evaluations at {busy} of {len(made)} operators"
    if busy:
        return Observation("checks", True, told)
    return Observation("checks", False, f"{told}, expected some; send a request, then ask again")


def _evaluations(layers: Any) -> int:
    cells = layers.values() if isinstance(layers, dict) else ()
    return sum(_count(cell, "evaluations") for cell in cells if isinstance(cell, dict))


def _completion(client: httpx.Client) -> Observation:
    asked = {
        "model": str(_first(_object(client.get("/v1/models")), "data").get("id", "")),
        "messages": [{"role": "user", "content": _PROMPT}],
        "max_tokens": _TOKENS,
        "temperature": 0,
    }
    answer = client.post("/v1/chat/completions", json=asked)
    body = _object(answer)
    choice = _first(body, "choices")
    tokens = _count(_mapping(body, "usage"), "completion_tokens")
    if answer.status_code == 200 and tokens and choice.get("finish_reason"):
        degraded = _mapping(body, "tocsin").get("degraded")
        words = degraded if isinstance(degraded, list) else []
        note = f", degraded: {', '.join(map(str, words))}" if words else ""
        return Observation("completion", True, f"{tokens} tokens from {asked['model']}{note}")
    why = _mapping(body, "error").get("message") or "no tokens"
    return Observation(
        "completion", False, f"HTTP {answer.status_code}: {why}; expected {_TOKENS} tokens at most"
    )


def _object(answer: httpx.Response) -> dict[str, Any]:
    """The JSON object of a body; an empty one for anything else."""
    try:
        body = answer.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _mapping(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The object at a key; an empty one where something else stands: it is somebody's answer."""
    found = document.get(key)
    return found if isinstance(found, dict) else {}


def _first(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The first of the objects at a key, likewise."""
    found = document.get(key)
    one = found[0] if isinstance(found, list) and found else None
    return one if isinstance(one, dict) else {}


def _count(document: Mapping[str, Any], key: str) -> int:
    found = document.get(key)
    return found if isinstance(found, int) else 0
