"""The kinds of Chaos Mesh that are exported, as closed models: an unknown field is refused.

From api/v1alpha1 of chaos-mesh/chaos-mesh at 608b61e7 (2026-08-07), and from the rules of its
admission webhooks: unique names of templates, a deadline instead of a duration, no field of
another type of template.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Duration = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(ms|s|m|h)$")]
DnsName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")]
Percent = Annotated[int, Field(ge=0, le=100)]


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Selector(Closed):
    namespaces: list[DnsName] = Field(min_length=1)
    labelSelectors: dict[str, Label] = Field(min_length=1)


class Aimed(Closed):
    mode: Literal["one", "all"]
    selector: Selector
    duration: Duration | None = None


class PodChaos(Aimed):
    action: Literal["pod-kill", "pod-failure", "container-kill"]
    gracePeriod: int = Field(default=0, ge=0)


class Delay(Closed):
    latency: Duration
    correlation: str = "0"
    jitter: Duration | None = None


class Bandwidth(Closed):
    rate: str = Field(pattern=r"^[0-9]+(kbit|mbit|gbit|tbit|kbps|mbps|gbps|tbps|bps|bit)$")
    limit: int = Field(ge=1)
    buffer: int = Field(ge=1)


class NetworkChaos(Aimed):
    action: Literal["delay", "partition", "bandwidth"]
    direction: Literal["to", "from", "both"] = "to"
    delay: Delay | None = None
    bandwidth: Bandwidth | None = None

    @model_validator(mode="after")
    def _has_what_it_does(self) -> "NetworkChaos":
        wanted = {"delay": self.delay, "bandwidth": self.bandwidth}
        for action, part in wanted.items():
            if (part is not None) != (self.action == action):
                raise ValueError(f"{action} and its parameters belong together")
        if self.direction != "to" and self.action != "partition":
            raise ValueError("without a target only packets that leave can be treated")
        return self


class Memory(Closed):
    workers: int = Field(ge=1)
    size: str = Field(pattern=r"^[0-9]+(%|[KMGT]i?B|B)$")
    oomScoreAdj: int = Field(default=0, ge=-1000, le=1000)


class Processor(Closed):
    workers: int = Field(ge=1)
    load: Percent


class Stressors(Closed):
    memory: Memory | None = None
    cpu: Processor | None = None


class StressChaos(Aimed):
    stressors: Stressors


class IOChaos(Aimed):
    action: Literal["latency", "fault"]
    volumePath: str = Field(pattern="^/")
    delay: Duration | None = None
    errno: int | None = Field(default=None, ge=1)
    methods: list[Literal["write", "read", "fsync", "open"]] = []
    percent: Percent = 100

    @model_validator(mode="after")
    def _has_what_it_does(self) -> "IOChaos":
        if (self.delay is not None) != (self.action == "latency"):
            raise ValueError("a delay belongs to latency")
        if (self.errno is not None) != (self.action == "fault"):
            raise ValueError("an errno belongs to fault")
        return self


class TimeChaos(Aimed):
    timeOffset: str = Field(pattern=r"^-?[0-9]+(\.[0-9]+)?(ms|s|m|h)$")
    clockIds: list[Literal["CLOCK_REALTIME", "CLOCK_MONOTONIC"]]


class Embedded(Closed):
    podChaos: PodChaos | None = None
    networkChaos: NetworkChaos | None = None
    stressChaos: StressChaos | None = None
    ioChaos: IOChaos | None = Field(default=None, alias="ioChaos")
    timeChaos: TimeChaos | None = None

    def held(self) -> list[str]:
        """Kinds of chaos that it holds, as they are called."""
        fields = ("podChaos", "networkChaos", "stressChaos", "ioChaos", "timeChaos")
        kinds = ("PodChaos", "NetworkChaos", "StressChaos", "IOChaos", "TimeChaos")
        return [kind for name, kind in zip(fields, kinds, strict=True) if getattr(self, name)]


class Schedule(Embedded):
    schedule: str = Field(pattern=r"^@every [0-9]+s$")
    concurrencyPolicy: Literal["Forbid", "Allow"]
    historyLimit: int = Field(ge=1)
    type: str

    @model_validator(mode="after")
    def _one_kind(self) -> "Schedule":
        if self.held() != [self.type]:
            raise ValueError(f"holds {self.held()}, expected {self.type}")
        return self


class Criteria(Closed):
    statusCode: str = Field(pattern=r"^[0-9]{3}(-[0-9]{3})?$")


class Http(Closed):
    url: str = Field(pattern="^https?://")
    method: Literal["GET", "POST"]
    criteria: Criteria


class StatusCheck(Closed):
    mode: Literal["Synchronous", "Continuous"]
    type: Literal["HTTP"]
    intervalSeconds: int = Field(ge=1)
    timeoutSeconds: int = Field(ge=1)
    failureThreshold: int = Field(ge=1)
    http: Http


class Template(Embedded):
    name: DnsName
    templateType: str
    deadline: Duration
    children: list[str] = []
    schedule: Schedule | None = None
    statusCheck: StatusCheck | None = None
    abortWithStatusCheck: bool = False

    @model_validator(mode="after")
    def _of_one_type(self) -> "Template":
        found = {
            **{kind: True for kind in self.held()},
            "Schedule": self.schedule is not None,
            "StatusCheck": self.statusCheck is not None,
        }
        held = [name for name, there in found.items() if there]
        plain = self.templateType in ("Serial", "Parallel", "Suspend")
        if held != ([] if plain else [self.templateType]):
            raise ValueError(f"{self.name} is {self.templateType} and holds {held}")
        if bool(self.children) != (self.templateType in ("Serial", "Parallel")):
            raise ValueError(f"{self.name}: only Serial and Parallel have children, and they must")
        for field in ("podChaos", "networkChaos", "stressChaos", "ioChaos", "timeChaos"):
            chaos = getattr(self, field)
            if chaos is not None and chaos.duration is not None:
                raise ValueError(f"{self.name}: a deadline stands in place of the duration")
        return self


class Spec(Closed):
    entry: str
    templates: list[Template]

    @model_validator(mode="after")
    def _whole(self) -> "Spec":
        names = [one.name for one in self.templates]
        if len(set(names)) != len(names):
            raise ValueError("a name is used twice")
        wanted = {self.entry, *(child for one in self.templates for child in one.children)}
        if not wanted == set(names):
            raise ValueError(f"templates {set(names) ^ wanted} are missing or never used")
        return self


class Metadata(Closed):
    name: DnsName
    namespace: DnsName


class Workflow(Closed):
    apiVersion: Literal["chaos-mesh.org/v1alpha1"]
    kind: Literal["Workflow"]
    metadata: Metadata
    spec: Spec
