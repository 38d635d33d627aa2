"""Any HTTP endpoint: the letter as JSON, with the text that people would read."""

from pathlib import Path

import httpx

from tocsin.dashboards.relay.channels.contract import Refusal, post
from tocsin.dashboards.relay.config import WebhookConfig
from tocsin.dashboards.relay.letter import Letter
from tocsin.dashboards.relay.rendering import render
from tocsin.dashboards.relay.secret import read_secret
from tocsin.dashboards.relay.style import Bare


class Webhook:
    """What is sent is a contract: `version` grows when a field changes its meaning."""

    kind = "webhook"

    def __init__(self, name: str, config: WebhookConfig) -> None:
        """Nothing is read yet."""
        self._where = f"receivers.{name}"
        self._config = config

    def check(self) -> None:
        """Read URL and token once."""
        self._url()
        self._headers()

    async def send(self, letter: Letter, http: httpx.AsyncClient) -> Refusal | None:
        """The letter, its text, and its id so that a repeated delivery can be told."""
        text = render(letter, self._config.language, Bare())
        body = {
            "version": "1",
            "id": letter.id,
            "about": letter.about,
            "urgent": letter.urgent,
            "title": text.title,
            "text": text.body,
            "held": letter.held,
            "notes": {key: notes.model_dump() for key, notes in letter.notes.items()},
            "notification": (
                letter.notification.model_dump(mode="json", by_alias=True)
                if letter.notification
                else None
            ),
        }
        answer = await post(http, self._url(), body, self._config.timeout_s, self._headers())
        return answer if isinstance(answer, Refusal) else None

    def _url(self) -> str:
        if self._config.url is not None:
            return self._config.url
        return read_secret(self._config.url_file or Path(), f"{self._where}.url_file")

    def _headers(self) -> dict[str, str]:
        if self._config.token_file is None:
            return {}
        token = read_secret(self._config.token_file, f"{self._where}.token_file")
        return {"authorization": f"Bearer {token}"}
