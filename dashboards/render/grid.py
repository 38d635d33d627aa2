"""The boundary of the P0 rule under every scrape: ten failures in a minute never page, eleven do.

A rule test in which samples and evaluations fall on the same seconds hides what goes wrong in
earnest. Here scrapes and evaluations drift against each other, the series are born late, two
nodes share the failures, and scrapes are lost to a restart.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from tocsin.core.metrics import CHECK_FAILURES, FAILURES_WINDOW
from tocsin.dashboards.contract import alerts

WorstWindow = Callable[[Sequence[float], float], int]
"""`(times_s, now_s) -> count`: what the gauge shows at a time, as the process computes it."""

INTERVALS_S = (
    *((scrape, evaluate) for scrape in (1, 5, 15, 30) for evaluate in (1, 5, 15, 30)),
    *((7, 5), (13, 30), (29, 15), (11, 1)),
)
"""(scrape, evaluation): all pairs, and some that share no second with each other."""

_END_S = 420


@dataclass(frozen=True, slots=True)
class Scenario:
    """When an operator failed, and whether that is more than ten within any minute.

    Attributes:
        failures: (seconds, node), in order.
        born_s: when the series appear; lost: (from, to) seconds in which no scrape succeeds.
    """

    name: str
    failures: tuple[tuple[float, str], ...]
    pages: bool
    born_s: float = 0.0
    lost: tuple[tuple[float, float], ...] = ()


def _spread(count: int, first_s: float, last_s: float, nodes: str = "a") -> tuple[Any, ...]:
    """Evenly from the first to the last second, the nodes in turn."""
    step_s = (last_s - first_s) / max(count - 1, 1)
    return tuple((first_s + at * step_s, nodes[at % len(nodes)]) for at in range(count))


SCENARIOS = (
    Scenario("ten at once", _spread(10, 100.3, 100.3), False),
    Scenario("eleven at once", _spread(11, 100.3, 100.3), True),
    Scenario("ten over 59 s", _spread(10, 92.4, 151.4), False),
    Scenario("eleven over 59.9 s", _spread(11, 92.4, 152.3), True),
    Scenario("eleven over 60 s: ten in any minute", _spread(11, 92.5, 152.5), False),
    Scenario("ten a minute, for five", _spread(50, 60.25, 354.25), False),
    Scenario("twelve a minute, for two", _spread(24, 60.2, 175.2), True),
    Scenario("born with ten", _spread(10, 181.7, 182.9), False, born_s=183),
    Scenario("born with eleven", _spread(11, 181.7, 182.9), True, born_s=183),
    Scenario("five and five on two nodes", _spread(10, 100.3, 130.3, "ab"), False),
    Scenario("six and five on two nodes", _spread(11, 100.3, 130.3, "ab"), True),
    Scenario(
        "six before a restart, five after it",
        (*_spread(6, 100.3, 104.3), *_spread(5, 128.8, 131.8)),
        True,
        lost=((105, 128),),
    ),
    Scenario(
        "six before a restart, four after it",
        (*_spread(6, 100.3, 104.3), *_spread(4, 128.8, 131.8)),
        False,
        lost=((105, 128),),
    ),
    Scenario(
        "eleven, and no scrape for half a minute",
        _spread(11, 100.3, 104.3),
        True,
        lost=((99, 130),),
    ),
)


def grid_files(worst: WorstWindow, rules: str) -> dict[int, dict[str, Any]]:
    """Evaluation interval in seconds → document; promtool takes one interval a file.

    Args:
        worst: how the serving processes count; `dashboards` may not import the checker.
        rules: path of a file that holds the rule, best alone: promtool evaluates all it finds.
    """
    files: dict[int, dict[str, Any]] = {}
    for evaluate_s in sorted({evaluate_s for _, evaluate_s in INTERVALS_S}):
        tests = [
            _test(scenario, scrape_s, evaluate_s, worst)
            for scrape_s, paired_s in INTERVALS_S
            if paired_s == evaluate_s
            for scenario in SCENARIOS
        ]
        files[evaluate_s] = {
            "rule_files": [rules],
            "evaluation_interval": f"{evaluate_s}s",
            "tests": tests,
        }
    return files


def _test(scenario: Scenario, scrape_s: int, evaluate_s: int, worst: WorstWindow) -> dict[str, Any]:
    name = alerts()["operator_failing"].name
    fired = f'max_over_time(ALERTS{{alertname="{name}",alertstate="firing"}}[{_END_S}s])'
    labels = f'alertname="{name}",alertstate="firing",model="m",operator="rope"'
    labels += ',priority="P0",severity="critical"'
    expected = [{"labels": f"{{{labels}}}", "value": 1}] if scenario.pages else []
    return {
        "name": f"{scenario.name}; scraped every {scrape_s} s, evaluated every {evaluate_s} s",
        "interval": f"{scrape_s}s",
        "input_series": list(_series(scenario, scrape_s, worst)),
        "promql_expr_test": [{"expr": fired, "eval_time": f"{_END_S}s", "exp_samples": expected}],
    }


def _series(scenario: Scenario, scrape_s: int, worst: WorstWindow) -> Iterator[dict[str, str]]:
    """The gauge of each node and of the fleet, and the counter that a naive rule would read."""
    nodes = sorted({node for _, node in scenario.failures})
    fleet = [time_s for time_s, _ in scenario.failures]
    for node in nodes:
        own = [time_s for time_s, of in scenario.failures if of == node]
        target = f'instance="{node}"'
        gauge = f'{FAILURES_WINDOW.name}{{model="m",operator="rope",{target}'
        yield _sampled(f'{gauge},scope="node"}}', scenario, scrape_s, _seen(own, worst))
        yield _sampled(f'{gauge},scope="fleet"}}', scenario, scrape_s, _seen(fleet, worst))
        yield _sampled(
            f'{CHECK_FAILURES.name}{{model="m",operator="rope",layer="numerical",'
            f'check="numerical.rope_norm",priority="P1",{target}}}',
            scenario,
            scrape_s,
            lambda now_s, own=own: sum(time_s <= now_s for time_s in own),  # type: ignore[misc]
        )


def _seen(times_s: Sequence[float], worst: WorstWindow) -> Callable[[float], int]:
    return lambda now_s: worst([time_s for time_s in times_s if time_s <= now_s], now_s)


def _sampled(
    selector: str, scenario: Scenario, scrape_s: int, value: Callable[[float], int]
) -> dict[str, str]:
    """Values at the seconds of the scrapes, equal ones taken together."""
    samples = []
    for now_s in range(0, _END_S + 1, scrape_s):
        lost = any(since <= now_s <= until for since, until in scenario.lost)
        samples.append("_" if lost or now_s < scenario.born_s else str(value(now_s)))
    runs = [(text, len(list(run))) for text, run in groupby(samples)]
    # promtool reads `_x3` as three gaps and `1x3` as one and three more
    words = [f"{text}x{count if text == '_' else count - 1}" for text, count in runs]
    return {"series": selector, "values": " ".join(words)}
