"""`tocsin chaos export`: an experiment for the Chaos Toolkit, or for a cluster with Chaos Mesh."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tocsin.core.errors import SpecError

SERVED = "tocsin.ray_jobs.ctk_system:served"
"""Serves the model as `tocsin chaos run` does; by its path, since importing it starts with Ray."""


class Target(StrEnum):
    """Whose format."""

    CHAOSTOOLKIT = "chaostoolkit"
    CHAOS_MESH = "chaos-mesh"


def export(
    spec: Annotated[str, typer.Argument(help="name of a built-in experiment, or path of a file")],
    to: Annotated[Target, typer.Option(help="whose format")],
    out: Annotated[
        Path | None, typer.Option(help="file to write; standard output when left out")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="instead of the experiment's own")] = None,
    system: Annotated[
        str, typer.Option(help="chaostoolkit: module:function that makes the system under test")
    ] = "",
    namespace: Annotated[str, typer.Option(help="chaos-mesh: of the release")] = "default",
    release: Annotated[
        str, typer.Option(help="chaos-mesh: name of the Helm release; default: any")
    ] = "",
    url: Annotated[
        str,
        typer.Option(help="chaos-mesh: of the application; its /health then stops the workflow"),
    ] = "",
) -> None:
    """Write an experiment as a Chaos Toolkit experiment or as a Chaos Mesh workflow.

    What has no equivalent is said in one line each: on standard error and, for chaos-mesh, in the
    file. A Chaos Toolkit experiment holds all of it; run it with chaos run FILE.
    """
    from tocsin.chaos.spec_file import load_experiment, written_name

    experiment = load_experiment(spec, seed=seed)
    if to is Target.CHAOSTOOLKIT:
        from tocsin.chaos.ctk.document import toolkit_document

        document = toolkit_document(experiment, system or SERVED, written_name(spec))
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    else:
        from tocsin.chaos.mesh.workflow import Cluster, mesh_document, workflow_text

        workflow, remarks = mesh_document(experiment, Cluster(namespace, release, url))
        for line in remarks:
            typer.echo(f"tocsin: {line}", err=True)
        text = workflow_text(experiment.name, workflow, remarks)
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecError(
            f"{out}: cannot be written ({error.strerror or error}); name another file with --out"
        ) from None
    typer.echo(str(out))
