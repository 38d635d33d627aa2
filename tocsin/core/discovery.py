"""Finding the units: one check, fault, property or alert a module, its id equal to its path."""

import importlib
import pkgutil
from types import ModuleType
from typing import TypeVar

Unit = TypeVar("Unit")


def discover(package: str, kind: type[Unit]) -> dict[str, Unit]:
    """Import every module below a package and collect the unit that each one declares.

    Args:
        package: dotted name, e.g. `tocsin.checker.checks`.
        kind: the class of a declared unit; it has an attribute `id`.

    Returns:
        id → unit, sorted by id.

    Raises:
        RuntimeError: a module declares no unit, several, or one whose id is not its path.
    """
    root = importlib.import_module(package)
    units: dict[str, Unit] = {}
    for name in sorted(_module_names(root)):
        module = importlib.import_module(name)
        found = [
            value
            for value in vars(module).values()
            if isinstance(value, kind) and getattr(value, "module", name) == name
        ]
        expected = name.removeprefix(package + ".")
        if len(found) != 1 or getattr(found[0], "id", None) != expected:
            ids = [getattr(unit, "id", "?") for unit in found]
            raise RuntimeError(
                f"{name}: declares {ids or 'no unit'}, expected exactly one {kind.__name__} with "
                f"the id {expected!r}; one unit a file, its id is its path"
            )
        units[expected] = found[0]
    return units


def _module_names(root: ModuleType) -> list[str]:
    """Leaf modules below a package; an import that fails is raised, never skipped."""
    names: list[str] = []
    for info in pkgutil.iter_modules(root.__path__, root.__name__ + "."):
        if info.ispkg:
            names += _module_names(importlib.import_module(info.name))
        else:
            names.append(info.name)
    return names
