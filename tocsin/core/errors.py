"""Every error that Tocsin raises on purpose.

    TocsinError
    ├── SpecError          a person's input: an experiment, a setting, a request
    ├── ContractError      a caller's tensors or arguments (also a ValueError)
    ├── CheckFailed        a check alarmed in stand-alone use
    ├── FaultDidNotFire    an injection left no evidence
    ├── HealError          a fault could not be shown to be gone
    ├── BackendError       an attention backend raised
    ├── CapacityError      no room: KV pages, slots, disk, memory
    ├── ChaosForbidden     a policy, a label or somebody's lease keeps chaos away
    └── EnvironmentFault   a missing model, a busy port, an unreachable cluster

Messages say *where: what was found, what was expected, what to do.*
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tocsin.core.verdict import Finding


class TocsinError(Exception):
    """Root of the tree."""


class SpecError(TocsinError):
    """A person's input does not say what it must; ends a command with exit code 64."""


class ContractError(TocsinError, ValueError):
    """A caller's arguments break the contract of the function they were passed to."""


class CheckFailed(TocsinError):  # noqa: N818 - the name is part of the public interface
    """A check alarmed where nobody holds tokens back: stand-alone use only."""

    def __init__(self, findings: "tuple[Finding, ...]") -> None:
        """Keep the findings; the message is that of the worst one."""
        self.findings = findings
        super().__init__("; ".join(finding.message for finding in findings))


class FaultDidNotFire(TocsinError):  # noqa: N818 - a statement, like CheckFailed
    """An injection was made and left no evidence: the run that contains it is invalid."""


class HealError(TocsinError):
    """A fault's place does not read as it did before the injection."""


class BackendError(TocsinError):
    """An attention backend raised instead of answering."""


class CapacityError(TocsinError):
    """Something that is finite has run out; the caller may try again later."""


class ChaosForbidden(TocsinError):  # noqa: N818 - a statement, like CheckFailed
    """Nothing may be injected here now; ends a command with exit code 4."""


class EnvironmentFault(TocsinError):  # noqa: N818 - it names the thing, not the exception
    """The machine lacks something; the message says what to install, free or start."""
