"""What Kubernetes takes for a name, a label, a quantity, a port, a schedule, a duration."""

import re
from decimal import Decimal
from typing import Any

LABEL_LENGTH_MAX = 63
SUBDOMAIN_LENGTH_MAX = 253
PORT_NAME_LENGTH_MAX = 15
PORT_MAX = 65535

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))"
    r"(?P<unit>Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?[0-9]+)?"
)
_SCALE = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}
_ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]([a-z0-9]|-(?!-))*(?<!-)")
_DURATION = re.compile(r"0|([0-9]+y)?([0-9]+w)?([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?")
# Fields of a schedule: name, first, last, words for the values.
_MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
_DAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
_CRON_FIELDS: tuple[tuple[int, int, dict[str, int]], ...] = (
    (0, 59, {}),
    (0, 23, {}),
    (1, 31, {}),
    (1, 12, {word: index for index, word in enumerate(_MONTHS, 1)}),
    (0, 6, {word: index for index, word in enumerate(_DAYS)}),
)
_CRON_WORDS = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")


def is_label(text: Any) -> bool:
    """Whether it is a DNS-1123 label."""
    return isinstance(text, str) and len(text) <= LABEL_LENGTH_MAX and _full(_LABEL, text)


def is_label_1035(text: Any) -> bool:
    """Whether it is a DNS-1035 label: one that begins with a letter."""
    return isinstance(text, str) and len(text) <= LABEL_LENGTH_MAX and _full(_LABEL_1035, text)


def is_subdomain(text: Any) -> bool:
    """Whether it is a DNS-1123 subdomain."""
    return isinstance(text, str) and len(text) <= SUBDOMAIN_LENGTH_MAX and _full(_SUBDOMAIN, text)


def is_qualified_name(text: Any) -> bool:
    """Whether it may be the key of a label, an annotation or a resource."""
    if not isinstance(text, str):
        return False
    prefix, slash, name = text.rpartition("/")
    if slash and not is_subdomain(prefix):
        return False
    return len(name) <= LABEL_LENGTH_MAX and _full(_NAME_PART, name)


def is_label_value(text: Any) -> bool:
    """Whether it may be the value of a label."""
    if not isinstance(text, str) or len(text) > LABEL_LENGTH_MAX:
        return False
    return text == "" or _full(_NAME_PART, text)


def is_env_name(text: Any) -> bool:
    """Whether it may name an environment variable."""
    return isinstance(text, str) and _full(_ENV_NAME, text)


def is_config_key(text: Any) -> bool:
    """Whether it may be a key of a ConfigMap or Secret."""
    return isinstance(text, str) and _full(_CONFIG_KEY, text) and not text.startswith("..")


def is_port_name(text: Any) -> bool:
    """Whether it may name a port of a container."""
    return isinstance(text, str) and len(text) <= PORT_NAME_LENGTH_MAX and _full(_PORT_NAME, text)


def is_port_number(number: Any) -> bool:
    """Whether it is a port number."""
    return isinstance(number, int) and not isinstance(number, bool) and 0 < number <= PORT_MAX


def is_duration(text: Any) -> bool:
    """Whether Prometheus reads it as a duration."""
    return isinstance(text, str) and text != "" and _full(_DURATION, text)


def quantity(found: Any) -> Decimal | None:
    """The number that a quantity stands for; None when it is none."""
    if isinstance(found, bool) or not isinstance(found, str | int | float):
        return None
    match = _QUANTITY.fullmatch(str(found))
    if match is None:
        return None
    unit = match["unit"] or ""
    if unit[:1] in ("e", "E") and len(unit) > 1 and unit not in _SCALE:
        return Decimal(match["number"] + unit)
    return Decimal(match["number"]) * _SCALE[unit]


def is_schedule(text: Any) -> bool:
    """Whether it is a five-field schedule that Kubernetes and KubeRay accept, without a zone."""
    if not isinstance(text, str) or "TZ" in text:
        return False
    if text.startswith("@"):
        return text in _CRON_WORDS or re.fullmatch(r"@every ([0-9]+(h|m|s|ms))+", text) is not None
    fields = text.split()
    if len(fields) != len(_CRON_FIELDS):
        return False
    return all(
        _is_cron_field(part, low, high, words)
        for field, (low, high, words) in zip(fields, _CRON_FIELDS, strict=True)
        for part in field.split(",")
    )


def _is_cron_field(part: str, low: int, high: int, words: dict[str, int]) -> bool:
    span, slash, step = part.partition("/")
    if slash and not (step.isdecimal() and int(step) > 0):
        return False
    if span in ("*", "?"):
        return True
    first, dash, last = span.partition("-")
    ends = [
        words.get(end.upper(), -1) if not end.isdecimal() else int(end)
        for end in ((first, last) if dash else (first,))
    ]
    return all(low <= end <= high for end in ends) and ends == sorted(ends)


def _full(pattern: re.Pattern[str], text: str) -> bool:
    return pattern.fullmatch(text) is not None
