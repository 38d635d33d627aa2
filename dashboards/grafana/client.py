"""The few calls that we make to a Grafana server, and the one adapter that makes them.

Every write looks first: what is there already and the same is left alone, so that a push can be
repeated, also after one that broke off. The adapter stands on grafana-api 1.0.3, whose last release
is of 2020: it brings the session, the token and the errors; the paths are ours, because it knows
neither provisioning nor unique ids. Never install grafana-client beside Ray: it replaces urllib3.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Protocol
from urllib.parse import SplitResult, quote, urlsplit

from tocsin.core.errors import EnvironmentFault, SpecError

Body = Mapping[str, Any]

# Grafana writes these itself; they say nothing about whether two objects are the same.
_OWN = frozenset({"id", "version", "updated", "provenance", "orgID", "orgId", "readOnly"})


class Written(StrEnum):
    """What a write did."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"


class GrafanaServer(Protocol):
    """A Grafana server, as far as we need one."""

    def health(self) -> str:
        """Its version; raises when it does not answer or its database is not well."""
        ...

    def put_folder(self, uid: str, title: str) -> Written:
        """A folder with that title."""
        ...

    def put_datasource(self, source: Body) -> Written:
        """A data source, found again by its uid."""
        ...

    def put_dashboard(self, model: Body, folder_uid: str) -> Written:
        """A dashboard, found again by its uid."""
        ...

    def put_alert_rule(self, rule: Body) -> Written:
        """A rule that Grafana itself evaluates, found again by its uid."""
        ...

    def put_contact_point(self, point: Body) -> Written:
        """Somebody to tell, found again by its uid."""
        ...

    def annotate(self, note: Body) -> int:
        """A mark on time; its id."""
        ...

    def end_annotation(self, note_id: int, end_ms: int) -> None:
        """Makes a mark a span that ends then."""
        ...


class GrafanaApi:
    """`GrafanaServer` over HTTP, through the package grafana-api."""

    def __init__(
        self, url: str, token: str, *, timeout_s: float = 5.0, verify: bool = True
    ) -> None:
        """Connects to nothing yet.

        Args:
            url: of the server, with its path prefix if it has one.
            token: of a service account that may edit; sent as a bearer.

        Raises:
            SpecError: the address is none.
            EnvironmentFault: the package is not installed.
        """
        try:
            from grafana_api.grafana_face import GrafanaFace  # type: ignore[import-untyped]
        except ImportError as error:
            raise EnvironmentFault(
                "grafana: the package grafana-api is not installed, it makes the HTTP calls; "
                "install tocsin[grafana], or provision by file: tocsin dashboards render"
            ) from error
        self._url = url.rstrip("/")
        parts, port = _address(self._url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise SpecError(
                "grafana: the address must be http(s)://host[:port][/prefix] without a user; the "
                "token comes from a file"
            )
        prefix = parts.path.strip("/")
        self._api = GrafanaFace(
            token,
            host=f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname,
            port=port,
            url_path_prefix=f"{prefix}/" if prefix else "",
            protocol=parts.scheme,
            verify=verify,
            timeout=timeout_s,
        ).api

    def health(self) -> str:
        """Its version, or an error that says what is wrong."""
        answer = self._call("GET", "/health")
        if _plain(answer).get("database") != "ok":
            raise EnvironmentFault(
                f"grafana: {self._url} says that its database is "
                f"{_plain(answer).get('database')!r}, "
                "expected 'ok'; look at the server's log"
            )
        return str(answer.get("version", "unknown"))

    def put_folder(self, uid: str, title: str) -> Written:
        """A folder with that title."""
        wanted = {"uid": uid, "title": title}
        found = self._look(f"/folders/{_part(uid)}")
        if found is None:
            self._call("POST", "/folders", wanted)
            return Written.CREATED
        if found.get("title") == title:
            return Written.UNCHANGED
        self._call("PUT", f"/folders/{_part(uid)}", {**wanted, "overwrite": True})
        return Written.UPDATED

    def put_datasource(self, source: Body) -> Written:
        """A data source, found again by its uid."""
        return self._put("/datasources", f"/datasources/uid/{_part(source['uid'])}", source)

    def put_dashboard(self, model: Body, folder_uid: str) -> Written:
        """A dashboard in that folder, found again by its uid."""
        found = self._look(f"/dashboards/uid/{_part(model['uid'])}")
        if found is not None:
            same_folder = _plain(found.get("meta")).get("folderUid") == folder_uid
            if same_folder and _same(_plain(found.get("dashboard")), model):
                return Written.UNCHANGED
        body = {
            "dashboard": {**model, "id": None},
            "folderUid": folder_uid,
            "overwrite": True,
            "message": "tocsin dashboards push",
        }
        self._call("POST", "/dashboards/db", body)
        return Written.CREATED if found is None else Written.UPDATED

    def put_alert_rule(self, rule: Body) -> Written:
        """A rule that Grafana itself evaluates, found again by its uid."""
        path = "/v1/provisioning/alert-rules"
        return self._put(path, f"{path}/{_part(rule['uid'])}", rule)

    def put_contact_point(self, point: Body) -> Written:
        """Somebody to tell; there is no call for one, so all are listed."""
        path = "/v1/provisioning/contact-points"
        listed = self._call("GET", path)
        known: Iterable[Body] = listed if isinstance(listed, list) else ()
        found = next((each for each in known if _plain(each).get("uid") == point["uid"]), None)
        return self._write(path, f"{path}/{_part(point['uid'])}", point, found)

    def annotate(self, note: Body) -> int:
        """A mark on time; its id, or 0 from a server that does not say."""
        found = _plain(self._call("POST", "/annotations", note)).get("id")
        return found if isinstance(found, int) else 0

    def end_annotation(self, note_id: int, end_ms: int) -> None:
        """Makes a mark a span that ends then."""
        self._call("PATCH", f"/annotations/{note_id}", {"timeEnd": end_ms})

    def _put(self, collection: str, item: str, wanted: Body) -> Written:
        return self._write(collection, item, wanted, self._look(item))

    def _write(self, collection: str, item: str, wanted: Body, found: Body | None) -> Written:
        if found is None:
            self._call("POST", collection, wanted)
            return Written.CREATED
        if _same(found, wanted):
            return Written.UNCHANGED
        self._call("PUT", item, wanted)
        return Written.UPDATED

    def _look(self, path: str) -> Body | None:
        """What is there; None where nothing is."""
        try:
            answer = self._call("GET", path)
        except _NotFound:
            return None
        if not isinstance(answer, dict):
            raise EnvironmentFault(
                f"grafana: GET {self._url}/api{path}: answered {type(answer).__name__}, expected "
                "an object; is it a Grafana server?"
            )
        return answer

    def _call(self, method: str, path: str, body: Body | None = None) -> Any:
        """One request.

        Raises:
            EnvironmentFault: the server cannot be reached, refuses, or answers no JSON.
        """
        import requests
        from grafana_api.grafana_api import GrafanaException  # type: ignore[import-untyped]

        where = f"grafana: {method} {self._url}/api{path}"
        headers = {"Accept": "application/json"}
        if path.startswith("/v1/provisioning"):
            headers["X-Disable-Provenance"] = "true"  # else nobody may edit it in the browser
        try:
            answer = getattr(self._api, method)(path, json=body, headers=headers)
        except GrafanaException as error:
            kind = _NotFound if error.status_code == 404 else EnvironmentFault
            raise kind(
                f"{where}: answered {error.status_code}, {_reason(error.response)}; "
                f"{_ADVICE.get(error.status_code, 'look at the log of the server')}"
            ) from error
        except requests.exceptions.SSLError as error:
            raise EnvironmentFault(
                f"{where}: its certificate is not trusted; set REQUESTS_CA_BUNDLE to the "
                "authority's file"
            ) from error
        except requests.exceptions.RequestException as error:
            raise EnvironmentFault(
                f"{where}: no usable answer ({type(error).__name__}), expected a Grafana server; "
                "check the address and that it runs"
            ) from error
        except UnicodeError as error:
            raise EnvironmentFault(
                f"{where}: the request cannot be sent, expected a host name and a token of plain "
                "letters; look at both"
            ) from error
        except (TypeError, ValueError, RecursionError) as error:
            # grafana-api looks for "message" in error pages that are no JSON, and stumbles.
            raise EnvironmentFault(
                f"{where}: answered something that is no JSON, expected Grafana's API; is a proxy "
                "or a log-in page in between?"
            ) from error
        if not isinstance(answer, dict | list):
            raise EnvironmentFault(f"{where}: answered {type(answer).__name__}, expected an object")
        return answer


class _NotFound(EnvironmentFault):
    """The server has no such object."""


_ADVICE = {
    400: "the server does not accept this object: is it an older Grafana, or provisioned by file?",
    401: "give the token of a service account",
    403: "the service account needs the role Editor (data sources and alert rules: Admin)",
    404: "check the address and its path prefix",
    409: "another object has this name",
    412: "it was changed meanwhile; push again",
}


def _reason(response: object) -> str:
    message = response.get("message") if isinstance(response, Mapping) else None
    return str(message or "without a reason")[:200]


def _address(url: str) -> tuple[SplitResult, int | None]:
    """The parts of an address, and its port.

    Raises:
        SpecError: it is none.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # its words may repeat a password
        raise SpecError(
            "grafana: the address is none, expected http(s)://host[:port][/prefix] without a "
            "user; correct it"
        ) from None
    return parts, port


def _plain(answer: Any) -> Body:
    """An object of the server's, empty where it sent something else."""
    return answer if isinstance(answer, Mapping) else {}


def _part(uid: object) -> str:
    return quote(str(uid), safe="")


def _same(found: Body, wanted: Body) -> bool:
    """Whether what is there says all that is wanted, but for what the server counts itself."""
    return _holds(found, {key: value for key, value in wanted.items() if key not in _OWN})


def _holds(found: Any, wanted: Any) -> bool:
    """Whether each value that is wanted is there; what the server adds does not matter."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(
            key in found and _holds(found[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, list | tuple):
        return (
            isinstance(found, list)
            and len(found) == len(wanted)
            and all(map(_holds, found, wanted))
        )
    return bool(found == wanted)
