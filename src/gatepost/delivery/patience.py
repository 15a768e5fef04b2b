"""How long a sender waits for what, and how often it asks again."""

import msgspec

from gatepost.clock import Clock
from gatepost.delivery.states import State


class Patience(msgspec.Struct, frozen=True):
    """Times in milliseconds."""

    accept_timeout: int = 20_000
    base_backoff: int = 2_000
    max_backoff: int = 300_000
    max_attempts: int = 15
    sla: int = 600_000
    ttl: int = 86_400_000

    def longest(self) -> dict[State, int]:
        """How long a delivery is left alone at most, by its state, before it is looked at again."""
        return {
            State.EMITTED: self.accept_timeout,
            State.RETRY_PENDING: max(self.accept_timeout, int(self.max_backoff * 1.2)),
            State.ACCEPTED: self.sla,
            State.INCIDENT: self.sla,
        }

    def backoff(self, attempt: int, clock: Clock) -> int:
        """How long after `attempt` (1 is the first) the next one is made: doubling, ± 20 %."""
        wait = min(self.base_backoff << min(attempt - 1, 20), self.max_backoff)
        jitter = int.from_bytes(clock.random(2)) / 0xFFFF * 0.4 - 0.2
        return max(1, int(wait * (1 + jitter)))
