"""What a person may set about `helm test`."""

from typing import Annotated

from pydantic import Field

from tocsin.helm.values.pods import Placement, Resources


class HelmTestValues(Placement):
    """`helm test`: asks the running service, then plans a chaos run without making one."""

    enabled: bool = True
    """Makes the test pods; they exist only while `helm test` runs."""
    completion: bool = True
    """Asks the model for one short answer too."""
    within_seconds: Annotated[int, Field(ge=0, le=3600)] = 120
    """Seconds for which the service may still be starting."""
    resources: Resources = Resources(cpu="200m", memory="1Gi")
    """What each test pod is given."""
