"""What a simulated fleet costs: CPU time by the number of replicas, each on a node of its own.

`python -m tocsin.ray_jobs.sim.cost` prints one line a size; the replicas are stubs, so what is
measured is the harness: load, gateway, resuming, event log, conductor and judge.
"""

import argparse
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tocsin.chaos.judge import judge
from tocsin.chaos.spec import Experiment
from tocsin.chaos.spec_file import parse_experiment
from tocsin.ray_jobs.sim.simulate import Simulator

SIZES = (1, 10, 100)
_REQUESTS, _CONCURRENCY, _TOKENS = 40, 8, 8


@dataclass(frozen=True, slots=True)
class Reading:
    """One fleet.

    Attributes:
        virtual_s: length of the run in virtual time; conduct_s, judge_s: CPU time.
        peak_bytes: resident memory of this process at its largest so far.
    """

    replicas: int
    requests: int
    tokens: int
    virtual_s: float
    conduct_s: float
    judge_s: float
    verdict: str
    peak_bytes: int


def fleet_experiment(replicas: int, requests: int = _REQUESTS) -> Experiment:
    """A load that grows with the fleet; in a fleet of several, one replica is killed."""
    kill = {"id": "kill", "kind": "actor.kill", "when": {"clock": "request", "at": [10]}}
    return parse_experiment(
        {
            "apiVersion": "chaos/v1",
            "kind": "Experiment",
            "name": f"fleet-{replicas}",
            "seed": 1,
            "system": {"model": "stub", "replicas": replicas},
            "workload": {
                "concurrency": _CONCURRENCY * replicas,
                "requests": requests * replicas,
                "max_new_tokens": _TOKENS,
            },
            "steady_state": {"warmup": 4, "window": "1s", "good_windows": 2},
            "faults": [kill] if replicas > 1 else [],
            "safety": {"scope": "isolated", "max_targets": 1.0, "max_duration": "1h"},
        }
    )


def measure(replicas: int, requests: int = _REQUESTS) -> Reading:
    """Simulate one fleet and judge it."""
    simulator = Simulator("stub")
    began_s = time.process_time()
    case = simulator.conduct(fleet_experiment(replicas, requests))
    conducted_s = time.process_time()
    verdict = judge(case)
    judged_s = time.process_time()
    return Reading(
        replicas=replicas,
        requests=len(case.records),
        tokens=sum(len(record.chunks) for record in case.records),
        virtual_s=(case.t_end_ns - case.t_start_ns) / 1e9,
        conduct_s=conducted_s - began_s,
        judge_s=judged_s - conducted_s,
        verdict=str(verdict.conclusion),
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def main(arguments: Sequence[str]) -> None:
    """Measure fleets of several sizes."""
    parser = argparse.ArgumentParser(prog="python -m tocsin.ray_jobs.sim.cost")
    parser.add_argument("sizes", nargs="*", type=int, default=list(SIZES))
    parser.add_argument("--requests", type=int, default=_REQUESTS, help="a replica")
    given = parser.parse_args(arguments)
    for size in given.sizes:
        one = measure(size, given.requests)
        sys.stdout.write(
            f"{one.replicas} replicas: {one.requests} requests, {one.tokens} tokens in "
            f"{one.virtual_s:.1f} virtual s; CPU {one.conduct_s:.1f} s to run "
            f"({1e3 * one.conduct_s / one.requests:.1f} ms a request), {one.judge_s:.1f} s to "
            f"judge; {one.peak_bytes / 2**20:.0f} MiB; {one.verdict}\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
