"""Where a command ends: errors with a known cause become one line and an exit code."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, NoReturn

import typer

from tocsin.core.errors import SpecError, TocsinError

EXIT_SPEC = 64
EXIT_INVALID = 3


def one_line(command: Callable[..., None]) -> Callable[..., None]:
    """Errors with a known cause end in one line and an exit code, never in a traceback."""

    @wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except SpecError as error:
            fail(str(error), EXIT_SPEC)
        except TocsinError as error:
            fail(str(error), EXIT_INVALID)
        except BrokenPipeError:
            raise  # `… | head` has seen enough: click ends without a word
        except OSError as error:
            fail(f"{error.filename or 'system'}: {error.strerror or error}", EXIT_INVALID)

    return guarded


def fail(message: str, code: int) -> NoReturn:
    """End the command with one line on standard error and an exit code."""
    typer.echo(f"tocsin: {message}", err=True)
    raise typer.Exit(code)


@contextmanager
def terminated_as_interrupt() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does, so that it cleans up; Ray's own handler aborts."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
