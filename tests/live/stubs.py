"""A receiver of alert messages on loopback: keeps what it is sent, answers as a robot does."""

import json
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Message:
    """One delivery."""

    path: str
    body: dict[str, Any]
    t_s: float

    @property
    def text(self) -> str:
        """Everything in it, as one text."""
        return json.dumps(self.body, ensure_ascii=False)


class Robot:
    """Takes any POST and answers `errcode` 0."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        kept = self.messages

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers.get("content-length", 0))
                body = json.loads(self.rfile.read(length) or b"{}")
                kept.append(Message(self.path, body, time.time()))
                answer = b'{"errcode": 0, "errmsg": "ok"}'
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *words: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def about(self, words: str) -> list[Message]:
        """Deliveries that contain these words."""
        return [message for message in list(self.messages) if words in message.text]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
