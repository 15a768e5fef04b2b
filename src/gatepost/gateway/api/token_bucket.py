"""Token bucket: the rate limit all clients of the local API share."""

import time

from gatepost.errors import RateLimited


class TokenBucket:
    """Allows `rate` operations per second, and `burst` at once."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._refilled_at = time.monotonic()

    def take_tokens(self, count: int) -> None:
        """Take `count` tokens, or raise RateLimited. A full bucket is enough for any `count`."""
        count = min(count, self._burst)
        now = time.monotonic()
        self._tokens = min(self._tokens + (now - self._refilled_at) * self._rate, self._burst)
        self._refilled_at = now
        if self._tokens < count:
            wait = (count - self._tokens) / self._rate
            raise RateLimited("too many operations; slow down", retry_after=round(wait, 3))
        self._tokens -= count
