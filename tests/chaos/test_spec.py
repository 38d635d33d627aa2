"""Experiment files: what is taken, and one clear line for everything that is not."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chaos.experiments import small
from tocsin.chaos.contract import faults
from tocsin.chaos.plan import make_plan
from tocsin.chaos.spec import AbortSpec, Experiment, parse_duration_s
from tocsin.chaos.spec_file import builtin_experiments, load_experiment, parse_experiment
from tocsin.chaos.store import spec_document
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Scope
from tocsin.core.terms import Profile


@pytest.mark.parametrize("name", [*builtin_experiments()])
def test_every_builtin_experiment_is_valid_and_survives_a_round_trip(name: str) -> None:
    """Read, planned, written as a document and read again, it is the same."""
    spec = load_experiment(name)
    assert spec.name == name
    assert make_plan(spec).occurrences
    assert Experiment.model_validate(spec_document(spec)) == spec


def test_the_default_experiment_has_every_kind_of_the_first_faults() -> None:
    """Short enough to be the default; all kinds are the matrix's. 200 requests, two replicas."""
    spec = load_experiment("first_light")
    anywhere = {name for name, one in faults().items() if one.scope is not Scope.POD}
    kinds = {fault.kind for fault in spec.faults}
    assert kinds <= anywhere
    assert len(kinds) == 15
    assert spec.workload.requests >= 200
    assert spec.system.replicas == 2
    assert not spec.checks


def test_a_fault_takes_detectors_and_parameters_from_its_declaration() -> None:
    """The file need not repeat them."""
    spec = parse_experiment(small())
    declared = faults()["weight.bitflip"]
    assert spec.faults[0].expect.detectors == declared.expect
    assert spec.faults[0].expect.severity is None  # of an alert: its rule's, unless one is said
    assert spec.faults[0].params == dict(declared.params)


def test_seed_and_profile_may_be_given_beside_the_file(tmp_path: Path) -> None:
    """As `make chaos-run SEED=7 PROFILE=off` does."""
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(small()))
    spec = load_experiment(path, seed=7, profile="off")
    assert (spec.seed, spec.system.profile) == (7, Profile.OFF)
    assert load_experiment(path).seed == 5


def _fault(**changes: Any) -> list[dict[str, Any]]:
    return [{**small()["faults"][0], **changes}]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sede": 3}, ("sede", "unknown key", "did you mean 'seed'")),
        ({"seed": -1}, ("seed", "-1")),
        ({"apiVersion": "chaos/v2"}, ("apiVersion", "chaos/v2", "chaos/v1")),
        ({"workload": {"rate": 0}}, ("workload.rate", "0")),
        ({"workload": {"stream_ratio": 1.5}}, ("workload.stream_ratio", "1.5")),
        ({"workload": {"deadline": 5}}, ("workload.deadline", "200ms, 2s or 5m")),
        (
            {"faults": _fault(when={"clock": "decode_step", "evry": 3})},
            ("faults[0].when.evry", "did you mean 'every'"),
        ),
        (
            {"faults": _fault(when={"clock": "decode_step", "every": 0, "count": 2})},
            ("faults[0].when.every", "found 0"),
        ),
        (
            {"faults": _fault(when={"clock": "decode_step", "every": 5})},
            ("faults[0].when", "without an end"),
        ),
        (
            {"faults": _fault(when={"clock": "decode_step", "at": [1], "every": 5})},
            ("faults[0].when", "either"),
        ),
        (
            {"faults": _fault(kind="weight.bitflop")},
            ("faults[0].kind", "known are", "did you mean 'weight.bitflip'"),
        ),
        (
            {"faults": _fault(params={"dept": 3})},
            ("faults[0].params.dept", "did you mean 'depth'"),
        ),
        (
            {"faults": _fault(target={"replica": 2})},
            ("faults[0].target.replica", "found 2", "0 to 1"),
        ),
        ({"faults": _fault(target={"replica": "two"})}, ("faults[0].target.replica", "'two'")),
        ({"faults": _fault() + _fault()}, ("faults[1].id", "used twice")),
        (
            {"faults": _fault(expect={"within": "2"})},
            ("faults[0].expect.within", "found '2'"),
        ),
        (
            {"faults": _fault(expect={"reaction": "recompute, reload_weight"})},
            ("faults[0].expect.reaction", "'reload_weight'", "did you mean 'reload_weights'"),
        ),
        (
            {"faults": _fault(expect={"detectors": ["nonsense"]})},
            ("faults[0].expect.detectors[0]", "nonsense"),
        ),
        (
            {"faults": _fault(kind="actor.kill", when={"clock": "decode_step", "at": [3]})},
            ("faults[0].when.clock", "expected request"),
        ),
        (
            {
                "faults": _fault(kind="actor.kill", when={"clock": "request", "at": [3]}),
                "safety": {"scope": "in_process"},
            },
            ("faults[0].kind", "safety.scope"),
        ),
        (
            {
                "faults": _fault(kind="pod.delete", when={"clock": "request", "at": [3]}),
                "safety": {"scope": "isolated"},
            },
            ("faults[0].kind", "acts on pods", "cluster_destructive"),
        ),
        (
            {
                "faults": _fault(kind="actor.kill", when={"clock": "request", "at": [3]}),
                "safety": {"keep_alive": 2},
            },
            ("faults[0].kind", "keep_alive"),
        ),
        (
            {"faults": _fault(kind="batch.malformed", when={"clock": "decode_step", "at": [3]})},
            ("faults[0].when.clock", "sent by the load"),
        ),
        ({"safety": {"max_targets": 0.4}}, ("safety.max_targets", "less than one")),
        ({"safety": {"ttl": "0s"}}, ("safety.ttl", "more than 0s")),
        ({"safety": {"abort": [{"when": "ok_ratio > 2"}]}}, ("safety.abort[0].when",)),
        ({"checks": [{"id": "golden.token"}]}, ("checks[0].id", "did you mean 'golden.tokens'")),
        ({"name": "No Spaces"}, ("name", "No Spaces")),
        ({"bad-key": 1}, ("bad-key: unknown key",)),
    ],
)
def test_a_mistake_is_one_line_that_names_its_place(
    changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    """Where, what was found, what was expected, what to do."""
    with pytest.raises(SpecError) as caught:
        parse_experiment(small(**changes), name="small.yaml")
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("small.yaml")
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a: [", "is not YAML"),
        (b"a: 2020-99-99", "is not YAML: month must be in"),
        (b"[" * 50_000, "nested too deeply"),
        (b"seed: " + b"9" * 5_000, "is not YAML"),
        (b"- 1", "holds list"),
        (b"", "holds NoneType"),
        (b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_a_file_that_is_no_experiment_is_a_spec_error(
    tmp_path: Path, content: bytes, words: str
) -> None:
    """Broken syntax, wrong shape, wrong encoding."""
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=words):
        load_experiment(path)


def test_a_file_that_is_not_there_lists_the_builtin_experiments(tmp_path: Path) -> None:
    """The names that would have worked."""
    with pytest.raises(SpecError, match="first-light"):
        load_experiment(tmp_path / "nothing.yaml")


@pytest.mark.parametrize(
    ("text", "seconds"), [("200ms", 0.2), ("2s", 2.0), ("1.5m", 90.0), (" 1 h ", 3600.0)]
)
def test_durations_have_their_unit(text: str, seconds: float) -> None:
    """A bare number could mean anything."""
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("value", [2, 2.0, "2", "-1s", "1d", "", None, True])
def test_anything_else_is_no_duration(value: object) -> None:
    """Also a negative one."""
    with pytest.raises(ValueError, match="duration"):
        parse_duration_s(value)


def test_abort_conditions_are_read_into_metric_limit_and_window() -> None:
    """`for` may be left out."""
    one = AbortSpec(when="host_mem_free < 2GiB")
    assert (one.metric, one.limit, one.window_s) == ("host_mem_free", 2**31, 5.0)
    two = AbortSpec(when="ok_ratio < 0.5 for 10s")
    assert (two.metric, two.limit, two.window_s) == ("ok_ratio", 0.5, 10.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"name": "latest"}, "leads to the newest run"), ({"safety": {"ttl": "99999h"}}, "ttl")],
)
def test_a_name_or_a_time_that_no_run_can_have_is_refused(
    changes: dict[str, object], words: str
) -> None:
    """store/latest is a link; nothing takes longer than a day."""
    with pytest.raises(SpecError, match=words):
        parse_experiment(small(**changes), name="small.yaml")
