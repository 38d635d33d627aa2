"""The variants of one case: bare twice, our profiles, the competitors, eager or compiled."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

import tocsin
from tocsin.bench.competitors.competitor import Competitor
from tocsin.bench.competitors.twin import twin
from tocsin.bench.overhead.plan import Case
from tocsin.bench.overhead.rounds import Variant
from tocsin.bench.overhead.schema import Mode
from tocsin.bench.overhead.steps import (
    Forward,
    Step,
    Work,
    bare_step,
    checks_of_a_step,
    guarded_step,
    watched_step,
    work_for,
)
from tocsin.core.errors import ContractError, TocsinError
from tocsin.core.terms import Profile

BARE = "bare"
NOISE = "A/A"
OURS = "tocsin"
SWITCHED = "tocsin (switched)"
"""The graph of `full` with everything switched off: nothing is compiled anew for a switch."""

ONE_GRAPH = "guard, full and switched off are one graph: the profile is a level in memory"

CALIBRATION_MAX = 128
"""Tokens that a competitor is calibrated on: the step's cost does not depend on them."""

CANNOT_COMPILE = (TorchDynamoException, FailOnRecompileLimitHit)


@dataclass(slots=True)
class Prepared:
    """Variants that run, bare first, and those that do not, with the reason.

    Attributes:
        settle: an untimed step at the begin of each round, after the collection of garbage.
        ends: what closes what several variants have in common.
    """

    variants: list[Variant] = field(default_factory=list)
    settle: Callable[[], object] = lambda: None
    unmeasured: list[tuple[str, str, str]] = field(default_factory=list)
    ends: list[Callable[[], None]] = field(default_factory=list)

    def close(self) -> None:
        """Detach all of them."""
        for variant in self.variants:
            variant.close()
        for end in self.ends:
            end()


class Compiled(nn.Module):
    """A model compiled whole, with a graph cache of its own.

    Dynamo keeps its graphs by code object. Twins have one in common: each call would first try
    the guards of all twins that were compiled before, and beyond eight there is no room.
    """

    def __init__(self, model: nn.Module) -> None:
        """Compile at the first call."""
        super().__init__()

        def forward(**inputs: Any) -> Any:
            return model(**inputs)

        own = FunctionType(
            forward.__code__.replace(), forward.__globals__, closure=forward.__closure__
        )
        self._run: Forward = torch.compile(own, fullgraph=True, dynamic=False)

    def again(self) -> "Compiled":
        """Another module around the same graph, for a detector that goes around it."""
        return copy.copy(self)

    def forward(self, **inputs: Any) -> Any:
        """What the model returns."""
        return self._run(**inputs)


def names_of(competitors: Sequence[Competitor], mode: Mode = "eager") -> list[tuple[str, str]]:
    """(name, profile) of every row that a case of the Transformers model must have."""
    ours = [(OURS, str(profile)) for profile in Profile]
    if mode == "compiled":
        ours.append((SWITCHED, str(Profile.OFF)))
    return [(NOISE, BARE), *ours, *((one.name, one.profile) for one in competitors)]


class Builder:
    """Makes the variants of one case, each on its own twin of the model."""

    def __init__(
        self,
        model: nn.Module,
        tokens: torch.Tensor,
        case: Case,
        competitors: Sequence[Competitor],
        time_left: Callable[[], bool] = lambda: True,
        on_variant: Callable[[str], None] = lambda name: None,
    ) -> None:
        """Nothing is attached yet.

        Args:
            model: without hooks of anybody.
            tokens: int64 [N], tokens of a text at least as long as the case's positions.
            case: which step.
            competitors: who runs beside us.
            time_left: asked before each variant that must be compiled.
            on_variant: told which one is prepared now.
        """
        self._case, self._competitors = case, competitors
        self._time_left, self._on_variant = time_left, on_variant
        self._template = twin(model, case.layers)
        self.work: Work = work_for(self._template, case, tokens)
        self._expected: list[int] | None = None
        self._bare: Forward | None = None
        self._shared: _Shared | None = None

    def prepare(self) -> Prepared:
        """Attach, compile and warm up each variant.

        What cannot be attached or compiled is listed with its reason; without a bare step, all.
        """
        prepared = Prepared()
        compiled = self._case.mode == "compiled"
        if compiled:
            # What is attached first concerns the graph of the bare step, too: a modeling file's
            # function is replaced for all models. Compiled before, it would be compiled twice.
            self._shared = self._attach_shared(prepared)
        self._on_variant(BARE)
        self._bare = self._compiled(twin(self._template))
        bare = bare_step(self.work, self._bare)
        try:
            tokens = self._warm_up(bare)
            if not compiled:  # compiled twins are fused, and so rounded, otherwise
                self._expected = tokens
        except CANNOT_COMPILE as error:
            reason = f"the model cannot be compiled here: {first_line(error)}"
            prepared.unmeasured = [
                (name, profile, reason)
                for name, profile in names_of(self._competitors, self._case.mode)
            ]
            return prepared
        prepared.settle = partial(self._once, bare)
        prepared.variants += [
            Variant(BARE, BARE, bare, self.work.prepare),
            Variant(NOISE, BARE, bare, self.work.prepare),
        ]
        for name, profile, make in self._makers():
            if compiled and not self._time_left():
                prepared.unmeasured.append((name, profile, "no time was left to compile it"))
                continue
            self._on_variant(name if name != OURS else f"{name} {profile}")
            try:
                prepared.variants.append(make())
            except TocsinError as error:
                prepared.unmeasured.append((name, profile, first_line(error)))
            except CANNOT_COMPILE as error:
                reason = f"not compiled with fullgraph=True: {first_line(error)}"
                prepared.unmeasured.append((name, profile, reason))
        if compiled:
            self._run_again(prepared)
        return prepared

    def _run_again(self, prepared: Prepared) -> None:
        """Once more in the company of all the others: what one attaches may concern another."""
        for variant in prepared.variants[2:]:
            try:
                self._once(variant.run)
            except (*CANNOT_COMPILE, TocsinError) as error:
                self._drop(prepared, variant, first_line(error))
        bare = prepared.variants[0]
        try:
            self._once(bare.run)
        except CANNOT_COMPILE as error:
            reason = f"a model without checks cannot be compiled beside it: {first_line(error)}"
            for variant in [one for one in prepared.variants if one.name in (OURS, SWITCHED)]:
                self._drop(prepared, variant, reason)
            self._once(bare.run)

    def _drop(self, prepared: Prepared, variant: Variant, reason: str) -> None:
        variant.close()
        prepared.variants.remove(variant)
        prepared.unmeasured.append((variant.name, variant.profile, reason))

    def _makers(self) -> Iterator[tuple[str, str, Callable[[], Variant]]]:
        shared = self._shared
        if shared is not None:
            for name, profile in _SHARED_ROWS:
                yield name, profile, partial(self._switched, shared, name, Profile(profile))
        for profile in Profile if self._case.mode == "eager" else (Profile.OFF,):
            yield OURS, str(profile), partial(self._guarded, profile)
        # Those around the graph that is there first: what must be compiled may find no time.
        for competitor in sorted(self._competitors, key=lambda one: not one.around):
            yield competitor.name, competitor.profile, partial(self._watched, competitor)

    def _attach_shared(self, prepared: Prepared) -> "_Shared | None":
        """The one twin that serves the profiles of a compiled model; None with reasons."""
        model = twin(self._template)
        try:
            guard = tocsin.attach(model, Profile.FULL)
        except TocsinError as error:
            prepared.unmeasured += [(*place, first_line(error)) for place in _SHARED_ROWS]
            return None
        prepared.ends.append(guard.detach)
        try:
            eager = {}
            for profile in Profile:
                _switch(guard, profile)
                eager[profile] = checks_of_a_step(self.work, model, guard)
        except TocsinError as error:
            prepared.unmeasured += [(*place, first_line(error)) for place in _SHARED_ROWS]
            return None
        _switch(guard, Profile.FULL)
        return _Shared(guard, self._compiled(model), eager)

    def _switched(self, shared: "_Shared", name: str, profile: Profile) -> Variant:
        """One profile of the shared twin: set before each step, outside the time."""

        def prepare() -> None:
            _switch(shared.guard, profile)
            self.work.prepare()

        run = guarded_step(self.work, shared.forward, shared.guard)
        _switch(shared.guard, profile)
        self._warm_up(run)
        checks = checks_of_a_step(self.work, shared.forward, shared.guard)
        if checks == 0 and profile is not Profile.OFF:
            raise TocsinError("no check ran: there is nothing whose cost could be measured")
        note = f"{checks} check evaluations a step, {ONE_GRAPH}" if checks else ONE_GRAPH
        if checks < shared.eager[profile]:
            note += f"; {shared.eager[profile]} where the same model is not compiled"
        return Variant(name, str(profile), run, prepare, note)

    def _guarded(self, profile: Profile) -> Variant:
        """A twin attached under one profile."""
        model = twin(self._template)
        guard = tocsin.attach(model, profile)
        try:
            run = guarded_step(self.work, self._compiled(model), guard)
            self._warm_up(run)
            checks = checks_of_a_step(self.work, model, guard)
        except (*CANNOT_COMPILE, TocsinError):
            guard.detach()
            raise
        note = f"{checks} check evaluations a step" if checks else ""
        if checks == 0 and profile is not Profile.OFF:
            guard.detach()
            raise TocsinError("no check ran: there is nothing whose cost could be measured")
        return Variant(OURS, str(profile), run, self.work.prepare, note, guard.detach)

    def _watched(self, competitor: Competitor) -> Variant:
        model = twin(self._template)
        calibration = (self.work.prompt_RT[:, :CALIBRATION_MAX],)
        target: Any = self._again() if competitor.around else model
        attached = competitor.attach(target, calibration)
        try:
            forward: Forward = target
            if not competitor.around:
                forward = self._compiled(model, watched_step(self.work, model, attached))
            run = watched_step(self.work, forward, attached)
            self._warm_up(run)
        except (*CANNOT_COMPILE, TocsinError):
            attached.detach()
            raise
        note = "; ".join(
            f"does not look at {what}: {why}" for what, why in attached.skipped.items()
        )
        return Variant(
            competitor.name, competitor.profile, run, self.work.prepare, note, attached.detach
        )

    def _again(self) -> Forward:
        """A bare model for a detector that goes around it: compiled, the graph that is there."""
        bare = self._bare
        return bare.again() if isinstance(bare, Compiled) else twin(self._template)

    def _compiled(self, model: nn.Module, eager_step: Step | None = None) -> Forward:
        """The model, compiled if the case says so; before that it makes one eager step.

        What is allocated at a first step so stays outside the graph.
        """
        if self._case.mode == "eager":
            return model
        if eager_step is not None:
            self._once(eager_step)
        return Compiled(model)

    def _once(self, run: Callable[[], Any]) -> Any:
        self.work.prepare()
        return run()

    def _warm_up(self, run: Step) -> list[int]:
        """The first step compiles or allocates; compiled, the second shows that it stays so.

        Returns:
            its tokens.

        Raises:
            ContractError: the tokens are not those of the bare step: it is not the same work.
        """
        tokens: list[int] = self._once(run)
        if self._case.mode == "compiled":
            self._once(run)
        if self._expected is not None and tokens != self._expected:
            raise ContractError(
                f"bench: the tokens are {tokens}, those of the bare step {self._expected}; "
                "what changes the answer is not measured"
            )
        return tokens


@dataclass(frozen=True, slots=True)
class _Shared:
    """The twin whose graph serves several profiles.

    Attributes:
        eager: check evaluations a step of each profile while it was not compiled.
    """

    guard: tocsin.Guard
    forward: Forward
    eager: dict[Profile, int]


_SHARED_ROWS = (
    (OURS, str(Profile.FULL)),
    (OURS, str(Profile.GUARD)),
    (SWITCHED, str(Profile.OFF)),
)


def _switch(guard: tocsin.Guard, profile: Profile) -> None:
    """Put a profile in force, with an empty step in which the checks follow."""
    if guard.switchboard.profile is not profile:
        guard.switchboard.set_profile(profile, "bench: the profile of the next step")
        with guard.step():
            pass


def first_line(error: BaseException) -> str:
    """What an error says first; a line that ends in a colon leads to the next."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    led_on = lines[0].endswith(":") and len(lines) > 1
    return f"{lines[0]} {lines[1]}" if led_on else lines[0]
