"""Our experiment inside of a Chaos Toolkit document, as a person may have changed it."""

from collections.abc import Mapping
from typing import Any

from tocsin.chaos.plan import make_plan
from tocsin.chaos.spec import Experiment, FaultSpec
from tocsin.chaos.spec_file import parse_experiment
from tocsin.core.errors import SpecError

EXTENSION = "tocsin"


def experiment_of(document: Mapping[str, Any]) -> Experiment:
    """The experiment with those occurrences alone that the method still has an action for.

    Raises:
        SpecError: the document holds none, or a wrong one.
    """
    whole = parse_experiment(extension_of(document)["experiment"], name="extensions.tocsin")
    left = injected(document)
    planned = make_plan(whole).occurrences
    kept = []
    for fault in whole.faults:
        mine = [one for one in planned if one.fault == fault.id]
        numbers = tuple(sorted(one.n for one in mine if one.id in left))
        if numbers:
            kept.append(fault if len(numbers) == len(mine) else _only(fault, numbers))
    return whole.model_copy(update={"faults": tuple(kept)})


def _only(fault: FaultSpec, numbers: tuple[int, ...]) -> FaultSpec:
    """The fault with some of its occurrences; each keeps its tick and its seed."""
    return fault.model_copy(update={"when": fault.when.model_copy(update={"only": numbers})})


def extension_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Our extension of their experiment."""
    for extension in document.get("extensions") or ():
        if extension.get("name") == EXTENSION and isinstance(extension.get("experiment"), dict):
            return dict(extension)
    raise SpecError(
        "extensions: holds no entry `tocsin` with an `experiment`, expected the one that was "
        "exported; export the experiment again: tocsin chaos export SPEC --to chaostoolkit"
    )


def injected(document: Mapping[str, Any]) -> set[str]:
    """Occurrences that the method still has an action for."""
    providers = [activity.get("provider", {}) for activity in document.get("method") or ()]
    return {
        str(one["arguments"]["occurrence"])
        for one in providers
        if one.get("func") == "inject" and "occurrence" in one.get("arguments", {})
    }
