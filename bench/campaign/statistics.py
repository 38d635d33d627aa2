"""Wilson intervals, and strata weighed back to uniformly chosen bits."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt

Z95_TWO_SIDED = 1.959963984540054
Z95_ONE_SIDED = 1.6448536269514722


def wilson_low(hits: float, trials: float, z: float = Z95_TWO_SIDED) -> float:
    """Lower end of the Wilson score interval; 0 without trials.

    Args:
        hits, trials: counts; not whole where they are an effective sample.
        z: standard normal quantile; the default gives a two-sided 95 % interval.
    """
    if trials <= 0:
        return 0.0
    share = hits / trials
    centre = share + z * z / (2 * trials)
    spread = z * sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return max(0.0, (centre - spread) / (1 + z * z / trials))


def wilson_high(hits: float, trials: float, z: float = Z95_TWO_SIDED) -> float:
    """Upper end of the Wilson score interval; 1 without trials."""
    return 1.0 - wilson_low(trials - hits, trials, z)


def zero_high(trials: int) -> float:
    """Upper 95 % bound of a rate that was never seen in so many trials: 1 - 0.05^(1/n)."""
    return 1.0 if trials <= 0 else float(1.0 - 0.05 ** (1.0 / trials))


@dataclass(frozen=True, slots=True)
class Stratum:
    """Counts of one stratum, and its share of uniformly chosen faults.

    Attributes:
        share: need not be normalised over strata.
        shown: harmful ones that the detector was shown, drawn without regard to what it says;
            they stand for all of the stratum. caught: of these.
    """

    share: float
    trials: int
    harmful: int
    shown: int
    caught: int


@dataclass(frozen=True, slots=True)
class Weighed:
    """What uniformly chosen faults would give.

    Attributes:
        harm: share of faults that are harmful.
        coverage: share of the harmful ones that are caught; 1 - the weighed misses. A stratum of
            which the detector was shown nothing harmful says nothing of it and is left out.
        low95: Wilson lower bound of the coverage at the effective sample size.
        effective: harmful cases of equal weight that would tell as much (Kish): the square of the
            summed weights of the cases shown, over the sum of their squares. Never more than
            their number; a rare stratum drawn often adds little to it.
    """

    harm: float
    coverage: float
    low95: float
    effective: float


def weigh(strata: Iterable[Stratum]) -> Weighed | None:
    """Combine strata of unequal quotas (Horvitz-Thompson); None where nothing harmful was shown.

    A stratum of share s (normalised) with n trials weighs s/n a trial, and each of its k harmful
    cases shown, out of h, s/n * h/k.
    """
    known = [one for one in strata if one.trials]
    total = sum(one.share for one in known)
    harm = sum(one.share / total * one.harmful / one.trials for one in known) if total else 0.0
    told = [
        (one.share / total / one.trials * one.harmful / one.shown, one)
        for one in known
        if one.shown and total
    ]
    weight = sum(w * one.shown for w, one in told)
    if weight <= 0:
        return None
    coverage = min(1.0, sum(w * one.caught for w, one in told) / weight)
    effective = weight * weight / sum(w * w * one.shown for w, one in told)
    return Weighed(harm, coverage, wilson_low(coverage * effective, effective), effective)
