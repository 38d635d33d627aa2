"""Every competitor of the tables, cheapest to write first."""

from tocsin.bench.competitors.abs_max import AbsMax
from tocsin.bench.competitors.assert_isfinite import AssertIsfinite
from tocsin.bench.competitors.competitor import Competitor
from tocsin.bench.competitors.dmr import Dmr
from tocsin.bench.competitors.nan_logits import NanLogits
from tocsin.bench.competitors.sdcguard import SdcGuard


def competitors() -> tuple[Competitor, ...]:
    """One of each, as it is used by default."""
    return (AssertIsfinite(), NanLogits(), AbsMax(), Dmr(), SdcGuard())
