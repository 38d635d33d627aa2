"""A swarm: random seeds, random subsets of the faults, random parameters, each run simulated.

Source: Groce et al., Swarm Testing, ISSTA 2012: leaving features out finds what all of them
together hide.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tocsin.chaos.contract import Fault, faults, load_for
from tocsin.chaos.faults.batch.malformed import KINDS
from tocsin.chaos.spec import Experiment
from tocsin.chaos.spec_file import load_experiment, parse_experiment
from tocsin.chaos.verdict import EXIT_PASS, EXIT_UNKNOWN, RunVerdict
from tocsin.core.draw import draw_below, draw_choice, draw_u64
from tocsin.core.errors import TocsinError
from tocsin.core.faulting import Scope
from tocsin.ray_jobs.sim.experiment_file import write_experiment
from tocsin.ray_jobs.sim.strikes import why_not_simulated

FAULTS_MOST = 5
_STEPS, _SENT = (4, 40), (2, 20)
"""Ticks of the two clocks between which faults are due."""

DRAWN: Mapping[str, Mapping[str, tuple[Any, ...]]] = MappingProxyType(
    {
        "actor.freeze": {"duration_s": (2.0, 4.0, 8.0)},
        "attn.backend_fail": {"times": (1, 2, 3)},
        "attn.cu_seqlens": {"kind": ("last", "decreasing", "int64")},
        "batch.malformed": {"kind": KINDS},
        "host.mem_pressure": {"times": (1, 4, 8)},
        "rope.table": {"factor": (0.25, 4.0, "nan")},
    }
)
"""Parameters that are drawn, and their values; every one must be seen as the declaration says.
Others stay as declared: what lies beyond may be a blind spot that is known."""


@dataclass(frozen=True, slots=True)
class Flight:
    """One run of a swarm.

    Attributes:
        verdict: None: it could not begin; `error` says why.
        kept: its regression file, where there is one.
    """

    experiment: Experiment
    verdict: RunVerdict | None
    error: str = ""
    kept: Path | None = None

    @property
    def passed(self) -> bool:
        """It passed, or all that is wrong with it is that some property had nothing to look at."""
        return self.verdict is not None and self.verdict.exit_code in (EXIT_PASS, EXIT_UNKNOWN)

    @property
    def said(self) -> tuple[str, ...]:
        """Cells of the summary: verdict, occurrences fired and seen, silent corruptions, words."""
        verdict = self.verdict
        if verdict is None:
            return "no run", "", "", "", self.error
        fired = sum(one.fired for one in verdict.faults)
        seen = sum(one.detected for one in verdict.faults)
        silent = str(verdict.silent_corruptions)
        return str(verdict.conclusion), str(fired), str(seen), silent, verdict.sentence


_ANSWERED, _CROWDED = 0.5, 0.2
"""Least share of the requests that are answered; of a crowd that is larger than the service, whose
clients come again at once, most are told to come later, for as long as it lasts."""


def simulated_faults() -> dict[str, Fault]:
    """Declared faults that can be simulated with a real engine, by id."""
    return {name: one for name, one in faults().items() if not why_not_simulated(one, engine=True)}


def drawn_experiment(seed: int, index: int) -> Experiment:
    """The experiment of an index; it depends on the seed and the index alone."""
    key = ("swarm", index)
    known = simulated_faults()
    wanted = 1 + draw_below(FAULTS_MOST, seed, *key, "faults")
    shuffled = sorted(known, key=lambda name: draw_u64(seed, *key, "order", name))
    chosen = shuffled[:wanted]
    own = draw_u64(seed, *key, "seed") >> 1
    crowd = any("concurrency" in known[name].load for name in chosen)
    document = {
        "apiVersion": "chaos/v1",
        "kind": "Experiment",
        "name": f"swarm-{seed}-{index}",
        "hypothesis": "Whatever faults come together, no wrong answer gets out.",
        "seed": own,
        "system": {
            "model": "tiny",
            "replicas": 2,
            "slots": 4,
            "pages": 96,
            "max_length": 320,
        },
        "workload": load_for(
            (known[name] for name in chosen),
            prompts="builtin/golden-24",
            concurrency=2 + draw_below(7, seed, *key, "concurrency"),
            requests=12 + draw_below(21, seed, *key, "requests"),
            stream_ratio=draw_choice((0.0, 0.5, 1.0), seed, *key, "stream"),
            abort_ratio=draw_choice((0.0, 0.1, 0.3), seed, *key, "abort"),
            max_new_tokens=6,
        ),
        "steady_state": {"warmup": 2, "window": "1s", "good_windows": 2},
        "faults": [_fault(known[name], seed, (*key, name)) for name in chosen],
        "safety": {
            "scope": "cluster_destructive",
            "max_concurrent_faults": 1 + draw_below(3, seed, *key, "together"),
            "max_targets": 1.0,
            "keep_alive": 1,
            "max_duration": "10m",
            "ttl": "30s",
        },
        "budget": {"availability": _CROWDED if crowd else _ANSWERED},
    }
    return parse_experiment(document, name=f"swarm {seed} {index}")


def _fault(declared: Fault, seed: int, key: tuple[object, ...]) -> dict[str, Any]:
    on_requests = declared.scope is not Scope.WORKER
    first, last = _SENT if on_requests else _STEPS
    ticks = sorted(
        first + draw_below(last - first, seed, *key, "at", n)
        for n in range(1 + draw_below(2, seed, *key, "count"))
    )
    params = {
        name: draw_choice(values, seed, *key, "param", name)
        for name, values in DRAWN.get(declared.id, {}).items()
        if name in declared.params
    }
    return {
        "id": declared.id.replace(".", "-").replace("_", "-"),
        "kind": declared.id,
        "params": params,
        "when": {"clock": "request" if on_requests else "decode_step", "at": ticks},
        "expect": {"within": "15s", "recover_within": "30s"},
    }


def fly(
    count: int,
    seed: int,
    judged: Callable[[Experiment], RunVerdict],
    keep: Path,
) -> Iterator[Flight]:
    """Run a swarm, one after another.

    Args:
        judged: runs an experiment and judges it.
        keep: folder of the experiments that did not pass, one file each.
    """
    for index in range(count):
        flight = _flown(drawn_experiment(seed, index), judged)
        if flight.passed:
            yield flight
            continue
        experiment = flight.experiment
        comment = (
            f"Did not pass in a swarm: {' '.join(flight.said[-1].split())[:200]}",
            "Again: tocsin chaos run FILE --sim. Smaller: tocsin chaos shrink on that run.",
        )
        path = write_experiment(keep / f"{experiment.name}.yaml", experiment, comment)
        yield Flight(experiment, flight.verdict, flight.error, path)


def refly(judged: Callable[[Experiment], RunVerdict], keep: Path) -> Iterator[Flight]:
    """Run what earlier swarms have kept.

    Raises:
        SpecError: a file there is no experiment any more.
    """
    for path in sorted(keep.glob("*.yaml")):
        yield replace(_flown(load_experiment(path), judged), kept=path)


def _flown(experiment: Experiment, judged: Callable[[Experiment], RunVerdict]) -> Flight:
    try:
        return Flight(experiment, judged(experiment))
    except TocsinError as error:
        return Flight(experiment, None, str(error))
