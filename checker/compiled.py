"""Checks inside a compiled model: operators that write into the verdict buffer, in one graph.

While `torch.compile` traces an attached model, its seams hand their tensors to `Compiled.take`,
which the tracer follows: small calls of one form are put aside and checked by one operator at the
end of the model's forward, large ones and attention at once. The graph has every check that has a
native form, whatever profile is in force: a level in device memory decides what is read, so that
no switch traces anything again. A line of the buffer begins each step at -1 and every ratio is at
least 0: what ran is read off the same copy as what was found.

Not in a graph: faults at seams, records for capture, checks without a native form.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from torch import Tensor
from torch.compiler import assume_constant_result, is_compiling

from tocsin.checker.contract import Check
from tocsin.checker.fused import Job, fused_of, lines_of
from tocsin.checker.lanes import ELEMENTS_MAX, Plan
from tocsin.checker.sites import Site
from tocsin.core.calls import (
    AttentionCall,
    LinearCall,
    LogitsCall,
    ResidualCall,
    RMSNormCall,
    RopeCall,
    SwiGLUCall,
)
from tocsin.core.errors import ContractError

_SERIALS = count(1)
_NOT_ROUNDED = {"numerical.residual": {"terms_ulp": 1.0}}
"""What is let pass in graphs at least: a compiler fuses an addition with what made its terms, adds
them as they are in float32, and rounds them only for those who read them. Seen at batch 1 in
bfloat16, where Inductor multiplies and adds in one loop: a sum that nearly cancels is 80 times in
20 steps further from the sum of what was rounded than an addition may be.
"""

_TRACED = (
    LinearCall,
    RMSNormCall,
    ResidualCall,
    SwiGLUCall,
    RopeCall,
    AttentionCall,
    LogitsCall,
)
_FUSED = {str(kind.operator): fused_of(kind) for kind in _TRACED}
_FORMS = {form: fused for form, fused in _FUSED.items() if fused is not None}


def limits_in_graphs(units: Iterable[Check]) -> dict[str, dict[str, float]]:
    """Thresholds by check id, as they hold where a compiler decides what is rounded."""
    limits = {one.id: dict(one.thresholds) for one in units}
    for check_id, least in _NOT_ROUNDED.items():
        for name in least.keys() & limits.get(check_id, {}).keys():
            limits[check_id][name] = max(limits[check_id][name], least[name])
    return limits


class Compiled:
    """The calls of one traced model on their way into its graph.

    Attributes:
        sites: of all graphs, in order of execution as traced.
        calls: put aside in the trace that is under way, by family, with the name of their form;
            heard: tensors of all its calls by plan; None outside a model's forward.
        limits: thresholds by check id; another value is traced anew.
        ready: the native operators are there, for the device that the model is on.
        traced: told of every call that goes into a graph.
        serial: tells it from that of any other attach: a graph holds references of its own.

    Args:
        buffer: the verdict buffer's memory.
        plans: by name.
        sites_of: the sites of a plan's native checks, wanted or not.
    """

    def __init__(
        self,
        buffer: Tensor,
        plans: Mapping[str, Plan],
        sites_of: Callable[[Plan], tuple[Site, ...]],
    ) -> None:
        """Nothing was traced yet."""
        self.sites: list[Site] = []
        self.calls: dict[str, tuple[str, list[tuple[str, tuple[Any, ...]]]]] | None = None
        self.heard: dict[str, tuple[Any, ...]] | None = None
        self.limits: dict[str, dict[str, float]] = {}
        self.ready = False
        self.traced: Callable[[], None] | None = None
        self._buffer = buffer
        self._plans = plans
        self._sites_of = sites_of
        self._known: set[int] = set()
        self.serial = f"attach {next(_SERIALS)}"  # no number: a tracer would make it a variable
        # A tracer calls these once, in Python, and asks about nothing that they return before a
        # step; it does ask for the serial number, which stands for all of that.
        constant: Any = assume_constant_result
        self._facts = constant(lambda serial, name: self._facts_of(name))
        self._read_off = constant(lambda serial: self._those_read_off())
        self._enrolled = constant(lambda serial, silent, *names: self._enrol(silent, *names))

    def take(self, plan: Plan, *tensors: Any) -> None:
        """One call, while a trace is under way."""
        if self.ready:
            self._add(plan.name, tensors)
            if self.heard is not None:
                self.heard[plan.name] = tensors

    def around(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """A model's forward, at whose end the calls that were put aside are checked."""

        def collecting(*args: Any, **kwargs: Any) -> Any:
            if not is_compiling():
                return forward(*args, **kwargs)
            self.calls, self.heard = {}, {}
            output = forward(*args, **kwargs)
            self._put_together(self.heard)
            for form, calls in self.calls.values():
                self._check(form, calls)
            self.calls = self.heard = None
            return output

        return collecting

    def _put_together(self, heard: dict[str, tuple[Any, ...]]) -> None:
        """Calls that nothing tells of: all their tensors are in calls that were heard."""
        for name, sources in self._read_off(self.serial):
            if all([source in heard for source, _ in sources]):
                self._add(name, tuple([heard[source][at] for source, at in sources]))

    def _add(self, name: str, tensors: tuple[Any, ...]) -> None:
        """Put one call aside, or check it at once."""
        facts = self._facts(self.serial, name)
        if facts is None:
            return
        form, family, counted, attends = facts
        calls = self.calls
        large = tensors[counted].numel() > ELEMENTS_MAX
        if calls is None or large or attends:
            self._check(form, [(name, tensors)])
        elif family in calls:
            calls[family][1].append((name, tensors))
        else:
            calls[family] = (form, [(name, tensors)])

    def _check(self, form: str, calls: Sequence[tuple[str, tuple[Any, ...]]]) -> None:
        """Put one operator for some calls of one form into the graph."""
        fused = _FORMS[form]
        columns = [list(column) for column in zip(*[one[1] for one in calls], strict=True)]
        names = [name for name, _ in calls]
        silent = fused.idle(calls[0][1])
        lines, trusted, settings = self._enrolled(self.serial, silent, *names)
        job = Job(lines, 0, trusted, settings, self.limits, ())
        fused.launch(self._buffer, job, columns[0][0].shape[0], columns)

    def _facts_of(self, name: str) -> tuple[str, str, int, bool] | None:
        """Form, family, position of the tensor that counts, and whether it is attention.

        Returns:
            None for a plan whose kind has no native checks.
        """
        plan = self._plans[name]
        if plan.fused is None or str(plan.kind.operator) not in _FORMS:
            return None
        return str(plan.kind.operator), plan.family, plan.counted, plan.kind is AttentionCall

    def _those_read_off(self) -> tuple[tuple[str, tuple[tuple[str, int], ...]], ...]:
        """Name of each plan that is put together from others, and their names and places."""
        return tuple(
            (name, tuple((source.name, at) for source, at in plan.sources))
            for name, plan in self._plans.items()
            if plan.read_off and plan.sources
        )

    def _enrol(
        self, silent: tuple[str, ...], *names: str
    ) -> tuple[Tensor, tuple[list[Tensor | None], ...], tuple[Any, ...]]:
        """Some calls go into a graph together: their checks are sites from now on.

        Args:
            silent: ids of checks that have nothing to say to such calls.

        Returns:
            lines of the buffer [k,n] int64, trusted references column by column, settings.
        """
        if self.traced is not None:
            self.traced()
        plans = [self._plans[name] for name in names]
        sites = [
            tuple(site for site in self._sites_of(plan) if site.unit.id not in silent)
            for plan in plans
        ]
        fused = plans[0].fused
        if fused is None:
            raise ContractError(
                f"compiled: {names[0]} has no native checks, expected some; leave it out of graphs"
            )
        for site in (site for of_plan in sites for site in of_plan):
            if site.index not in self._known:
                self._known.add(site.index)
                self.sites.append(site)
        trusted = tuple(
            [plan.trusted[at] for plan in plans] if there else []
            for at, there in enumerate(plans[0].present)
        )
        return lines_of(fused, sites), trusted, plans[0].settings
