"""What metrics cost a decode step: paired, with the meter on and off in alternating steps.

`python -m tocsin.ray_jobs.metering_cost [--model PATH]` prints the figure. One engine serves full
slots; each pair of neighbouring steps has the meter's work after one of them and not after the
other, in random order. CPU time of the stepping thread is compared: neighbours on the machine
disturb it less than the wall clock.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tocsin.core.clock import SystemClock
from tocsin.core.requests import Request
from tocsin.core.verdict import Failure
from tocsin.engine.weights import prepare
from tocsin.ray_jobs.options import ServeOptions
from tocsin.ray_jobs.stack import Stack, build
from tocsin.ray_jobs.worker_meter import WorkerMeter

PAIRS = 200
_WARM_UP = 8


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians over the pairs.

    Attributes:
        step_ms: a decode step without the meter; meter_ms: what the meter takes of one.
        ratio: of paired steps, with over without, less 1.
    """

    step_ms: float
    meter_ms: float
    ratio: float


def measure(options: ServeOptions, folder: Path, pairs: int = PAIRS) -> Cost:
    """Serve on every slot and compare neighbouring decode steps."""
    meter = WorkerMeter(folder, options.served_name, "cost", SystemClock())
    stack = build(options, recorded=meter.recorded)
    chance, off_s, on_s, meter_s = random.Random(1), [], [], []
    for _ in range(_WARM_UP):
        _decode(stack)
        meter.turned(stack, 0.0)
    for _ in range(pairs):
        order = [True, False]
        chance.shuffle(order)
        for with_meter in order:
            took_s = _decode(stack)
            if not with_meter:
                off_s.append(took_s)
                continue
            began_ns = time.thread_time_ns()
            meter.turned(stack, took_s)
            meter_s.append((time.thread_time_ns() - began_ns) / 1e9)
            on_s.append(took_s + meter_s[-1])
    meter.close()
    ratios = [on / off for on, off in zip(on_s, off_s, strict=True)]
    return Cost(
        1e3 * statistics.median(off_s),
        1e3 * statistics.median(meter_s),
        statistics.median(ratios) - 1.0,
    )


def failure_ms(folder: Path, failure: Failure, count: int = 1000) -> float:
    """What it takes to count one failure and write its tick, in milliseconds."""
    meter = WorkerMeter(folder, "m", "cost", SystemClock())
    began_ns = time.thread_time_ns()
    for _ in range(count):
        meter.recorded(failure, "rope")
    took_ms = (time.thread_time_ns() - began_ns) / 1e6 / count
    meter.close()
    return took_ms


def _decode(stack: Stack) -> float:
    """One decode step of full slots; those that have ended are filled again outside the clock."""
    while True:
        free = stack.engine.stats().slots - stack.engine.stats().running
        for number in range(free - stack.engine.stats().waiting):
            name = f"{stack.engine.stats().step}-{number}"
            stack.engine.submit(Request(name, (5, 6, 7, 8), 200, ignore_eos=True))
        began_ns = time.thread_time_ns()
        stack.engine.step()
        took_s = (time.thread_time_ns() - began_ns) / 1e9
        if stack.gate.kind == "decode" and not stack.engine.stats().waiting:
            return took_s


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    given = parser.parse_args()
    options = ServeOptions(path=str(prepare(given.model)), model=given.model, slots=4)
    with tempfile.TemporaryDirectory() as folder:
        cost = measure(options, Path(folder), given.pairs)
    sys.stdout.write(
        f"metrics: {cost.meter_ms:.3f} ms of a {cost.step_ms:.1f} ms decode step "
        f"({cost.meter_ms / cost.step_ms:.2%}); paired ratio {cost.ratio:+.2%} "
        f"over {given.pairs} pairs\n"
    )


if __name__ == "__main__":
    main()
