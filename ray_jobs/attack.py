"""What a chaos run is aimed at, where an application is served already, and under which policy."""

from collections.abc import Sequence
from dataclasses import dataclass

from tocsin.chaos.policy import ChaosPolicy, policy_of_environment
from tocsin.core.errors import SpecError
from tocsin.ray_jobs.alert_stop import AlertStop


@dataclass(frozen=True, slots=True)
class Attack:
    """What a run on a served application is told.

    Attributes:
        url: of the application.
        policy: of this place; None: a bare cluster, where only the experiment sets limits.
        stop_on_alert: URL of an Alertmanager; empty: the policy's, or none.
        stop_matchers: which alerts end the run; empty: the policy's.
    """

    url: str
    policy: ChaosPolicy | None = None
    stop_on_alert: str = ""
    stop_matchers: tuple[str, ...] = ()

    @property
    def dry(self) -> bool:
        """Nothing may be injected here: a run tells what it would do."""
        return self.policy is not None and self.policy.dry_run

    def alerts(self) -> AlertStop | None:
        """Who looks for alerts."""
        of_policy = self.policy.stop_on_alert if self.policy else ""
        url = self.stop_on_alert or of_policy
        if not url:
            return None
        return AlertStop(
            url, self.stop_matchers or (self.policy.stop_matchers if self.policy else ())
        )


def attack_of(on: str, stop_on_alert: str, stop_matchers: Sequence[str]) -> Attack | None:
    """What a run is aimed at here; None: at an application of its own.

    Raises:
        SpecError: the policy of this place is wrong, or there is nothing to aim at.
    """
    policy = policy_of_environment()
    url = on or (policy.serve_url if policy else "")
    if not url and policy is not None:
        raise SpecError(
            "chaos run: found a chaos policy and no application, expected --on URL or serve_url "
            "in the policy: here nothing may be deployed"
        )
    if not url and (stop_on_alert or stop_matchers):
        raise SpecError("chaos run: --stop-on-alert is for a run with --on URL; add it")
    return Attack(url, policy, stop_on_alert, tuple(stop_matchers)) if url else None
