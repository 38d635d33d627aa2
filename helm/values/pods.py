"""What head and worker pods are given: resources, places, probes and grace."""

from typing import Annotated, Literal

from pydantic import Field

from tocsin.helm.values.section import (
    DNS_SUBDOMAIN,
    NAME_PART,
    Annotations,
    Bytes,
    Cpu,
    LabelKey,
    Labels,
    LabelValue,
    ObjectName,
    OptionalBytes,
    OptionalCpu,
    Section,
)

Weight = Annotated[int, Field(ge=1, le=100)]
Count = Annotated[int, Field(ge=0, le=1000)]


class Resources(Section):
    """What a container is given. Memory is requested in full: request and limit are one number."""

    cpu: Cpu = "1"
    """CPU cores requested."""
    cpu_limit: OptionalCpu = ""
    """Upper limit of CPU cores; empty: none, so that a busy step is never throttled."""
    memory: Bytes = "2Gi"
    """Memory, as request and as limit."""
    ephemeral_storage: OptionalBytes = ""
    """Local disk, as request and as limit; empty: not said."""


class Probe(Section):
    """How patient one probe is."""

    period_seconds: Annotated[int, Field(ge=1, le=300)] = 10
    """Seconds between two probes."""
    timeout_seconds: Annotated[int, Field(ge=1, le=60)] = 5
    """Seconds until a probe counts as failed."""
    failure_threshold: Annotated[int, Field(ge=1, le=1000)] = 6
    """Failed probes in a row until something is done."""


class Probes(Section):
    """Startup, readiness and liveness; all over HTTP or TCP, none needs a tool in the image."""

    startup: Probe = Probe(failure_threshold=60)
    """Until it has succeeded once, neither of the others runs."""
    readiness: Probe = Probe(failure_threshold=3)
    """While it fails the pod gets no requests."""
    liveness: Probe = Probe(failure_threshold=12)
    """When it has failed for long enough the container is restarted."""


class MatchExpression(Section):
    """One condition on a node's labels."""

    key: LabelKey
    """Label of the node."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = "In"
    """How the label is compared."""
    values: list[LabelValue] = Field(default_factory=list)
    """What it is compared with; empty for Exists and DoesNotExist."""


class WeightedExpression(MatchExpression):
    """One condition that is better met than not."""

    weight: Weight = 50
    """How much it counts against other preferences."""


class NodeAffinity(Section):
    """On which nodes a pod must or should run."""

    required: list[MatchExpression] = Field(default_factory=list)
    """Conditions that a node must meet, all of them."""
    preferred: list[WeightedExpression] = Field(default_factory=list)
    """Conditions that are weighed when several nodes would do."""


class Toleration(Section):
    """One taint that the pod bears."""

    key: LabelKey
    """Key of the taint."""
    operator: Literal["Equal", "Exists"] = "Exists"
    """Exists takes any value, Equal the given one."""
    value: LabelValue = ""
    """Value of the taint, for Equal."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Effect that is borne; empty: all."""


class Placement(Section):
    """Where a pod runs."""

    node_selector: Labels = Field(default_factory=dict)
    """Labels that a node must have."""
    node_affinity: NodeAffinity = NodeAffinity()
    """Conditions on the node, required and preferred."""
    tolerations: list[Toleration] = Field(default_factory=list)
    """Taints that the pod bears. Groups with GPUs bear nvidia.com/gpu by themselves."""
    runtime_class_name: ObjectName = ""
    """RuntimeClass, for example nvidia; empty: the node's default."""
    priority_class_name: ObjectName = ""
    """PriorityClass; empty: the cluster's default."""


class Node(Placement):
    """What head and worker pods have in common."""

    shared_memory: Bytes = "512Mi"
    """Size of /dev/shm; it counts against the memory limit."""
    object_store: Bytes = "256Mi"
    """Memory of Ray's object store, within /dev/shm."""
    scratch: Bytes = "4Gi"
    """Upper limit of each of the pod's emptyDirs: /tmp and /var/lib/tocsin."""
    probes: Probes = Probes()
    """Patience of the probes."""
    termination_grace_period_seconds: Annotated[int, Field(ge=0, le=3600)] = 60
    """Seconds between the request to stop and the kill."""
    pod_annotations: Annotations = Field(default_factory=dict)
    """Annotations of the pods."""


class HeadValues(Node):
    """The Ray head: cluster state, Serve controller, gateway and proxy; it runs no model."""

    resources: Resources = Resources(cpu="1", memory="4Gi")
    """What the head container is given."""


class Spread(Section):
    """How evenly a group's pods lie over one kind of place."""

    max_skew: Annotated[int, Field(ge=0, le=100)] = 1
    """Largest difference in pods between two places; 0: no constraint."""
    when_unsatisfiable: Literal["ScheduleAnyway", "DoNotSchedule"] = "ScheduleAnyway"
    """Whether a pod waits until it can be placed evenly."""


class TopologySpread(Section):
    """How a group's pods spread, so that one loss does not take them all."""

    hostname: Spread = Spread()
    """Over machines."""
    zone: Spread = Spread()
    """Over zones."""


class Gpu(Section):
    """Accelerators of one worker pod."""

    count: Annotated[int, Field(ge=0, le=64)] = 0
    """GPUs of each pod; above 0 adds the limit and the toleration."""
    resource_name: Annotated[
        str,
        Field(pattern=rf"^{DNS_SUBDOMAIN}/{NAME_PART}$", max_length=317),
    ] = "nvidia.com/gpu"
    """Name under which the device plugin offers them."""


class WorkerValues(Node):
    """Worker pods that run the checked model."""

    replicas: Count = 2
    """Pods of the group."""
    min_replicas: Count = 1
    """Fewest pods that autoscaling leaves."""
    max_replicas: Count = 8
    """Most pods that autoscaling makes."""
    resources: Resources = Resources(cpu="2", memory="8Gi")
    """What the worker container is given."""
    gpu: Gpu = Gpu()
    """Accelerators of each pod."""
    topology_spread: TopologySpread = TopologySpread()
    """How the pods spread over machines and zones."""
    chaos_target: bool = False
    """Puts the label on these pods without which no chaos run strikes them; a change of it makes
    the pods anew."""
    idle_timeout_seconds: Annotated[int, Field(ge=0, le=86400)] = 0
    """Idle seconds until autoscaling takes a pod of the group; 0: as ray.autoscaling says."""
