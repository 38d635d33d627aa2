"""Which image every pod of the release runs."""

from typing import Annotated, Literal

from pydantic import Field

from tocsin.helm.values.section import PORT, GivenObjectName, Section

Repository = Annotated[
    str,
    Field(
        pattern=(
            rf"^[a-z0-9]([-a-z0-9._]*[a-z0-9])?(:{PORT})?(/[a-z0-9]([-a-z0-9._]*[a-z0-9])?)*$"
        ),
        max_length=255,
    ),
]
Tag = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$")]
Digest = Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")]


class ImageValues(Section):
    """One image for head, workers, chaos and tests."""

    repository: Repository = "tocsin"
    """Registry and name, without tag: registry.example.com/team/tocsin."""
    tag: Tag = "0.1.0"
    """Tag. Its default does not follow the chart's version: a new chart must not roll GPUs."""
    digest: Digest = ""
    """sha256:…; wins over the tag when given."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When a node pulls the image."""
    pull_secrets: list[GivenObjectName] = Field(default_factory=list)
    """Names of Secrets with registry credentials."""
