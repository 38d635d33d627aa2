"""What is served: the model, the shape of the engine, and how many replicas of it."""

from collections.abc import Mapping
from typing import Annotated, Literal

import yaml
from pydantic import Field

from tocsin.engine.weights import MODELS
from tocsin.helm.values.section import ObjectName, Section
from tocsin.ray_jobs.serve_arguments import ServeArguments

SubPath = Annotated[str, Field(pattern=r"^([^/\s.][^/\s]*(/[^/\s.][^/\s]*)*)?$", max_length=255)]
OF_THE_CHART = frozenset(
    {
        "model",
        "name",
        "profile",
        "breaker_cooldown_s",
        "archive_url",
        "journal_prompts",
        "replicas",
        "cpus_per_replica",
        "gpus_per_replica",
        "gateway_replicas",
    }
)
"""Arguments of the application that other values say: model, checker, serve.replicas and so on."""


class ModelValues(Section):
    """Where the weights come from; nothing is ever downloaded."""

    source: Literal["image", "pvc"] = "image"
    """image: the model that is built into the image; pvc: a folder on a volume."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=96)] = (
        "smollm2-135m"
    )
    """image: the built-in model; pvc: the name under which clients see the folder's model."""
    claim_name: ObjectName = ""
    """pvc: the PersistentVolumeClaim with the weights, mounted read-only at /models by every pod:
    on more than one machine it must be ReadOnlyMany or ReadWriteMany."""
    sub_path: SubPath = ""
    """pvc: folder within the claim that holds config.json and the safetensors."""


class ServeValues(Section):
    """The served application."""

    replicas: Annotated[int, Field(ge=1, le=1000)] = 2
    """Replicas of the checked model, over all groups; changed in place."""
    num_cpus: Annotated[float, Field(ge=0.01, le=1024)] = 1
    """CPUs that one replica reserves in Ray."""
    num_gpus: Annotated[float, Field(ge=0, le=64)] = 0
    """GPUs, or a share of one, that one replica reserves in Ray."""
    gateway_replicas: Annotated[int, Field(ge=1, le=64)] = 1
    """Gateways; more than one wants `gateway_placement: workers`."""
    args: ServeArguments = ServeArguments()
    """Shape of the engine, as the program reads it; a change starts every replica anew."""


def files() -> Mapping[str, str]:
    """Path below the chart's files/ → text: the models that an image can hold, for a guard."""
    return {"serving/models.yaml": yaml.safe_dump(sorted(MODELS))}
