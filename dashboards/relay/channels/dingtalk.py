"""DingTalk group robot: signed markdown of at most 20,000 bytes; an errcode says the rest."""

import base64
import hashlib
import hmac

import httpx

from tocsin.core.clock import Clock
from tocsin.dashboards.relay.channels.contract import Refusal, post, refused_in_body
from tocsin.dashboards.relay.config import DingTalkConfig
from tocsin.dashboards.relay.cut import cut_utf8
from tocsin.dashboards.relay.letter import Letter
from tocsin.dashboards.relay.rendering import render
from tocsin.dashboards.relay.secret import read_secret
from tocsin.dashboards.relay.style import Markdown

BYTES_MAX = 20_000
_BODY_ROOM = 19_000  # title, mentions and JSON count too
_LATER = frozenset({-1, 130101, 410100})
"""Busy; sent too fast, in the older and in the newer numbering."""


class DingTalk:
    """A custom robot; with a secret each message is signed with the time of its sending."""

    kind = "dingtalk"

    def __init__(self, name: str, config: DingTalkConfig, clock: Clock) -> None:
        """Nothing is read yet."""
        self._where = f"receivers.{name}"
        self._config = config
        self._clock = clock

    def check(self) -> None:
        """Read URL and secret once."""
        self._url()

    async def send(self, letter: Letter, http: httpx.AsyncClient) -> Refusal | None:
        """One markdown message; a P0 mentions those whom the configuration names."""
        config = self._config
        text = render(letter, config.language, Markdown())
        mobiles = list(config.mention_mobiles) if letter.urgent else []
        mentions = " ".join(f"@{mobile}" for mobile in mobiles)
        # Two blanks before a line end: DingTalk joins lines otherwise.
        content = f"### {text.title}\n{text.body}".replace("\n", "  \n")
        content = cut_utf8(content, _BODY_ROOM) + (f"  \n{mentions}" if mentions else "")
        body = {
            "msgtype": "markdown",
            "markdown": {"title": text.title, "text": content},
            "at": {"atMobiles": mobiles, "isAtAll": config.mention_all and letter.urgent},
        }
        answer = await post(http, self._url(), body, config.timeout_s)
        if isinstance(answer, Refusal):
            return answer
        return refused_in_body(answer, "errcode", "errmsg", _LATER)

    def _url(self) -> str:
        url = read_secret(self._config.url_file, f"{self._where}.url_file")
        if self._config.secret_file is None:
            return url
        secret = read_secret(self._config.secret_file, f"{self._where}.secret_file")
        timestamp_ms = int(self._clock.wall_s() * 1000)
        signed = httpx.URL(url).copy_merge_params(
            {"timestamp": str(timestamp_ms), "sign": signature(secret, timestamp_ms)}
        )
        return str(signed)


def signature(secret: str, timestamp_ms: int) -> str:
    """Base64 of HMAC-SHA256 over "timestamp\\nsecret"; who puts it into a URL quotes it, once."""
    text = f"{timestamp_ms}\n{secret}".encode()
    return base64.b64encode(hmac.new(secret.encode(), text, hashlib.sha256).digest()).decode()
