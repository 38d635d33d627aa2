"""The command line: the commands of ray_jobs/commands."""

import sys

import typer

from tocsin.core.errors import EnvironmentFault
from tocsin.ray_jobs.commands.alerts import alerts_app
from tocsin.ray_jobs.commands.bisect import bisect
from tocsin.ray_jobs.commands.chaos import chaos_app
from tocsin.ray_jobs.commands.dashboards import app as dashboards_app
from tocsin.ray_jobs.commands.digest import digest
from tocsin.ray_jobs.commands.edge import USAGE_ERROR, usage
from tocsin.ray_jobs.commands.monitor import monitor
from tocsin.ray_jobs.commands.probe import probe
from tocsin.ray_jobs.commands.reproduce import reproduce
from tocsin.ray_jobs.commands.scan import scan
from tocsin.ray_jobs.commands.serve import serve
from tocsin.ray_jobs.commands.top import top
from tocsin.ray_jobs.commands.trace import trace

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(chaos_app, name="chaos")
app.add_typer(alerts_app, name="alerts")
app.add_typer(dashboards_app, name="dashboards")
app.command()(serve)
app.command()(reproduce)
app.command()(bisect)
app.command()(monitor)
app.command()(digest)
app.command()(probe)
app.command()(scan)
app.command()(top)
app.command()(trace)


def main() -> None:
    """Entry point of the `tocsin` command."""
    try:
        sys.exit(app(standalone_mode=False, prog_name="tocsin"))
    except USAGE_ERROR as error:
        usage(error)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except EnvironmentFault as error:
        sys.exit(f"tocsin: {error}")


if __name__ == "__main__":
    main()
