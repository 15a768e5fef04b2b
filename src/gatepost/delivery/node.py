"""Who this gateway is, for everything that signs, seals or numbers."""

from gatepost.clock import Clock
from gatepost.events import EventIdGenerator, NodeKey, PayloadCipher


class Node:
    def __init__(self, id: str, incarnation: str, key: NodeKey, clock: Clock) -> None:
        self.id = id
        self.incarnation = incarnation
        self.key = key
        self.clock = clock
        self.sealer = PayloadCipher(key, clock)
        self.event_ids = EventIdGenerator(clock)
