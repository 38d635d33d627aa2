"""The small protocols through which the parts meet: gate, step, pages, backends, engine, sink."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from tocsin.core.history import Event
from tocsin.core.requests import EngineEvent, EngineStats, Request
from tocsin.core.seams import Seams
from tocsin.core.verdict import Settlement


class Sink(Protocol):
    """Where events go; never blocks and never raises."""

    def emit(self, event: Event) -> None:
        """Take one event."""
        ...


class BackendChoice(Protocol):
    """Which attention backend a step runs on: a constant, or the breaker of `checker`."""

    def choose(self) -> str:
        """Name of the backend for the next step."""
        ...

    def fallback(self, backend: str) -> str | None:
        """The next backend down the chain, None at its end."""
        ...

    def succeeded(self, backend: str) -> None:
        """A step on this backend ended well."""
        ...

    def failed(self, backend: str, reason: str) -> None:
        """A step on this backend raised, or was found wrong."""
        ...


@dataclass(frozen=True, slots=True)
class PageTag:
    """Who a KV page belongs to.

    Attributes:
        owner: request id; empty when the page is free; "shared" when the prefix index holds it.
        epoch: grows by one each time the page is allocated.
        first_position: position of the page's first token in its sequence.
        length: tokens written so far.
        holders: requests whose tables point at the page.
    """

    owner: str
    epoch: int
    first_position: int
    length: int
    holders: tuple[str, ...] = ()


class PageStore(Protocol):
    """Paged KV memory: `data` [P, depth, 2, B, K*E]; index 0 of the third axis is K, 1 is V."""

    data: Tensor
    page_size: int
    prefix_index: dict[tuple[int, ...], int]
    """Page of each known prefix, by all its tokens; a fault may misdirect it."""
    limit: int | None
    """Pages that may be in use at a time, None: all of them; for faults alone."""

    def tag(self, page: int) -> PageTag:
        """Who the page belongs to."""
        ...

    def verify(self, pages: Sequence[int]) -> tuple[int, ...]:
        """Those of the pages whose contents no longer have the sums recorded when written."""
        ...

    def zero(self, pages: Sequence[int]) -> None:
        """Overwrite the pages with zeros and record the sums of zeros."""
        ...

    def table(self, request_id: str) -> tuple[int, ...]:
        """Pages of a running request in order of position; empty for an unknown request."""
        ...

    def running(self) -> tuple[str, ...]:
        """Requests that hold pages."""
        ...

    def miscount(self, page: int) -> None:
        """Give a private page back although a table still names it: for faults alone."""
        ...

    def recount(self, page: int, tag: PageTag) -> None:
        """Take a miscounted page out of the free ones and tag it as before, if it is still free."""
        ...

    def prefix(self, page: int) -> tuple[int, ...]:
        """All tokens up to the end of a page of the prefix index; empty for any other page."""
        ...

    def mislay(self, request_id: str, count: int) -> tuple[int, ...]:
        """Count so many free pages as an ended request's, as a missed free leaves them.

        For faults alone.

        Returns:
            The pages that are counted as its own now.
        """
        ...

    def release(self, request_id: str) -> None:
        """Let go of all pages of a request; their contents stay as they are."""
        ...


class StepAttempt(Protocol):
    """One engine step that can be run again: same rows, same shape, same random draws."""

    step: int
    kind: str
    request_ids: tuple[str, ...]
    backend: str

    def run(self, backend: str | None = None) -> None:
        """Undo what an earlier run of this step wrote (and zero it), then run it (again).

        Args:
            backend: attention backend; None: the one of the last run.

        Raises:
            BackendError: the backend raised; the step may be run again on another one.
        """
        ...

    def tokens(self) -> tuple[int, ...]:
        """The token that each row would release; -1 for an idle or prefilling row."""
        ...

    def corrupt_pages(self) -> tuple[int, ...]:
        """Pages read by this step whose sums or tags are wrong."""
        ...

    def quarantine(self, pages: Sequence[int]) -> tuple[str, ...]:
        """Take the pages out of use and of the prefix index, zero them, verify, give them back.

        Returns:
            The requests whose tables pointed at them: each must be recomputed.
        """
        ...


class Gate(Protocol):
    """Holds the tokens of a step until its verdict is in, and decides what becomes of them."""

    def open(self, attempt: StepAttempt) -> None:
        """A step begins (or is run again): forget what the checks said so far."""
        ...

    def may_launch(self) -> bool:
        """Whether the host-side checks allow the launch; reads no device memory."""
        ...

    def settle(self, attempt: StepAttempt, error: Exception | None) -> Settlement:
        """Read the verdict, climb the recovery ladder if need be, decide for each row.

        Args:
            attempt: the step, already run once.
            error: what the run raised, None when it came through.
        """
        ...


class Engine(Protocol):
    """All that `ray_jobs` and `chaos` know of an engine."""

    seams: Seams
    pages: PageStore
    model: nn.Module

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            SpecError: the request cannot be served at all (empty, too long, unknown token ids).
            CapacityError: the queue is full; try later.
        """
        ...

    def step(self) -> tuple[EngineEvent, ...]:
        """Run one step if there is work; returns what leaves the engine, in order."""
        ...

    def cancel(self, request_id: str) -> None:
        """End a request and free its pages; unknown ids are ignored."""
        ...

    def stats(self) -> EngineStats:
        """A reading between two steps."""
        ...
