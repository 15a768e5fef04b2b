"""The gateway's own identity as the issuer of invites, tickets and admissions."""

from hashlib import blake2b

from msgspec import Struct

from gatepost.clock import Clock
from gatepost.events import NodeKey, frame_parts
from gatepost.wire.operations import Tier


class Issuer(Struct, frozen=True):
    id: str
    key: NodeKey
    clock: Clock
    tier: Tier = "backbone"

    def derive_key(self, purpose: str) -> bytes:
        """Derive a secret for one purpose. It does not reveal the node's own key."""
        domain = frame_parts("gatepost/derive/1", purpose.encode())
        return blake2b(domain, key=self.key.secret, digest_size=32).digest()
