"""The policy of a place: what chaos may do there; a person's file, read anew by every run."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tocsin.chaos.contract import Fault, faults
from tocsin.chaos.spec import Experiment, SafetySpec
from tocsin.chaos.spec_file import first_mistake
from tocsin.core.errors import SpecError
from tocsin.core.yaml_text import NotYamlError, read_yaml

POLICY_ENV = "TOCSIN_CHAOS_POLICY"
PROTECTED = ("kube-system", "kube-public", "kube-node-lease")
"""Namespaces that every policy protects: what runs there keeps the cluster itself alive."""

_MATCHER = re.compile(r"^\s*([A-Za-z_][A-Za-z0-9_]*)\s*(=~|!~|!=|=)\s*(.*?)\s*$")

DnsLabel = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
DnsNameOrNone = Annotated[str, Field(pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$")]
LabelPair = Annotated[
    str,
    Field(
        pattern=r"^([a-z0-9][-a-z0-9.]{0,252}/)?[A-Za-z0-9][-A-Za-z0-9_.]{0,62}"
        r"=[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
    ),
]
HttpUrlOrNone = Annotated[str, Field(pattern=r"^(https?://[^\s]+)?$", max_length=2048)]


class ChaosPolicy(BaseModel):
    """What chaos may do to one release; what a file does not say keeps its safe default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(default=False, description="false: every run that injects is refused")
    dry_run: bool = Field(
        default=True,
        description="true: a run prints its plan and its targets and injects nothing, whatever "
        "else is said",
    )
    namespace: DnsLabel = Field(description="of the release")
    release: str = Field(
        min_length=1, max_length=63, description="value of the label app.kubernetes.io/instance"
    )
    protected_namespaces: tuple[DnsLabel, ...] = Field(
        default=PROTECTED, description="where nothing is ever injected; must hold the system's own"
    )
    namespace_label: LabelPair = Field(
        default="tocsin.dev/chaos=allowed", description="the namespace must carry it"
    )
    target_label: LabelPair = Field(
        default="tocsin.dev/chaos-target=true",
        description="the worker pods that are struck must carry it",
    )
    allowed_faults: tuple[str, ...] = Field(
        default=(), description="ids of the faults that may be injected; empty: all"
    )
    max_concurrent_faults: int = Field(
        default=1, ge=1, le=5, description="the stricter of this and the experiment's holds"
    )
    max_targets: int = Field(
        default=1,
        ge=1,
        le=64,
        description="replicas that may suffer at the same time; the stricter of this and the "
        "experiment's share holds",
    )
    max_duration_s: int = Field(
        default=600, ge=10, le=86_400, description="longest safety.max_duration of an experiment"
    )
    serve_url: HttpUrlOrNone = Field(
        default="", description="URL of the application; another one is refused"
    )
    lease_name: DnsNameOrNone = Field(
        default="", description="Lease that one run at a time holds; empty: none"
    )
    stop_on_alert: HttpUrlOrNone = Field(
        default="", description="Alertmanager whose new alerts end a run; empty: none"
    )
    stop_matchers: tuple[str, ...] = Field(
        default=(), description="which alerts end it; those of chaos itself never do"
    )

    @field_validator("protected_namespaces")
    @classmethod
    def _holds_the_systems_own(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        missing = [name for name in PROTECTED if name not in value]
        if missing:
            raise ValueError(f"expected a list that holds {', '.join(missing)} too")
        return value

    @field_validator("allowed_faults")
    @classmethod
    def _declared(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [name for name in value if name not in faults()]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is no fault, known are {', '.join(faults())}")
        return value

    @field_validator("stop_matchers")
    @classmethod
    def _matchers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(matcher(one) for one in value)


def matcher(text: str) -> str:
    """An Alertmanager matcher, `name=value` with =, !=, =~ or !~, its value in quotes.

    Raises:
        ValueError: it is none.
    """
    match = _MATCHER.match(text)
    if match is None:
        raise ValueError(f'{text!r} is no matcher, expected one such as severity="P0"')
    name, operation, value = match.groups()
    quoted = len(value) > 1 and value[0] == value[-1] == '"'
    plain = value if quoted else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"{name}{operation}{plain}"


def policy_of_environment() -> ChaosPolicy | None:
    """The policy of this place, None where $TOCSIN_CHAOS_POLICY names no file: a bare cluster.

    Raises:
        SpecError: it names a file that is not there, or that says something wrong.
    """
    path = os.environ.get(POLICY_ENV, "")
    return load_policy(Path(path)) if path else None


def load_policy(path: Path) -> ChaosPolicy:
    """Read a policy.

    Raises:
        SpecError: it cannot be read, or says something that it must not.
    """
    try:
        document = read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(
            f"{path}: the chaos policy cannot be read ({error}), expected a YAML file; mount it, "
            f"or unset {POLICY_ENV}"
        ) from None
    except NotYamlError as error:
        raise SpecError(f"{path}: is not YAML: {error}; correct the syntax") from None
    if not isinstance(document, dict):
        raise SpecError(
            f"{path}: holds {type(document).__name__}, expected a mapping of the policy's keys"
        )
    try:
        return ChaosPolicy.model_validate(document)
    except ValidationError as error:
        raise SpecError(f"{path}: {first_mistake(error, ChaosPolicy)}") from None


def objections(
    policy: ChaosPolicy, spec: Experiment, url: str, catalogue: Mapping[str, Fault] | None = None
) -> tuple[str, ...]:
    """Why a policy forbids an experiment, each in one line; nothing: it allows it.

    Args:
        url: the application that is to be attacked.
        catalogue: known faults by id; None: the declared ones.
    """
    known = faults() if catalogue is None else catalogue
    found = []
    if not policy.enabled:
        found.append(
            "policy: enabled is false, expected true for a run that injects; "
            "set chaos.enabled in the release's values"
        )
    if policy.namespace in policy.protected_namespaces:
        found.append(
            f"policy: namespace {policy.namespace} is one of protected_namespaces, expected one "
            "that may be attacked; install the release into a namespace of its own"
        )
    if policy.serve_url and url.rstrip("/") != policy.serve_url.rstrip("/"):
        found.append(
            f"policy: the run is aimed at {url}, expected {policy.serve_url} (serve_url); "
            "attack the release that the policy is for"
        )
    if policy.allowed_faults:
        for i, fault in enumerate(spec.faults):
            if fault.kind in known and fault.kind not in policy.allowed_faults:
                found.append(
                    f"policy: faults[{i}].kind is {fault.kind}, allowed are "
                    f"{', '.join(policy.allowed_faults)}; remove the fault or allow it"
                )
    if spec.safety.max_duration_s > policy.max_duration_s:
        found.append(
            f"policy: safety.max_duration is {spec.safety.max_duration_s:g} s, allowed are "
            f"{policy.max_duration_s} s; shorten the experiment or raise max_duration_s"
        )
    return tuple(found)


def tightened(policy: ChaosPolicy, spec: Experiment) -> Experiment:
    """The experiment under the stricter of its own limits and the policy's."""
    # Half a replica more: a share times the number of replicas must not fall short by rounding.
    share = min(1.0, (policy.max_targets + 0.5) / spec.system.replicas)
    safety: SafetySpec = spec.safety.model_copy(
        update={
            "max_concurrent_faults": min(
                spec.safety.max_concurrent_faults, policy.max_concurrent_faults
            ),
            "max_targets": min(spec.safety.max_targets, share),
        }
    )
    return spec.model_copy(update={"safety": safety})
