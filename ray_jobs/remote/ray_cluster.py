"""A Ray cluster seen through its dashboard: who answers, and whether Tocsin serves there."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from tocsin.core.errors import EnvironmentFault

TIMEOUT_S = 10.0
RAY_MIN = (2, 40)
"""As pyproject.toml says of this program; older ones lack what a run needs there."""

APPLICATION = "tocsin"

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_ANY = ("0.0.0.0", "::", "")


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One that answered.

    Attributes:
        address: `http://host:8265`.
        headers: that it wants with every request.
        ray: version of the cluster.
    """

    address: str
    ray: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Application:
    """A Tocsin that serves on the cluster.

    Attributes:
        url: as a process on the head node reaches it.
        deployed_s: when, since the epoch.
    """

    url: str
    deployed_s: float


def is_dashboard_address(address: str) -> bool:
    """Whether RAY_ADDRESS names a dashboard: what has a scheme of HTTP."""
    return address.startswith(("http://", "https://"))


def find_dashboard(address: str) -> Dashboard:
    """Ask who is there.

    Raises:
        EnvironmentFault: nobody, nobody of Ray's, an old one, or one that wants another token.
    """
    address = address.rstrip("/")
    headers: dict[str, str] = {}
    answer = _get(address, headers)
    if answer.status_code == httpx.codes.UNAUTHORIZED and (token := _token(address)):
        headers = {"Authorization": f"Bearer {token}"}
        answer = _get(address, headers)
    if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise EnvironmentFault(
            f"ray: {address} refuses the request (HTTP {answer.status_code}), expected a token "
            "that it knows; set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH (ray get-auth-token there)"
        )
    try:
        version = str(answer.json()["ray_version"])
    except (ValueError, KeyError, TypeError):
        raise EnvironmentFault(
            f"ray: {address} is not a Ray dashboard (HTTP {answer.status_code} at /api/version), "
            "expected one, by default at port 8265; correct RAY_ADDRESS, or give host:port of "
            "the cluster itself"
        ) from None
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if len(numbers) == len(RAY_MIN) and numbers < RAY_MIN:
        raise EnvironmentFault(
            f"ray: the cluster at {address} runs Ray {version}, expected at least "
            f"{'.'.join(map(str, RAY_MIN))}; upgrade it"
        )
    return Dashboard(address, version, headers)


def find_application(dashboard: Dashboard) -> Application | None:
    """The Tocsin application of a cluster; None: there is none that answers.

    Raises:
        EnvironmentFault: the dashboard does not say.
    """
    try:
        answer = httpx.get(
            f"{dashboard.address}/api/serve/applications/",
            headers=dict(dashboard.headers),
            timeout=TIMEOUT_S,
        )
        document: dict[str, Any] = answer.raise_for_status().json()
        found = (document.get("applications") or {}).get(APPLICATION)
    except (httpx.HTTPError, ValueError, AttributeError) as error:
        raise EnvironmentFault(
            f"ray: {dashboard.address} does not say what it serves ({error}), expected an answer "
            "at /api/serve/applications/; look at the dashboard, or try again"
        ) from error
    if not found or found.get("status") not in ("RUNNING", "UNHEALTHY"):
        return None
    options = document.get("http_options") or {}
    host = str(options.get("host", "127.0.0.1"))
    host = "127.0.0.1" if host in _ANY else host
    prefix = str(found.get("route_prefix") or "/").rstrip("/")
    url = f"http://{f'[{host}]' if ':' in host else host}:{options.get('port', 8000)}{prefix}"
    return Application(url, float(found.get("last_deployed_time_s") or 0.0))


def _get(address: str, headers: Mapping[str, str]) -> httpx.Response:
    try:
        return httpx.get(f"{address}/api/version", headers=dict(headers), timeout=TIMEOUT_S)
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise EnvironmentFault(
            f"ray: nobody answers at {address} within {TIMEOUT_S:.0f} s ({reason}), expected a "
            "Ray dashboard; start the cluster, forward its port (kubectl port-forward "
            "service/<release>-head-svc 8265), or correct RAY_ADDRESS"
        ) from error
    except httpx.InvalidURL as error:
        raise EnvironmentFault(
            f"ray: RAY_ADDRESS is {address!r} ({error}), expected http://host:8265; correct it"
        ) from error


def _token(address: str) -> str:
    """A token that may be shown to this address; the one of this machine only to itself."""
    if token := os.environ.get("RAY_AUTH_TOKEN", ""):
        return token.strip()
    chosen = os.environ.get("RAY_AUTH_TOKEN_PATH", "")
    meant = os.environ.get("RAY_AUTH_MODE", "").lower() == "token"
    if not chosen and not meant and urlsplit(address).hostname not in _LOOPBACK:
        return ""
    path = Path(chosen) if chosen else Path.home() / ".ray" / "auth_token"
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
