"""WeCom group robot: markdown of at most 4,096 bytes; an errcode says whether it was taken."""

import httpx

from tocsin.dashboards.relay.channels.contract import Refusal, post, refused_in_body
from tocsin.dashboards.relay.config import WecomRobotConfig
from tocsin.dashboards.relay.cut import cut_utf8
from tocsin.dashboards.relay.letter import Letter
from tocsin.dashboards.relay.rendering import render
from tocsin.dashboards.relay.secret import read_secret
from tocsin.dashboards.relay.style import Markdown

BYTES_MAX = 4096
_LATER = frozenset({-1, 45009, 45033})
"""Busy; too many calls a minute; too many at once. All others are our mistake."""


class WecomRobot:
    """The robot that a group's members add; its URL holds the key, so it is a secret."""

    kind = "wecom_robot"

    def __init__(self, name: str, config: WecomRobotConfig) -> None:
        """Nothing is read yet."""
        self._where = f"receivers.{name}.url_file"
        self._config = config

    def check(self) -> None:
        """Read the URL once."""
        read_secret(self._config.url_file, self._where)

    async def send(self, letter: Letter, http: httpx.AsyncClient) -> Refusal | None:
        """One markdown message; a P0 mentions those whom the configuration names."""
        url = read_secret(self._config.url_file, self._where)
        text = render(letter, self._config.language, Markdown(colours=True))
        calls = " ".join(f"<@{user}>" for user in self._config.mention) if letter.urgent else ""
        room = BYTES_MAX - len(f"\n{calls}".encode())
        content = cut_utf8(f"**{text.title}**\n{text.body}", room)
        content = f"{content}\n{calls}" if calls else content
        body = {"msgtype": "markdown", "markdown": {"content": content}}
        answer = await post(http, url, body, self._config.timeout_s)
        if isinstance(answer, Refusal):
            return answer
        return refused_in_body(answer, "errcode", "errmsg", _LATER)
