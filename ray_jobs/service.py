"""What a running application says of itself, and whether an experiment can be run on it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import httpx
from pydantic import ValidationError

from tocsin.chaos.load import golden_requests, load_prompts
from tocsin.chaos.spec import Experiment, SystemSpec
from tocsin.chaos.spec_file import first_mistake, on_system
from tocsin.core.errors import EnvironmentFault, SpecError
from tocsin.core.terms import Profile
from tocsin.ray_jobs.options import ServeOptions
from tocsin.ray_jobs.prompting import Prompting

STATUS = "/health/checker_status"
_ASK_S = 10.0
_DECIDES_BITS = ("torch", "transformers", "machine", "cpu_capability", "device", "device_name")


@dataclass(frozen=True, slots=True)
class Service:
    """A running application.

    Attributes:
        options: how it is served; `path` is empty, the driver has a copy of its own.
        build: of its replicas (`devices.build_facts`).
        weights: digest of the weights that its replicas have loaded.
        same_build: all replicas have the same build and weights.
        replicas: what each living one says, by id.
        expected: how many there should be.
    """

    url: str
    options: ServeOptions
    build: Mapping[str, str]
    weights: str
    same_build: bool
    replicas: Mapping[str, Mapping[str, Any]]
    expected: int


def address_of(url: str, where: str) -> str:
    """An HTTP address as a person gave it.

    Args:
        where: what it was given as, for the message.

    Raises:
        SpecError: it is none, or it holds a password, which would stand in every log.
    """
    try:
        found = httpx.URL(url)
    except (httpx.InvalidURL, TypeError):
        found = httpx.URL()
    if found.scheme not in ("http", "https") or not found.host:
        raise SpecError(
            f"{where}: {url!r} is no address, expected one such as http://host:8000; correct it"
        )
    if found.userinfo:
        raise SpecError(
            f"{where}: found a user or password in the address of {found.host}, expected none: "
            "it would be printed; leave it out"
        )
    return url


def ask(url: str) -> Service:
    """What an application says of itself.

    Raises:
        EnvironmentFault: nobody answers there, or it is no application that can be attacked.
    """
    url = address_of(url, "--on").rstrip("/")
    where = f"service: GET {url}{STATUS}"
    try:
        answer = httpx.get(f"{url}{STATUS}", timeout=_ASK_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise EnvironmentFault(
            f"{where}: {str(error) or type(error).__name__}, expected the served application; "
            "start it, or correct --on"
        ) from None
    if answer.status_code != 200:
        raise EnvironmentFault(
            f"{where}: found status {answer.status_code}, expected 200; look at its health"
        )
    try:
        body = answer.json()
        served, replicas = body["served"], dict(body["replicas"])
        options = _options(served["options"])
        expected = int(served["options"]["replicas"])
        build, weights = served["build"], str(served["weights"] or "")
        same = bool(served["same_build"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EnvironmentFault(
            f"{where}: the answer is not that of this version ({type(error).__name__}: {error}), "
            "expected its options and its build; serve it with the same version of tocsin"
        ) from None
    if not build or len(replicas) < expected:
        raise EnvironmentFault(
            f"{where}: {len(replicas)} of {expected} replicas live, expected all before anything "
            "is broken; wait until the application is well"
        )
    return Service(url, options, build, weights, same, replicas, len(replicas))


def fitted(spec: Experiment, service: Service) -> tuple[Experiment, tuple[str, ...]]:
    """The experiment on what is served, and what that changed, in words.

    Raises:
        SpecError: it cannot be run there.
    """
    options = service.options
    try:
        system = SystemSpec(
            model=options.model,
            dtype=options.dtype,  # type: ignore[arg-type]
            replicas=service.expected,
            slots=options.slots,
            pages=options.pages,
            page_size=options.page_size,
            max_length=options.max_length,
            profile=options.profile,
        )
    except ValidationError as error:
        raise SpecError(
            f"service: {service.url}: {first_mistake(error, SystemSpec)}, as it is served"
        ) from None
    changed = tuple(
        f"{name} is {getattr(system, name)}, the experiment said {getattr(spec.system, name)}"
        for name in SystemSpec.model_fields
        if getattr(system, name) != getattr(spec.system, name)
    )
    return on_system(spec, system, f"{spec.name} on {service.url}"), changed


def check_lengths(spec: Experiment, prompting: Prompting) -> None:
    """Every prompt of the workload must be servable.

    Raises:
        SpecError: one is not; the longest of them is named.
    """
    prompts = load_prompts(spec.workload.prompts, canaries=spec.workload.canaries)
    worst, name = 0, ""
    for request in golden_requests(spec, prompts):
        ids = prompting.chat(request.body["messages"])
        if len(ids) + request.max_new_tokens > worst:
            worst, name = len(ids) + request.max_new_tokens, request.prompt_id
    if worst > spec.system.max_length:
        raise SpecError(
            f"{spec.name}: prompt {name} and its answer take {worst} tokens, served are at most "
            f"{spec.system.max_length} (max_length); lower workload.max_new_tokens, choose "
            "another prompt set, or serve longer ones"
        )


def other_build(service: Service) -> tuple[str, ...]:
    """How the replicas' build differs from this process's, where that decides the bits."""
    from tocsin.ray_jobs.devices import build_facts  # Ray and Transformers: a dry run needs neither

    mine = build_facts("cpu")
    found = [
        f"{name} is {service.build.get(name, '')!r} there and {mine[name]!r} here"
        for name in _DECIDES_BITS
        if service.build.get(name, "") != mine[name]
    ]
    if not service.same_build:
        found.append("the replicas differ among themselves")
    return tuple(found)


def _options(told: Mapping[str, Any]) -> ServeOptions:
    """Options as the service tells them; what this version does not know is left out."""
    known = {one.name for one in fields(ServeOptions)} - {"path", "archive_url"}
    values = {name: told[name] for name in known if name in told}
    return ServeOptions(**{**values, "profile": Profile(told["profile"])})
