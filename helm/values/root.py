"""Every value of the chart, as one closed model; values.yaml, its schema, its page come from it."""

from typing import Annotated, Literal

from pydantic import Field

from tocsin.checker.settings import CheckerSettings
from tocsin.helm.values.access import DisruptionBudget, NetworkPolicyValues, ServiceAccounts
from tocsin.helm.values.chaos import ChaosValues
from tocsin.helm.values.image import ImageValues
from tocsin.helm.values.monitoring import MonitoringValues
from tocsin.helm.values.pods import HeadValues, WorkerValues
from tocsin.helm.values.ray import RayValues
from tocsin.helm.values.section import OptionalName, SecretRef, Section
from tocsin.helm.values.serving import ModelValues, ServeValues
from tocsin.helm.values.surroundings import AlertmanagerValues, EnvVar, TelemetryValues
from tocsin.helm.values.test import HelmTestValues

GroupName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,18}[a-z0-9])?$")]


class ChartValues(Section):
    """Values of the chart tocsin."""

    name_override: Annotated[OptionalName, Field(max_length=40)] = ""
    """Replaces `tocsin` in object names."""
    fullname_override: Annotated[OptionalName, Field(max_length=40)] = ""
    """Replaces the whole object name, `<release>-tocsin`; at most 40 characters."""
    topology: Literal["service", "cluster"] = "service"
    """service: a RayService, changed without downtime; cluster: a RayCluster and a RayJob."""
    image: ImageValues = ImageValues()
    """Which image every pod of the release runs."""
    ray: RayValues = RayValues()
    """How Ray itself runs."""
    head: HeadValues = HeadValues()
    """The head pod."""
    worker: WorkerValues = WorkerValues()
    """What every worker group is given, unless the group says otherwise."""
    worker_groups: Annotated[dict[GroupName, WorkerValues], Field(min_length=1)] = Field(
        default_factory=lambda: {"checked": WorkerValues()}
    )
    """Worker groups: name → what differs from `worker`; null takes a group away. They are listed by
    name: a group whose name comes last joins a running cluster, another one makes a new cluster."""
    model: ModelValues = ModelValues()
    """Where the weights come from."""
    serve: ServeValues = ServeValues()
    """The served application."""
    checker: CheckerSettings = CheckerSettings()
    """Settings of the checker, as the program reads them; changed in place, without a restart."""
    token: SecretRef = SecretRef()
    """Secret with the bearer token that POST /health/checker_status asks for."""
    telemetry: TelemetryValues = TelemetryValues()
    """OpenTelemetry traces."""
    alertmanager: AlertmanagerValues = AlertmanagerValues()
    """Alertmanager that the program reports to."""
    extra_env: Annotated[list[EnvVar], Field(max_length=64)] = Field(default_factory=list)
    """Further variables of head and worker containers."""
    service_accounts: ServiceAccounts = ServiceAccounts()
    """Service accounts of the release."""
    network_policy: NetworkPolicyValues = NetworkPolicyValues()
    """Who may connect to what."""
    disruption_budget: DisruptionBudget = DisruptionBudget()
    """How many pods a drain may take at once."""
    chaos: ChaosValues = ChaosValues()
    """Chaos runs against the release."""
    test: HelmTestValues = HelmTestValues()
    """What `helm test` does."""
    monitoring: MonitoringValues = MonitoringValues()
    """Objects for prometheus-operator and Grafana."""
