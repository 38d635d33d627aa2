"""What is rendered, held against the programs that will read it."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.proofs.commands import check_commands
from tocsin.helm.gate.proofs.configs import check_configs
from tocsin.helm.gate.proofs.environment import check_environment
from tocsin.helm.gate.proofs.flows import check_flows
from tocsin.helm.gate.proofs.image_paths import check_image_paths
from tocsin.helm.gate.proofs.metric_names import check_metric_names
from tocsin.helm.gate.proofs.names import check_names
from tocsin.helm.gate.proofs.ports import check_ports
from tocsin.helm.gate.proofs.proof import Proof
from tocsin.helm.gate.proofs.selectors import check_selectors
from tocsin.helm.gate.render import Case
from tocsin.helm.gate.rule import Finding

Check = Callable[[Sequence[Manifest], Case], Iterable[Finding]]

CHECKS: tuple[Check, ...] = (
    check_commands,
    check_configs,
    check_environment,
    check_ports,
    check_names,
    check_metric_names,
    check_selectors,
    check_image_paths,
    check_flows,
)


def contract_findings(objects: Sequence[Manifest], case: Case) -> list[Finding]:
    """What the programs have against one render."""
    return [finding for check in CHECKS for finding in check(objects, case)]


def contracts(renders: Mapping[str, tuple[Case, Sequence[Manifest]]]) -> Proof:
    """Hold every render against the programs.

    Args:
        renders: name → what was asked and what came of it.
    """
    findings: dict[Finding, None] = {}
    commands: set[tuple[str, ...]] = set()
    for case, objects in renders.values():
        findings.update(dict.fromkeys(contract_findings(objects, case)))
        commands.update(_lines(objects))
    return Proof(
        "contracts",
        f"{len(commands)} command lines parsed by their own programs",
        {"renders": len(renders), "command_lines": len(commands), "checks": len(CHECKS)},
        tuple(findings),
    )


def _lines(objects: Sequence[Manifest]) -> set[tuple[str, ...]]:
    from tocsin.helm.gate.proofs.commands import lines

    return {line for _, line, _ in lines(objects) if line}
