"""What a person may set about chaos on a cluster: off, dry, and within limits unless said so."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from pydantic import AfterValidator, BaseModel, Field, WithJsonSchema

from tocsin.chaos.contract import faults
from tocsin.chaos.spec import Experiment
from tocsin.chaos.spec_file import builtin_experiments, load_experiment
from tocsin.core.faulting import Scope
from tocsin.helm.values.access import Cidr
from tocsin.helm.values.pods import Placement, Resources
from tocsin.helm.values.schedule import Schedule, TimeZone
from tocsin.helm.values.section import (
    DNS_LABEL,
    LABEL_KEY,
    NAME_PART,
    Bytes,
    ObjectName,
    OptionalStore,
    Port,
    Section,
)

PROTECTED = ("kube-system", "kube-public", "kube-node-lease")
"""Namespaces that nobody can take out of the protected ones."""


def _known(name: str, names: Iterable[str], what: str) -> str:
    known = tuple(names)
    if name not in known:
        raise ValueError(f"found {name!r}, expected {what}: {', '.join(known)}")
    return name


FaultId = Annotated[
    str,
    AfterValidator(lambda name: _known(name, faults(), "a fault of the catalogue")),
    Field(json_schema_extra={"enum": list(faults())}),
]
BuiltinExperiment = Annotated[
    str,
    AfterValidator(lambda name: _known(name, builtin_experiments(), "a built-in experiment")),
    Field(json_schema_extra={"enum": list(builtin_experiments())}),
]
AllowedFaults = Annotated[
    list[FaultId], Field(min_length=1, json_schema_extra={"uniqueItems": True})
]
_FELT = ("actor.", "host.", "kv.eviction_storm", "load.")
_GENTLE = tuple(
    one.id
    for one in faults().values()
    if one.scope in (Scope.WORKER, Scope.CLIENT) and not one.id.startswith(_FELT)
)
"""What is allowed unless said otherwise: nothing that takes a process, a pod, a host's memory or
the places of other people's requests, and nothing that slows them."""


def _with_protected(names: list[str]) -> list[str]:
    missing = sorted(set(PROTECTED) - set(names))
    if missing:
        raise ValueError(f"expected {', '.join(PROTECTED)} among them, missing {missing}")
    return names


ProtectedNamespaces = Annotated[
    list[str],
    AfterValidator(_with_protected),
    WithJsonSchema(
        {
            "type": "array",
            "items": {"type": "string", "pattern": rf"^{DNS_LABEL}$", "maxLength": 63},
            "maxItems": 256,
            "uniqueItems": True,
        }
    ),
]
_LABEL = rf"^{LABEL_KEY}={NAME_PART}$"
FORMS = {_LABEL: "key=value of a label"}
"""Pattern → what it asks for, in words."""

Matcher = Annotated[str, Field(pattern=r'^[a-zA-Z_][a-zA-Z0-9_]*(=|!=|=~|!~)"[^"\\]*"$')]


class ExperimentValues(Section):
    """Which experiment is run."""

    name: BuiltinExperiment = "smoke"
    """A built-in experiment; not looked at when text is given."""
    text: Annotated[str, Field(max_length=262144)] = ""
    """An experiment file as text (--set-file chaos.experiment.text=my.yaml); wins over name."""
    seed: Annotated[int, Field(ge=-1, le=2**53 - 1)] = -1
    """Seed of the run; -1: the experiment's own."""


class StopOnAlert(Section):
    """A run that stops when somebody else's alert fires."""

    enabled: bool = False
    """Watches the Alertmanager of alertmanager.url; alerts labelled chaos="true" do not count."""
    matchers: Annotated[list[Matcher], Field(max_length=16)] = Field(
        default_factory=lambda: ['severity=~"P0|P1"']
    )
    """Which alerts stop a run, besides that they are of this namespace: severity="P0"."""


class ReportVolume(Section):
    """Where a run's report is written."""

    claim_name: ObjectName = ""
    """PersistentVolumeClaim for the reports; empty: an emptyDir, gone with the pod."""
    size: Bytes = "2Gi"
    """Upper limit of the emptyDir."""


class Publish(Section):
    """Where a copy of a run's archive goes."""

    url: OptionalStore = ""
    """Folder to copy finished runs to (fsspec): s3://bucket/runs, without credentials; empty:
    nowhere."""
    secret_name: ObjectName = ""
    """Secret whose keys become environment variables of the driver: credentials of the store."""
    port: Port = 443
    """Port of the store, let through by the network policy."""


class ApiServer(Section):
    """How the driver reaches the Kubernetes API."""

    cidrs: Annotated[list[Cidr], Field(max_length=32)] = Field(default_factory=list)
    """Addresses of the API server; empty: any address, on the ports below."""
    ports: Annotated[list[Port], Field(min_length=1, max_length=8)] = Field(
        default_factory=lambda: [443, 6443]
    )
    """Its ports: of the Service and of what stands behind it."""


class AdmissionPolicy(Section):
    """A second guard outside the program: the API server refuses what the driver must not do."""

    enabled: bool = False
    """Makes a ValidatingAdmissionPolicy, which is cluster-scoped: installing it needs the right."""


class Driver(Placement):
    """The pod that attacks and judges."""

    resources: Resources = Resources(cpu="1", memory="4Gi")
    """What the driver is given; it computes golden answers with the model itself."""
    termination_grace_period_seconds: Annotated[int, Field(ge=120, le=600)] = 150
    """Seconds in which a stopped driver takes back what it has injected."""
    wait_seconds: Annotated[int, Field(ge=0, le=86400)] = 900
    """Seconds for which a run waits until all replicas live: after an install they load weights."""
    startup_seconds: Annotated[int, Field(ge=60, le=86400)] = 1800
    """Time for golden answers and judging, on top of maxDurationSeconds and waitSeconds, until the
    pod is ended."""


class ChaosValues(Section):
    """Chaos runs against the release: off, and dry when on."""

    enabled: bool = False
    """Makes the driver's objects. Off: only a policy that forbids every run."""
    dry_run: bool = True
    """Prints plan and targets and injects nothing; the driver then may delete no pod at all."""
    kind: Literal["job", "cronjob", "rayjob", "raycronjob"] = "cronjob"
    """Who starts runs. rayjob and raycronjob need topology cluster; the driver then runs in the
    head's pod, whose account gets the driver's rights."""
    run_once: Annotated[str, Field(pattern=rf"^({DNS_LABEL})?$", max_length=40)] = ""
    """Word that names one run of a job or rayjob; empty: none. Another word is another run, and so
    is another image, experiment or limit while the word is there."""
    schedule: Schedule = ""
    """Cron schedule of a cronjob or raycronjob; empty: suspended, a template for runs by hand."""
    time_zone: TimeZone = "Etc/UTC"
    """Time zone of the schedule."""
    ray_cron_job_gate: bool = False
    """Says that the KubeRay operator runs with its alpha gate RayCronJob."""
    experiment: ExperimentValues = ExperimentValues()
    """Which experiment is run."""
    allowed_faults: AllowedFaults = Field(default_factory=lambda: list(_GENTLE))
    """Kinds of faults that may be injected; what takes processes, pods or memory is left out."""
    max_concurrent_faults: Annotated[int, Field(ge=1, le=5)] = 2
    """Faults in place at the same time, whatever the experiment says."""
    max_targets: Annotated[int, Field(ge=1, le=64)] = 1
    """Replicas that may suffer at the same time: the blast radius."""
    max_duration_seconds: Annotated[int, Field(ge=10, le=86400)] = 600
    """Longest run; an experiment that asks for more is refused."""
    protected_namespaces: ProtectedNamespaces = Field(default_factory=lambda: list(PROTECTED))
    """Namespaces in which nothing is ever attacked; the three of Kubernetes cannot be left out."""
    namespace_label: Annotated[str, Field(pattern=_LABEL, max_length=381)] = (
        "tocsin.dev/chaos=allowed"
    )
    """Label without which a namespace is not attacked; its administrator sets it."""
    stop_on_alert: StopOnAlert = StopOnAlert()
    """A run that stops when somebody else's alert fires."""
    report: ReportVolume = ReportVolume()
    """Where a run's report is written."""
    publish: Publish = Publish()
    """Where a copy of a run's archive goes."""
    driver: Driver = Driver()
    """The pod that attacks and judges."""
    api_server: ApiServer = ApiServer()
    """How the driver reaches the Kubernetes API."""
    admission_policy: AdmissionPolicy = AdmissionPolicy()
    """A second guard outside the program."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=60, le=2592000)] = 86400
    """Seconds for which a finished job of the cronjob is kept. That of runOnce stays: an upgrade
    would make it again."""
    starting_deadline_seconds: Annotated[int, Field(ge=10, le=86400)] = 300
    """A run that could not start on time is left out when it is later than this."""
    successful_history: Annotated[int, Field(ge=0, le=100)] = 3
    """Passed jobs that the cronjob keeps."""
    failed_history: Annotated[int, Field(ge=0, le=100)] = 3
    """Failed jobs that the cronjob keeps."""


def files() -> Mapping[str, str]:
    """Path below the chart's files/ → text: what the templates' guards know of the experiments."""
    facts = {name: demands(load_experiment(name)) for name in builtin_experiments()}
    return {
        "chaos/experiments.yaml": yaml.safe_dump(facts, sort_keys=True, width=100),
        "chaos/shape.yaml": yaml.safe_dump(shape(Experiment), sort_keys=True, width=100),
    }


def shape(part: Any) -> dict[str, Any]:
    """What a part of an experiment's file is: the keys of a mapping, what a list is of, or {}."""
    if isinstance(part, type) and issubclass(part, BaseModel):
        fields = {field.alias or name: field for name, field in part.model_fields.items()}
        return {
            "keys": {name: shape(field.annotation) for name, field in fields.items()},
            "required": [name for name, field in fields.items() if field.is_required()],
        }
    return {"items": shape(get_args(part)[0])} if get_origin(part) is tuple else {}


def demands(experiment: Experiment) -> dict[str, Any]:
    """What an experiment asks of its surroundings, as the guards compare it with the limits."""
    return {
        "faults": sorted({one.kind for one in experiment.faults}),
        "maxDurationSeconds": int(experiment.safety.max_duration_s),
    }
