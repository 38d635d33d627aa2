"""A Grafana on loopback: it keeps what it is sent, and answers as the documents of its API say."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

TOKEN = "glsa_the-token"
Answer = tuple[int, Any]


@dataclass(frozen=True)
class Asked:
    """One request as it arrived."""

    method: str
    path: str
    authorization: str
    provenance: str
    body: Any


@dataclass
class StubGrafana:
    """State of the server; `trouble` answers instead of it, by method and path."""

    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    kept: dict[str, Any] = field(default_factory=dict)
    trouble: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    database: str = "ok"

    def writes(self) -> list[tuple[str, str]]:
        return [(each.method, each.path) for each in self.asked if each.method != "GET"]

    def body(self, method: str, path: str) -> Any:
        (found,) = [e.body for e in self.asked if (e.method, e.path) == (method, path)]
        return found

    def answer(self, method: str, path: str, body: Any) -> Answer:
        match method, path.strip("/").split("/"):
            case "GET", ["health"]:
                return 200, {"database": self.database, "version": "12.1.0"}
            case "GET", ["v1", "provisioning", "contact-points"]:
                points = [self.kept[key] for key in self.kept if key.startswith("point/")]
                return 200, points
            case "POST", ["dashboards", "db"]:
                uid = body["dashboard"]["uid"]
                version = self.kept.get(f"dashboards/uid/{uid}", {"v": 0})["v"] + 1
                model = {**body["dashboard"], "id": 7, "version": version}
                meta = {"folderUid": body["folderUid"]}
                self.kept[f"dashboards/uid/{uid}"] = {
                    "dashboard": model,
                    "meta": meta,
                    "v": version,
                }
                return 200, {"uid": uid, "status": "success", "version": version}
            case "POST", ["annotations"]:
                self.kept["annotations/41"] = dict(body)
                return 200, {"message": "Annotation added", "id": 41}
            case _:
                return self._plain(method, path.strip("/"), body)

    def _plain(self, method: str, name: str, body: Any) -> Answer:
        if method == "GET":
            return (200, self.kept[name]) if name in self.kept else (404, {"message": "not found"})
        if method == "POST":
            key = {
                "folders": "folders/{uid}",
                "datasources": "datasources/uid/{uid}",
                "v1/provisioning/alert-rules": "v1/provisioning/alert-rules/{uid}",
                "v1/provisioning/contact-points": "point/{uid}",
            }.get(name)
            if key is None:
                return 404, {"message": f"no such path {name}"}
            self.kept[key.format(uid=body["uid"])] = {**body, "id": 3, "orgId": 1, "version": 1}
            return 201, {"message": "created"}
        key = name.replace("v1/provisioning/contact-points/", "point/")
        if key not in self.kept:
            return 404, {"message": f"nothing at {name}"}
        self.kept[key] = {**self.kept[key], **body}
        return 200, {"message": "updated"}


@contextmanager
def stub_grafana(prefix: str = "") -> Iterator[StubGrafana]:
    """The stub behind a real socket, below `prefix`."""
    stub = StubGrafana()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(size)
            body = json.loads(raw) if raw else None
            path = unquote(self.path).removeprefix(f"{prefix}/api")
            authorization = self.headers.get("Authorization", "")
            provenance = self.headers.get("X-Disable-Provenance", "")
            stub.asked.append(Asked(self.command, path, authorization, provenance, body))
            if (self.command, path) in stub.trouble:
                status, text = stub.trouble[self.command, path]
            elif authorization != f"Bearer {TOKEN}":
                status, text = 401, '{"message": "Invalid API key"}'
            elif not self.path.startswith(f"{prefix}/api"):
                status, text = 404, "<html>nothing here, read this message</html>"
            else:
                status, answer = stub.answer(self.command, path, body)
                text = json.dumps(answer)
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_PATCH = _serve

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    stub.url = f"http://127.0.0.1:{server.server_port}{prefix}"
    try:
        yield stub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
