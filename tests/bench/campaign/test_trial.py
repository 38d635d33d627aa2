"""Trials are judged by what detectors really said, and one that says nothing catches nothing."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from tests.bench.campaign.tiny import ROWS, SMALL, load, prompts, subject_of, tiny, world_of
from tocsin.bench.campaign.outcome import Outcome
from tocsin.bench.campaign.sites import Fault
from tocsin.bench.campaign.subject import Subject, World, prepared
from tocsin.bench.campaign.trial import Rival, _flags, alarms_of, caught_at, run_batch
from tocsin.bench.campaign.workshop import Workshop
from tocsin.bench.competitors.table import competitors
from tocsin.bench.competitors.twin import twin
from tocsin.core.terms import Layer, Operator, Priority, Profile
from tocsin.core.verdict import Finding, Verdict


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[Subject, World]]:
    subject = subject_of()
    yield subject, world_of(subject)
    subject.close()


def loud(site: str, row: int, number: int = 0) -> Fault:
    """A fault that ends in no number or another token: a logit of the golden token's size up."""
    return Fault(site, "exponent_top", row, 4, f"{site}-{row}-{number}")


def finding(check: str, rows: tuple[int, ...], ratio: float = 2.0) -> Finding:
    return Finding(
        check, Operator.LINEAR, Layer.NUMERICAL, Priority.P0, ratio, "m", rows, "message", "impact"
    )


def harmful(world: tuple[Subject, World], rivals: list[Rival] | None = None) -> list:
    """Harmful trials among a few batches of loud faults at the residual and the logits."""
    found = []
    for number in range(6):
        sites = ("residual", "logits", "weight_lm_head", "norm_out")
        faults = [loud(site, row, number) for row, site in enumerate(sites)]
        trials = run_batch(*world, 1, 3, faults, rivals or [])
        found += [trial for trial in trials if trial.judged.outcome.counts]
    return found


def test_full_catches_what_is_loud(world: tuple[Subject, World]) -> None:
    """Harmful trials exist, and each has an alarm at or before its first wrong token."""
    found = harmful(world)
    assert len(found) >= 4
    for trial in found:
        assert caught_at(trial.alarms["full"], trial.judged.wrong_step) is not None


def test_a_checker_with_everything_off_scores_nothing() -> None:
    """The same faults, the same outcomes, no alarm: the score is the checker's own word."""

    class Off(Subject):
        def set_profile(self, profile: Profile) -> None:
            super().set_profile(Profile.OFF)

    subject = Off(prepared(tiny()), Profile.OFF)
    found = harmful((subject, world_of(subject)))
    assert len(found) >= 4
    assert all(trial.alarms == {"full": {}, "guard": {}} for trial in found)
    subject.close()


def test_an_alarm_after_the_wrong_token_is_late() -> None:
    """It left unverified: the alarm of the same step is the last that counts."""
    alarms = {"a.b@linear": [2.0, 5.0], "c.d@rope": [3.0, 5.0]}
    assert caught_at(alarms, 2) == 2
    assert caught_at(alarms, 1) is None
    assert caught_at(alarms, -1) == 2
    assert caught_at({}, 5) is None


def test_a_removed_check_is_not_heard_on_any_operator() -> None:
    """What ablation asks: what is left without it."""
    alarms = {"a.b@linear": [0.0, 5.0], "a.b@rope": [0.0, 5.0], "c.d@rope": [1.0, 5.0]}
    assert caught_at(alarms, 0, without="a.b") is None
    assert caught_at(alarms, 1, without="a.b") == 1


def test_alarms_belong_to_their_row() -> None:
    """A neighbour's alarm, and one of the whole step, are not this row's."""
    verdicts = [Verdict((finding("a.b", (0,)), finding("c.d", ())), 5)]
    assert set(alarms_of(0, verdicts, whole=False)) == {"a.b@linear"}
    assert alarms_of(1, verdicts, whole=False) == {}
    assert set(alarms_of(1, verdicts, whole=True)) == {"c.d@linear"}


def test_a_ratio_that_is_no_number_can_be_written() -> None:
    """JSON has no NaN."""
    verdicts = [Verdict((finding("a.b", (0,), float("nan")),), 5)]
    assert alarms_of(0, verdicts, whole=False) == {"a.b@linear": [0, 1e30]}


def test_neighbours_do_not_change_an_outcome(world: tuple[Subject, World]) -> None:
    """A row's trial is the same alone and among other faults."""
    faults = [loud(site, row) for row, site in enumerate(("residual", "rope_k", "probs", "swiglu"))]
    together = run_batch(*world, 1, 3, faults)
    for fault, trial in zip(faults, together, strict=True):
        (alone,) = run_batch(*world, 1, 3, [fault])
        assert alone.judged == trial.judged
        assert alone.alarms["full"].keys() == trial.alarms["full"].keys()


class Vague(Subject):
    """Its alarms name no row; with `shy` they are silent for one fault alone."""

    shy = False

    def forward(self, ids_RS: Tensor, cache: DynamicCache) -> tuple[Tensor, Verdict]:
        faults = {f.key for faults in self.injector._armed.values() for f in faults}
        armed = len(faults | set(self.injector.changes))
        logits, verdict = super().forward(ids_RS, cache)
        if self.shy and armed <= 1:
            return logits, Verdict((), verdict.checks_run)
        findings = tuple(replace(finding, rows=()) for finding in verdict.findings)
        return logits, Verdict(findings, verdict.checks_run)


@pytest.mark.parametrize("shy", [False, True])
def test_an_alarm_of_the_whole_step_is_asked_again_for_each_fault_alone(shy: bool) -> None:
    """A neighbour's alarm is nobody's credit: what alone is silent was not caught."""
    subject = Vague(prepared(tiny()))
    world = world_of(subject)
    subject.shy = shy
    found = harmful((subject, world))
    assert len(found) >= 4
    for trial in found:
        for profile in ("full", "guard"):
            caught = caught_at(trial.alarms[profile], trial.judged.wrong_step) is not None
            assert not (shy and caught)
            assert caught or shy or profile == "guard"
    subject.close()


class Brittle(Subject):
    """Raises in the step after a fault of SwiGLU, as a kernel on bad indices would."""

    def forward(self, ids_RS: Tensor, cache: DynamicCache) -> tuple[Tensor, Verdict]:
        armed = {f.site for faults in self.injector._armed.values() for f in faults}
        result = super().forward(ids_RS, cache)
        if "swiglu" in armed:
            raise RuntimeError("index out of range")
        return result


def test_an_exception_is_the_one_trial_s_that_raised() -> None:
    """The batch is made again, one fault at a time; only the culprit ends in an exception."""
    subject = Brittle(prepared(tiny()))
    world = world_of(subject)
    sites = ("residual", "swiglu", "rope_k", "norm_out")
    trials = run_batch(subject, world, 1, 3, [loud(site, n) for n, site in enumerate(sites)])
    assert [trial.judged.outcome is Outcome.DUE for trial in trials][1]
    assert trials[1].judged.wrong_step == 0
    quiet = Subject(twin(prepared(tiny())))
    for trial in (trials[0], trials[2], trials[3]):
        (alone,) = run_batch(quiet, world_of(quiet), 1, 3, [trial.fault])
        assert alone.judged == trial.judged
    quiet.close()
    subject.close()


@dataclass
class Blind:
    """A detector that always says the same."""

    answer: bool
    skipped: dict[str, str] = field(default_factory=dict)

    def begin(self) -> None:
        """Nothing to forget."""

    def flagged(self) -> Tensor:
        return torch.full((ROWS,), self.answer)

    def detach(self) -> None:
        """Nothing to restore."""


@pytest.mark.parametrize(("answer", "step"), [(False, -1), (True, 0)])
def test_a_competitor_is_taken_at_its_word(
    world: tuple[Subject, World], answer: bool, step: int
) -> None:
    """One that flags nothing catches nothing; one that flags all catches all at once."""
    subject = Subject(twin(prepared(tiny())), Profile.OFF)
    rival = Rival("blind", "default", subject, Blind(answer))
    found = harmful(world, [rival])
    assert found
    assert all(trial.flagged == {"blind/default": step} for trial in found)
    subject.close()


def test_real_competitors_see_injected_faults(world: tuple[Subject, World]) -> None:
    """Logits that are no numbers are seen by all that look at numbers; a weight is not by DMR."""
    origin = prepared(tiny())
    rivals = []
    calibration = [torch.tensor([one[:9] for one in prompts(8)])]
    for competitor in competitors():
        if competitor.name == "sdcguard":
            continue
        subject = Subject(twin(origin), Profile.OFF)
        attached = competitor.attach(subject.model, calibration)
        rivals.append(Rival(competitor.name, competitor.profile, subject, attached))
    found = harmful(world, rivals)
    for trial in found:
        if trial.judged.outcome is Outcome.DUE:
            assert trial.flagged["nan-logits/default"] == trial.judged.wrong_step
        if trial.fault.site == "weight_lm_head" and trial.judged.outcome is Outcome.HARMFUL:
            assert trial.flagged["dmr/default"] == -1
        if trial.fault.site in ("residual", "norm_out"):
            assert trial.flagged["dmr/default"] == 0
    assert {trial.fault.site for trial in found} >= {"residual", "logits"}
    for rival in rivals:
        rival.attached.detach()
        rival.subject.close()


def test_a_competitor_without_rows_is_shown_each_fault_alone() -> None:
    """sdcguard looks inside linear modules: it sees what is wrong there, and SwiGLU's not."""
    pytest.importorskip("sdcguard")
    campaign = SMALL.model_copy(update={"dtypes": ("bf16",)})
    workshop = Workshop(campaign, load)
    subject, rivals, absent = workshop._subject("bf16")
    assert absent == {}
    (rival,) = (one for one in rivals if not one.per_row)
    world = world_of(subject)
    seen = {}
    for site in ("linear_out", "weight_q", "accumulator", "swiglu"):
        ((first, *_),) = _flags([rival], world, 1, 2, [loud(site, 1)])
        rival.subject.injector.require_fired([loud(site, 1)])
        seen[site] = bool(first.any())
    assert seen == {"linear_out": True, "weight_q": True, "accumulator": True, "swiglu": False}
    ((clean, *_),) = _flags([rival], world, 1, 2, [])
    assert not clean.any()
    workshop.close()
