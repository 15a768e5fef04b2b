"""Rate limit of authentication attempts per source address."""

from collections import OrderedDict
from ipaddress import IPv6Address, IPv6Network, ip_address

from msgspec import Struct

from gatepost.errors import RateLimited


class SourceBucket(Struct):
    tokens: float
    at: int


class SourceRateLimiter:
    """A token bucket per source: `rate` attempts a second, `burst` at once. Time is passed in.

    At most `most` sources have a bucket. A full bucket carries no information, so the longest idle
    one is dropped for a new source once it is full. Until then all new sources share one bucket.
    Dropping a busy source instead would let an attacker with many addresses reset its own bucket.
    """

    def __init__(self, rate: float, burst: int, most: int = 10_000) -> None:
        self._rate = rate
        self._burst = burst
        self._max_sources = most
        self._buckets: OrderedDict[str, SourceBucket] = OrderedDict()
        self._shared_bucket = SourceBucket(float(burst), 0)

    def __len__(self) -> int:
        return len(self._buckets)

    def take_token(self, source: str, now: int) -> None:
        """Count one attempt at `now` (ms). RateLimited carries the time to wait."""
        bucket = self._bucket_for(source, now)
        self._refill_bucket(bucket, now)
        if bucket.tokens < 1:
            wait = (1 - bucket.tokens) / self._rate
            raise RateLimited("too many attempts; wait a little", retry_after=round(wait, 3))
        bucket.tokens -= 1

    def _bucket_for(self, source: str, now: int) -> SourceBucket:
        bucket = self._buckets.get(source)
        if bucket is None:
            bucket = self._new_bucket(source, now)
        else:
            self._buckets.move_to_end(source)
        return bucket

    def _new_bucket(self, source: str, now: int) -> SourceBucket:
        if len(self._buckets) >= self._max_sources and not self._drop_oldest(now):
            return self._shared_bucket
        return self._buckets.setdefault(source, SourceBucket(float(self._burst), now))

    def _drop_oldest(self, now: int) -> bool:
        source, bucket = next(iter(self._buckets.items()))
        self._refill_bucket(bucket, now)
        if bucket.tokens < self._burst:
            return False
        del self._buckets[source]
        return True

    def _refill_bucket(self, bucket: SourceBucket, now: int) -> None:
        # The clock may go back: never remove tokens.
        gained = max(now - bucket.at, 0) / 1000 * self._rate
        bucket.tokens = min(bucket.tokens + gained, float(self._burst))
        bucket.at = now


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
