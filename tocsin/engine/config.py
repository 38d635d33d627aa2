"""The engine's fixed shape: slots, pages, chunks and limits."""

from dataclasses import dataclass

from tocsin.core.errors import SpecError

BACKENDS = ("flash", "sdpa", "math")
"""Attention backends from the preferred one to the last resort."""


_AT_LEAST_ONE = (
    *("slots", "page_size", "pages", "max_model_len", "prefill_chunk", "queue_max"),
    "audit_steps",
)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """All that decides an answer's bits besides the model: the same configuration, the same bits.

    Attributes:
        slots: rows of every decode step; idle ones are computed as dummies.
        page_size: tokens of one KV page.
        pages: KV pages, not counting the null page.
        max_model_len: largest number of prompt and answer tokens of one request.
        prefill_chunk: tokens of one prefill step; a multiple of `page_size`.
        queue_max: requests that may wait.
        backends: attention backends from the preferred one to the last resort.
        prefix_cache: whether full prompt pages are kept for later requests.
        torch_threads: threads of torch; None: as they are.
        kv_scrub_pages: pages whose sums are read before a step, in turn, besides those that are
            just shared and those of a request that is about to end; None: all pages of the rows,
            with the native operators while attention's copy of them is made, else before the step.
        recomputes_max: how often one request is recomputed before it is refused.
        audit_steps: steps from one audit of the page books to the next; a large pool waits longer.
        logits_told_every: of how many tokens of an answer one has its fingerprint told, as a LOGITS
            event; 0: none. It changes no bit.
    """

    slots: int = 8
    page_size: int = 16
    pages: int = 160
    max_model_len: int = 256
    prefill_chunk: int = 32
    queue_max: int = 256
    backends: tuple[str, ...] = BACKENDS
    prefix_cache: bool = True
    torch_threads: int | None = None
    recomputes_max: int = 8
    kv_scrub_pages: int | None = None
    audit_steps: int = 32
    logits_told_every: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            SpecError: a number is out of range.
        """
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise SpecError(
                    f"engine: {name} is {getattr(self, name)}, expected at least 1; raise it"
                )
        if self.logits_told_every < 0:
            raise SpecError(
                f"engine: logits_told_every is {self.logits_told_every}, expected 0 (never) or "
                "more; raise it"
            )
        if self.kv_scrub_pages is not None and self.kv_scrub_pages < 1:
            raise SpecError(
                f"engine: kv_scrub_pages is {self.kv_scrub_pages}, expected at least 1, "
                "or None for all; raise it"
            )
        if self.prefill_chunk % self.page_size:
            raise SpecError(
                f"engine: prefill_chunk is {self.prefill_chunk}, "
                f"expected a multiple of page_size ({self.page_size}); change one of them"
            )
        if self.pages < self.pages_for(self.max_model_len):
            raise SpecError(
                f"engine: pages is {self.pages}, one request of max_model_len "
                f"{self.max_model_len} needs {self.pages_for(self.max_model_len)}; "
                "raise pages or lower max_model_len"
            )
        unknown = set(self.backends) - set(BACKENDS)
        if unknown or not self.backends:
            raise SpecError(
                f"engine: backends is {self.backends}, expected some of {BACKENDS}; correct it"
            )

    def pages_for(self, tokens: int) -> int:
        """Pages that hold so many tokens."""
        return -(-tokens // self.page_size)
