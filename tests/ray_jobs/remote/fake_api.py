"""An API server as small as kubectl lets it be: the objects of one release, one pod, its log."""

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

CORE = ("pods", "events", "namespaces", "configmaps")
BATCH = ("jobs", "cronjobs")
KINDS = {
    "pods": "Pod",
    "events": "Event",
    "namespaces": "Namespace",
    "configmaps": "ConfigMap",
    "jobs": "Job",
    "cronjobs": "CronJob",
}


@dataclass
class FakeApi:
    """Answers kubectl as an API server does.

    Attributes:
        objects: by resource.
        statuses: of the pod, one a reading; the last stays.
        log: lines with their times; cuts: after how many the nth stream breaks.
    """

    objects: dict[str, list[dict[str, Any]]]
    statuses: Sequence[dict[str, Any]] = ()
    log: Sequence[str] = ()
    cuts: Sequence[int] = ()
    created: list[dict[str, Any]] = field(default_factory=list)
    deleted: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    readings: int = 0
    streams: int = 0

    def __enter__(self) -> "FakeApi":
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                api.get(self)

            def do_POST(self) -> None:
                api.post(self)

            def do_DELETE(self) -> None:
                api.delete(self)

            def log_message(self, *words: object) -> None:
                api.asked.append(f"{self.command} {self.path}")

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *what: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    @property
    def kubeconfig(self) -> str:
        """A kubeconfig with the one context demo."""
        address = f"http://127.0.0.1:{self._server.server_address[1]}"
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": address}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "demo", "context": {"cluster": "c", "user": "u"}}],
            }
        )

    def get(self, request: BaseHTTPRequestHandler) -> None:
        place = urlsplit(request.path)
        words = place.path.strip("/").split("/")
        query = {name: values[0] for name, values in parse_qs(place.query).items()}
        if words[0] not in ("api", "apis"):
            return _answer(request, 404, _status(404, "NotFound", "no such path"))
        if found := _discovery(place.path):
            return _answer(request, 200, found)
        if words[-1] == "log":
            return self._stream(request, query)
        rest = words[words.index("namespaces") + 2 :]
        if not rest:
            rest = ["namespaces", words[-1]]
        resource, name = rest[0], rest[1] if len(rest) > 1 else ""
        items = self._pods() if resource == "pods" else self.objects.get(resource, [])
        if name:
            for one in items:
                if one["metadata"]["name"] == name:
                    return _answer(request, 200, {**_kind(resource), **one})
            message = f'{resource} "{name}" not found'
            return _answer(request, 404, _status(404, "NotFound", message))
        listed = {**_kind(resource, "List"), "metadata": {}, "items": items}
        return _answer(request, 200, listed)

    def post(self, request: BaseHTTPRequestHandler) -> None:
        document = _body(request)
        self.created.append(document)
        self.objects.setdefault("jobs", []).append(document)
        _answer(request, 201, document)

    def delete(self, request: BaseHTTPRequestHandler) -> None:
        name = urlsplit(request.path).path.rpartition("/")[2]
        self.deleted.append((name, _body(request)))
        _answer(request, 200, _status(200, "", "", status="Success"))

    def _pods(self) -> list[dict[str, Any]]:
        status = self.statuses[min(self.readings, len(self.statuses) - 1)]
        self.readings += 1
        metadata = {"name": "pod-1", "namespace": "prod"}
        return [
            {"metadata": metadata, "spec": {"containers": [{"name": "chaos"}]}, "status": status}
        ]

    def _stream(self, request: BaseHTTPRequestHandler, query: dict[str, str]) -> None:
        assert query["container"] == "chaos"
        assert query["timestamps"] == "true"
        since = query.get("sinceTime", "")
        cut = None
        if query.get("follow") == "true":
            cut = self.cuts[self.streams] if self.streams < len(self.cuts) else None
            self.streams += 1
        lines = [line for line in self.log if line[:19] >= since[:19]][:cut]
        request.send_response(200)
        request.send_header("Content-Type", "text/plain")
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        for line in lines:
            data = f"{line}\n".encode()
            request.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        if cut is not None:
            request.wfile.write(b"20\r\nhalf")  # a chunk that is promised and not kept
            request.close_connection = True
            return
        request.wfile.write(b"0\r\n\r\n")


def _discovery(path: str) -> dict[str, Any]:
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        version = {"groupVersion": "batch/v1", "version": "v1"}
        group = {"name": "batch", "versions": [version], "preferredVersion": version}
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}
    for version, prefix, names in (("v1", "/api/v1", CORE), ("batch/v1", "/apis/batch/v1", BATCH)):
        if path == prefix:
            resources = [
                {
                    "name": name,
                    "singularName": name[:-1],
                    "namespaced": name != "namespaces",
                    "kind": KINDS[name],
                    "verbs": ["get", "list", "create", "delete"],
                }
                for name in names
            ]
            return {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": version,
                "resources": resources,
            }
    return {}


def _kind(resource: str, end: str = "") -> dict[str, str]:
    version = "batch/v1" if resource in BATCH else "v1"
    return {"apiVersion": version, "kind": KINDS[resource] + end}


def _status(code: int, reason: str, message: str, status: str = "Failure") -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": status,
        "reason": reason,
        "message": message,
        "code": code,
    }


def _body(request: BaseHTTPRequestHandler) -> dict[str, Any]:
    size = int(request.headers.get("Content-Length", "0"))
    found: dict[str, Any] = json.loads(request.rfile.read(size) or b"{}")
    return found


def _answer(request: BaseHTTPRequestHandler, code: int, document: dict[str, Any]) -> None:
    data = json.dumps(document).encode()
    request.send_response(code)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    request.wfile.write(data)
