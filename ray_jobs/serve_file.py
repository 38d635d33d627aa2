"""A serve config file: read by Ray's own schema and by ours before anything is started."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from ray.serve.schema import (
    DeploymentSchema,
    HTTPOptionsSchema,
    RayActorOptionsSchema,
    ServeApplicationSchema,
    ServeDeploySchema,
)

from tocsin.checker.settings import CheckerSettings
from tocsin.core.errors import SpecError
from tocsin.core.yaml_text import NotYamlError, read_yaml
from tocsin.ray_jobs.cluster import APPLICATION
from tocsin.ray_jobs.configured import parse_settings
from tocsin.ray_jobs.fleet import GATEWAY, WORKER
from tocsin.ray_jobs.serve_app import IMPORT_PATH
from tocsin.ray_jobs.serve_arguments import ServeArguments, arguments_of, first_complaint

_EVERYWHERE = ("0.0.0.0", "::", "")
_INNER: Mapping[tuple[type[BaseModel], str], type[BaseModel]] = {
    (ServeDeploySchema, "http_options"): HTTPOptionsSchema,
    (ServeDeploySchema, "applications"): ServeApplicationSchema,
    (ServeApplicationSchema, "deployments"): DeploymentSchema,
    (DeploymentSchema, "ray_actor_options"): RayActorOptionsSchema,
}
"""Where Ray's schemas hold others; some of them take keys that they do not know."""


@dataclass(frozen=True, slots=True)
class ServeFile:
    """A serve config that both sides understand.

    Attributes:
        schema: as Ray deploys it.
        settings: the workers' user_config; None: it has none, and the arguments count.
    """

    schema: ServeDeploySchema
    arguments: ServeArguments
    settings: CheckerSettings | None

    @property
    def replicas(self) -> int:
        """Workers that it asks for; where Serve scales by itself, those it begins with."""
        for one in self.schema.applications[0].deployments:
            if one.name == WORKER and isinstance(one.num_replicas, int):
                return one.num_replicas
        return self.arguments.replicas

    @property
    def port(self) -> int:
        """Of the HTTP proxies."""
        return int(self.schema.http_options.port)

    @property
    def host(self) -> str:
        """Address that the proxies listen on; empty: all of their node."""
        host = str(self.schema.http_options.host)
        return "" if host in _EVERYWHERE else host


def read_serve_file(path: Path) -> ServeFile:
    """The serve config of a file.

    Raises:
        SpecError: it cannot be read, or something in it is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SpecError(
            f"{path}: cannot be read ({reason}), expected a serve config in YAML; correct --config"
        ) from error
    return parse_serve_config(text, str(path))


def parse_serve_config(text: str, where: str = "serve config") -> ServeFile:
    """The serve config of a text.

    Args:
        where: what messages call it.

    Raises:
        SpecError: it is no YAML, Ray does not take it, or it names another application than ours.
    """
    try:
        data = read_yaml(text)
    except NotYamlError as error:
        raise SpecError(f"{where}: not YAML ({error}), expected a serve config") from None
    if not isinstance(data, dict):
        raise SpecError(
            f"{where}: found {type(data).__name__}, expected a mapping with `applications`"
        )
    for path, known in _unknown_keys(data, ServeDeploySchema):
        raise SpecError(
            f"{where}: {path}: found an unknown key, expected one of {', '.join(sorted(known))}; "
            "correct or remove it"
        )
    try:
        schema = ServeDeploySchema.model_validate(data)
    except ValidationError as error:
        complaint = first_complaint(error, "", ServeDeploySchema)
        raise SpecError(f"{where}: {complaint}") from None
    except (ValueError, TypeError, AttributeError) as error:  # Ray takes things apart unseen
        raise SpecError(f"{where}: {' '.join(str(error).split())}; correct it") from None
    return _of_schema(schema, where)


def _of_schema(schema: ServeDeploySchema, where: str) -> ServeFile:
    applications = schema.applications
    if len(applications) != 1 or applications[0].import_path != IMPORT_PATH:
        found = ", ".join(one.import_path for one in applications) or "none"
        raise SpecError(
            f"{where}: applications: found {found}, expected one, with import_path {IMPORT_PATH}"
        )
    ours = applications[0]
    place = f"{where}: applications.0"
    if ours.name != APPLICATION:
        raise SpecError(f"{place}.name: found {ours.name!r}, expected {APPLICATION!r}; correct it")
    port = int(schema.http_options.port)
    if not 0 < port < 1 << 16:
        raise SpecError(f"{where}: http_options.port: found {port}, expected 1 to 65535")
    if ours.route_prefix is not None and not ours.route_prefix.startswith("/"):
        raise SpecError(
            f"{place}.route_prefix: found {ours.route_prefix!r}, expected one that begins with /"
        )
    names = [one.name for one in ours.deployments]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise SpecError(f"{place}.deployments: found {double} twice, expected once; remove one")
    settings = None
    for index, deployment in enumerate(ours.deployments):
        inner = f"{place}.deployments.{index}"
        if deployment.name not in (WORKER, GATEWAY):
            raise SpecError(
                f"{inner}.name: found {deployment.name!r}, expected {WORKER} or {GATEWAY}"
            )
        said = deployment.model_dump(exclude_unset=True).get("user_config")
        if said is not None and deployment.name == GATEWAY:
            raise SpecError(f"{inner}.user_config: found one, expected none; give it to {WORKER}")
        if said is not None:
            settings = parse_settings(said, f"{inner}.user_config")
    return ServeFile(schema, arguments_of(ours.args, f"{place}.args"), settings)


def _unknown_keys(
    data: Mapping[str, Any], model: type[BaseModel], where: str = ""
) -> Iterator[tuple[str, set[str]]]:
    """Path of each key that a schema does not have, and those that it has."""
    for key, value in data.items():
        path = f"{where}.{key}" if where else str(key)
        if key not in model.model_fields:
            yield path, set(model.model_fields)
            continue
        inner = _INNER.get((model, key))
        if inner is None:
            continue
        for index, one in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(one, dict):
                place = f"{path}.{index}" if isinstance(value, list) else path
                yield from _unknown_keys(one, inner, place)
