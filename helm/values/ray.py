"""How Ray itself runs: version, fault tolerance, autoscaling and upgrades."""

from typing import Annotated, Literal

from pydantic import Field

from tocsin.helm.values.pods import Resources
from tocsin.helm.values.section import PORT, ObjectName, SecretRef, Section

RedisAddress = Annotated[str, Field(pattern=rf"^((rediss?://)?[A-Za-z0-9.-]+:{PORT})?$")]
RayVersion = Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$")]


class GcsFaultTolerance(Section):
    """Cluster state outside the head, so that a new head takes over."""

    enabled: bool = False
    """Keeps the head's state in an external Redis."""
    redis_address: RedisAddress = ""
    """Where Redis listens: redis.example:6379."""
    password_secret: SecretRef = SecretRef(key="password")
    """Password of Redis."""
    username_secret: SecretRef = SecretRef(key="username")
    """User of Redis."""


class Autoscaling(Section):
    """Ray's own autoscaler, as a second container of the head pod."""

    enabled: bool = False
    """Lets Ray add and remove worker pods between minReplicas and maxReplicas."""
    idle_timeout_seconds: Annotated[int, Field(ge=0, le=86400)] = 300
    """Idle seconds until a worker pod goes."""
    upscaling_mode: Literal["Default", "Aggressive", "Conservative"] = "Conservative"
    """How fast pods are added."""
    resources: Resources = Resources(cpu="500m", memory="512Mi")
    """What the autoscaler container is given."""


class IncrementalUpgrade(Section):
    """NewClusterWithIncrementalUpgrade: traffic moves in steps through a Gateway."""

    gateway_class_name: ObjectName = ""
    """GatewayClass of the cluster; needed for this strategy."""
    max_surge_percent: Annotated[int, Field(ge=1, le=100)] = 100
    """How much of the capacity the new cluster is given at a time."""
    step_size_percent: Annotated[int, Field(ge=1, le=100)] = 20
    """How much of the traffic moves at a time; at most maxSurgePercent."""
    interval_seconds: Annotated[int, Field(ge=1, le=3600)] = 30
    """Seconds between two steps."""


class Upgrade(Section):
    """What happens when the configuration of the Ray cluster changes."""

    strategy: Literal["NewCluster", "NewClusterWithIncrementalUpgrade", "None"] = "NewCluster"
    """NewCluster: a second cluster takes over and needs its own GPUs; None: nothing happens."""
    deletion_delay_seconds: Annotated[int, Field(ge=0, le=86400)] = 60
    """Seconds for which the old cluster is kept after the new one has taken over."""
    incremental: IncrementalUpgrade = IncrementalUpgrade()
    """Steps of NewClusterWithIncrementalUpgrade."""


class RayValues(Section):
    """Ray's own settings."""

    version: RayVersion = "2.60.0"
    """Version of Ray in the image; KubeRay chooses flags by it."""
    gcs_fault_tolerance: GcsFaultTolerance = GcsFaultTolerance()
    """Survival of the head."""
    autoscaling: Autoscaling = Autoscaling()
    """Growing and shrinking."""
    upgrade: Upgrade = Upgrade()
    """Changing the configuration of a running cluster."""
    suspend: bool = False
    """Takes all Ray pods away and keeps the release."""
