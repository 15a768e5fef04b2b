"""The identity of this gateway, for everything that signs, encrypts or numbers."""

from gatepost.clock import Clock
from gatepost.events import EventIdGenerator, NodeKey, PayloadCipher


class LocalNode:
    def __init__(self, id: str, incarnation: str, key: NodeKey, clock: Clock) -> None:
        self.id = id
        self.incarnation = incarnation
        self.key = key
        self.clock = clock
        self.cipher = PayloadCipher(key, clock)
        self.event_ids = EventIdGenerator(clock)
