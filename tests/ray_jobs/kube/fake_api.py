"""A small Kubernetes API server over real HTTP: namespaces, pods, leases, and every way to fail."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

NAMESPACE, RELEASE, LEASE = "demo", "bell", "bell-tocsin-chaos"
TOKEN = "the token of the pod"
_POD = re.compile(rf"^/api/v1/namespaces/{NAMESPACE}/pods/([^/]+)$")
_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
_LEASE = re.compile(rf"^{_LEASES}/([^/]+)$")

Answer = tuple[int, Any]


def pod(name: str, uid: str = "", labels: dict[str, str] | None = None) -> dict[str, Any]:
    """A ready worker pod that may be struck, unless the labels say otherwise."""
    return {
        "metadata": {
            "name": name,
            "uid": uid or f"uid-{name}",
            "resourceVersion": "1",
            "labels": {
                "app.kubernetes.io/instance": RELEASE,
                "app.kubernetes.io/component": "worker",
                "tocsin.dev/chaos-target": "true",
                **(labels or {}),
            },
        },
        "spec": {"nodeName": f"node-of-{name}"},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.7",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


@dataclass
class FakeApi:
    """What the server holds, and what it was asked.

    Attributes:
        fails: by method and path prefix, an answer in place of the right one; `times` first ones.
        asked: method and path of every request.
        deleted: bodies of deletions.
        after_delete: called with the name of a pod that was deleted.
    """

    url: str = ""
    token: str = TOKEN
    labels: dict[str, str] = field(default_factory=lambda: {"tocsin.dev/chaos": "allowed"})
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    leases: dict[str, dict[str, Any]] = field(default_factory=dict)
    fails: dict[tuple[str, str], list[Answer | float]] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    deleted: list[dict[str, Any]] = field(default_factory=list)
    after_delete: Callable[[str], None] = lambda name: None

    def add(self, *pods: dict[str, Any]) -> None:
        for one in pods:
            self.pods[one["metadata"]["name"]] = one

    def lease(self, **spec: Any) -> None:
        """The chart's own lease: without a holder, or somebody's."""
        metadata = {"name": LEASE, "namespace": NAMESPACE, "resourceVersion": "7"}
        self.leases[LEASE] = {"metadata": metadata, **({"spec": spec} if spec else {})}

    def fail(self, method: str, prefix: str, *answers: Answer | float) -> None:
        """The next answers to such a request; a number: wait that many seconds instead."""
        self.fails[method, prefix] = list(answers)

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> Answer:
        if method == "GET" and path == f"/api/v1/namespaces/{NAMESPACE}":
            return 200, {"metadata": {"name": NAMESPACE, "labels": self.labels}}
        if method == "GET" and path == f"/api/v1/namespaces/{NAMESPACE}/pods":
            wanted = dict(one.split("=", 1) for one in query["labelSelector"][0].split(","))
            found = [one for one in self.pods.values() if _carries(one, wanted)]
            return 200, {"kind": "PodList", "items": found}
        if match := _POD.match(path):
            return self._pod(method, match[1], body)
        if match := _LEASE.match(path):
            return self._lease(method, match[1], body)
        if method == "POST" and path == _LEASES:
            self.leases[body["metadata"]["name"]] = body
            return 201, body
        return _status(404, f"the server has no {path}")

    def _pod(self, method: str, name: str, body: Any) -> Answer:
        found = self.pods.get(name)
        if found is None:
            return _status(404, f'pods "{name}" not found')
        if method == "DELETE":
            self.deleted.append(body)
            wanted = body.get("preconditions", {})
            metadata = found["metadata"]
            if wanted.get("uid") != metadata["uid"]:
                return _status(409, "the UID in the precondition does not match")
            if wanted.get("resourceVersion") != metadata["resourceVersion"]:
                return _status(409, "the ResourceVersion in the precondition does not match")
            metadata["deletionTimestamp"] = "2026-11-29T22:00:00Z"
            self.after_delete(name)
        return 200, found

    def _lease(self, method: str, name: str, body: Any) -> Answer:
        found = self.leases.get(name)
        if found is None:
            return _status(404, f'leases "{name}" not found')
        if method == "PUT":
            version = found["metadata"]["resourceVersion"]
            if body["metadata"]["resourceVersion"] != version:
                return _status(409, "the object has been modified")
            metadata = {**body["metadata"], "resourceVersion": str(int(version) + 1)}
            self.leases[name] = {**body, "metadata": metadata}
        return 200, self.leases[name]


def _carries(one: dict[str, Any], wanted: dict[str, str]) -> bool:
    labels = one["metadata"]["labels"]
    return all(labels.get(key) == value for key, value in wanted.items())


def _status(code: int, message: str) -> Answer:
    return code, {"kind": "Status", "status": "Failure", "message": message, "code": code}


@contextmanager
def fake_api(folder: Path, host: str = "127.0.0.1") -> Iterator[FakeApi]:
    """A server on loopback or another address, and a service account's folder for it."""
    api = FakeApi()
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text(f"{TOKEN}\n")
    (folder / "namespace").write_text(NAMESPACE)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            api.asked.append((self.command, parts.path))
            self._reply(*self._answer(parts.path, parse_qs(parts.query), body))

        do_GET = do_PUT = do_POST = do_DELETE = _serve

        def _answer(self, path: str, query: dict[str, list[str]], body: Any) -> Answer:
            for (method, prefix), answers in api.fails.items():
                if method == self.command and path.startswith(prefix) and answers:
                    instead = answers.pop(0)
                    if not isinstance(instead, float):
                        return instead
                    time.sleep(instead)
            if self.headers.get("Authorization") != f"Bearer {api.token}":
                return _status(401, "Unauthorized")
            return api.answer(self.command, path, query, body)

        def _reply(self, status: int, found: Any) -> None:
            text = found.encode() if isinstance(found, str) else json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer((host, 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    api.url = f"http://{host}:{server.server_address[1]}"
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
