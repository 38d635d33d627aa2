"""A whole run on a tiny model: every row is there or says why not, also after an interrupt."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException

from tests.engine.tiny import VOCAB, tiny_model
from tocsin.bench.competitors.competitor import Attached, Calibration, Competitor
from tocsin.bench.competitors.nan_logits import NanLogits
from tocsin.bench.competitors.sdcguard import SdcGuard
from tocsin.bench.competitors.table import competitors
from tocsin.bench.overhead import engines, schema
from tocsin.bench.overhead.bench import Bench
from tocsin.bench.overhead.plan import Case, Plan, full, only, quick
from tocsin.bench.overhead.variants import ONE_GRAPH, Compiled, names_of
from tocsin.core.errors import ContractError, SpecError

TOKENS = torch.arange(200) % VOCAB
CASE = Case("transformers", "eager", "fp32", "decode", 2, 16, None, 2, 2, 1.0)


@dataclass
class Told:
    """A listener that keeps what it hears, and may do something at a word."""

    words: list[str] = field(default_factory=list)
    at: dict[str, Callable[[], None]] = field(default_factory=dict)

    def case(self, case: Case, number: int, of: int) -> None:
        self._hear(f"case {number}/{of}")

    def variant(self, name: str) -> None:
        self._hear(name)

    def pairs(self, pairs: int) -> None:
        self._hear(f"pairs {pairs}")

    def _hear(self, word: str) -> None:
        self.words.append(word)
        if word in self.at:
            self.at[word]()


def _load(dtype: torch.dtype) -> tuple[nn.Module, Tensor]:
    return tiny_model().to(dtype), TOKENS


def _bench(path: Path, told: Told | None = None, theirs: tuple[Competitor, ...] = ()) -> Bench:
    return Bench(_load, theirs, path / "o.json", 1, told or Told())


def _rows(report: schema.Overhead) -> set[tuple[str, str]]:
    return {(row.name, row.profile) for row in report.rows}


def _interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_every_row_is_measured_or_says_why_not(tmp_path: Path, phase: Any, dtype: Any) -> None:
    """All profiles and competitors; sdcguard has no row in float32, but a reason."""
    case = replace(CASE, phase=phase, dtype=dtype)
    report = _bench(tmp_path, theirs=competitors()).run(Plan("full", (case,), None))
    missing = {(one.name, one.profile): one.reason for one in report.unmeasured}
    assert _rows(report) | set(missing) == set(names_of(competitors()))
    if dtype == "fp32":
        assert "checks no layer of this model" in missing.pop(("sdcguard", "default"))
    assert missing == {}
    assert all(row.pairs == 2 for row in report.rows)
    assert report.complete
    assert report == schema.read(tmp_path / "o.json")
    (work,) = report.work
    assert (work.layers, work.positions, work.batch) == (2, 16, 2)


def test_our_rows_say_how_many_checks_ran(tmp_path: Path) -> None:
    """`full` more than `guard`, `off` none: a cheap row must not be an empty one."""
    report = _bench(tmp_path).run(Plan("full", (CASE,), None))
    notes = {one.profile: one.note for one in report.details if one.name == "tocsin"}
    assert notes.pop("off") == ""
    counts = {profile: int(note.split()[0]) for profile, note in notes.items()}
    assert 0 < counts["guard"] < counts["full"]


def test_the_engine_is_measured_behind_its_gate(tmp_path: Path) -> None:
    """A second bare engine as noise floor, and each profile."""
    case = replace(CASE, subject="engine")
    report = _bench(tmp_path).run(Plan("full", (case,), None))
    assert _rows(report) == set(engines.names())
    assert report.work[0].subject == "engine"


def test_an_interrupt_leaves_a_valid_report_of_what_there_is(tmp_path: Path) -> None:
    """The first case is whole, the second has its rounds so far, the third says what happened."""
    told = Told()

    def second_case() -> None:
        told.at["pairs 4"] = _interrupt

    told.at["case 2/3"] = second_case
    bench = _bench(tmp_path, told)
    long = replace(CASE, batch=3, pairs_min=9, pairs_max=9)
    plan = Plan("full", (CASE, long, replace(CASE, batch=4)), None)
    with pytest.raises(KeyboardInterrupt):
        bench.run(plan)
    report = schema.read(tmp_path / "o.json")
    assert not report.complete
    assert {(row.batch, row.pairs) for row in report.rows} == {(2, 2), (3, 4)}
    assert {(one.batch, one.reason) for one in report.unmeasured} == {
        (4, "the run was interrupted before")
    }


def test_a_run_goes_on_where_an_earlier_one_ended(tmp_path: Path) -> None:
    """What has its rounds is kept as it was; a case that was ended in its middle is made anew."""
    told = Told(at={"case 3/3": _interrupt})
    plan = Plan("full", (CASE, replace(CASE, subject="engine"), replace(CASE, batch=3)), None)
    with pytest.raises(KeyboardInterrupt):
        _bench(tmp_path, told).run(plan)
    earlier = schema.read(tmp_path / "o.json")
    assert not earlier.complete
    told = Told()
    report = replace(_bench(tmp_path, told), earlier=earlier).run(plan)
    assert [word for word in told.words if word.startswith("case")] == ["case 1/1"]
    assert report.complete
    assert report.rows[: len(earlier.rows)] == earlier.rows
    assert [work.batch for work in report.work] == [2, 2, 3]
    assert report.unmeasured == ()
    alone = Plan("full", (replace(CASE, batch=5),), None)
    more = replace(_bench(tmp_path), earlier=report).run(alone)
    assert more.rows[: len(report.rows)] == report.rows  # what was not asked for now stays
    assert [work.batch for work in more.work] == [2, 2, 3, 5]


def test_a_run_does_not_go_on_with_what_was_measured_otherwise(tmp_path: Path) -> None:
    """Figures of another plan or device in one table would be compared."""
    earlier = _bench(tmp_path).run(Plan("quick", (), None))
    with pytest.raises(SpecError, match="was measured otherwise"):
        replace(_bench(tmp_path), earlier=earlier).run(Plan("full", (CASE,), None))


def test_an_interrupt_before_any_round_names_the_case(tmp_path: Path) -> None:
    """While variants are attached, and after too few rounds for quartiles."""
    for word in ("tocsin full", "pairs 2"):
        bench = _bench(tmp_path, Told(at={word: _interrupt}))
        with pytest.raises(KeyboardInterrupt):
            bench.run(Plan("full", (replace(CASE, pairs_min=9, pairs_max=9),), None))
        report = schema.read(tmp_path / "o.json")
        assert report.rows == ()
        assert {one.reason for one in report.unmeasured} == {"the run was interrupted in it"}


def test_time_that_is_over_ends_rounds_and_skips_what_is_left(tmp_path: Path) -> None:
    """A case makes its least number of rounds; the next one says that no time was left."""
    now_s = [0.0]
    told = Told(at={"pairs 3": lambda: now_s.__setitem__(0, 1000.0)})
    bench = _bench(tmp_path, told)
    bench.monotonic = lambda: now_s[0]
    first = replace(CASE, pairs_min=3, pairs_max=50)
    report = bench.run(Plan("quick", (first, replace(CASE, batch=4)), 60.0))
    assert {row.pairs for row in report.rows} == {3}
    assert {(one.batch, one.reason) for one in report.unmeasured} == {
        (4, "no time was left of 60 s")
    }
    assert report.complete


class _Alarmist:
    """A detector that flags every step."""

    name, profile, per_row, around = "alarmist", "default", True, False

    def attach(self, model: nn.Module, calibration: Calibration = ()) -> Attached:
        return _Flagging()


class _Flagging:
    skipped: Mapping[str, str] = {}
    detached = 0

    def begin(self) -> None:
        """Nothing."""

    def flagged(self) -> Tensor:
        return torch.tensor([False, True])

    def detach(self) -> None:
        _Flagging.detached += 1


def test_a_detector_that_flags_a_clean_step_has_no_figure(tmp_path: Path) -> None:
    """The cost of a false alarm is not the cost of checking; it is detached."""
    report = _bench(tmp_path, theirs=(_Alarmist(),)).run(Plan("full", (CASE,), None))
    (missing,) = report.unmeasured
    assert missing.name == "alarmist"
    assert "flagged a clean step" in missing.reason
    assert _Flagging.detached == 1


def test_a_guard_that_alarms_on_the_clean_step_has_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check that alarms names itself in the reason."""
    import tocsin

    attach = tocsin.attach
    limits = {"numerical.linear_checksum": {"limit_ulp": 1e-9}}

    def strict(model: nn.Module, profile: Any) -> Any:
        return attach(model, profile, thresholds=limits)

    monkeypatch.setattr(tocsin, "attach", strict)
    case = replace(CASE, dtype="bf16")  # its limit is that of the store, which is now nothing
    report = _bench(tmp_path).run(Plan("full", (case,), None))
    reasons = [one.reason for one in report.unmeasured if one.profile == "full"]
    assert any("numerical.linear_checksum" in reason for reason in reasons)


def compiles(test: Callable[..., None]) -> Callable[..., None]:
    """Marks of a test that compiles; the compiler itself imports what is deprecated."""
    for mark in (
        pytest.mark.slow,
        pytest.mark.usefixtures("fresh_compiler"),
        pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    ):
        test = mark(test)
    return test


class _Changer(NanLogits):
    """A detector that changes the answer."""

    name = "changer"

    def attach(self, model: Any, calibration: Calibration = ()) -> Attached:
        model.lm_head.register_forward_hook(lambda module, args, logits: -logits)
        return NanLogits().attach(model, calibration)


def test_a_detector_that_changes_the_tokens_has_no_figure(tmp_path: Path) -> None:
    """It does other work than the bare step."""
    report = _bench(tmp_path, theirs=(_Changer(),)).run(Plan("full", (CASE,), None))
    (missing,) = report.unmeasured
    assert (missing.name, "the tokens are" in missing.reason) == ("changer", True)


def test_an_alarm_in_the_middle_of_an_engine_ends_its_case_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows say what alarmed, and the next case is measured."""
    step = engines._step
    left = [40]

    def alarming(engine: Any) -> Any:
        run = step(engine)

        def counted() -> None:
            left[0] -= 1
            if left[0] < 0:
                raise ContractError("engine: an alarm on a clean step")
            run()

        return counted

    monkeypatch.setattr(engines, "_step", alarming)
    engine = replace(CASE, subject="engine", pairs_min=30, pairs_max=30)
    report = _bench(tmp_path).run(Plan("full", (engine, CASE), None))
    assert {(one.name, one.profile) for one in report.unmeasured} == set(engines.names())
    assert all("an alarm on a clean step" in one.reason for one in report.unmeasured)
    assert ("tocsin", "full") in _rows(report)
    assert report.complete


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@compiles
def test_compiled_rows_are_there_or_say_what_breaks_the_graph(tmp_path: Path) -> None:
    """An assertion an operator cannot be in one graph; NaN, ranges and double execution can."""
    case = replace(CASE, mode="compiled")
    report = _bench(tmp_path, theirs=competitors()).run(Plan("full", (case,), None))
    missing = {(one.name, one.profile): one.reason for one in report.unmeasured}
    assert _rows(report) | set(missing) == set(names_of(competitors(), "compiled"))
    assert "not compiled with fullgraph=True" in missing["assert-isfinite", "default"]
    for name in ("nan-logits", "absmax-x2", "dmr"):
        assert (name, "default") in _rows(report)
    ours = {("tocsin", "off"), ("tocsin", "guard"), ("tocsin", "full")}
    assert {("A/A", "bare"), ("tocsin (switched)", "off"), *ours} <= _rows(report)
    notes = {(one.name, one.profile): one.note for one in report.details}
    checks = [int(notes["tocsin", profile].split()[0]) for profile in ("guard", "full")]
    assert 0 < checks[0] < checks[1]
    assert all(ONE_GRAPH in notes["tocsin", profile] for profile in ("guard", "full"))


@compiles
def test_detectors_still_detect_inside_a_compiled_model(tmp_path: Path) -> None:
    """A detector that compilation optimised away would be free: a NaN in a weight is flagged."""
    from tocsin.bench.competitors.abs_max import AbsMax
    from tocsin.bench.competitors.dmr import Dmr

    ids = TOKENS[None, :8]
    for competitor in (NanLogits(), AbsMax(), Dmr()):
        model: Any = tiny_model()
        target: Any = model
        if competitor.around:
            target = torch.compile(model, fullgraph=True, dynamic=False)
        attached = competitor.attach(target, (ids,) if not competitor.around else ())
        if not competitor.around:
            with torch.no_grad():
                model(input_ids=ids, use_cache=False)
            target = torch.compile(model, fullgraph=True, dynamic=False)
        flags = []
        for value in (0.0, float("nan")):
            with torch.no_grad():
                model.model.layers[1].mlp.down_proj.weight[3, 3] = value
                attached.begin()
                target(input_ids=ids, use_cache=False)
            flags.append(attached.flagged().tolist())
        assert flags == [[False], [True]], competitor.name


def test_a_model_that_cannot_be_compiled_here_has_reasons_and_no_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine without a C++ compiler; the cases after it are measured."""

    def no_compiler(self: Compiled, **inputs: Any) -> Any:
        raise TorchDynamoException("backend raised:\n\n  no C++ compiler was found\nmore")

    monkeypatch.setattr(Compiled, "forward", no_compiler)
    plan = Plan("full", (replace(CASE, mode="compiled"), CASE), None)
    report = _bench(tmp_path).run(plan)
    assert {one.mode for one in report.rows} == {"eager"}
    assert {(one.name, one.profile) for one in report.unmeasured} == set(names_of((), "compiled"))
    assert all("no C++ compiler was found" in one.reason for one in report.unmeasured)


def test_the_full_plan_is_the_matrix_of_the_issue() -> None:
    """Decode at batch 1, 8 and 32, prefill of 512, both modes and dtypes; eager, all layers."""
    cases = [case for case in full().cases if case.subject == "transformers"]
    steps = {("decode", 1, 512), ("decode", 8, 512), ("decode", 32, 256), ("prefill", 1, 512)}
    assert {(c.phase, c.batch, c.positions) for c in cases} == steps
    kinds = {(c.mode, c.dtype, c.phase, c.batch) for c in cases}
    assert len(cases) == len(kinds) == 16
    assert all((c.layers is None) == (c.mode == "eager") for c in full().cases)
    assert full().budget_s is not None
    assert full().budget_s <= 45 * 60
    assert [c.batch for c in full().cases if c.subject == "engine"] == [8, 8]


def test_the_quick_plan_is_a_part_of_it_within_its_time() -> None:
    """Nothing in it that the full plan has not; less than ten minutes with room to spare."""
    kinds = {(c.subject, c.mode, c.dtype, c.phase, c.batch) for c in full().cases}
    plan = quick()
    assert {(c.subject, c.mode, c.dtype, c.phase, c.batch) for c in plan.cases} < kinds
    assert plan.budget_s is not None
    assert plan.budget_s <= 540
    assert {c.batch for c in plan.cases if c.phase == "decode"} == {1, 8, 32}
    assert {c.mode for c in plan.cases} == {"eager", "compiled"}


def test_options_that_leave_nothing_say_what_there_is() -> None:
    """The quick plan has no compiled prefill."""
    kept = only(quick(), [], ["fp32"], ["decode"], [8])
    assert {(c.dtype, c.phase, c.batch) for c in kept.cases} == {("fp32", "decode", 8)}
    with pytest.raises(SpecError, match=r"no step of the quick plan is left.*eager/fp32/decode/1"):
        only(quick(), ["compiled"], [], ["prefill"], [])


def test_sdcguard_is_measured_where_it_checks() -> None:
    """The table would be unfair if its only row were the one where it does nothing."""
    assert any(isinstance(one, SdcGuard) for one in competitors())
    assert any(case.dtype == "bf16" for case in quick().cases)
    with pytest.raises(ContractError):
        SdcGuard().attach(tiny_model())
