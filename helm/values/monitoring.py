"""What a person may set about monitoring: scraping, rules, routes, dashboards and the relay."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from tocsin.helm.monitoring.boards import board_files
from tocsin.helm.monitoring.routes import route_files
from tocsin.helm.monitoring.rules import rule_files
from tocsin.helm.values.pods import Placement, Resources
from tocsin.helm.values.section import (
    HTTP,
    PORT,
    Annotations,
    LabelKey,
    Labels,
    LabelValue,
    Name,
    ObjectName,
    SecretKey,
    SecretRef,
    Section,
)

Link = Annotated[str, Field(pattern=rf"^({HTTP}(/[^\s'\"{{}}<>\\?#]*)?)?$", max_length=1024)]
"""An address that stands in an alert, or "" for the default; paths are appended to it."""
RelayReceiver = Annotated[str, Field(pattern=r"^([a-z0-9][a-z0-9_-]{0,62})?$")]
"""Name of a receiver in the relay's file, or "" for none."""
Words = Annotated[str, Field(pattern=r"^[^\n{}\"\\]*$", max_length=256)]
"""One line of text that is no template."""
Address = Annotated[str, Field(pattern=r"^([^\s@,;<>\"\\]+@[^\s@,;<>\"\\]+)?$", max_length=254)]
"""One address for mail, or ""."""
HostPort = Annotated[str, Field(pattern=rf"^([A-Za-z0-9.-]+:{PORT})?$", max_length=259)]
RelabelAction = Literal["keep", "drop", "replace", "labeldrop", "labelkeep"]


class Links(Section):
    """Where alerts and dashboards lead to, as a person's browser reaches it."""

    gateway_url: Link = ""
    """Address of the served model; empty: its Service inside the cluster."""
    docs_url: Link = ""
    """Address of the docs folder, for runbooks; empty: what the served model shows below /docs."""
    grafana_url: Link = ""
    """Address of Grafana; given, alerts lead to dashboards there and not to the live page."""


class Relabeling(Section):
    """One metric relabeling, as prometheus-operator takes it."""

    action: RelabelAction = "replace"
    """What is done."""
    source_labels: list[Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")]] = Field(
        default_factory=list
    )
    """Labels that are looked at."""
    regex: str = ""
    """What they must match; empty: anything."""
    target_label: Annotated[str, Field(pattern=r"^([a-zA-Z_][a-zA-Z0-9_]*)?$")] = ""
    """Label that is written, for replace."""
    replacement: str = ""
    """What is written into it; empty: what matched."""


class PodMonitorValues(Section):
    """How the release's pods are scraped."""

    enabled: bool = False
    """Makes a PodMonitor."""
    labels: Labels = Field(default_factory=dict)
    """Further labels by which a Prometheus selects it."""
    interval_seconds: Annotated[int, Field(ge=1, le=30)] = 15
    """Seconds between two scrapes; the window behind P0 is shown for two minutes."""
    timeout_seconds: Annotated[int, Field(ge=1, le=30)] = 10
    """Seconds that a scrape may take; not longer than the interval."""
    sample_limit: Annotated[int, Field(ge=1000, le=100000)] = 5000
    """Samples of one pod above which the scrape is refused; a pod's budget is 2000."""
    metric_relabelings: Annotated[list[Relabeling], Field(max_length=32)] = Field(
        default_factory=list
    )
    """Done to every sample before it is stored; dropping Tocsin's series blinds its rules."""


class PrometheusRuleValues(Section):
    """Recording and alerting rules of this release."""

    enabled: bool = False
    """Makes a PrometheusRule."""
    labels: Labels = Field(default_factory=dict)
    """Further labels by which a Prometheus selects it."""
    drills: Literal["running", "armed", "never"] = "running"
    """Which alerts are a drill's: of an experiment's time, all while chaos is armed, or none."""
    p2_severity: LabelValue = "info"
    """severity of P2 alerts; kube-prometheus-stack mutes `info` while nothing graver fires."""


class Slack(Section):
    """A Slack webhook."""

    url_secret: SecretRef = SecretRef(key="url")
    """Secret with the webhook's address; no name: not used."""
    channel: Words = ""
    """Channel; empty: the webhook's own."""


class Email(Section):
    """Mail."""

    to: Address = ""
    """Who is written to; empty: not used."""
    from_address: Address = ""
    """Sender; empty: as Alertmanager's global settings say."""
    smarthost: HostPort = ""
    """host:port of the server; empty: as Alertmanager's global settings say."""
    username: Words = ""
    """User at the server; empty: no login."""
    password_secret: SecretRef = SecretRef(key="password")
    """Secret with the user's password."""


class Channels(Section):
    """The ways in which one kind of alert reaches people; all that are given are used."""

    relay: RelayReceiver = ""
    """Receiver of the relay: robots of WeCom, DingTalk and others; empty: not used."""
    webhook_secret: SecretRef = SecretRef(key="url")
    """Secret with the address of a webhook; no name: not used."""
    pagerduty_secret: SecretRef = SecretRef(key="routing-key")
    """Secret with PagerDuty's integration key (Events API v2); no name: not used."""
    slack: Slack = Slack()
    """Slack."""
    email: Email = Email()
    """Mail."""


class Receivers(Section):
    """Who is told of what. Pages and tickets need at least one way."""

    page: Channels = Channels()
    """P0: at once, every hour again."""
    ticket: Channels = Channels()
    """P1, and whatever has no route of its own."""
    archive: Channels = Channels()
    """P2: once a day at most."""
    drill: Channels = Channels()
    """What a chaos experiment caused."""
    deadman: Channels = Channels()
    """Called every minute while alerts flow; its silence is the alarm."""


class Degrade(Section):
    """The second arm of the degradation: a P0 about an operator tells every replica to leave it."""

    enabled: bool = True
    """Routes P0 alerts that name an operator to POST /degrade as well; needs the token's Secret."""
    from_namespaces: Annotated[list[Name], Field(min_length=1)] = Field(default=["monitoring"])
    """Namespaces whose pods may call POST /degrade: where Alertmanager runs."""


class AlertmanagerConfigValues(Section):
    """Routes and receivers of this release's alerts."""

    enabled: bool = False
    """Makes an AlertmanagerConfig."""
    labels: Labels = Field(default_factory=dict)
    """Further labels by which an Alertmanager selects it."""
    drills_page: bool = False
    """Sends a drill's alerts on to the people, after the drill's own receiver."""
    degrade: Degrade = Degrade()
    """Whether a P0 degrades the operator fleet-wide."""
    receivers: Receivers = Receivers()
    """Who is told of what."""


class DashboardValues(Section):
    """Dashboards for Grafana's sidecar."""

    enabled: bool = False
    """Makes one ConfigMap a dashboard."""
    label: LabelKey = "grafana_dashboard"
    """Label that the sidecar looks for."""
    label_value: LabelValue = "1"
    """Value of that label."""
    folder_annotation: LabelKey = "grafana_folder"
    """Annotation in which the sidecar looks for the folder's name."""
    folder: Words = "Tocsin"
    """Folder in Grafana; empty: the sidecar's default."""
    annotations: Annotations = Field(default_factory=dict)
    """Further annotations of the ConfigMaps."""


class RelayValues(Section):
    """`tocsin alerts relay` in the cluster: Alertmanager's notifications to robots and pagers."""

    enabled: bool = False
    """Makes a Deployment, a Service and a NetworkPolicy."""
    config_secret: ObjectName = ""
    """Secret with relay.yaml and the files that it names, mounted at /etc/tocsin/relay."""
    config_key: SecretKey = "relay.yaml"
    """Key of the relay's file in that Secret."""
    token_secret: SecretRef = SecretRef()
    """Secret with the token that the relay asks Alertmanager for; also for a relay elsewhere."""
    url: Link = ""
    """Address of a relay that runs elsewhere; not with enabled."""
    from_namespaces: Annotated[list[Name], Field(min_length=1)] = Field(default=["monitoring"])
    """Namespaces whose pods may call the relay: where Alertmanager runs."""
    resources: Resources = Resources(cpu="100m", memory="512Mi")
    """What the relay's container is given."""
    placement: Placement = Placement()
    """Where the relay's pod runs."""


class MonitoringValues(Section):
    """Objects for prometheus-operator and Grafana; all off, so that no operator is needed."""

    labels: Labels = Field(default_factory=dict)
    """Labels by which Prometheus and Alertmanager select these, for example release: kps."""
    links: Links = Links()
    """Where alerts and dashboards lead to."""
    pod_monitor: PodMonitorValues = PodMonitorValues()
    """How the release's pods are scraped."""
    prometheus_rule: PrometheusRuleValues = PrometheusRuleValues()
    """Recording and alerting rules of this release."""
    alertmanager_config: AlertmanagerConfigValues = AlertmanagerConfigValues()
    """Routes and receivers of this release's alerts."""
    dashboards: DashboardValues = DashboardValues()
    """Dashboards for Grafana's sidecar."""
    relay: RelayValues = RelayValues()
    """The alert relay."""


def files() -> Mapping[str, str]:
    """Path below the chart's files/ → text."""
    return {**rule_files(), **route_files(), **board_files()}
