"""How the calls of one operator of one module are told of: announced at once, or put down."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch.compiler import is_dynamo_compiling

from tocsin.checker.attach.taps import Forward
from tocsin.checker.lanes import Plan
from tocsin.core.seams import Log, Seams


class Teller:
    """One operator of one module.

    Attributes:
        plan: the present one; another takes its place when the form of the module's own tensors
            changes.
        announce: tells whoever listens of the tensors of a call.

    Args:
        make: makes a plan of the module as it is now.
    """

    def __init__(self, seams: Seams, make: Callable[[], Plan]) -> None:
        """Make the first plan."""
        self._seams, self._make = seams, make
        self.plan = make()
        self._operator = self.plan.kind.operator
        self.announce = seams.announcer(self._operator, self.plan, self.plan.build)

    def renew(self) -> None:
        """Look at the module again."""
        made = self._make()
        if made.static != self.plan.static or made.present != self.plan.present:
            self.plan = made
            self.announce = self._seams.announcer(self._operator, made, made.build)

    def log(self) -> Log | None:
        """Where calls may be put down; None where each must be announced."""
        if self.plan.at_once or not self.plan.settled:
            return None
        return self._seams.logs.get(self._operator)

    def wrap(self) -> Callable[[Forward], Forward] | None:
        """Makes a forward of one tensor put its calls down; None where they must be announced."""
        log = self.log()
        return None if log is None else partial(_putting_down, self.plan, self.announce, log)


def _putting_down(plan: Plan, announce: Callable[..., None], log: Log, forward: Forward) -> Forward:
    def putting_down(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        x = args[0] if args else first_of(args, kwargs)  # the usual way without another frame
        if is_dynamo_compiling():
            announce(x, output)
        else:
            log.put((plan, (x, output)))
        return output

    return putting_down


def first_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The one input of a module, however it was passed."""
    return args[0] if args else next(iter(kwargs.values()))
