"""The words of the project as code: layers, priorities, profiles, operators and states."""

from enum import IntEnum, StrEnum


class Layer(StrEnum):
    """The four layers of checks, in the order in which they run."""

    NUMERICAL = "numerical"
    MEMORY = "memory"
    STATE = "state"
    SEMANTIC = "semantic"


class Priority(StrEnum):
    """Who is told: P0 pages, P1 opens a ticket, P2 goes to the weekly digest."""

    P0 = "P0"
    P1 = "P1"
    P2 = "P2"


CROSSING_CHECKS = (
    "memory.cu_seqlens",
    "state.page_epoch",
    "state.page_owner",
    "state.prefix_tokens",
    "state.slot_mapping",
)
"""Checks of which one alarm is a sign that a request met another's data: it pages at count 1.

Mirrors `crosses_requests` of their declarations, for rules that may not see the checks."""


class Profile(StrEnum):
    """How much is checked; coverage and overhead are always quoted for one of these."""

    OFF = "off"
    GUARD = "guard"
    FULL = "full"

    def includes(self, other: "Profile") -> bool:
        """Whether a check that needs `other` runs under this profile."""
        order = (Profile.OFF, Profile.GUARD, Profile.FULL)
        return self is not Profile.OFF and order.index(other) <= order.index(self)


class Operator(StrEnum):
    """Every operator that a check can look at; the first fourteen are `tocsin.inspect`'s."""

    TOKENIZER_OUTPUT = "tokenizer_output"
    EMBEDDING = "embedding"
    ROPE = "rope"
    RMS_NORM = "rms_norm"
    LINEAR = "linear"
    SWIGLU = "swiglu"
    ATTENTION = "attention"
    FLASH_ATTN_VARLEN = "flash_attn_varlen"
    KV_UPDATE = "kv_update"
    LOGITS = "logits"
    LOGIT_PROCESSOR = "logit_processor"
    SAMPLER = "sampler"
    ALL_REDUCE = "all_reduce"
    STRUCTURED_OUTPUT = "structured_output"
    # Seen only inside an engine or a guard, never through `tocsin.inspect`.
    BATCH = "batch"
    KV_READ = "kv_read"
    RESIDUAL = "residual"
    WEIGHT = "weight"
    DEVICE_MEMORY = "device_memory"


class Phase(IntEnum):
    """When a seam is reached: before the operator runs, or after it has."""

    BEFORE = 0
    AFTER = 1


class BreakerState(StrEnum):
    """Closed serves the primary backend, open the fallback, half-open tries the primary once."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Cause(StrEnum):
    """What the recovery ladder found out about an alarm (design: the recovery ladder)."""

    TRANSIENT = "transient"  # the same step, run again, was clean
    PERSISTENT = "persistent"  # clean only on the fallback backend
    STATE = "state"  # a KV page or a weight had changed under us
    LEGITIMATE = "legitimate"  # sums exact, backends agree: the alarm is refuted
    UNRESOLVED = "unresolved"  # nothing helped: the request was refused


class Action(StrEnum):
    """What happens to one row of a step once its verdict is in."""

    RELEASE = "release"
    RECOMPUTE = "recompute"
    REFUSE = "refuse"
