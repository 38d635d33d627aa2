"""What a rule is: a name, what it looks at, and a function that yields complaints."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.podviews import Container, PodView

Scope = Literal["object", "pod", "container", "release"]
Tree = Mapping[str, Any]


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One thing that is wrong with one render."""

    rule: str
    """Id of the rule; the part before the dot is its module in helm/gate/rules."""
    where: str
    """Object and path in it: `Job/demo-chaos spec.template.spec.restartPolicy`."""
    found: str
    expected: str

    def __str__(self) -> str:
        """One line, in the form of every message of the program."""
        return f"{self.where}: {self.found}, expected {self.expected} [{self.rule}]"


class Complaint(NamedTuple):
    """What a rule yields: a path within what it was given, what is there, what should be."""

    path: str
    found: str
    expected: str


@dataclass(frozen=True, slots=True)
class Release:
    """All objects of one render, and where they would be installed."""

    name: str
    namespace: str
    objects: tuple[Manifest, ...]
    pods: tuple[PodView, ...]

    def of_kind(self, *kinds: str) -> Iterator[Manifest]:
        """Objects of these kinds."""
        return (one for one in self.objects if one.kind in kinds)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule as registered."""

    id: str
    scope: Scope
    check: Callable[[Any], Iterable[Complaint]]

    @property
    def says(self) -> str:
        """What the rule demands, in one sentence."""
        return (self.check.__doc__ or "").partition("\n")[0]


F = TypeVar("F", bound=Callable[..., Iterable[Complaint]])

RULES: dict[str, Rule] = {}

ObjectCheck = Callable[[Manifest], Iterable[Complaint]]
PodCheck = Callable[[PodView], Iterable[Complaint]]
ContainerCheck = Callable[[Container], Iterable[Complaint]]
ReleaseCheck = Callable[[Release], Iterable[Complaint]]


def on_object(name: str) -> Callable[[ObjectCheck], ObjectCheck]:
    """Register a rule that looks at each object by itself."""
    return lambda check: _register(name, "object", check)


def on_pod(name: str) -> Callable[[PodCheck], PodCheck]:
    """Register a rule that looks at each pod, those within other objects included."""
    return lambda check: _register(name, "pod", check)


def on_container(name: str) -> Callable[[ContainerCheck], ContainerCheck]:
    """Register a rule that looks at each container of each pod."""
    return lambda check: _register(name, "container", check)


def on_release(name: str) -> Callable[[ReleaseCheck], ReleaseCheck]:
    """Register a rule that looks at all objects of a render together."""
    return lambda check: _register(name, "release", check)


def sub(tree: Any, *keys: str) -> Tree:
    """The mapping below these keys; empty when there is none, so that rules can ask freely."""
    for key in keys:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree if isinstance(tree, Mapping) else {}


def items(tree: Any, *keys: str) -> Sequence[Tree]:
    """The mappings in the list below these keys; empty when there is none."""
    found = sub(tree, *keys[:-1]).get(keys[-1])
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _register(name: str, scope: Scope, check: F) -> F:
    if name in RULES:
        raise ValueError(f"rule {name}: declared twice, expected once")
    RULES[name] = Rule(name, scope, check)
    return check
