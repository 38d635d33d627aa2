"""Cutting a text to a number of UTF-8 bytes: never inside a character, at a line if possible."""


def cut_utf8(text: str, bytes_max: int, ending: str = "…") -> str:
    """The text if it fits, else as much of its beginning as fits together with `ending`.

    The cut is moved back to the last line end where that costs less than half of the text: half a
    command or half a link is worse than none.

    Raises:
        ValueError: not even the ending fits.
    """
    raw = text.encode()
    if len(raw) <= bytes_max:
        return text
    room = bytes_max - len(ending.encode())
    if room < 0:
        raise ValueError(f"cut: bytes_max is {bytes_max}, expected room for {ending!r}")
    kept = raw[:room].decode(errors="ignore")
    line = kept.rfind("\n")
    if line >= len(kept) // 2:
        kept = kept[: line + 1]
    return kept + ending
