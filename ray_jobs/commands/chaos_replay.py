"""`tocsin chaos replay RUN[#violation]`: a recorded plan again, in the mode that it ran in."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tocsin.ray_jobs.sim.replay import Recorded

Run = Annotated[
    str, typer.Argument(help="folder of a run, or RUN#N for its violation N", metavar="RUN[#N]")
]
REPRODUCED_LEAST = 0.95
"""Share of several replays that must come to the same, 19 of 20; in simulation all must."""


def replay(
    run: Run = "store/latest",
    on: Annotated[
        str, typer.Option(help="URL of an application that is served already; not for simulations")
    ] = "",
    times: Annotated[
        int,
        typer.Option(min=1, help="so often; 0: 19 of 20 came to the same"),
    ] = 1,
) -> None:
    """Run a recorded plan again; with #N, 0 if that violation occurs again and 1 if not.

    A simulation must go the same way to the last byte, and 3 says that it did not.
    """
    from tocsin.ray_jobs.sim.replay import recorded_run, same_plan

    one = recorded_run(run)
    same_plan(one)
    if times == 1:
        _, code = _simulated(one) if one.simulated else _served(one, on)
        raise typer.Exit(code)
    same = 0
    for number in range(times):
        came, _ = _simulated(one) if one.simulated else _served(one, on)
        same += came
        typer.echo(f"{number + 1} of {times}: {'the same' if came else 'another'} end")
    typer.echo(f"{same} of {times} replays came to the same")
    least = 1.0 if one.simulated else REPRODUCED_LEAST
    raise typer.Exit(0 if same >= least * times else 1)


def _simulated(one: "Recorded") -> tuple[bool, int]:
    """Whether it came to the same, and the exit code of a single replay."""
    from tocsin.chaos.judge import judge
    from tocsin.chaos.progress_view import progress_view
    from tocsin.chaos.store import load_case
    from tocsin.chaos.verdict import EXIT_FAIL, EXIT_INVALID, EXIT_PASS
    from tocsin.ray_jobs.sim.replay import told_again
    from tocsin.ray_jobs.sim.simulate import Simulator, simulate

    done = simulate(
        Simulator(one.model),
        one.case.spec,
        one.store,
        arguments=one.arguments,
        plan=one.case.plan,
        progress=progress_view(),
        recorded=one.case,
    )
    if done.run_dir is None:
        return False, done.exit_code
    equal = not done.difference
    typer.echo(f"digest {done.digest[:16]}: {'equal' if equal else f'unequal: {done.difference}'}")
    if not equal:
        return False, EXIT_INVALID
    if one.number is None:
        return True, done.exit_code
    occurred, words = told_again(one, judge(load_case(done.run_dir)), exact=True)
    typer.echo(words)
    return occurred, EXIT_PASS if occurred else EXIT_FAIL


def _served(one: "Recorded", on: str) -> tuple[bool, int]:
    """In Ray the same plan comes to the same kind of end, not to the same bytes."""
    from tocsin.chaos.judge import judge
    from tocsin.chaos.store import load_case
    from tocsin.chaos.verdict import EXIT_FAIL, EXIT_PASS
    from tocsin.ray_jobs.sim.replay import told_again

    latest = one.store / "latest"
    before = latest.resolve()
    if on:
        from tocsin.ray_jobs.attach import attached_run
        from tocsin.ray_jobs.attack import attack_of

        attack = attack_of(on, "", ())
        if attack is None:
            raise typer.BadParameter("--on names no application")
        code = attached_run(one.case.spec, one.store, attack, one.arguments)
    else:
        from tocsin.ray_jobs.chaos_run import chaos_run

        code = chaos_run(one.case.spec, one.store, 0, one.arguments)
    if latest.resolve() == before:
        return False, code
    if one.number is None:
        return code == one.verdict.exit_code, code
    occurred, words = told_again(one, judge(load_case(latest.resolve())), exact=False)
    typer.echo(words)
    return occurred, EXIT_PASS if occurred else EXIT_FAIL
