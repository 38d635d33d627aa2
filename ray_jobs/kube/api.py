"""A Kubernetes API server over HTTP: requests, and what can go wrong with them in one line each.

Five calls are needed, each with a handful of fields, so they are made with the HTTP client that is
there already; the official client would bring a generated module for every kind and five packages.
"""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tocsin.core.errors import ChaosForbidden, EnvironmentFault

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT_S = 5.0
_TEXT_MAX = 200


class KubeUnreachable(EnvironmentFault):
    """The API server gave no usable answer; asked again it may."""


class KubeConflict(EnvironmentFault):
    """Somebody else has changed the object since it was read."""


@dataclass(frozen=True, slots=True)
class Account:
    """Who a pod is to the API server.

    Attributes:
        url: of the server; folder: with `token`, `ca.crt` and `namespace`.
    """

    url: str
    folder: Path

    def read(self, name: str) -> str:
        """One file of the folder, read anew: the kubelet replaces a token before it runs out.

        Raises:
            EnvironmentFault: it is not there.
        """
        try:
            return (self.folder / name).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not text"
            raise EnvironmentFault(
                f"kubernetes: {self.folder / name} cannot be read ({reason}), expected the service "
                "account's file; set automountServiceAccountToken: true for this pod"
            ) from None


def account_of_environment(settings: Mapping[str, str] = os.environ) -> Account | None:
    """The account of this pod; None outside Kubernetes.

    `TOCSIN_KUBE_API` replaces the server's URL and `TOCSIN_KUBE_ACCOUNT` the folder.
    """
    folder = Path(settings.get("TOCSIN_KUBE_ACCOUNT") or ACCOUNT)
    chosen = settings.get("TOCSIN_KUBE_API", "")
    host = settings.get("KUBERNETES_SERVICE_HOST", "")
    if not chosen and not host:
        return None
    port = settings.get("KUBERNETES_SERVICE_PORT") or "443"
    host = f"[{host}]" if ":" in host else host
    return Account(chosen.rstrip("/") or f"https://{host}:{port}", folder)


class KubeApi:
    """Makes requests with the account's token of the moment; safe to use from several threads."""

    def __init__(self, account: Account, timeout_s: float = _TIMEOUT_S) -> None:
        """Nothing is asked yet.

        Raises:
            EnvironmentFault: the server's certificate authority cannot be read.
        """
        self._account = account
        verify: ssl.SSLContext | bool = True
        if account.url.startswith("https://"):
            text = account.read("ca.crt")
            try:
                verify = ssl.create_default_context(cadata=text)
            except (ssl.SSLError, ValueError) as error:
                raise EnvironmentFault(
                    f"kubernetes: {account.folder / 'ca.crt'} holds no certificate ({error}), "
                    "expected the cluster's authority; look at the pod's service account volume"
                ) from None
        # No proxy of the environment: the server is a neighbour.
        self._client = httpx.Client(
            base_url=account.url, verify=verify, timeout=timeout_s, trust_env=False
        )

    def close(self) -> None:
        """Let the connections go."""
        self._client.close()

    def get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any] | None:
        """An object, None when there is none.

        Raises:
            ChaosForbidden: the account may not.
            KubeUnreachable: no usable answer.
        """
        answer = self._ask("GET", path, params=params)
        return None if answer.status_code == 404 else _object(answer, f"GET {path}")

    def put(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replace an object; its `resourceVersion` says which one.

        Raises:
            KubeConflict: it is another by now.
            ChaosForbidden, KubeUnreachable: as `get`.
        """
        return self._write("PUT", path, body)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make an object.

        Raises:
            KubeConflict: there is one of this name.
            ChaosForbidden, KubeUnreachable: as `get`.
        """
        return self._write("POST", path, body)

    def delete(self, path: str, body: Mapping[str, Any]) -> bool:
        """Delete an object; whether there was one.

        Raises:
            KubeConflict: it is another than the body's preconditions say.
            ChaosForbidden, KubeUnreachable: as `get`.
        """
        answer = self._ask("DELETE", path, body=body)
        if answer.status_code == 404:
            return False
        _object(answer, f"DELETE {path}")
        return True

    def _write(self, method: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        answer = self._ask(method, path, body=body)
        if answer.status_code == 404:
            raise EnvironmentFault(
                f"kubernetes: {method} {path}: found nothing there, expected the object; "
                "install the release anew"
            )
        return _object(answer, f"{method} {path}")

    def _ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> httpx.Response:
        """One request; a token that was replaced meanwhile gets a second one."""
        answer = self._send(method, path, params, body)
        if answer.status_code == 401:
            answer = self._send(method, path, params, body)
        return answer

    def _send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
    ) -> httpx.Response:
        headers = {"authorization": f"Bearer {self._account.read('token')}"}
        try:
            return self._client.request(
                method, path, params=dict(params or {}), json=body, headers=headers
            )
        except httpx.TimeoutException:
            what = f"no answer in {self._client.timeout.read:g} s"
        except (httpx.HTTPError, ValueError) as error:
            # ValueError: a token that is no header.
            what = str(error) or type(error).__name__
        raise KubeUnreachable(
            f"kubernetes: {method} {path}: {what}, expected the API server at "
            f"{self._account.url}; see that the network policy lets this pod reach it"
        )


def _object(answer: httpx.Response, asked: str) -> dict[str, Any]:
    """The JSON object of an answer, or the one line that says why there is none."""
    status = answer.status_code
    if status == 401:
        raise ChaosForbidden(
            f"kubernetes: {asked}: the server did not accept the service account's token (401), "
            "expected one that is in force; see that the pod's token volume is a projected one"
        )
    if status == 403:
        raise ChaosForbidden(
            f"kubernetes: {asked}: the service account may not do this (403: {_said(answer)}); "
            "bind the release's chaos Role to it"
        )
    if status in (409, 412):
        raise KubeConflict(f"kubernetes: {asked}: another version is there (409: {_said(answer)})")
    if not 200 <= status < 300:
        raise KubeUnreachable(
            f"kubernetes: {asked}: the server answered {status} ({_said(answer)}), expected 200; "
            "try again when it is well"
        )
    try:
        found = answer.json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise KubeUnreachable(
            f"kubernetes: {asked}: the answer is no JSON object, expected one; see whether a proxy "
            "answers in the API server's place"
        )
    return found


def _said(answer: httpx.Response) -> str:
    """What the server says of it, on one line."""
    try:
        text = str(answer.json().get("message") or "")
    except (ValueError, AttributeError):
        text = answer.text
    text = " ".join(text.split()) or answer.reason_phrase
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 1]}…"
