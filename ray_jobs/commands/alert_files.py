"""`tocsin alerts render` and `check`: files for Prometheus and Alertmanager, and their proof."""

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.core.errors import SpecError
from tocsin.dashboards.relay.secret import read_secret
from tocsin.dashboards.render.options import Channel, RenderOptions, WecomApp
from tocsin.ray_jobs.commands.edge import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

EXIT_WRONG = 1
_GENERATED = Path("dashboards/generated")
_DEFAULTS = RenderOptions()


@one_line
def render(
    out: Annotated[Path, typer.Option(help="folder for the files")] = _GENERATED,
    gateway: Annotated[str, typer.Option(help="URL of the served model")] = _DEFAULTS.gateway_url,
    relay: Annotated[str, typer.Option(help="URL of tocsin alerts relay")] = _DEFAULTS.relay_url,
    runbooks: Annotated[
        str, typer.Option(help="put before <alert>.md in runbook_url")
    ] = _DEFAULTS.runbooks,
    secrets: Annotated[
        str, typer.Option(help="folder of the secrets' files as Alertmanager sees it")
    ] = _DEFAULTS.secrets,
    channel: Annotated[
        list[Channel] | None, typer.Option(help="ways to people; none named: all but wecom-app")
    ] = None,
    wecom_app: Annotated[str, typer.Option(help="CORP_ID:AGENT_ID, with --wecom-secret-file")] = "",
    wecom_secret_file: Annotated[Path | None, typer.Option(help="secret of the WeCom app")] = None,
    sd: Annotated[list[str] | None, typer.Option(help="URL of a hub's /sd, repeatable")] = None,
    target: Annotated[list[str] | None, typer.Option(help="host:port of a hub, repeatable")] = None,
    alertmanager: Annotated[
        list[str] | None, typer.Option(help="host:port of an Alertmanager, repeatable")
    ] = None,
    scrape_s: Annotated[int, typer.Option(min=1, max=60)] = _DEFAULTS.scrape_s,
    evaluation_s: Annotated[int, typer.Option(min=1, max=60)] = _DEFAULTS.evaluation_s,
    drills_page: Annotated[
        bool, typer.Option(help="send a drill's alerts on to the people")
    ] = False,
) -> None:
    """Write rules, routes, scrape configuration and their tests from the declarations."""
    from tocsin.dashboards.render.files import write

    app = _wecom(wecom_app, wecom_secret_file)
    chosen = frozenset(channel) if channel else _DEFAULTS.channels
    options = RenderOptions(
        gateway_url=gateway.rstrip("/"),
        relay_url=relay.rstrip("/"),
        runbooks=runbooks,
        secrets=secrets.rstrip("/"),
        channels=chosen | ({Channel.WECOM_APP} if app else set()),
        wecom_app=app,
        drills_page=drills_page,
        http_sd=tuple(sd) if sd else (() if target else _DEFAULTS.http_sd),
        targets=tuple(target or ()),
        alertmanagers=tuple(alertmanager or _DEFAULTS.alertmanagers),
        scrape_s=scrape_s,
        evaluation_s=evaluation_s,
    )
    for path in write(out, options):
        typer.echo(f"written: {path}")


@one_line
def check(
    folder: Annotated[Path, typer.Argument(help="folder of the rendered files")] = _GENERATED,
    grid: Annotated[
        bool, typer.Option(help="also the P0 boundary at every scrape interval (half a minute)")
    ] = False,
) -> None:
    """Have promtool and amtool judge the rendered files; 1 if one of them finds fault."""
    from tocsin.dashboards.render.files import (
        ALERTMANAGER,
        PROMETHEUS,
        ROUTE_TESTS,
        RULE_TESTS,
        RULES,
    )

    missing = [name for name in (RULES, ALERTMANAGER, PROMETHEUS) if not (folder / name).is_file()]
    if missing:
        raise SpecError(
            f"alerts check: found no {', '.join(missing)} in {folder}, expected rendered files; "
            f"write them with tocsin alerts render --out {folder}"
        )
    wrong = 0
    if _found("promtool", "prometheus"):
        wrong += _judged("promtool", "check", "rules", "--lint=all", str(folder / RULES))
        wrong += _judged("promtool", "check", "config", str(folder / PROMETHEUS))
        if (folder / RULE_TESTS).is_file():
            wrong += _judged("promtool", "test", "rules", str(folder / RULE_TESTS))
        if grid:
            with tempfile.TemporaryDirectory() as place:
                for path in write_grid(Path(place)):
                    wrong += _judged("promtool", "test", "rules", str(path))
    if _found("amtool", "prometheus-alertmanager"):
        config = str(folder / ALERTMANAGER)
        wrong += _judged("amtool", "check-config", config)
        if (folder / ROUTE_TESTS).is_file():
            rows = list(route_commands(folder / ROUTE_TESTS))
            test = ("amtool", "config", "routes", "test", f"--config.file={config}")
            lost = sum(_judged(*test, *words, quiet=True) for words in rows)
            typer.echo(f"ok: amtool config routes test, {len(rows) - lost} of {len(rows)}")
            wrong += lost
    if wrong:
        raise typer.Exit(EXIT_WRONG)


def route_commands(tests: Path) -> "Iterator[list[str]]":
    """Words for `amtool config routes test`, one list a row of the table.

    Inhibition is not amtool's business: those rows are judged by amlint and a real Alertmanager.
    """
    import yaml

    try:
        for row in yaml.safe_load(tests.read_text(encoding="utf-8")):
            if row.get("expect") is not None:
                labels = [f"{name}={value}" for name, value in row["labels"].items()]
                yield [f"--verify.receivers={','.join(row['expect'])}", *labels]
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise SpecError(
            f"alerts check: {tests} is not the table of routes, expected it as it was rendered; "
            f"write it again with tocsin alerts render --out {tests.parent}"
        ) from error


def write_grid(folder: Path) -> list[Path]:
    """The P0 rule alone and its tests at every pair of intervals, counted as the gate counts."""
    from tocsin.checker.window import worst_window
    from tocsin.dashboards.contract import alerts
    from tocsin.dashboards.render.grid import grid_files
    from tocsin.dashboards.render.rules import alone
    from tocsin.dashboards.render.yaml_text import yaml_text

    rule = folder / "p0.rules.yml"
    rule.write_text(yaml_text(alone(alerts()["operator_failing"], _DEFAULTS)), encoding="utf-8")
    paths = []
    for evaluate_s, document in grid_files(worst_window, rule.name).items():
        path = folder / f"p0.every-{evaluate_s}s.test.yml"
        path.write_text(yaml_text(document), encoding="utf-8")
        paths.append(path)
    return paths


def _wecom(app: str, secret_file: Path | None) -> WecomApp | None:
    corp_id, _, agent_id = app.partition(":")
    if not app and secret_file is None:
        return None
    if not (corp_id and agent_id and secret_file):
        raise SpecError(
            f"alerts render: found --wecom-app {app or '(none)'} and --wecom-secret-file "
            f"{secret_file or '(none)'}, expected both, the first as CORP_ID:AGENT_ID"
        )
    secret = read_secret(secret_file, "alerts render --wecom-secret-file")
    return WecomApp(corp_id=corp_id, agent_id=agent_id, secret=secret)


def _found(tool: str, package: str) -> bool:
    if shutil.which(tool):
        return True
    typer.echo(f"not judged by {tool}: it is not installed (Debian: apt-get install {package})")
    return False


def _judged(*words: str, quiet: bool = False) -> int:
    """Run a tool; 1 and its words where it finds fault, one line (or none) where it does not."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        if not quiet:
            typer.echo(f"ok: {' '.join([*words[:-1], Path(words[-1]).name])}")
        return 0
    typer.echo(f"wrong: {' '.join(words)}\n{done.stdout}{done.stderr}", err=True)
    return 1
