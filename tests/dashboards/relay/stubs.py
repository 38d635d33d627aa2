"""Receivers on loopback that answer as the real ones do, and remember what they were sent."""

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

SECRET = "SECthe robot's secret"
ROUTING_KEY = "r" * 32
TOKEN = "the webhook's token"
OK = (200, {"errcode": 0, "errmsg": "ok"})


@dataclass
class Stub:
    """One server with five receivers; `answers` are given first, in order, by path."""

    url: str
    got: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    answers: dict[str, list[tuple[int, Any, dict[str, str]]]] = field(default_factory=dict)

    def will_answer(self, path: str, status: int, body: Any, **headers: str) -> None:
        self.answers.setdefault(path, []).append((status, body, headers))

    def bodies(self, path: str) -> list[Any]:
        return [one["body"] for one in self.got.get(path, [])]

    def take(self, target: str, headers: dict[str, str], raw: bytes) -> tuple[int, Any, Any]:
        parts = urlsplit(target)
        path, query = parts.path, parse_qs(parts.query)
        body = json.loads(raw)
        self.got.setdefault(path, []).append(
            {
                "body": body,
                "query": query,
                "headers": headers,
                "bytes": len(raw),
                "t_s": time.monotonic(),
            }
        )
        if self.answers.get(path):
            return self.answers[path].pop(0)
        status, answer = JUDGES[path](body, query, headers)
        return status, answer, {}


def _wecom(body: Any, query: Any, headers: Any) -> tuple[int, Any]:
    """As documented: a key, a known type, at most 4,096 bytes of markdown."""
    if query.get("key") != ["k"]:
        return 200, {"errcode": 93000, "errmsg": "invalid webhook url"}
    if body["msgtype"] != "markdown":
        return 200, {"errcode": 40008, "errmsg": "invalid message type"}
    if len(body["markdown"]["content"].encode()) > 4096:
        return 200, {"errcode": 40058, "errmsg": "markdown.content exceed max length 4096"}
    return OK


def _dingtalk(body: Any, query: Any, headers: Any) -> tuple[int, Any]:
    """Signed with the secret over its own timestamp."""
    stamp = query.get("timestamp", [""])[0]
    mac = hmac.new(SECRET.encode(), f"{stamp}\n{SECRET}".encode(), hashlib.sha256).digest()
    if query.get("access_token") != ["t"]:
        return 200, {"errcode": 300001, "errmsg": "token is not exist"}
    if query.get("sign") != [base64.b64encode(mac).decode()]:
        return 200, {"errcode": 310000, "errmsg": "sign not match"}
    if set(body["markdown"]) != {"title", "text"} or "at" not in body:
        return 200, {"errcode": 40035, "errmsg": "missing parameter"}
    return OK


def _slack(body: Any, query: Any, headers: Any) -> tuple[int, Any]:
    block = body["attachments"][0]["blocks"][0]
    if block["text"]["type"] != "mrkdwn" or len(block["text"]["text"]) > 3000:
        return 400, "invalid_blocks"
    return 200, "ok"


def _pagerduty(body: Any, query: Any, headers: Any) -> tuple[int, Any]:
    if body.get("routing_key") != ROUTING_KEY or not body.get("dedup_key"):
        return 400, {"status": "invalid event", "errors": ["routing_key or dedup_key"]}
    if body["event_action"] == "trigger":
        payload = body["payload"]
        if payload["severity"] not in ("critical", "error", "warning", "info"):
            return 400, {"status": "invalid event", "errors": ["severity"]}
        if len(payload["summary"]) > 1024 or not payload["source"]:
            return 400, {"status": "invalid event", "errors": ["summary or source"]}
    return 202, {"status": "success", "dedup_key": body["dedup_key"]}


def _webhook(body: Any, query: Any, headers: Any) -> tuple[int, Any]:
    if headers.get("authorization") != f"Bearer {TOKEN}":
        return 401, "who are you"
    return 204, ""


def _feishu(body: Any, query: Any, headers: Any) -> tuple[int, Any]:
    if body["msg_type"] != "interactive":
        return 200, {"code": 9499, "msg": "Bad Request"}
    return 200, {"code": 0, "msg": "success"}


JUDGES = {
    "/wecom": _wecom,
    "/dingtalk": _dingtalk,
    "/slack": _slack,
    "/pagerduty": _pagerduty,
    "/webhook": _webhook,
    "/feishu": _feishu,
    "/raw": lambda body, query, headers: (200, ""),
}


@contextmanager
def receivers() -> Iterator[Stub]:
    """The stubs while the block lasts."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, answer, extra = stub.take(self.path, headers, raw)
            text = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            self.send_response(status)
            for name, value in extra.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *words: Any) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    stub = Stub(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def secret_file(folder: Path, name: str, text: str, mode: int = 0o600) -> str:
    path = folder / name
    path.write_text(text + "\n")
    path.chmod(mode)
    return name


def configuration(folder: Path, stub: Stub, **changes: Any) -> dict[str, Any]:
    """All five receivers, with their secrets in files beside it."""
    return {
        "state": "state",
        "reproduce_wait_s": 0.2,
        "receivers": {
            "wecom-robot": {
                "kind": "wecom_robot",
                "language": "zh",
                "url_file": secret_file(folder, "wecom", f"{stub.url}/wecom?key=k"),
                "mention": ["li.lei"],
            },
            "dingtalk": {
                "kind": "dingtalk",
                "language": "zh",
                "url_file": secret_file(folder, "ding", f"{stub.url}/dingtalk?access_token=t"),
                "secret_file": secret_file(folder, "ding-secret", SECRET),
                "mention_mobiles": ["13800000000"],
            },
            "slack": {
                "kind": "slack",
                "url_file": secret_file(folder, "slack", f"{stub.url}/slack"),
            },
            "pagerduty": {
                "kind": "pagerduty",
                "url": f"{stub.url}/pagerduty",
                "routing_key_file": secret_file(folder, "pager", ROUTING_KEY),
            },
            "webhook": {
                "kind": "webhook",
                "url": f"{stub.url}/webhook",
                "token_file": secret_file(folder, "hook", TOKEN),
            },
        },
        **changes,
    }


def alert(name: str = "TocsinOperatorFailing", **changes: Any) -> dict[str, Any]:
    """One alert as Alertmanager writes it."""
    labels = {
        "alertname": name,
        "priority": changes.pop("priority", "P0"),
        "severity": "critical",
        "model": "tiny",
        "operator": changes.pop("operator", "attention"),
    }
    summary = changes.pop("summary", "attention failed more than 10 times in a minute")
    return {
        "status": "firing",
        "labels": labels,
        "annotations": {
            "summary": summary,
            "summary_zh": changes.pop("summary_zh", "attention 在一分钟内失败超过 10 次"),
            "runbook_url": "https://example.com/runbooks/operator_failing",
            "failure_id": "01JD0000000000000000000000",
            **changes.pop("annotations", {}),
        },
        "startsAt": "2026-11-29T10:00:00.000Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://prometheus/graph",
        "fingerprint": f"{name}-{labels['operator']}",
        **changes,
    }


def notification(*alerts: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A webhook body, version 4."""
    found = list(alerts) or [alert()]
    firing = any(one["status"] == "firing" for one in found)
    return {
        "version": "4",
        "groupKey": '{}:{alertname="x"}',
        "truncatedAlerts": 0,
        "status": "firing" if firing else "resolved",
        "receiver": "relay",
        "groupLabels": {},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager:9093",
        "alerts": found,
        **changes,
    }
