"""Every rendered command line, fed to the parser of the very program that it starts."""

import importlib.util
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from functools import cache, lru_cache
from pathlib import PurePosixPath
from typing import Any

import typer

from tocsin.core.errors import SpecError
from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.podviews import PodView
from tocsin.helm.gate.proofs.pods import (
    entrypoints,
    place,
    pods,
    probes,
    ray_group,
    variables,
    words,
)
from tocsin.helm.gate.render import Case
from tocsin.helm.gate.rule import Finding, Tree, sub

RULE = "contract.command"
VARIABLE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")

# The program parses with a copy of click that it carries, Ray with click itself.
_OWN_REFUSAL: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)


def check_commands(objects: Sequence[Manifest], case: Case) -> Iterator[Finding]:
    """Containers, probes, hooks and Ray's entry points."""
    for where, line, known in lines(objects):
        if not line:
            continue
        for problem in (_unset(line, known), objection(line)):
            if problem:
                yield Finding(RULE, where, problem, f"a command line that runs: {' '.join(line)}")
    for pod in pods(objects):
        group = ray_group(pod)
        if group is not None:
            yield from _ray_start(pod, group)


def lines(
    objects: Sequence[Manifest],
) -> Iterator[tuple[str, tuple[str, ...], frozenset[str]]]:
    """Where, words and known variables of every command line."""
    for pod in pods(objects):
        for container in pod.containers():
            known = frozenset(str(entry.get("name")) for entry in variables(container))
            yield place(container), words(container), known
            for name, probe in probes(container).items():
                line = tuple(map(str, sub(probe, "exec").get("command") or ()))
                yield f"{place(container)} {name}", line, known
    for where, line in entrypoints(objects):
        yield where, line, frozenset()


@lru_cache(maxsize=4096)
def objection(line: tuple[str, ...]) -> str:
    """What the program would say to these words; empty where it takes them."""
    program = PurePosixPath(line[0]).name
    rest = line[1:]
    if program == "tocsin":
        return _tocsin(rest)
    if program == "ray":
        return _clicked(_ray_command(rest[0] if rest else ""), rest[1:])
    if program in ("python", "python3"):
        return _python(rest)
    if program == "sleep":
        return "" if len(rest) == 1 and rest[0].isdigit() else f"sleep {rest!r}"
    return f"the program {line[0]!r}, which is not in the image or is a shell"


def parsed(rest: Sequence[str]) -> Mapping[str, Any]:
    """The parameters that the command line of `tocsin` sets, by their Python names.

    Raises:
        SpecError: it does not take these words.
    """
    command: Any = _application()
    context: Any = None
    name, left = "tocsin", list(rest)
    try:
        with redirect_stdout(io.StringIO()):  # of help, which a parser prints at once
            while True:
                context = command.make_context(name, list(left), parent=context)
                if not hasattr(command, "commands"):
                    return {"command": context.command_path, **context.params}
                name, command, left = command.resolve_command(context, left)
    except _OWN_REFUSAL as error:
        raise SpecError(str(getattr(error, "message", error))) from error
    except typer.Exit as error:
        raise SpecError("prints help or a version and stops") from error


@cache
def _application() -> Any:
    from tocsin.ray_jobs.cli import app

    return typer.main.get_command(app)


def _tocsin(rest: tuple[str, ...]) -> str:
    if not rest:
        return "no command, which prints help and stops"
    try:
        found = parsed(rest)
    except SpecError as error:
        return str(error)
    spec = found.get("spec")
    if found["command"].startswith("tocsin chaos") and isinstance(spec, str):
        return _experiment(spec)
    return ""


def _experiment(spec: str) -> str:
    """A built-in name must be one; a file or a variable is judged where it is rendered."""
    if "/" in spec or spec.startswith("env:"):
        return ""
    from tocsin.chaos.spec_file import load_experiment

    try:
        load_experiment(spec)
    except SpecError as error:
        return str(error)
    return ""


def _python(rest: tuple[str, ...]) -> str:
    if len(rest) >= 2 and rest[0] == "-m":
        return "" if importlib.util.find_spec(rest[1]) else f"no module {rest[1]}"
    if len(rest) >= 2 and rest[0] == "-c":
        try:
            compile(rest[1], "<rendered>", "exec")
        except SyntaxError as error:
            return f"Python that does not compile: {error.msg}"
        return ""
    return f"python {' '.join(rest)!r}, neither -m nor -c"


def _unset(line: tuple[str, ...], known: frozenset[str]) -> str:
    """Kubernetes leaves a reference to an unknown variable as it stands."""
    for word in line:
        for name in VARIABLE.findall(word):
            if name not in known:
                return f"a reference to ${name}, which the container does not set"
    return ""


def _ray_start(pod: PodView, group: Tree) -> Iterator[Finding]:
    """What KubeRay makes of rayStartParams, parsed by `ray start` itself."""
    given = dict(sub(group, "rayStartParams"))
    if wrong := [key for key, value in given.items() if not isinstance(value, str)]:
        yield Finding(RULE, pod.where, f"rayStartParams {wrong} not text", "text values")
        return
    flags = ["--head"] if pod.is_ray_head else []
    if not pod.is_ray_head:
        given.setdefault("address", "demo-head-svc:6379")
    if problem := _clicked(_ray_command("start"), tuple(flags + ray_flags(given))):
        yield Finding(RULE, f"{pod.where} rayStartParams", problem, "flags of ray start")


def ray_flags(params: Mapping[str, str]) -> list[str]:
    """The flags that KubeRay writes: a bare switch for true, nothing for false."""
    valued = ("log-color", "include-dashboard", "include-log-monitor")
    flags = []
    for name in sorted(params):
        value = params[name]
        if value.lower() in ("true", "false") and name not in valued:
            flags += [f"--{name}"] if value.lower() == "true" else []
        else:
            flags.append(f"--{name}={value}")
    return flags


@cache
def _ray_command(name: str) -> Any:
    from ray.scripts.scripts import cli

    return cli.commands.get(name)


@lru_cache(maxsize=1024)
def _clicked(command: Any, line: tuple[str, ...]) -> str:
    import click

    if command is None:
        return "no command of ray"
    try:
        command.make_context("ray", list(line))
    except click.ClickException as error:
        return error.format_message()
    except click.exceptions.Exit:
        return "prints help and stops"
    return ""
