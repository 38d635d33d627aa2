"""At most so many messages in any minute: a bucket whose tokens come back a minute after use."""

from collections import deque

from tocsin.core.clock import Clock

_MARGIN_NS = 1_000_000_000  # their minute and ours do not begin together


class TokenBucket:
    """Exact over every window: a bucket that refills evenly lets twice the limit through a window
    that begins with a full bucket, and the robots punish that with minutes of silence.
    """

    def __init__(self, tokens: int, clock: Clock, per_s: float = 60.0) -> None:
        """Full.

        Raises:
            ValueError: there is no token.
        """
        if tokens < 1:
            raise ValueError(f"bucket: tokens is {tokens}, expected at least 1")
        self.tokens = tokens
        self._clock = clock
        self._span_ns = int(per_s * 1e9) + _MARGIN_NS
        self._used_ns: deque[int] = deque()

    def left(self) -> int:
        """Tokens that may be taken now."""
        now_ns = self._clock.now_ns()
        while self._used_ns and now_ns - self._used_ns[0] >= self._span_ns:
            self._used_ns.popleft()
        return self.tokens - len(self._used_ns)

    def take(self) -> None:
        """Use one.

        Raises:
            ValueError: none is left.
        """
        if self.left() < 1:
            raise ValueError("bucket: no token is left; ask left() first")
        self._used_ns.append(self._clock.now_ns())

    def wait_s(self, wanted: int = 1) -> float:
        """Seconds until `wanted` tokens are there, 0 if they are."""
        short = wanted - self.left()
        if short <= 0:
            return 0.0
        return max(0.0, (self._used_ns[short - 1] + self._span_ns - self._clock.now_ns()) / 1e9)
