"""Collection: the calls of a step as they come, sorted into lanes once it is over.

What a model does between two operators is dear, what is done in one loop at the end of a step is
not. So a module whose calls were seen to stay as they are is told of by one append, and a sum or a
gated activation whose tensors are all known from other calls is not told of at all: it is put
together from them. Both are learnt from steps in which everything was told of at its time.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tocsin.checker.batching import PENDING_MAX
from tocsin.checker.counters import Counters
from tocsin.checker.course import COURSES_MAX, Course, course_of, sequence_of
from tocsin.checker.kept import KeptCalls
from tocsin.checker.lanes import ELEMENTS_MAX, Entry, Lane, Lanes, Plan, Told, unlike, versions
from tocsin.checker.sites import Site
from tocsin.core.calls import AttentionCall, ResidualCall, SwiGLUCall
from tocsin.core.seams import NOWHERE, Log, Seams

AUTOGRAD = "autograd is on: checks are for inference"

LOGGED_MAX = 1 << 16
"""A forward whose first call has more input elements is told of call by call, not put down: what
it makes is large, and would be kept in memory until the step ends."""

_PUT_TOGETHER = (ResidualCall, SwiGLUCall)
"""Calls that may consist of tensors which other calls have read or made."""

_under_inference_mode = torch.is_inference_mode_enabled


class Collection:
    """The calls of one run.

    Attributes:
        order: in order of execution: the site of a check that ran, the plan of a call that was
            sorted, or a call that waits to be.
        log: where modules put calls down while the run hears.
        lanes: of the calls that were sorted.
        revision: of the set of checks in force.
        course: that this run took, as an earlier one did; None: its calls were sorted one by one.
        news: a plan has settled, or a call can no longer be put together: see `Seams.watch`.

    Args:
        defer: False: every call comes as a record.
        prepare: finds the sites of a plan for the checks in force.
        record: hears a call as a record.
        check: checks one call of a lane at once.
        flush: checks all that was sorted.
        lost: told of a plan whose tensors were written in place.
    """

    def __init__(
        self,
        counters: Counters,
        *,
        defer: bool,
        prepare: Callable[[Plan], None],
        record: Callable[[Plan, tuple[Any, ...]], None],
        check: Callable[[Lane, list[Entry]], None],
        flush: Callable[[], None],
        lost: Callable[[Plan], None],
    ) -> None:
        """No run has begun."""
        self.order: list[Site | Plan | Told] = []
        self.log = Log()
        self.lanes = Lanes()
        self.kept = KeptCalls()
        self.defer = defer
        self.revision = 0
        self.news = False
        self._counters = counters
        self._prepare, self._record = prepare, record
        self._check, self._flush, self._lost = check, flush, lost
        self._number = 0
        self._pending = 0
        self._alone: set[tuple[str, int | None]] = set()
        self._seen: dict[Plan, tuple[Any, ...]] = {}
        self._told: list[tuple[Plan, tuple[Any, ...]]] = []
        self._repeated: dict[Plan, int] = {}
        self._read_off: dict[Plan, None] = {}
        self._courses: deque[Course] = deque(maxlen=COURSES_MAX)
        self._waited: list[Any] = []
        self._sorts = 0
        self.course: Course | None = None

    def again(self) -> None:
        """A run begins: forget what came, hear from now on."""
        self.forget()
        self._number += 1
        self._sorts, self.course = 0, None
        self.log.put = self._first

    def other_checks(self) -> None:
        """Another set of checks is in force: no lane stays, and no course."""
        self.revision += 1
        self.lanes.forget()
        self._courses.clear()

    def forget(self) -> None:
        """Let go of every tensor."""
        self.order.clear()
        self.lanes.clear()
        self.kept.clear()
        self._let_go()

    def begin_forward(self) -> None:
        """A model's forward begins; a step may have several, of different size."""
        if self.log.put is not NOWHERE:
            self.log.put = self._first

    def end(self) -> None:
        """What comes from now on belongs to no step."""
        self.log.put = NOWHERE

    def stands_alone(self, module: str, depth: int | None) -> bool:
        """Whether this module's calls must be checked at once: somebody writes into them later."""
        return (module, depth) in self._alone

    def set_alone(self, module: str, depth: int | None) -> None:
        """Check this module's calls at once from now on."""
        self._alone.add((module, depth))

    def collect(self, plan: Plan, tensors: tuple[Any, ...]) -> bool:
        """Take a call at its time; False when it must be heard as a record."""
        if plan.revision != self.revision:
            self._prepare(plan)
        if not self.defer or not plan.whole or (plan.module, plan.depth) in self._alone:
            return False
        if torch.is_grad_enabled() and not _under_inference_mode():
            self._counters.skipped[AUTOGRAD] += 1
            return True
        elements = tensors[plan.counted].numel()
        if elements > ELEMENTS_MAX or plan.kind is AttentionCall:
            lane = plan.lanes.get(tensors[0].shape)
            if lane is None or plan.run == self._number or not lane.fits(tensors):
                lane = self._learn(plan, tensors)
                if lane is None:
                    return False
            if lane.at_once:
                return self._take_now(lane, plan, tensors)
        self.order.append((plan, tensors, versions(plan, tensors)))
        self._pending += elements
        if self._pending > PENDING_MAX:
            self.sort()
            self._flush()
        return True

    def sort(self) -> list[Site | Plan]:
        """Sort the calls that wait into lanes, and put together what nothing told of.

        Returns:
            all of the run so far, in order of execution.
        """
        waiting = self.order.copy()
        self.order.clear()
        self._pending = 0
        course = self._find_course(waiting)
        if course is not None:
            return course.order
        for one in waiting:
            if type(one) is not tuple:
                self.order.append(one)
                continue
            plan, tensors = one[0], one[1]
            told = len(one) == 3
            written = unlike(plan, tensors, one[2] if told else plan.expected)
            if written and not self.still_good(plan, written, told=told):
                continue
            if told:
                self._learn_from(plan, tensors, one[2])
            if plan in self._seen:
                self._repeated[plan] = self._repeated.get(plan, 0) + 1
            self._seen[plan] = tensors
            for sum_of in plan.closes:
                if sum_of.read_off:
                    self._put_together(sum_of)
            self._sort_one(plan, (plan, tensors))
        return [one for one in self.order if not isinstance(one, tuple)]

    def _find_course(self, waiting: list[Any]) -> Course | None:
        """Sort the run as an earlier one was, if it went the same way."""
        self._waited = []
        self._sorts += 1
        if self._sorts > 1 or not waiting:
            return None
        sequence = sequence_of(waiting)
        for course in self._courses:
            if course.sequence == sequence and course.sort(waiting, self.lanes):
                self.order.extend(course.order)
                self.course = course
                if self.kept.bytes_max:
                    self._keep(course)
                return course
        self._waited = waiting
        return None

    def _keep(self, course: Course) -> None:
        """The calls of a course, in order of execution."""
        entries = {entry[0]: entry for lane in self.lanes.busy for entry in lane.entries}
        for one in course.order:
            if isinstance(one, Plan) and one in entries:
                self.kept.keep_entry(entries[one], 0)

    def finish(self) -> None:
        """The run is over and sorted: learn from it, let go of what only that needed."""
        if self.course is not None:
            return
        if self._waited:
            heard = [one for one in self.order if not isinstance(one, tuple)]
            course = course_of(self._waited, heard, self.lanes.busy)
            if course is not None:
                self._courses.appendleft(course)
        for plan in self._read_off:
            began = any(source in self._seen for source, _ in plan.sources)
            if plan.read_off and plan.run != self._number and began:
                self._cannot(plan)
        if self._told:
            self._find_sources()
        self._let_go()

    def _let_go(self) -> None:
        self._waited = []
        self._seen.clear()
        self._told.clear()
        self._repeated.clear()

    def _first(self, entry: Entry) -> None:
        """The first call of a forward decides how the others are taken."""
        plan, tensors = entry
        small = tensors[plan.counted].numel() <= LOGGED_MAX and not torch.is_grad_enabled()
        self.log.put = self.order.append if small else self._now
        self.log.put(entry)

    def _now(self, entry: Entry) -> None:
        if not self.collect(*entry):
            self._record(*entry)

    def _take_now(self, lane: Lane, plan: Plan, tensors: tuple[Any, ...]) -> bool:
        """Check a call whose tensors are best looked at while they are at hand."""
        plan.run = self._number
        self.order.append(plan)
        if self.kept.bytes_max:
            self.kept.keep_entry((plan, tensors), lane.nbytes)
        self._check(lane, [(plan, tensors)])
        return True

    def _learn(self, plan: Plan, tensors: tuple[Any, ...]) -> Lane | None:
        """The lane of a form that the plan has not met; None where the call must be a record."""
        if plan.run == self._number:  # the module runs a second time in this step
            return None
        return self.lanes.learn(plan, tensors)

    def _sort_one(self, plan: Plan, entry: Entry) -> None:
        if plan.revision != self.revision:
            self._prepare(plan)
        tensors = entry[1]
        lane = plan.lanes.get(tensors[0].shape)
        if lane is None or plan.run == self._number:
            lane = self._learn(plan, tensors)
        plan.run = self._number
        if lane is None or not plan.whole:
            self._record(plan, tensors)
            return
        self.order.append(plan)
        if not lane.entries:
            self.lanes.busy.append(lane)
        lane.entries.append(entry)
        if self.kept.bytes_max:
            self.kept.keep_entry(entry, 0)

    def still_good(self, plan: Plan, written: int, *, told: bool) -> bool:
        """Whether a call can be checked although somebody wrote into its tensors.

        What was put down and only *read* something that was written must have read it so, or the
        model does now what it never did before: it is checked, and told of from now on. Of what
        was written after its operator had made it, the values can say nothing.
        """
        if told:
            self.set_alone(plan.module, plan.depth)
        plan.settled, plan.restless, self.news = False, True, True
        self._courses.clear()
        if not told and written <= len(plan.activations) - plan.made:
            return True
        plan.lanes.clear()
        self._lost(plan)
        return False

    def _learn_from(self, plan: Plan, tensors: tuple[Any, ...], found: tuple[int, ...]) -> None:
        """This call's tensors were at the end of the step as they were at its time."""
        if not plan.settled and not plan.restless:
            plan.expected, plan.settled, self.news = found, True, True
        if plan.kind in _PUT_TOGETHER and not plan.sources:
            self._told.append((plan, tensors))

    def _find_sources(self) -> None:
        """Which other calls have the tensors of the sums that were told of."""
        place: dict[int, tuple[int, Plan, int]] = {}
        for index, (plan, tensors) in enumerate(self._seen.items()):
            if plan.kind in _PUT_TOGETHER or plan in self._repeated:
                continue
            for at, tensor in enumerate(tensors):
                if isinstance(tensor, Tensor):
                    place.setdefault(id(tensor), (index, plan, at))
        for plan, tensors in self._told:
            found = [place.get(id(tensor)) for tensor in tensors]
            known = [one for one in found if one is not None]
            if len(known) < len(found) or plan in self._repeated:
                continue
            if not all(source.settled for _, source, _ in known):
                continue
            plan.sources = tuple((source, at) for _, source, at in known)
            plan.expected = tuple(_version(source, at) for source, at in plan.sources)
            last = max(known, key=lambda one: one[0])[1]
            last.closes = (*last.closes, plan)
            self._read_off[plan] = None
            self.news = True

    def _put_together(self, plan: Plan) -> None:
        """The calls of its sources that belong together: each has run as often as the others."""
        calls = {
            self._repeated.get(source, 0) if source in self._seen else -1
            for source, _ in plan.sources
        }
        if len(calls) > 1:
            self._cannot(plan)
            return
        tensors = tuple([self._seen[source][at] for source, at in plan.sources])
        self._sort_one(plan, (plan, tensors))

    def _cannot(self, plan: Plan) -> None:
        """The model has gone another way: from now on the call is told of again."""
        for source, _ in plan.sources:
            source.closes = tuple(one for one in source.closes if one is not plan)
        plan.sources, plan.read_off, self.news = (), False, True
        self._courses.clear()
        reason = f"{plan.name}: its tensors were not where they used to be; it is told of again"
        self._counters.skipped[reason] += 1


def can_be_read_off(plan: Plan, seams: Seams) -> bool:
    """Whether a sum's calls are put together from others, so that nothing need tell of them."""
    log = seams.logs.get(plan.kind.operator)
    return (
        log is not None
        and bool(plan.sources)
        and all(
            seams.plans.get(source.name) is source and seams.logs.get(source.kind.operator) is log
            for source, _ in plan.sources
        )
    )


def _version(plan: Plan, at: int) -> int:
    """Version that a call's tensor has, -1 where it may be any."""
    return dict(zip(plan.activations, plan.expected, strict=True)).get(at, -1)
