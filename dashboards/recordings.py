"""Recording rules: the share of requests that went wrong, over each window of the error budget."""

from tocsin.core.metrics import REQUESTS
from tocsin.dashboards.contract import RecordingRule
from tocsin.dashboards.promql import by, select

OBJECTIVE = 0.999
"""Share of requests that must be answered."""
WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
_BAD = {"outcome": "~failed|refused"}
# A request that was malformed, or whose client left, says nothing about the service.
_COUNTED = {"outcome": "~ok|failed|refused"}


def error_ratio(window: str) -> str:
    """Name of the recorded share of bad answers over a window."""
    return f"tocsin:request_errors:ratio_rate{window}"


def burning(factor: float, long: str, short: str) -> str:
    """The budget is spent `factor` times too fast, over a long and still over a short window."""
    limit = f"{factor:g} * {1 - OBJECTIVE:.3f}"
    return f"({error_ratio(long)} > {limit} and {error_ratio(short)} > {limit})"


RECORDINGS: tuple[RecordingRule, ...] = tuple(
    RecordingRule(
        error_ratio(window),
        f"sum {by('model')} (rate({select(REQUESTS, _BAD)}[{window}]))\n"
        f"/ sum {by('model')} (rate({select(REQUESTS, _COUNTED)}[{window}]))",
    )
    for window in WINDOWS
)
"""Every recording rule, shortest window first."""
