"""Every receiver that the apprise library speaks to: Feishu, Telegram, Teams, mail and the rest."""

import asyncio
from typing import Any

import httpx

from tocsin.core.errors import EnvironmentFault, SpecError
from tocsin.dashboards.relay.channels.contract import Refusal
from tocsin.dashboards.relay.config import AppriseConfig
from tocsin.dashboards.relay.letter import Letter
from tocsin.dashboards.relay.rendering import render
from tocsin.dashboards.relay.secret import read_secret
from tocsin.dashboards.relay.style import Markdown


class AppriseChannel:
    """Its answer is yes or no, without a reason: a no is tried again, then becomes a dead letter.

    WeCom, DingTalk, Slack and PagerDuty have channels of their own, because there it does less
    than they ask for: docs/log.md says what.
    """

    kind = "apprise"

    def __init__(self, name: str, config: AppriseConfig) -> None:
        """Nothing is read yet."""
        self._where = f"receivers.{name}.urls_file"
        self._config = config

    def check(self) -> None:
        """Read the URLs once and have the library look at each.

        Raises:
            EnvironmentFault: the library is not installed.
            SpecError: it does not know one of the URLs.
        """
        self._targets()

    async def send(self, letter: Letter, http: httpx.AsyncClient) -> Refusal | None:
        """In a thread: the library blocks."""
        text = render(letter, self._config.language, Markdown())
        urgent = bool(letter.notification and letter.notification.firing)
        targets = self._targets()
        taken = await asyncio.to_thread(
            targets.notify,
            title=text.title,
            body=text.body,
            body_format="markdown",
            notify_type="failure" if urgent else "success",
        )
        return None if taken else Refusal("apprise says no; its own log says why", retry=True)

    def _targets(self) -> Any:
        try:
            import apprise
        except ImportError as error:
            raise EnvironmentFault(
                f"{self._where}: the library apprise is not installed, expected it for this "
                "receiver; run: pip install 'tocsin[alerts]'"
            ) from error
        urls = read_secret(self._config.urls_file, self._where).splitlines()
        targets = apprise.Apprise()
        for number, url in enumerate((line.strip() for line in urls), start=1):
            if url and not url.startswith("#") and not targets.add(url):
                raise SpecError(
                    f"{self._where}: line {number} is no URL that apprise knows, expected one such "
                    "as feishu://TOKEN"
                )
        if not len(targets):
            raise SpecError(f"{self._where}: holds no URL, expected one a line")
        return targets
