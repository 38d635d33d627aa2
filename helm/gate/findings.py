"""All rules at once: what is wrong with a render, as a list of findings."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from importlib import import_module
from pkgutil import iter_modules

from tocsin.helm.gate import rules as rules_package
from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.podviews import pods
from tocsin.helm.gate.rule import RULES, Complaint, Finding, Release, Rule, Scope

# Rules about the shape of an object: whether its text and its fields are what its kind takes.
SHAPE = ("builtin.schema", "custom.schema", "metadata.text")

__all__ = ["Finding", "findings", "rules"]


def findings(
    objects: Sequence[Manifest], *, release: str = "demo", namespace: str = "tocsin-demo"
) -> list[Finding]:
    """Everything that is wrong with one render; empty for a good one.

    What is found in an object by itself is remembered, so that an object that many renders share
    is looked at once a process.

    Args:
        objects: one render.
        release: name of the release that was rendered.
        namespace: where it would be installed.
    """
    found = {finding for one in objects for finding in _of_object(one)}
    is_broken = any(finding.rule in SHAPE for finding in found)
    every_pod = tuple(pod for one in objects for pod in pods(one))
    whole = Release(release, namespace, tuple(objects), every_pod)
    for rule in _rules("release"):
        found.update(_asked(rule, whole, "", is_broken))
    return sorted(found)


def rules() -> tuple[Rule, ...]:
    """Every rule there is, by id."""
    _load()
    return tuple(RULES[name] for name in sorted(RULES))


@lru_cache(maxsize=16384)
def _of_object(one: Manifest) -> tuple[Finding, ...]:
    return tuple(_merged(_look(one)))


def _look(one: Manifest) -> Iterator[Finding]:
    shape = [
        finding
        for rule in _rules("object")
        if rule.id in SHAPE
        for finding in _asked(rule, one, one.where, is_broken=False)
    ]
    yield from shape
    is_broken = bool(shape)
    for rule in _rules("object"):
        if rule.id not in SHAPE:
            yield from _asked(rule, one, one.where, is_broken)
    for pod in pods(one):
        for rule in _rules("pod"):
            yield from _asked(rule, pod, pod.where, is_broken)
        for container in pod.containers():
            where = f"{pod.where} {container.path}"
            for rule in _rules("container"):
                yield from _asked(rule, container, where, is_broken)


def _asked(rule: Rule, about: object, where: str, is_broken: bool) -> list[Finding]:
    """What a rule says; a rule that trips over an object of the wrong shape says nothing.

    Rules take for granted what the schemas demand. Where a schema has been broken the object is
    found out already; where none has, the rule itself is at fault and its error goes on.
    """
    try:
        return [_finding(rule, where, complaint) for complaint in rule.check(about)]
    except (AttributeError, KeyError, TypeError, ValueError):
        if not is_broken:
            raise
        return []


def _merged(every: Iterable[Finding]) -> Iterator[Finding]:
    """One finding for each thing that is wrong, however many versions of an API say so."""
    seen: set[tuple[str, str, str]] = set()
    for finding in every:
        key = (finding.rule, finding.where, finding.found)
        if key not in seen:
            seen.add(key)
            yield finding


def _finding(rule: Rule, where: str, complaint: Complaint) -> Finding:
    place = f"{where} {complaint.path}".strip()
    return Finding(rule.id, place, complaint.found, complaint.expected)


@cache
def _rules(scope: Scope) -> tuple[Rule, ...]:
    return tuple(rule for rule in rules() if rule.scope == scope)


@cache
def _load() -> None:
    for module in iter_modules(rules_package.__path__):
        import_module(f"{rules_package.__name__}.{module.name}")
