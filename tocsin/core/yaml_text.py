"""YAML that a person wrote, read safely; every way of not being YAML is one error with a reason."""

from typing import Any

import yaml


class NotYamlError(ValueError):
    """The text is no YAML; the message is the reason, in one line.

    Attributes:
        problem: the reason without its place.
        line: where it is, from 1; 0: not known.
    """

    def __init__(self, reason: str, problem: str = "", line: int = 0) -> None:
        """A reason, and its parts where they are known."""
        super().__init__(reason)
        self.problem = problem or reason
        self.line = line


def read_yaml(text: str) -> Any:
    """The document that a text holds; plain data only.

    Raises:
        NotYamlError: a slip of the syntax, a date or number that there is not, or too deep a nest.
    """
    try:
        return yaml.safe_load(text)
    except RecursionError:
        raise NotYamlError("it is nested too deeply") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        mark = getattr(error, "problem_mark", None)
        raise NotYamlError(
            " ".join(str(error).split()),
            str(getattr(error, "problem", None) or ""),
            mark.line + 1 if mark is not None else 0,
        ) from None
