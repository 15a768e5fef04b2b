"""Rate limits: a token bucket, and one bucket per source address."""

from collections import OrderedDict
from functools import lru_cache
from ipaddress import IPv6Address, IPv6Network, ip_address

from gatepost.clock import Clock
from gatepost.errors import RateLimited


class TokenBucket:
    """Allows `rate` requests per second, and `burst` at once."""

    __slots__ = ("_burst", "_clock", "_rate", "_refilled_at", "_tokens")

    def __init__(self, rate: float, burst: int, clock: Clock) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._refilled_at = clock.now()

    def take_tokens(self, count: int) -> None:
        """Take `count` tokens, or raise RateLimited. A full bucket is enough for any `count`."""
        if not self.try_take(count):
            wait = (min(count, self._burst) - self._tokens) / self._rate
            raise RateLimited("too many requests; slow down", retry_after=round(wait, 3))

    def try_take(self, count: int = 1) -> bool:
        """Take `count` tokens; False, and nothing is taken, if there are fewer."""
        self._refill()
        count = min(count, self._burst)
        if self._tokens < count:
            return False
        self._tokens -= count
        return True

    def is_full(self) -> bool:
        self._refill()
        return self._tokens >= self._burst

    def _refill(self) -> None:
        now = self._clock.now()
        # The clock may go back: never remove tokens.
        gained = max(now - self._refilled_at, 0) / 1000 * self._rate
        self._tokens = min(self._tokens + gained, float(self._burst))
        self._refilled_at = now


class SourceRateLimiter:
    """A token bucket per source: `rate` attempts a second, `burst` at once.

    At most `most` sources have a bucket. A full bucket carries no information, so the longest idle
    one is dropped for a new source once it is full. Until then all new sources share one bucket.
    Dropping a busy source instead would let an attacker with many addresses reset its own bucket.
    """

    def __init__(self, rate: float, burst: int, clock: Clock, most: int = 10_000) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._max_sources = most
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()
        self._shared_bucket = self._new_bucket()

    def __len__(self) -> int:
        return len(self._buckets)

    def take_token(self, source: str, count: int = 1) -> None:
        """Count one attempt, or several. RateLimited carries the time to wait."""
        self._bucket_for(source).take_tokens(count)

    def try_take(self, source: str, count: int = 1) -> bool:
        """Count one attempt, or several; False, and none is counted, if these are too many."""
        return self._bucket_for(source).try_take(count)

    def _bucket_for(self, source: str) -> TokenBucket:
        if (bucket := self._buckets.get(source)) is not None:
            self._buckets.move_to_end(source)
            return bucket
        if len(self._buckets) >= self._max_sources and not self._drop_oldest():
            return self._shared_bucket
        return self._buckets.setdefault(source, self._new_bucket())

    def _new_bucket(self) -> TokenBucket:
        return TokenBucket(self._rate, self._burst, self._clock)

    def _drop_oldest(self) -> bool:
        source, bucket = next(iter(self._buckets.items()))
        if not bucket.is_full():
            return False
        del self._buckets[source]
        return True


@lru_cache(maxsize=1024)
def rate_limit_source(host: str) -> str:
    """The source of a host: its IPv4 address, or the /64 network that one IPv6 user controls."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Network((int(address), 64), strict=False))
