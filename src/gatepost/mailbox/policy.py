"""How patient a mailbox is."""

import msgspec


class Policy(msgspec.Struct, frozen=True):
    """Times in milliseconds."""

    max_retries: int = 3
    base_backoff: int = 5_000
    inflight_timeout: int = 30_000
    ttl: int = 86_400_000
    max_pending: int = 1_000_000

    def backoff(self, attempt: int) -> int:
        """How long the message whose `attempt` just failed waits: base, twice, four times..."""
        return self.base_backoff << min(attempt, 32)

    def exhausted(self, attempt: int) -> bool:
        """Whether `attempt` (0 is the first delivery) was the last one allowed."""
        return attempt >= self.max_retries
