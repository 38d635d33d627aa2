"""How a channel writes bold, code and links, and how it keeps a label from being taken for them."""

import re
from dataclasses import dataclass
from typing import Protocol

_VALUE_CHARS_MAX = 400
_CONTROL = re.compile(r"[\x00-\x1f\x7f\u2028\u2029]+")


class Styled(str):
    """Text that is marked up already and printed as it stands."""

    __slots__ = ()


class Style(Protocol):
    """One channel's mark-up."""

    def plain(self, text: str) -> str:
        """Text of others (labels, annotations), on one line and without mark-up."""
        ...

    def bold(self, text: str) -> Styled:
        """Strong text."""
        ...

    def code(self, text: str) -> Styled:
        """A command or a path, to be copied."""
        ...

    def link(self, text: str, url: str) -> Styled:
        """A link; text alone where the URL is not one."""
        ...

    def tint(self, text: str, level: str) -> Styled:
        """Text in the colour of a level (`bad`, `good`, `faint`), where there are colours."""
        ...


@dataclass(frozen=True, slots=True)
class Markdown:
    """Markdown as robots read it.

    Attributes:
        colours: WeCom's `<font color>`.
    """

    colours: bool = False

    def plain(self, text: str) -> str:
        """Mark-up characters are set apart by a backslash; `<` would open a mention."""
        flat = one_line(text).replace("<", "‹").replace(">", "›")
        return re.sub(r"([\\`*\[\]])", r"\\\1", flat)

    def bold(self, text: str) -> Styled:
        """Two asterisks."""
        return Styled(f"**{self.plain(text)}**")

    def code(self, text: str) -> Styled:
        """Backticks."""
        return Styled("`" + one_line(text).replace("`", "'") + "`")

    def link(self, text: str, url: str) -> Styled:
        """Text in brackets, URL in parentheses."""
        if not is_link(url):
            return Styled(self.plain(text))
        return Styled(f"[{self.plain(text)}]({url.replace(')', '%29')})")

    def tint(self, text: str, level: str) -> Styled:
        """`<font>` where it is known."""
        colour = {"bad": "warning", "good": "info", "faint": "comment"}.get(level)
        if not self.colours or colour is None:
            return Styled(self.plain(text))
        return Styled(f'<font color="{colour}">{self.plain(text)}</font>')


@dataclass(frozen=True, slots=True)
class SlackMarkup:
    """Slack's mrkdwn."""

    def plain(self, text: str) -> str:
        """The three characters that Slack asks to be escaped, and its own marks."""
        flat = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        return flat.replace("`", "'").replace("*", "∗")

    def bold(self, text: str) -> Styled:
        """One asterisk."""
        return Styled(f"*{self.plain(text)}*")

    def code(self, text: str) -> Styled:
        """Backticks."""
        return Styled(f"`{self.plain(text)}`")

    def link(self, text: str, url: str) -> Styled:
        """Angle brackets with a bar."""
        if not is_link(url):
            return Styled(self.plain(text))
        return Styled(f"<{url.replace('|', '%7C').replace('>', '%3E')}|{self.plain(text)}>")

    def tint(self, text: str, level: str) -> Styled:
        """Slack has no colours inside a text."""
        return Styled(self.plain(text))


@dataclass(frozen=True, slots=True)
class Bare:
    """No mark-up at all: a pager, a log."""

    def plain(self, text: str) -> str:
        """One line."""
        return one_line(text)

    def bold(self, text: str) -> Styled:
        """As it is."""
        return Styled(self.plain(text))

    def code(self, text: str) -> Styled:
        """As it is."""
        return Styled(self.plain(text))

    def link(self, text: str, url: str) -> Styled:
        """Text and URL."""
        return Styled(f"{self.plain(text)}: {url}" if is_link(url) else self.plain(text))

    def tint(self, text: str, level: str) -> Styled:
        """As it is."""
        return Styled(self.plain(text))


def one_line(text: str) -> str:
    """Control characters and line ends become one space; a very long value is cut."""
    flat = _CONTROL.sub(" ", text).strip()
    return flat if len(flat) <= _VALUE_CHARS_MAX else flat[: _VALUE_CHARS_MAX - 1] + "…"


def is_link(url: str) -> bool:
    """Whether it is an http(s) URL without anything that could end it early."""
    return re.fullmatch(r"https?://[^\s<>\"'`\\]+", url) is not None
