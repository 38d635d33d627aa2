"""What a running application says of itself, and which experiments can be run on it."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.chaos.experiments import small
from tests.ray_jobs.bytes_tokenizer import bytes_tokenizer
from tests.ray_jobs.fake_service import FakeService, build, fake_service
from tocsin.chaos.spec import Experiment
from tocsin.chaos.spec_file import parse_experiment
from tocsin.core.errors import EnvironmentFault, SpecError
from tocsin.core.terms import Profile
from tocsin.ray_jobs.devices import build_facts
from tocsin.ray_jobs.prompting import Prompting
from tocsin.ray_jobs.service import ask, check_lengths, fitted, other_build
from tocsin.ray_jobs.system import TAU_ELSEWHERE, elsewhere


@pytest.fixture
def service() -> Iterator[FakeService]:
    with fake_service() as one:
        yield one


def _spec(**changes: Any) -> Experiment:
    return parse_experiment(small(**changes))


def test_an_application_tells_how_it_is_served(service: FakeService) -> None:
    """What a later version adds is left out; the model's folder is another machine's."""
    found = ask(f"{service.url}/")
    assert found.url == service.url
    assert found.options.slots == 8
    assert found.options.profile is Profile.FULL
    assert found.options.path == ""
    assert found.expected == 2
    assert list(found.replicas) == ["replica-a", "replica-b"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"code": 503, "text": "no"}, "found status 503"),
        ({"text": "<html>"}, "not that of this version"),
        ({"text": "{}"}, "KeyError: 'served'"),
        ({"text": "[]"}, "not that of this version"),
        ({"build": None}, "2 of 2 replicas live"),
        ({"hosts": {"replica-a": "worker-a"}}, "1 of 2 replicas live, expected all"),
    ],
)
def test_what_cannot_be_attacked_is_one_line(
    service: FakeService, changes: dict[str, Any], words: str
) -> None:
    """A proxy's page, an older version, an application that is not well."""
    for name, value in changes.items():
        setattr(service, name, value)
    with pytest.raises(EnvironmentFault, match="service: GET ") as caught:
        ask(service.url)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nobody_there_is_one_line() -> None:
    """A port where nobody listens."""
    with pytest.raises(EnvironmentFault, match="--on"):
        ask("http://127.0.0.1:9")


@pytest.mark.parametrize("url", ["bell:8000", "http://[::", "foo", "http://anna:secret@bell:8000"])
def test_what_is_no_address_is_a_mistake_of_the_command_line(url: str) -> None:
    """And a password in one is not said again."""
    with pytest.raises(SpecError, match="--on") as caught:
        ask(url)
    assert "secret" not in str(caught.value)


def test_what_is_served_takes_the_place_of_the_experiments_system(service: FakeService) -> None:
    """And each difference is told in words."""
    service.options |= {"pages": 96, "profile": "guard", "max_length": 1024}
    spec, changed = fitted(_spec(), ask(service.url))
    assert spec.system.pages == 96
    assert spec.system.profile is Profile.GUARD
    assert changed == (
        "pages is 96, the experiment said 192",
        "max_length is 1024, the experiment said 512",
        "profile is guard, the experiment said full",
    )


def test_an_experiment_on_what_it_asks_for_is_left_as_it_is(service: FakeService) -> None:
    """The nearest miss."""
    spec, changed = fitted(_spec(), ask(service.url))
    assert spec == _spec()
    assert changed == ()


def test_too_few_replicas_for_its_faults_are_refused(service: FakeService) -> None:
    """One replica cannot be killed when one must be left."""
    kill = {"id": "kill", "kind": "actor.kill", "when": {"clock": "request", "at": [3]}}
    service.options["replicas"] = 1
    service.hosts = {"replica-a": "worker-a"}
    with pytest.raises(SpecError, match=r"takes one of 1 replicas, safety\.keep_alive wants 1"):
        fitted(_spec(faults=[kill]), ask(service.url))


def test_a_prompt_that_is_too_long_for_what_is_served_is_named() -> None:
    """Before a run that would only show that its requests are refused."""
    spec = _spec()
    tight = spec.model_copy(update={"system": spec.system.model_copy(update={"max_length": 60})})
    prompting = Prompting(bytes_tokenizer(), 256, 512)
    longest = max(len(prompting.chat(request)) for request in _messages(spec))
    with pytest.raises(SpecError, match=f"take {longest + 8} tokens, served are at most 60"):
        check_lengths(tight, prompting)
    fits = spec.system.model_copy(update={"max_length": longest + 8})
    check_lengths(spec.model_copy(update={"system": fits}), prompting)


def _messages(spec: Experiment) -> list[Any]:
    from tocsin.chaos.load import golden_requests, load_prompts

    prompts = load_prompts(spec.workload.prompts, canaries=spec.workload.canaries)
    return [request.body["messages"] for request in golden_requests(spec, prompts)]


def test_the_same_build_is_no_difference(service: FakeService) -> None:
    """Then the certificate that is taken here holds there."""
    service.build = build_facts("cpu")
    assert other_build(ask(service.url)) == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"torch": "1.0"}, "torch is '1.0' there"),
        ({"cpu_capability": "NO AVX"}, "cpu_capability is 'NO AVX' there"),
        ({"device": "cuda", "device_name": "H200"}, "device is 'cuda' there and 'cpu' here"),
    ],
)
def test_another_build_promises_no_bits(
    service: FakeService, changes: dict[str, str], words: str
) -> None:
    """The certificate says so with the reason, and a margin below which a tie may be."""
    service.build = build(**{**build_facts("cpu"), **changes})
    differences = other_build(ask(service.url))
    assert any(words in one for one in differences)
    taken = elsewhere({"bit_exact": True, "tau": 1e-5, "cases": 12}, "bf16", differences)
    assert taken["bit_exact"] is False
    assert words in taken["why_not_bit_exact"]
    assert taken["tau"] == TAU_ELSEWHERE["bf16"]
    assert elsewhere({"bit_exact": True, "tau": 1e-5}, "bf16", ())["bit_exact"] is True


def test_replicas_that_differ_among_themselves_promise_none_either(service: FakeService) -> None:
    """A rolling update is under way, or two kinds of node serve."""
    service.build, service.same_build = build_facts("cpu"), False
    assert other_build(ask(service.url)) == ("the replicas differ among themselves",)
