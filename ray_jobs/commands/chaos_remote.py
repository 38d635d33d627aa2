"""`tocsin chaos run` on somebody else's machines, `tocsin chaos unpack`, and their options."""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from tocsin.core.errors import SpecError
from tocsin.core.terms import Profile
from tocsin.ray_jobs.remote.archive import LIMIT_MIB

if TYPE_CHECKING:
    from tocsin.ray_jobs.remote.delivery import Delivery

PrintArchive = Annotated[
    bool, typer.Option("--print-archive", help="end standard output with the run's folder, framed")
]
ArchiveLimit = Annotated[
    float, typer.Option(min=0.1, max=512, help="MiB of that archive; the least needed is left out")
]
Publish = Annotated[
    str, typer.Option(help="copy the run's folder there, where it runs: s3://…, file://…")
]
KubeContext = Annotated[
    str, typer.Option(help="run as a Job of the release there (kubectl config get-contexts)")
]
Namespace = Annotated[str, typer.Option(help="of the release; default: the context's own")]
ReleaseName = Annotated[str, typer.Option(help="name of the Helm release; default: the only one")]
StartTimeout = Annotated[
    float, typer.Option(min=1, help="seconds that the Job's pod may take to start")
]
ARCHIVE_LIMIT_MIB = LIMIT_MIB
START_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Where a run was asked to go.

    Attributes:
        kube_context: empty: to no Kubernetes.
        ray_dashboard: empty: to no dashboard of Ray.
    """

    kube_context: str = ""
    namespace: str = ""
    release: str = ""
    start_timeout_s: float = START_TIMEOUT_S
    ray_dashboard: str = ""


def elsewhere(
    kube_context: str, namespace: str, release: str, start_timeout_s: float
) -> Elsewhere | None:
    """Where the options and RAY_ADDRESS send a run; None: it is a run of this machine.

    Raises:
        SpecError: options that mean nothing without another.
    """
    if kube_context:
        return Elsewhere(kube_context, namespace, release, start_timeout_s)
    for option, value in (("--namespace", namespace), ("--release", release)):
        if value:
            raise SpecError(
                f"chaos run: {option} {value} says nothing without a cluster; name it too: "
                "--kube-context (KUBE_CONTEXT=…)"
            )
    address = os.environ.get("RAY_ADDRESS", "")
    from tocsin.ray_jobs.remote.ray_cluster import is_dashboard_address

    return Elsewhere(ray_dashboard=address) if is_dashboard_address(address) else None


def run_elsewhere(
    where: Elsewhere,
    spec: str,
    *,
    seed: int | None,
    profile: Profile | None,
    store: Path,
    extra: Sequence[str],
    dry_run: bool,
) -> int:
    """Run an experiment there and bring its report home; the exit code is the run's.

    Args:
        extra: further words for the command over there.
    """
    from tocsin.ray_jobs.remote.order import make_order

    order = make_order(spec, seed=seed, profile=profile, extra=tuple(extra), dry_run=dry_run)
    show = _result if dry_run else _note
    if where.kube_context:
        from tocsin.ray_jobs.remote.kube_run import run_on_kubernetes

        return run_on_kubernetes(
            order,
            store,
            context=where.kube_context,
            namespace=where.namespace,
            release=where.release,
            start_timeout_s=where.start_timeout_s,
            say=_note,
            show=show,
        )
    from tocsin.ray_jobs.remote.ray_job import run_on_ray

    return run_on_ray(order, where.ray_dashboard, store, say=_note, show=show)


def delivery(store: Path, print_archive: bool, limit_mib: float, publish: str) -> "Delivery":
    """What hands the run over that is made here."""
    from tocsin.ray_jobs.remote.delivery import Delivery

    return Delivery(store, print_archive, int(limit_mib * (1 << 20)), publish)


def unpack(
    log: Annotated[str, typer.Argument(help="file with a run's log; - is standard input")] = "-",
    store: Annotated[Path, typer.Option(help="folder of the runs")] = Path("store"),
) -> None:
    """Take the report out of a run's log: kubectl logs job/… | tocsin chaos unpack."""
    from tocsin.ray_jobs.remote.unpack import report_in, unpack_log

    name = "standard input" if log == "-" else log
    run_dir, header = unpack_log(_lines(log), store, f"log {name}")
    if header.left_out_count:
        _note(f"tocsin: {header.left_out_count} files were left out; {run_dir}/origin.json says")
    _result(str(report_in(run_dir)))


def _lines(log: str) -> Iterator[str]:
    if log == "-":
        yield from sys.stdin
        return
    with Path(log).open(encoding="utf-8", errors="replace") as file:
        yield from file


def _note(line: str) -> None:
    """On standard error, whatever its encoding can hold."""
    _write(line, sys.stderr)


def _result(line: str) -> None:
    _write(line, sys.stdout)


def _write(line: str, stream: TextIO) -> None:
    encoding = stream.encoding or "utf-8"
    typer.echo(line.encode(encoding, "replace").decode(encoding), file=stream)
