"""Where a command ends: errors with a known cause become one line and an exit code."""

import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, NoReturn

import typer

from tocsin.core.errors import ChaosForbidden, SpecError, TocsinError

EXIT_SPEC = 64
EXIT_INVALID = 3
EXIT_FORBIDDEN = 4
EXIT_INTERRUPTED = 130
USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
"""Typer brings a click of its own and does not export what all its refusals are."""
_LETTERS_MOST = 200


def one_line(command: Callable[..., None]) -> Callable[..., None]:
    """Errors with a known cause end in one line and an exit code, never in a traceback."""

    @wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except SpecError as error:
            fail(str(error), EXIT_SPEC)
        except ChaosForbidden as error:
            fail(str(error), EXIT_FORBIDDEN)
        except TocsinError as error:
            fail(str(error), EXIT_INVALID)
        except BrokenPipeError:
            raise  # `… | head` has seen enough: click ends without a word
        except OSError as error:
            fail(f"{error.filename or 'system'}: {error.strerror or error}", EXIT_INVALID)
        except (typer.Exit, typer.Abort, USAGE_ERROR):
            raise  # how a command ends, not how it fails
        except Exception as error:  # noqa: BLE001 - the edge of the process: our own mistake
            fail(_of_ours(error), EXIT_INVALID)

    return guarded


def _of_ours(error: Exception) -> str:
    """One line for an error that nobody foresaw; its traceback goes into a file."""
    said = " ".join(str(error).split())[:_LETTERS_MOST]
    with tempfile.NamedTemporaryFile(
        "w", prefix="tocsin-", suffix=".txt", delete=False, encoding="utf-8"
    ) as file:
        traceback.print_exception(error, file=file)
    return (
        f"{type(error).__name__}: {said or 'no reason given'}; this is a mistake of tocsin itself: "
        f"please report it with {file.name}"
    )


def usage(error: Exception) -> NoReturn:
    """End the program over a command line that cannot be meant."""
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "") or "tocsin"
    said = getattr(error, "format_message", error.__str__)()
    if words := " ".join(said.split()).removesuffix(
        "."
    ):  # without words it has shown the help already
        typer.echo(f"{path}: {words}; see {path} --help", err=True)
    sys.exit(EXIT_SPEC)


def fail(message: str, code: int) -> NoReturn:
    """End the command with one line on standard error and an exit code."""
    typer.echo(f"tocsin: {message}", err=True)
    raise typer.Exit(code)


def exit_code_of(error: BaseException | None) -> int:
    """The exit code that a command which ends in this error has."""
    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else EXIT_INVALID
    for kind, code in (
        (SpecError, EXIT_SPEC),
        (ChaosForbidden, EXIT_FORBIDDEN),
        (KeyboardInterrupt, EXIT_INTERRUPTED),
    ):
        if isinstance(error, kind):
            return code
    return EXIT_INVALID if error is not None else 0


@contextmanager
def terminated_as_interrupt() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does, so that it cleans up; Ray's own handler aborts."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
