"""From an experiment file to a checked `Experiment`; every mistake is one line with its remedy."""

import base64
import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from tocsin.chaos.contract import Fault, faults, properties
from tocsin.chaos.reactions import REACTIONS, words
from tocsin.chaos.spec import Experiment, FaultSpec, SystemSpec
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Scope
from tocsin.core.terms import Profile
from tocsin.core.yaml_text import NotYamlError, read_yaml

_REACH = {
    Scope.PROCESS: ("processes", ("isolated", "cluster_destructive")),
    Scope.POD: ("pods", ("cluster_destructive",)),
    Scope.NODE: ("Ray nodes", ("cluster_destructive",)),
    Scope.CLUSTER: ("Ray itself", ("cluster_destructive",)),
    Scope.NETWORK: ("the network", ("isolated", "cluster_destructive")),
    Scope.SIDE: ("what is beside the replicas", ("isolated", "cluster_destructive")),
}
"""What a fault acts on, and the values of `safety.scope` that allow it."""

EXPERIMENTS = Path(__file__).parent / "experiments"

FROM_ENVIRONMENT = "env:"
"""`env:NAME` is the text in $NAME, as a caller on another machine sends it; $NAME_NAME is what
its author calls it."""

_ENCODED = "base64:"


def builtin_experiments() -> tuple[str, ...]:
    """Names of the experiments that come with the package."""
    return tuple(sorted(path.stem for path in EXPERIMENTS.glob("*.yaml")))


def load_experiment(
    source: str | Path,
    *,
    seed: int | None = None,
    profile: Profile | str | None = None,
    catalogue: Mapping[str, Fault] | None = None,
) -> Experiment:
    """Read an experiment.

    Args:
        source: path of a YAML file, the name of a builtin experiment (`-` and `_` are one), or
            `env:NAME` for the text in an environment variable.
        seed: in place of the file's.
        profile: in place of the file's.
        catalogue: known faults by id; None: the declared ones.

    Raises:
        SpecError: it cannot be read, or says something that it must not.
    """
    name, text = experiment_text(source)
    try:
        document = read_yaml(text)
    except NotYamlError as error:
        raise SpecError(f"{name}: is not YAML: {error}; correct the syntax") from None
    if not isinstance(document, dict):
        raise SpecError(
            f"{name}: holds {type(document).__name__}, expected a mapping that begins with "
            "apiVersion: chaos/v1"
        )
    if seed is not None:
        document["seed"] = seed
    if profile is not None:
        document["system"] = {**(document.get("system") or {}), "profile": str(profile)}
    return parse_experiment(document, name=name, catalogue=catalogue)


def experiment_text(source: str | Path) -> tuple[str, str]:
    """What an experiment is called in messages, and its YAML text.

    Raises:
        SpecError: there is none, or it cannot be read.
    """
    if str(source).startswith(FROM_ENVIRONMENT):
        variable = str(source).removeprefix(FROM_ENVIRONMENT)
        text = os.environ.get(variable)
        if text is None:
            raise SpecError(
                f"{source}: the environment has no {variable}, expected the text of an "
                "experiment in it; set it, or name a file"
            )
        return written_name(source), _decoded(text, str(source))
    path = _find(source)
    try:
        return str(path), path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read ({error}); name a readable YAML file") from None


def _decoded(text: str, source: str) -> str:
    """A text may come as `base64:…`, where something on its way would read `$` in it."""
    if not text.startswith(_ENCODED):
        return text
    try:
        return base64.b64decode(text.removeprefix(_ENCODED), validate=True).decode()
    except ValueError as error:
        raise SpecError(
            f"{source}: is not base64 of a text ({error}); send the file again"
        ) from None


def written_name(source: str | Path) -> str:
    """What the author of an experiment calls it; for `env:NAME` that is in $NAME_NAME."""
    if not str(source).startswith(FROM_ENVIRONMENT):
        return str(source)
    variable = str(source).removeprefix(FROM_ENVIRONMENT)
    return os.environ.get(f"{variable}_NAME") or str(source)


def parse_experiment(
    document: Mapping[str, Any],
    *,
    name: str = "experiment",
    catalogue: Mapping[str, Fault] | None = None,
) -> Experiment:
    """Check a document and fill in what the declarations of its faults say.

    Raises:
        SpecError: one line naming the place, what was found, what was expected, what to do.
    """
    try:
        spec = Experiment.model_validate(document)
    except ValidationError as error:
        raise SpecError(f"{name}: {first_mistake(error, Experiment)}") from None
    known = faults() if catalogue is None else catalogue
    _check_ids(spec, name)
    resolved = tuple(
        _resolve(fault, f"{name}: faults[{i}]", known) for i, fault in enumerate(spec.faults)
    )
    spec = spec.model_copy(update={"faults": resolved})
    return on_system(spec, spec.system, name, known)


def on_system(
    spec: Experiment,
    system: SystemSpec,
    name: str,
    catalogue: Mapping[str, Fault] | None = None,
) -> Experiment:
    """The experiment on another system than its own.

    Raises:
        SpecError: its faults are not safe there.
    """
    known = faults() if catalogue is None else catalogue
    spec = spec.model_copy(update={"system": system})
    for i, fault in enumerate(spec.faults):
        _check_safety(spec, fault, known[fault.kind], f"{name}: faults[{i}]")
    return spec


def _find(source: str | Path) -> Path:
    path = Path(source)
    if path.is_file():
        return path
    wanted = str(source).replace("_", "-").removesuffix(".yaml")
    builtin = EXPERIMENTS / f"{wanted}.yaml"
    if "/" not in wanted and builtin.is_file():
        return builtin
    raise SpecError(
        f"{source}: no such file, and no builtin experiment of that name; "
        f"builtin are {', '.join(builtin_experiments())}"
    )


def _check_ids(spec: Experiment, name: str) -> None:
    seen: set[str] = set()
    for i, fault in enumerate(spec.faults):
        if fault.id in seen:
            raise SpecError(f"{name}: faults[{i}].id: {fault.id!r} is used twice; rename one")
        seen.add(fault.id)
    known = properties()
    for i, check in enumerate(spec.checks):
        if check.id not in known:
            raise SpecError(
                f"{name}: checks[{i}].id: found {check.id!r}, known are {', '.join(known)}"
                f"{_hint(check.id, known)}"
            )


def _resolve(fault: FaultSpec, place: str, known: Mapping[str, Fault]) -> FaultSpec:
    """The fault with its declaration's parameters, detectors and priority where it says none."""
    declared = known.get(fault.kind)
    if declared is None:
        raise SpecError(
            f"{place}.kind: found {fault.kind!r}, known are {', '.join(sorted(known))}"
            f"{_hint(fault.kind, known)}"
        )
    try:
        params = declared.resolve(fault.params)
    except SpecError:
        wrong = sorted(set(fault.params) - set(declared.params))[0]
        raise SpecError(
            f"{place}.params.{wrong}: {fault.kind} has no such parameter, "
            f"known are {', '.join(sorted(declared.params)) or 'none'}"
            f"{_hint(wrong, declared.params)}"
        ) from None
    for reaction in words(fault.expect.reaction):
        if reaction not in REACTIONS:
            raise SpecError(
                f"{place}.expect.reaction: found {reaction!r}, known are {', '.join(REACTIONS)}"
                f"{_hint(reaction, REACTIONS)}"
            )
    detectors = fault.expect.detectors or declared.expect
    expect = fault.expect.model_copy(update={"detectors": detectors})
    return fault.model_copy(update={"params": params, "expect": expect})


def _check_safety(spec: Experiment, fault: FaultSpec, declared: Fault, place: str) -> None:
    """Refuse what the safety section forbids; see also the spacing done by the run."""
    if declared.scope.outside:
        what, needed = _REACH[declared.scope]
        if spec.safety.scope not in needed:
            raise SpecError(
                f"{place}.kind: {fault.kind} acts on {what}, safety.scope is {spec.safety.scope}; "
                f"set safety.scope to {needed[0]}, or remove the fault"
            )
        if declared.scope.takes_replica and spec.system.replicas - 1 < spec.safety.keep_alive:
            raise SpecError(
                f"{place}.kind: {fault.kind} takes one of {spec.system.replicas} replicas, "
                f"safety.keep_alive wants {spec.safety.keep_alive} left; add a replica"
            )
        if declared.scope is Scope.NODE and spec.system.nodes < 2:
            raise SpecError(
                f"{place}.kind: {fault.kind} takes a Ray node that is not the head, system.nodes "
                f"is {spec.system.nodes}; set system.nodes to 2"
            )
        if fault.when.clock == "decode_step":
            raise SpecError(
                f"{place}.when.clock: found decode_step, expected request for {fault.kind}: "
                "who strikes does not see a replica's steps"
            )
    if declared.scope is Scope.CLIENT and fault.when.clock != "request":
        raise SpecError(
            f"{place}.when.clock: found decode_step, expected request for {fault.kind}: "
            "it is sent by the load"
        )
    if spec.safety.max_targets * spec.system.replicas < 1:
        raise SpecError(
            f"{place.partition(':')[0]}: safety.max_targets: {spec.safety.max_targets} of "
            f"{spec.system.replicas} replicas is less than one; raise it or remove the faults"
        )
    index = fault.target.replica
    if isinstance(index, int) and index >= spec.system.replicas:
        raise SpecError(
            f"{place}.target.replica: found {index}, the system has replicas 0 to "
            f"{spec.system.replicas - 1}"
        )


def first_mistake(error: ValidationError, model: type[BaseModel]) -> str:
    """The first mistake of a person's file in words, and how many more there are.

    A key that is not known comes first: a missing one is often the same key, misspelt.

    Args:
        model: what the file was read as.
    """
    details = sorted(
        error.errors(include_url=False), key=lambda one: one["type"] != "extra_forbidden"
    )
    first = details[0]
    place = _place(first["loc"])
    if first["type"] == "extra_forbidden":
        names = _names_at(model, first["loc"][:-1])
        unknown = str(first["loc"][-1])
        text = f"{place}: unknown key, known here are {', '.join(names)}{_hint(unknown, names)}"
    elif first["type"] == "missing":
        text = f"{place}: missing; add it"
    else:
        found = repr(first["input"])
        found = found if len(found) <= 60 else f"{found[:57]}..."
        what = first["msg"].removeprefix("Value error, ")
        what = what.replace("Input should be", "expected").replace("String should", "it should")
        text = f"{place}: found {found}, {what}; correct it"
    more = len(details) - 1
    return text + (f" (and {more} more)" if more else "")


def _place(loc: Sequence[int | str]) -> str:
    """`("faults", 2, "when", "every")` → `faults[2].when.every`."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        elif "[" not in part and part not in ("int", "constrained-int"):  # the arm of a union
            text += f".{part}" if text else part
    return text or "document"


def _names_at(model: type[BaseModel], loc: Sequence[int | str]) -> tuple[str, ...]:
    """Keys that are known at a place of the document."""
    here: Any = model
    for part in loc:
        if isinstance(part, int):
            continue
        for name, field in here.model_fields.items():
            if part in (name, field.alias):
                inner = field.annotation
                arguments = [inner, *getattr(inner, "__args__", ())]
                here = next(
                    (a for a in arguments if isinstance(a, type) and issubclass(a, BaseModel)), here
                )
                break
    return tuple(field.alias or name for name, field in here.model_fields.items())


def _hint(found: str, known: Mapping[str, object] | Sequence[str]) -> str:
    near = difflib.get_close_matches(found, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else "; correct it"
