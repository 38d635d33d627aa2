"""A mistake planted among many harmless faults is found, shrunk to, and fails from its file."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.ray_jobs.sim.little import MALFORMED, experiment, malformed
from tocsin.chaos.case import Conclusion, PropertyVerdict, Violation
from tocsin.chaos.judge import judge
from tocsin.chaos.plan import make_plan
from tocsin.chaos.spec import Experiment
from tocsin.chaos.spec_file import load_experiment
from tocsin.chaos.verdict import RunVerdict
from tocsin.core.errors import SpecError
from tocsin.ray_jobs.sim.ending import Ending, ending_of, recurrence, violation
from tocsin.ray_jobs.sim.shrink import MINIMAL, Limits, Shrinker
from tocsin.ray_jobs.sim.simulate import Simulator

pytestmark = pytest.mark.slow

GOLDEN = Ending(Conclusion.FAIL, "golden.tokens")


def _many(prompts: Path, **system: str) -> Experiment:
    """Twelve malformed requests, which do no harm, and one poisoned page."""
    harmless = [malformed(n, kind, n % 3, 3) for n, kind in enumerate(MALFORMED)]
    page = {
        "id": "page",
        "kind": "kv.poisoned_page",
        "when": {"at": [2, 6]},
        "expect": {"within": "200ms"},  # the run waits so long for what nobody sees
    }
    return experiment(prompts, *harmless[:3], page, *harmless[3:], replicas=1, **system)


@dataclass
class Fake:
    """In place of a simulation: fails when all of these occurrences and so many requests are in."""

    needed: Sequence[str]
    requests: int = 1
    asked: list[Experiment] = field(default_factory=list)

    def __call__(self, wanted: Experiment) -> RunVerdict:
        self.asked.append(wanted)
        planned = {one.id for one in make_plan(wanted).occurrences}
        fails = planned >= set(self.needed) and wanted.workload.requests >= self.requests
        return verdict("golden.tokens" if fails else "")


def verdict(*violated: str) -> RunVerdict:
    """A verdict in which these properties are violated, once each."""
    properties = tuple(
        PropertyVerdict(name, Conclusion.FAIL, 1, (Violation("wrong", request_id="r00001"),))
        for name in violated
        if name
    )
    conclusion = Conclusion.FAIL if properties else Conclusion.PASS
    nothing = {name: 0 for name in ("requests", "tokens", "silent_corruptions", "lost")}
    return RunVerdict(
        conclusion, int(bool(properties)), "it is said", (), 1, "", "", "", "",
        **nothing, duplicated=0, availability=1.0, false_alarms=0,
        properties=properties, faults=(), self_test=(),
    )  # fmt: skip


def test_a_silent_corruption_is_shrunk_to_the_fault_that_causes_it(
    tiny: Simulator, prompts: Path, tmp_path: Path
):
    """Checks are off, fourteen faults fire, one page harms: it alone is left in the file."""
    whole = _many(prompts, profile="off")
    assert len(make_plan(whole).occurrences) >= 10
    shrinker = Shrinker(lambda one: judge(tiny.conduct(one)), GOLDEN, tmp_path)
    done = shrinker.shrink(whole)
    assert done.minimal
    again = load_experiment(done.path)
    (left,) = make_plan(again).occurrences
    assert left.kind == "kv.poisoned_page"
    assert left in make_plan(whole).occurrences, "it is the same occurrence, seed and all"
    assert again.workload.requests <= 2
    assert again.workload.max_new_tokens <= 4
    assert ending_of(judge(tiny.conduct(again))) == GOLDEN


def test_two_faults_that_fail_only_together_are_both_kept(prompts: Path, tmp_path: Path):
    """And the workload is as small as it can be with them."""
    fake = Fake(("page@1", "bad-4@0"), requests=3)
    done = Shrinker(fake, GOLDEN, tmp_path).shrink(_many(prompts))
    kept = {one.id for one in make_plan(done.experiment).occurrences}
    assert kept == {"page@1", "bad-4@0"}
    work = done.experiment.workload
    assert (work.requests, work.concurrency, work.max_new_tokens) == (3, 1, 1)


def test_it_goes_on_where_a_limit_stopped_it(prompts: Path, tmp_path: Path):
    """Answers are on disk: no experiment is run twice, and the end is that of one long call."""
    fake = Fake(("page@0", "bad-1@1"))
    calls = 0
    while True:
        calls += 1
        done = Shrinker(fake, GOLDEN, tmp_path, Limits(tries=4)).shrink(_many(prompts))
        assert (tmp_path / MINIMAL).is_file(), "the best so far can be used at any time"
        if done.minimal:
            break
    assert calls > 2
    assert len(fake.asked) == len({str(one) for one in fake.asked})
    assert {one.id for one in make_plan(done.experiment).occurrences} == {"page@0", "bad-1@1"}


def test_minutes_that_are_over_end_it(prompts: Path, tmp_path: Path):
    """A clock that is given decides, not a wait."""
    times = iter(range(0, 10_000, 25))
    shrinker = Shrinker(
        Fake(("page@0",)), GOLDEN, tmp_path, Limits(minutes=1), now_s=lambda: float(next(times))
    )
    assert not shrinker.shrink(_many(prompts)).minimal


def test_what_does_not_fail_in_simulation_is_not_shrunk(prompts: Path, tmp_path: Path):
    """A run of Ray may fail from something that a simulation does not have."""
    with pytest.raises(SpecError, match="does not end in the same way"):
        Shrinker(Fake(("no such",)), GOLDEN, tmp_path).shrink(_many(prompts))


def test_a_run_is_named_by_what_reached_a_user():
    """A missed detection beside a wrong answer: the wrong answer is looked for."""
    found = verdict("detection.matrix", "golden.tokens")
    assert ending_of(found) == GOLDEN
    assert ending_of(found, 1).property_id == "detection.matrix"
    assert GOLDEN.of(found)
    assert not GOLDEN.of(verdict("detection.matrix"))
    with pytest.raises(SpecError, match="there is nothing to shrink"):
        ending_of(verdict())


def test_a_violation_recurs_exactly_elsewhere_or_not():
    """By the request or the occurrence that it names."""
    name, mine = violation(verdict("golden.tokens"), 1)
    assert recurrence(verdict("golden.tokens"), name, mine) == "exactly"
    other = Violation("wrong", request_id="r00002")
    assert recurrence(verdict("golden.tokens"), name, other) == "elsewhere"
    assert recurrence(verdict("stream.prefix"), name, mine) == ""
