"""The gateway in its role at the door: the one who signs."""

from hashlib import blake2b

from msgspec import Struct

from gatepost.clock import Clock
from gatepost.events import NodeKey, frame
from gatepost.wire import Tier


class Issuer(Struct, frozen=True):
    id: str
    key: NodeKey
    clock: Clock
    tier: Tier = "backbone"

    def derive(self, purpose: str) -> bytes:
        """A secret key of this node for one purpose, from which its own key cannot be told."""
        domain = frame("gatepost/derive/1", purpose.encode())
        return blake2b(domain, key=self.key.secret, digest_size=32).digest()
