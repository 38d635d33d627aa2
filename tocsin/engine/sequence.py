"""A request on its way through the engine: what is known, computed and released of it."""

from dataclasses import dataclass, field

from tocsin.core.requests import Finish, Request


@dataclass(slots=True, eq=False)
class Sequence:
    """State of one request; token `i` of prompt + answer is at position `i`.

    Attributes:
        outputs: tokens of the answer that are committed, those already delivered first.
        computed: positions whose keys and values are written and committed.
        slot: row in every decode step, -1 while waiting.
        turn: order of admission; the latest is preempted first.
        degraded: reasons that the answer is labelled with.
        recomputes: how often its pages were lost to a fault.
        adopted: it holds pages from the prefix index that none of its steps has read yet.
        lost_pages: its pages were taken away under it in this step: it must be recomputed.
    """

    request: Request
    outputs: list[int] = field(default_factory=list)
    computed: int = 0
    slot: int = -1
    turn: int = -1
    degraded: tuple[str, ...] = ()
    recomputes: int = 0
    adopted: bool = False
    lost_pages: bool = False

    @classmethod
    def of(cls, request: Request) -> "Sequence":
        """A request that has just come in."""
        return cls(request=request, outputs=list(request.delivered))

    @property
    def request_id(self) -> str:
        """Id of the request."""
        return self.request.request_id

    @property
    def is_prefill(self) -> bool:
        """Whether prompt tokens are still to be computed."""
        return self.computed < len(self.request.prompt_ids)

    @property
    def longest(self) -> int:
        """Positions that the whole answer writes: its last token is not fed back."""
        return len(self.request.prompt_ids) + self.request.max_new_tokens - 1

    def token_at(self, position: int) -> int:
        """The token of the ledger at a position."""
        prompt = self.request.prompt_ids
        return prompt[position] if position < len(prompt) else self.outputs[position - len(prompt)]

    def chunk(self, chunk_size: int) -> range:
        """Positions of the next prefill step, which ends at a multiple of the chunk size."""
        end = (self.computed // chunk_size + 1) * chunk_size
        return range(self.computed, min(end, len(self.request.prompt_ids)))

    def finish(self) -> Finish | None:
        """How the answer has ended, None while it goes on."""
        request = self.request
        if self.outputs and not request.ignore_eos and self.outputs[-1] in request.stop_ids:
            return Finish.STOP
        return Finish.LENGTH if len(self.outputs) >= request.max_new_tokens else None

    def ends_with(self, token: int) -> bool:
        """Whether the answer would be over with one more token."""
        request = self.request
        stops = not request.ignore_eos and token in request.stop_ids
        return stops or len(self.outputs) + 1 >= request.max_new_tokens

    def label(self, reasons: tuple[str, ...]) -> None:
        """Add reasons to the label of the answer."""
        self.degraded = tuple(dict.fromkeys((*self.degraded, *reasons)))

    def rewind(self) -> None:
        """Back to the queue: the pages are gone, what was committed is replayed."""
        self.computed, self.slot, self.turn = 0, -1, -1
        self.lost_pages = self.adopted = False
