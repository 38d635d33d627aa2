"""What a policy allows, and the one line in which each thing it forbids ends."""

from pathlib import Path
from typing import Any

import pytest

from tests.chaos.experiments import small
from tocsin.chaos.policy import (
    POLICY_ENV,
    PROTECTED,
    ChaosPolicy,
    load_policy,
    matcher,
    objections,
    policy_of_environment,
    tightened,
)
from tocsin.chaos.spec import Experiment
from tocsin.chaos.spec_file import parse_experiment
from tocsin.core.errors import SpecError

URL = "http://bell:8000"


def _policy(**changes: Any) -> ChaosPolicy:
    return ChaosPolicy(**{"namespace": "demo", "release": "bell", "enabled": True, **changes})


def _spec(**safety: Any) -> Experiment:
    document = small()
    return parse_experiment({**document, "safety": {**document.get("safety", {}), **safety}})


def test_what_a_file_does_not_say_is_safe(tmp_path: Path) -> None:
    """Off, dry, one fault on one replica, the system's own namespaces protected."""
    path = tmp_path / "policy.yaml"
    path.write_text("namespace: demo\nrelease: bell\n")
    policy = load_policy(path)
    assert not policy.enabled
    assert policy.dry_run
    assert (policy.max_concurrent_faults, policy.max_targets) == (1, 1)
    assert policy.protected_namespaces == PROTECTED
    assert objections(policy, _spec(), URL)


def test_a_policy_that_allows_a_run_has_nothing_to_say() -> None:
    """The nearest miss of every refusal below."""
    assert objections(_policy(), _spec(), URL) == ()
    same = _policy(serve_url=f"{URL}/", allowed_faults=[f.kind for f in _spec().faults])
    assert objections(same, _spec(), URL) == ()
    assert objections(_policy(max_duration_s=60), _spec(max_duration="60s"), URL) == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"enabled": False}, ("enabled is false", "chaos.enabled")),
        ({"namespace": "kube-system"}, ("kube-system is one of protected_namespaces",)),
        (
            {"protected_namespaces": [*PROTECTED, "demo"]},
            ("demo is one of protected_namespaces",),
        ),
        ({"serve_url": "http://other:8000"}, (URL, "expected http://other:8000")),
        ({"allowed_faults": ["batch.malformed"]}, ("faults[0].kind", "are batch.malformed")),
        ({"max_duration_s": 59}, ("safety.max_duration is 60 s", "allowed are 59 s")),
    ],
)
def test_a_refusal_says_what_was_found_and_what_to_do(
    changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    """One line for each, and no other one with it."""
    [line] = objections(_policy(**changes), _spec(max_duration="60s"), URL)
    assert "\n" not in line
    assert line.startswith("policy: ")
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", ("holds list", "mapping")),
        ("a: [", ("is not YAML",)),
        ("release: bell", ("namespace: missing",)),
        ("{namespace: demo, release: bell, enbled: true}", ("enbled", "did you mean 'enabled'")),
        ("{namespace: Demo, release: bell}", ("namespace: found 'Demo'",)),
        ("{namespace: demo, release: bell, enabled: maybe}", ("enabled: found 'maybe'",)),
        ("{namespace: demo, release: bell, allowed_faults: [kv.flip]}", ("'kv.flip' is no fault",)),
        (
            "{namespace: demo, release: bell, protected_namespaces: [kube-system]}",
            ("kube-public, kube-node-lease",),
        ),
        (
            "{namespace: demo, release: bell, max_concurrent_faults: 6}",
            ("or equal to 5",),
        ),
        ("{namespace: demo, release: bell, max_concurrent_faults: 0}", ("greater than",)),
        ("{namespace: demo, release: bell, max_duration_s: 9}", ("greater than or equal to 10",)),
        ("{namespace: demo, release: bell, max_duration_s: 86401}", ("86400",)),
        ("{namespace: demo, release: bell, namespace_label: chaos}", ("namespace_label",)),
        ("{namespace: demo, release: bell, stop_on_alert: 'ftp://x'}", ("stop_on_alert",)),
        ("{namespace: demo, release: bell, stop_matchers: [P0]}", ("no matcher",)),
    ],
)
def test_a_wrong_policy_is_one_line(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    """It names the file and the place; a wrong policy allows nothing."""
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        load_policy(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert "\n" not in line
    assert all(word in line for word in words), line


def test_the_environment_names_the_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable there is none; one that names no file must not be taken for that."""
    monkeypatch.delenv(POLICY_ENV, raising=False)
    assert policy_of_environment() is None
    path = tmp_path / "policy.yaml"
    monkeypatch.setenv(POLICY_ENV, str(path))
    with pytest.raises(SpecError, match="cannot be read"):
        policy_of_environment()
    path.write_text("{namespace: demo, release: bell}")
    assert policy_of_environment() == ChaosPolicy(namespace="demo", release="bell")


@pytest.mark.parametrize("replicas", [1, 2, 3, 7, 49, 64])
@pytest.mark.parametrize("targets", [1, 2, 64])
def test_a_number_of_replicas_becomes_a_share_that_allows_just_so_many(
    replicas: int, targets: int
) -> None:
    """The run compares a share times all replicas with a count: no rounding may lose one."""
    spec = _spec(max_targets=1.0)
    spec = spec.model_copy(update={"system": spec.system.model_copy(update={"replicas": replicas})})
    share = tightened(_policy(max_targets=targets), spec).safety.max_targets
    allowed = max(n for n in range(replicas + 1) if n <= share * replicas)
    assert allowed == min(targets, replicas)


def test_the_stricter_of_both_holds() -> None:
    """A policy never widens what an experiment set itself."""
    loose = _policy(max_concurrent_faults=5, max_targets=64)
    spec = _spec(max_concurrent_faults=2, max_targets=0.5)
    assert tightened(loose, spec) == spec
    strict = tightened(_policy(), _spec(max_concurrent_faults=4))
    assert strict.safety.max_concurrent_faults == 1


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('severity="P0"', 'severity="P0"'),
        ("severity = P0", 'severity="P0"'),
        ('severity=~"P0|P1"', 'severity=~"P0|P1"'),
        ("namespace!=demo", 'namespace!="demo"'),
        ('summary=a "b"', 'summary="a \\"b\\""'),
        ('x="a=b"', 'x="a=b"'),
    ],
)
def test_a_matcher_is_written_as_alertmanager_wants_it(text: str, wanted: str) -> None:
    """Its value in quotes, also where a person left them out."""
    assert matcher(text) == wanted
