"""What a channel is to the relay: it sends one letter and says whether it arrived."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

from tocsin.dashboards.relay.letter import Letter

_TRY_LATER = frozenset({408, 425, 429})
_PORT_MAX = 65535
_WHY_CHARS_MAX = 300


@dataclass(frozen=True, slots=True)
class Refusal:
    """A letter did not arrive.

    Attributes:
        why: for the dead letter and for people; holds no secret.
        retry: whether another try can succeed.
        after_s: how long the receiver asked to be left alone, None if it did not say.
    """

    why: str
    retry: bool
    after_s: float | None = None


class Channel(Protocol):
    """One receiver."""

    kind: str
    """One of `core.metrics.RECEIVERS`."""

    def check(self) -> None:
        """Read the secrets once.

        Raises:
            SpecError: one is missing or not private.
        """
        ...

    async def send(self, letter: Letter, http: httpx.AsyncClient) -> Refusal | None:
        """Send one letter; None once the receiver has said that it took it."""
        ...


async def post(
    http: httpx.AsyncClient,
    url: str,
    body: Any,
    timeout_s: float,
    headers: Mapping[str, str] | None = None,
) -> httpx.Response | Refusal:
    """POST JSON; whatever is not a 2xx is a refusal. The URL, often a secret, is never repeated."""
    try:
        if (httpx.URL(url).port or 0) > _PORT_MAX:  # httpx would try, and fail in its own words
            return Refusal("the URL is not one", retry=False)
        response = await http.post(url, json=body, headers=headers, timeout=timeout_s)
    except httpx.InvalidURL:
        return Refusal("the URL is not one", retry=False)
    except httpx.UnsupportedProtocol:
        return Refusal("the URL does not begin with http:// or https://", retry=False)
    except httpx.HTTPError as error:
        return Refusal(type(error).__name__, retry=True)
    if response.is_success:
        return response
    why = f"HTTP {response.status_code}: {response.text[:_WHY_CHARS_MAX]}"
    retry = response.status_code >= 500 or response.status_code in _TRY_LATER
    return Refusal(why, retry=retry, after_s=_retry_after_s(response))


def refused_in_body(
    response: httpx.Response, code_key: str, text_key: str, later: frozenset[int]
) -> Refusal | None:
    """What a robot says with HTTP 200: a code that is not 0 is a refusal, and so is no code.

    Args:
        later: codes that pass by themselves (too fast, busy).
    """
    try:
        answer = response.json()
    except ValueError:
        answer = None
    code = answer.get(code_key) if isinstance(answer, dict) else None
    if not isinstance(code, int) or isinstance(code, bool):
        why = f"the answer has no {code_key}: {response.text[:_WHY_CHARS_MAX]!r}"
        return Refusal(why, retry=True)
    if code == 0:
        return None
    why = f"{code_key} {code}: {str(answer.get(text_key, ''))[:_WHY_CHARS_MAX]}"
    return Refusal(why, retry=code in later, after_s=60.0 if code in later and code > 0 else None)


def _retry_after_s(response: httpx.Response) -> float | None:
    """Seconds of a Retry-After header; a date is not worth parsing: the backoff is near enough."""
    text = response.headers.get("retry-after", "")
    return min(float(text), 600.0) if text.isdigit() else None
