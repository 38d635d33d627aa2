"""Slack incoming webhook: one section block; the answer is the word `ok`."""

import httpx

from tocsin.dashboards.relay.channels.contract import Refusal, post
from tocsin.dashboards.relay.config import SlackConfig
from tocsin.dashboards.relay.cut import cut_utf8
from tocsin.dashboards.relay.letter import Letter
from tocsin.dashboards.relay.rendering import render
from tocsin.dashboards.relay.secret import read_secret
from tocsin.dashboards.relay.style import SlackMarkup

_SECTION_BYTES_MAX = 3000  # Slack counts characters; bytes are never fewer
_COLOURS = {"P0": "#c0392b", "P1": "#e67e22", "P2": "#2980b9"}
_RESOLVED = "#27ae60"


class Slack:
    """A webhook of one channel; its URL is a secret."""

    kind = "slack"

    def __init__(self, name: str, config: SlackConfig) -> None:
        """Nothing is read yet."""
        self._where = f"receivers.{name}.url_file"
        self._config = config

    def check(self) -> None:
        """Read the URL once."""
        read_secret(self._config.url_file, self._where)

    async def send(self, letter: Letter, http: httpx.AsyncClient) -> Refusal | None:
        """One message with a coloured bar."""
        url = read_secret(self._config.url_file, self._where)
        markup = SlackMarkup()
        text = render(letter, self._config.language, markup)
        section = {"type": "mrkdwn", "text": cut_utf8(text.body or "–", _SECTION_BYTES_MAX)}
        body = {
            "text": markup.bold(text.title),
            "attachments": [
                {"color": _colour(letter), "blocks": [{"type": "section", "text": section}]}
            ],
        }
        answer = await post(http, url, body, self._config.timeout_s)
        if isinstance(answer, Refusal):
            return answer
        if answer.text.strip() != "ok":
            return Refusal(f"answered {answer.text[:100]!r}, expected 'ok'", retry=False)
        return None


def _colour(letter: Letter) -> str:
    notification = letter.notification
    if notification is None:
        return _COLOURS["P2"]
    if not notification.firing:
        return _RESOLVED
    return _COLOURS.get(notification.priority, _COLOURS["P2"])
