"""What a served application says of itself, over real HTTP; nothing is served."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def build(**changes: str) -> dict[str, str]:
    """A build; none of this machine unless the changes say so."""
    facts = {
        "tocsin": "0.1.0",
        "torch": "2.9",
        "transformers": "5",
        "ray": "2.60",
        "python": "3.11",
    }
    where = {"machine": "x86_64", "cpu_capability": "AVX2", "device": "cpu", "device_name": ""}
    return {**facts, **where, **changes}


@dataclass
class FakeService:
    """Answers `GET /health/checker_status` with `status`, or `text` with `code`."""

    url: str = ""
    code: int = 200
    text: str = ""
    options: dict[str, Any] = field(
        default_factory=lambda: {
            "path": "/opt/models/smollm2",
            "model": "smollm2-135m",
            "name": "",
            "dtype": "fp32",
            "profile": "full",
            "replicas": 2,
            "slots": 8,
            "pages": 192,
            "page_size": 16,
            "max_length": 512,
            "threads": 1,
            "breaker_cooldown_s": 5.0,
            "journal_prompts": False,
            "device": "auto",
            "of_a_later_version": 7,
        }
    )
    build: dict[str, str] | None = field(default_factory=build)
    same_build: bool = True
    hosts: dict[str, str] = field(
        default_factory=lambda: {"replica-a": "worker-a", "replica-b": "worker-b"}
    )

    def status(self) -> dict[str, Any]:
        return {
            "served": {
                "name": "SmolLM2-135M-Instruct",
                "vocab_size": 49152,
                "options": self.options,
                "build": self.build,
                "weights": "76f555a379955cd9",
                "same_build": self.same_build,
            },
            "replicas": {name: {"host": host, "pid": 7} for name, host in self.hosts.items()},
        }


@contextmanager
def fake_service() -> Iterator[FakeService]:
    """It listens on loopback as long as the block lasts."""
    service = FakeService()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = service.text or json.dumps(service.status())
            self.send_response(service.code)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    service.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
