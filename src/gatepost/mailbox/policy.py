"""The limits and timeouts of a mailbox."""

import msgspec

from gatepost.errors import ExpiresTooSoon, InvalidRequest

MAX_DELAY_MS = 10 * 365 * 86_400_000


class MailboxPolicy(msgspec.Struct, frozen=True):
    """Retries, timeouts and capacity of every mailbox. Times are in milliseconds."""

    max_retries: int = 3
    base_backoff: int = 5_000
    inflight_timeout: int = 30_000
    ttl: int = 86_400_000
    max_pending: int = 1_000_000
    max_payload_bytes: int = 1024 * 1024

    def backoff_after(self, attempt: int) -> int:
        """Return the wait after `attempt` (0 is the first) failed; it doubles with each attempt."""
        return self.base_backoff << min(attempt, 32)

    def is_exhausted(self, attempt: int, max_retries: int | None = None) -> bool:
        """Tell whether `attempt` (0 is the first delivery) was the last one allowed.

        `max_retries` is the message's own limit, if it has one.
        """
        return attempt >= (self.max_retries if max_retries is None else max_retries)

    def expiry(self, now: int, ttl: int | None, not_before: int) -> int:
        """Return when mail expires: the default TTL begins when the mail is due."""
        return max(now, not_before) + self.ttl if ttl is None else now + ttl


def check_delay(now: int, not_before: int, ttl: int | None) -> None:
    """Refuse a message that would expire before it is due, or whose due time is out of range."""
    if not_before - now > MAX_DELAY_MS:
        raise InvalidRequest("`not_before` is more than ten years ahead")
    if ttl is not None and not_before >= now + ttl:
        raise ExpiresTooSoon("the message would expire before `not_before`: give it more time")
