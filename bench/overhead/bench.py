"""The run: case after case within the plan's time; the report is valid at any moment."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import nn

from tocsin.bench.competitors.competitor import Competitor
from tocsin.bench.overhead import engines, schema
from tocsin.bench.overhead.plan import Case, Plan
from tocsin.bench.overhead.rounds import Rounds, Samples, Variant
from tocsin.bench.overhead.variants import CANNOT_COMPILE, Builder, Prepared, first_line, names_of
from tocsin.core.errors import SpecError, TocsinError

PAIRS_OF_AN_INTERRUPTED_CASE_MIN = 3
"""Fewer rounds say nothing about quartiles."""

_TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Listener(Protocol):
    """Who is told how far the run is."""

    def case(self, case: Case, number: int, of: int) -> None:
        """A case begins."""
        ...

    def variant(self, name: str) -> None:
        """A variant of it is attached, compiled or warmed up."""
        ...

    def pairs(self, pairs: int) -> None:
        """So many rounds are done."""
        ...


@dataclass(slots=True)
class Bench:
    """Measures a plan.

    Attributes:
        load: a dtype → the bare model and a function from text to token ids.
        competitors: who runs beside us.
        output: where the report goes.
        seed: of the order of the variants.
        device: where the model runs. A step ends when its tokens are on the host, so on a GPU
            the ratios are of wall clock: the process only waits there.
        earlier: a report to go on with; its cases are not measured again.
        monotonic: seconds, for the time that the plan allows.
    """

    load: Callable[[torch.dtype], tuple[nn.Module, torch.Tensor]]
    competitors: Sequence[Competitor]
    output: Path
    seed: int
    listener: Listener
    device: Literal["cpu", "cuda"] = "cpu"
    earlier: schema.Overhead | None = None
    monotonic: Callable[[], float] = time.monotonic
    _rows: list[schema.OverheadRow] = field(default_factory=list)
    _unmeasured: list[schema.Unmeasured] = field(default_factory=list)
    _details: list[schema.Detail] = field(default_factory=list)
    _work: list[schema.Work] = field(default_factory=list)
    _models: dict[str, tuple[nn.Module, torch.Tensor]] = field(default_factory=dict)

    def run(self, plan: Plan) -> schema.Overhead:
        """Measure every case; the report on disk is whole and valid at any moment.

        Raises:
            SpecError: the earlier report was measured otherwise.
            KeyboardInterrupt: as it came, after what is known was written.
        """
        begun_s = self.monotonic()
        draw = random.Random(self.seed)
        if self.earlier is not None:
            plan = self._go_on(self.earlier, plan)
        self._save(plan, complete=False)
        shares = [case.share for case in plan.cases]
        for number, case in enumerate(plan.cases):
            now_s = self.monotonic()
            deadline_s = None
            if plan.budget_s is not None:
                # What earlier cases left over is shared among those that are still to come.
                left_s = begun_s + plan.budget_s - now_s
                deadline_s = now_s + left_s * shares[number] / sum(shares[number:])
                if left_s <= 0:
                    self._missed(case, f"no time was left of {plan.budget_s:.0f} s")
                    continue
            self.listener.case(case, number + 1, len(plan.cases))
            try:
                with torch.no_grad():
                    cpu = time.process_time if self.device == "cpu" else time.perf_counter
                    self._measure(case, Rounds(draw, cpu), deadline_s)
            except (*CANNOT_COMPILE, TocsinError) as error:
                self._missed(case, f"ended by an error: {first_line(error)}")
            except KeyboardInterrupt:
                for rest in plan.cases[number + 1 :]:
                    self._missed(rest, "the run was interrupted before")
                self._save(plan, complete=False)
                raise
            self._save(plan, complete=False)
        return self._save(plan, complete=True)

    def _go_on(self, earlier: schema.Overhead, plan: Plan) -> Plan:
        """Take over what the earlier report measured, and leave what it lacks of the plan."""
        if earlier.protocol != self._protocol(plan):
            raise SpecError(
                f"bench: {self.output} was measured otherwise ({earlier.protocol}), expected "
                f"{self._protocol(plan)}; name another --output, or leave --resume out"
            )
        left = [
            case for case in plan.cases if not any(_is_whole(one, case) for one in earlier.work)
        ]

        def stays(row: schema.Place) -> bool:
            return not any(_belongs(row, case) for case in left)

        self._rows += filter(stays, earlier.rows)
        self._details += filter(stays, earlier.details)
        self._unmeasured += filter(stays, earlier.unmeasured)
        self._work += [one for one in earlier.work if not any(_is_of(one, case) for case in left)]
        return replace(plan, cases=tuple(left))

    def _measure(self, case: Case, rounds: Rounds, deadline_s: float | None) -> None:
        def time_left() -> bool:
            return deadline_s is None or self.monotonic() < deadline_s

        prepared = Prepared()
        try:
            prepared = self._prepare(case, time_left)

            def enough(samples: Samples) -> bool:
                if samples.pairs < case.pairs_min:
                    return False
                if samples.pairs >= case.pairs_max or not time_left():
                    return True
                return samples.pairs % 5 == 0 and _all_resolved(prepared.variants, samples)

            if prepared.variants:
                rounds.run(prepared.variants, enough, self.listener.pairs, prepared.settle)
        except KeyboardInterrupt:
            if rounds.samples.pairs >= PAIRS_OF_AN_INTERRUPTED_CASE_MIN:
                self._keep(case, prepared, rounds.samples)
            else:
                self._missed(case, "the run was interrupted in it")
            raise
        else:
            self._keep(case, prepared, rounds.samples)
        finally:
            prepared.close()
            if case.mode == "compiled":
                torch._dynamo.reset()

    def _prepare(self, case: Case, time_left: Callable[[], bool]) -> Prepared:
        model, tokens = self._model(case)
        told = self.listener.variant
        if case.subject == "engine":
            return engines.prepare(model, tokens, case, told)
        return Builder(model, tokens, case, self.competitors, time_left, told).prepare()

    def _model(self, case: Case) -> tuple[nn.Module, torch.Tensor]:
        if case.dtype not in self._models:
            self._models.clear()  # one dtype at a time is enough memory
            model, tokens = self.load(_TORCH[case.dtype])
            self._models[case.dtype] = model.to(self.device), tokens.to(self.device)
        return self._models[case.dtype]

    def _keep(self, case: Case, prepared: Prepared, samples: Samples) -> None:
        for index, variant in enumerate(prepared.variants):
            if index == 0:
                continue
            place = _place(case, variant.name, variant.profile)
            low, median, high = samples.quartiles(index)
            self._rows.append(
                schema.OverheadRow(
                    **place,
                    pairs=samples.pairs,
                    ratio_q25=low,
                    ratio_median=median,
                    ratio_q75=high,
                )
            )
            self._details.append(
                schema.Detail(
                    **place,
                    wall_ratio_median=samples.wall_median(index),
                    resolved=samples.resolved(index),
                    note=variant.note,
                )
            )
        self._unmeasured += [
            schema.Unmeasured(**_place(case, name, profile), reason=reason)
            for name, profile, reason in prepared.unmeasured
        ]
        if not samples.pairs:
            return
        cpu_s, wall_s = samples.bare_s()
        model, _ = self._model(case)
        whole: Any = model.config
        self._work.append(
            schema.Work(
                subject=case.subject,
                mode=case.mode,
                dtype=case.dtype,
                phase=case.phase,
                batch=case.batch,
                layers=case.layers or int(whole.num_hidden_layers),
                positions=case.positions,
                pairs=samples.pairs,
                bare_cpu_ms=cpu_s * 1e3,
                bare_wall_ms=wall_s * 1e3,
            )
        )

    def _missed(self, case: Case, reason: str) -> None:
        names = (
            engines.names() if case.subject == "engine" else names_of(self.competitors, case.mode)
        )
        self._unmeasured += [
            schema.Unmeasured(**_place(case, name, profile), reason=reason)
            for name, profile in names
        ]

    def _save(self, plan: Plan, complete: bool) -> schema.Overhead:
        report = schema.Overhead(
            rows=tuple(self._rows),
            unmeasured=tuple(self._unmeasured),
            details=tuple(self._details),
            work=tuple(self._work),
            protocol=self._protocol(plan),
            complete=complete,
        )
        schema.write(self.output, report)
        return report

    def _protocol(self, plan: Plan) -> schema.Protocol:
        return schema.Protocol(
            plan=plan.name,
            seed=self.seed,
            torch=torch.__version__,
            torch_threads=torch.get_num_threads(),
            device=torch.cuda.get_device_name() if self.device == "cuda" else "cpu",
            clock=schema.CPU_TIME if self.device == "cpu" else schema.WALL_CLOCK,
        )


def _is_of(work: schema.Work, case: Case) -> bool:
    same = ("subject", "mode", "dtype", "phase", "batch", "positions")
    return all(getattr(work, name) == getattr(case, name) for name in same)


def _is_whole(work: schema.Work, case: Case) -> bool:
    """Whether it is this case, with all the rounds that it needs."""
    return _is_of(work, case) and work.pairs >= case.pairs_min


def _belongs(row: schema.Place, case: Case) -> bool:
    of_engine = (row.name, row.profile) in engines.names()
    same = ("mode", "dtype", "phase", "batch")
    return of_engine == (case.subject == "engine") and all(
        getattr(row, name) == getattr(case, name) for name in same
    )


def _all_resolved(variants: Sequence[Variant], samples: Samples) -> bool:
    """Whether the quartiles of every row are closer together than its effect is large.

    Rows whose effect is nothing never are: for them the rounds go on to the case's maximum.
    """
    return all(samples.resolved(index) for index in range(2, len(variants)))


def _place(case: Case, name: str, profile: str) -> dict[str, Any]:
    return {
        "name": name,
        "profile": profile,
        "mode": case.mode,
        "dtype": case.dtype,
        "phase": case.phase,
        "batch": case.batch,
    }
