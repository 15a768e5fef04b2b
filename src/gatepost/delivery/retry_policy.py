"""The retry policy of deliveries: timeouts, backoff, and the number of attempts."""

import msgspec

from gatepost.clock import Clock
from gatepost.delivery.delivery_states import DeliveryState


class RetryPolicy(msgspec.Struct, frozen=True):
    """Times in milliseconds.

    `abandon_after` is how long an accepted message may stay open. `verdict_wait` is how long the
    sender of an expired message waits for a receipt from its owner.
    """

    accept_timeout: int = 20_000
    base_backoff: int = 2_000
    max_backoff: int = 300_000
    max_attempts: int = 15
    sla: int = 600_000
    ttl: int = 86_400_000
    abandon_after: int = 7 * 86_400_000
    verdict_wait: int = 65_000

    def longest_waits(self) -> dict[DeliveryState, int]:
        """The longest time that a delivery stays in each state before it is due."""
        return {
            DeliveryState.EMITTED: self.accept_timeout,
            DeliveryState.RETRY_PENDING: max(self.accept_timeout, int(self.max_backoff * 1.2)),
            DeliveryState.ACCEPTED: self.sla,
            DeliveryState.INCIDENT: self.sla,
        }

    def backoff(self, attempt: int, clock: Clock) -> int:
        """The wait after `attempt` (1 is the first): doubling, capped, ± 20 %."""
        wait = min(self.base_backoff << min(attempt - 1, 20), self.max_backoff)
        jitter = int.from_bytes(clock.random(2)) / 0xFFFF * 0.4 - 0.2
        return max(1, int(wait * (1 + jitter)))
