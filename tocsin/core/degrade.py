"""An order to serve an operator from its fallback for a while: the `/degrade` hook's word."""

from pydantic import BaseModel, ConfigDict, Field

from tocsin.core.terms import Operator

DEGRADE_TTL_S = 600.0
"""Long enough for a person to look, short enough that a forgotten order ends by itself."""
TTL_MAX_S = 86_400.0


def p0_reason(operator: str) -> str:
    """The reason of a degradation after too many failures; one for replica and fleet."""
    return f"p0:{operator}"


class DegradeOrder(BaseModel):
    """What a person, an alert or the board asks of every replica.

    Attributes:
        backend: backend of the attention to serve from; None: the next one down the chain.
        reason: why; orders of one operator and reason are one order, the later replaces it.
        ttl_s: how long it holds; 0 takes it back.
        failure_id: the failure behind it, where one is known.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    operator: Operator
    backend: str | None = Field(default=None, min_length=1, max_length=64)
    reason: str = Field(min_length=1, max_length=500)
    ttl_s: float = Field(default=DEGRADE_TTL_S, ge=0, le=TTL_MAX_S, allow_inf_nan=False)
    failure_id: str | None = Field(default=None, max_length=64)

    @property
    def takes_back(self) -> bool:
        """Whether it ends an order instead of giving one."""
        return self.ttl_s == 0
