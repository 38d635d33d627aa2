"""All that the gate proves of a chart, in the order in which a reader would ask."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from tocsin.helm.gate import matrix
from tocsin.helm.gate.findings import findings
from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.mutants.gate import surroundings
from tocsin.helm.gate.mutants.score import TARGET, learn, score
from tocsin.helm.gate.podviews import pods
from tocsin.helm.gate.proofs.blast_radius import blast_radius
from tocsin.helm.gate.proofs.contexts import contexts
from tocsin.helm.gate.proofs.contracts import contracts
from tocsin.helm.gate.proofs.live_values import live_values
from tocsin.helm.gate.proofs.presence import presence
from tocsin.helm.gate.proofs.proof import Proof
from tocsin.helm.gate.proofs.quoting import quoting
from tocsin.helm.gate.proofs.refusals import refusals
from tocsin.helm.gate.proofs.routes import routes
from tocsin.helm.gate.proofs.stability import stability
from tocsin.helm.gate.proofs.switches import switches
from tocsin.helm.gate.proofs.template_reads import template_reads
from tocsin.helm.gate.proofs.wrong_values import wrong_values
from tocsin.helm.gate.render import Case, lint, render
from tocsin.helm.gate.rule import Finding
from tocsin.helm.generate import generated
from tocsin.helm.monitoring.examples import EXAMPLES

MUTANTS = 12
"""Seeded faults in a quick check; `make helm-mutants` takes hundreds."""
_CHANCE = 1
"""Survivors that a small sample may hold though the share of the whole is right."""
_STABLE = ("defaults", "topology", "everything")

Renders = Mapping[str, tuple[Case, Sequence[Manifest]]]


def check(chart: Path, *, mutants: int = MUTANTS, processes: int = 2) -> list[Proof]:
    """Run every proof; two processes share the work.

    Args:
        mutants: seeded faults that the gate is tried on; 0: none.
        processes: workers, which are forked.
    """
    # The longest first, so that the workers end together.
    with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
        waiting: list[Future[list[Proof]]] = [pool.submit(step, chart) for step in _STEPS]
        if mutants:
            learn(chart)  # in this process, from which those that judge mutants are forked
        # Here too, as its value set is one that has been learnt.
        words = _timed(lambda: quoting(chart, surroundings()["everything"].values))
        proofs = [proof for one in waiting for proof in one.result()] + words
    if mutants:
        proofs += _timed(lambda: mutation(chart, mutants, processes))
    return proofs


def mutation(chart: Path, count: int, processes: int) -> Proof:
    """How many of a seeded sample of faults the gate sees."""
    found = score(chart, count, processes=processes)
    survivors = tuple(
        Finding("mutants", one.mutant.name, "seen by no rule", "a rule that sees it")
        for one in found.survivors
    )
    return Proof(
        "mutants",
        f"{found.caught} of {len(found.outcomes) - found.equivalent} ({found.share:.1%})",
        {
            "known": found.known,
            "tried": len(found.outcomes),
            "caught": found.caught,
            "equivalent": found.equivalent,
            "survived": len(found.survivors),
        },
        survivors if found.share < TARGET and len(survivors) > _CHANCE else (),
    )


def objects(renders: Renders) -> Proof:
    """Every object valid for every version of Kubernetes, every pod restricted."""
    found: dict[Finding, None] = {}
    texts: set[str] = set()
    all_pods: set[str] = set()
    insecure: set[str] = set()
    for case, made in renders.values():
        here = findings(made, release=case.release, namespace=case.namespace)
        found.update(dict.fromkeys(here))
        bad = {one.where for one in here if one.rule.startswith("restricted.")}
        for one in made:
            texts.add(one.text)
            for pod in pods(one):
                key = f"{one.text}{pod.path}"
                all_pods.add(key)
                if any(where.startswith(pod.where) for where in bad):
                    insecure.add(key)
    share = 1 - len(insecure) / max(1, len(all_pods))
    return Proof(
        "objects",
        f"{share:.0%} of {len(all_pods)}",
        {"renders": len(renders), "objects": len(texts), "pods": len(all_pods)}
        | {"restricted": len(all_pods) - len(insecure)},
        tuple(sorted(found)),
    )


def renders_of(chart: Path) -> Renders:
    """The whole matrix, and the examples of monitoring."""
    known = matrix.cases()
    found = {
        name: (known[name], made.objects) for name, made in matrix.renders(chart=chart).items()
    }
    for name, values in EXAMPLES.items():
        found[f"example {name}"] = (Case(values), tuple(render(values, chart=chart)))
    return found


def linted(chart: Path) -> Proof:
    """What `helm lint --strict` says."""
    sets = {"defaults": {}, **EXAMPLES}
    found = tuple(
        Finding("lint", f"values {name}", line, "nothing")
        for name, values in sets.items()
        for line in lint(values, chart=chart)
    )
    return Proof("lint", f"{len(found)} complaints", {"value_sets": len(sets)}, found)


def _live(chart: Path) -> list[Proof]:
    return _timed(lambda: live_values(chart, {**contexts(chart), **surroundings()}))


def _rendered(chart: Path) -> list[Proof]:
    renders = renders_of(chart)
    return _timed(
        lambda: objects(renders),
        lambda: contracts(renders),
        lambda: blast_radius(renders, chart),
        lambda: switches(renders, chart),
    )


def _lasting(chart: Path) -> list[Proof]:
    known = surroundings()
    cases = {name: known[name] for name in _STABLE}
    return _timed(lambda: stability(chart, cases, generated()))


def _asked(chart: Path) -> list[Proof]:
    return _timed(
        lambda: wrong_values(chart),
        lambda: linted(chart),
        lambda: refusals(chart),
        lambda: routes(render(EXAMPLES["told"], chart=chart)),
        lambda: presence(chart),
        lambda: template_reads(chart),
    )


_STEPS: tuple[Callable[[Path], list[Proof]], ...] = (_live, _rendered, _lasting, _asked)


def _timed(*proofs: Callable[[], Proof]) -> list[Proof]:
    """Each proof with the seconds that it took, beside what else ran."""
    found = []
    for prove in proofs:
        begun_s = time.monotonic()
        proof = prove()
        found.append(replace(proof, seconds=time.monotonic() - begun_s))
    return found
