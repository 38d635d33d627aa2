"""What the `args` of a serve config may say: model, shape and placement of the application."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tocsin.core.errors import SpecError
from tocsin.core.terms import Profile
from tocsin.ray_jobs.options import ServeOptions

_OF_THE_CLUSTER = frozenset(
    {"cpus_per_replica", "gpus_per_replica", "gateway_replicas", "gateway_placement"}
)


class ServeArguments(BaseModel):
    """Arguments of `tocsin.ray_jobs.serve_app:build`; a change of one starts every replica anew."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    model: str = Field(default="smollm2-135m", min_length=1)
    """A built-in name, or a folder in the HF format that every replica can read."""
    name: str = ""
    """Name under which clients see the model; empty: as `model` says."""
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Number format of weights and KV pages."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs; auto: on the GPU where the replica was given one."""
    slots: int = Field(default=8, ge=1, le=1024)
    """Requests that one replica works on at the same time."""
    pages: int = Field(default=192, ge=1)
    """KV pages of one replica."""
    page_size: int = Field(default=16, ge=1, le=1024)
    """Tokens of one KV page."""
    max_length: int = Field(default=512, ge=32)
    """Largest number of prompt and answer tokens of one request."""
    threads: int = Field(default=1, ge=1, le=1024)
    """Compute threads of one replica."""
    kv_scrub_pages: int = Field(default=0, ge=0)
    """KV pages verified in turn before a step, besides those just shared and those of a request
    that ends; 0: every page that the step reads, before its token leaves."""
    profile: Profile = Profile.FULL
    """Which checks run: off, guard or full; a user_config has its own."""
    breaker_cooldown_s: float = Field(default=5.0, gt=0)
    """Seconds until an open breaker tries the first backend again; a user_config has its own."""
    archive_url: str = ""
    """Where finished journal files are copied; a user_config has its own."""
    journal_prompts: bool = False
    """Whether prompts may be stored with a failure; a user_config has its own."""
    replicas: int = Field(default=2, ge=1, le=1024)
    """Replicas of the model, where `deployments` does not say it."""
    cpus_per_replica: float = Field(default=1.0, ge=0)
    """CPUs that one replica needs, where `deployments` does not say it."""
    gpus_per_replica: float = Field(default=0.0, ge=0)
    """GPUs that one replica needs, where `deployments` does not say it; shares are allowed."""
    gateway_replicas: int = Field(default=1, ge=1, le=64)
    """Gateways, where `deployments` does not say it."""
    gateway_placement: Literal["head", "workers"] = "head"
    """Where gateways run; one on the head outlives every worker."""

    def options(self) -> ServeOptions:
        """What each process of the application is told; each finds the weights by itself.

        Raises:
            SpecError: the numbers do not fit each other.
        """
        options = ServeOptions(**self.model_dump(exclude=set(_OF_THE_CLUSTER)))
        options.engine_config()
        return options


def arguments_of(data: Any, where: str = "args") -> ServeArguments:
    """The arguments of a serve config.

    Raises:
        SpecError: something in it is not known or out of range; one line that says what.
    """
    try:
        arguments = ServeArguments.model_validate(data)
        arguments.options()
    except ValidationError as error:
        raise SpecError(first_complaint(error, where, ServeArguments)) from None
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None
    return arguments


def first_complaint(error: ValidationError, where: str, model: type[BaseModel]) -> str:
    """What is wrong first, on one line: where, found, expected, what to do."""
    first = error.errors()[0]
    path = ".".join((*((where,) if where else ()), *map(str, first["loc"])))
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        known = ", ".join(sorted(model.model_fields))
        inner = len(first["loc"]) > 1
        expected = "a known key" if inner else f"one of {known}"
        return f"{path}: found an unknown key, expected {expected}; correct or remove it{more}"
    found, wanted = repr(first["input"]), first["msg"].removeprefix("Value error, ")
    found = found if len(found) <= 80 else f"{found[:77]}..."
    wanted = " ".join(wanted.split())
    return f"{path}: found {found}, expected: {wanted}; correct it{more}"
