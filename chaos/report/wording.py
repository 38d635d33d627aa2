"""Text from models and people made safe to read: every character visible, nothing endless."""

import unicodedata
from collections.abc import Mapping, Sequence

NO_DATA = "no data"
_VISIBLE = {"\n": "⏎\n", "\t": "⇥", "\r": "␍"}


def legible(text: str) -> str:
    """The text with everything written out that a page must not hold: it may stay as it is.

    Right-to-left marks could make a diff read as its opposite; lone surrogates and NUL cannot be
    encoded or parsed. Line feeds are kept.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(letter if letter == "\n" else _shown(letter) for letter in text)


def visible(text: str, limit: int = 600) -> str:
    """The text with line feeds and all else that is unseen written out, cut at `limit` letters."""
    cut = text[:limit]
    shown = "".join(_VISIBLE.get(letter) or _shown(letter) for letter in cut)
    rest = len(text) - len(cut)
    return f"{shown} … {rest:,} more characters" if rest > 0 else shown


def short(text: str, limit: int = 160) -> str:
    """One line of at most `limit` characters."""
    flat = " ".join(visible(text, 4 * limit).replace("⏎", " ").split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def milliseconds(value: float | None) -> str:
    """A duration with the precision that it deserves."""
    if value is None:
        return NO_DATA
    if value >= 10_000:
        return f"{value / 1000:,.1f} s"
    return f"{value:,.0f} ms" if value >= 10 else f"{value:.2g} ms"


def rate(value: float | None) -> str:
    """Tokens a second."""
    return NO_DATA if value is None else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def share(part: int, whole: int) -> str:
    """A percentage that never rounds a real exception away to 0 or 100."""
    if not whole:
        return NO_DATA
    percent = 100 * part / whole
    if 0 < percent < 0.1:
        return "< 0.1 %"
    if 99.9 < percent < 100:
        return "> 99.9 %"
    return f"{percent:.1f} %".replace(".0 %", " %")


def flat_facts(value: object, name: str = "", depth: int = 0) -> list[tuple[str, str]]:
    """Nested JSON as dotted names and short values, for tables."""
    if isinstance(value, Mapping) and value and depth < 3:
        return [
            fact
            for key, inner in value.items()
            for fact in flat_facts(inner, f"{name}.{key}" if name else str(key), depth + 1)
        ]
    if isinstance(value, Mapping) and not value:
        return [(name, "none")] if name else []
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [(name, short(", ".join(str(item) for item in value) or "none", 400))]
    if isinstance(value, bool):
        return [(name, "yes" if value else "no")]
    return [(name, short(f"{value:g}" if isinstance(value, float) else str(value), 400))]


def _shown(letter: str) -> str:
    seen = letter.isprintable() or unicodedata.category(letter) == "Zs"
    return letter if seen else f"⟨U+{ord(letter):04X}⟩"
