"""Selects the gateways to dial: named by the operator, joined through, or members of the room."""

import random
from urllib.parse import urlsplit

from msgspec.structs import replace

from gatepost.config import is_loopback
from gatepost.events import fingerprint_key
from gatepost.links.service.join_client import http_url, is_onion_url
from gatepost.links.service.seeds import Seed, load_seeds
from gatepost.room import RoomMember
from gatepost.room.service.room_replica import RoomReplica

_MAX_BACKBONE_PEERS = 8
_MAX_MAIL_PEERS = 256

# An address and the key that is expected there. Two members may name the same address; a false
# claim must not keep others from dialling the true one.
SeedKey = tuple[str, str | None]


class PeerSelection:
    """Chooses from the settings, the journal and the room."""

    def __init__(self, replica: RoomReplica) -> None:
        self._replica = replica
        self._core = replica.core

    async def find_seeds(self) -> dict[SeedKey, Seed]:
        stored = await self._core.read(load_seeds)
        authorities = "\n".join(dict.fromkeys(seed.authorities for seed in stored))
        joined = {seed.url for seed in stored}
        named = [
            Seed(url, None, (), authorities)
            for url in self._core.settings.room.seeds
            if url not in joined
        ]
        # At an address that the operator named, any member is accepted already.
        taken = {seed.url for seed in named} | {self._own_url()}
        members = [each for each in self._member_seeds(authorities) if each.url not in taken]
        known = [self._refresh_pins(seed) for seed in stored]
        return {(seed.url, seed.fingerprint): seed for seed in (*named, *members, *known)}

    def with_member_pins(self, seed: Seed) -> Seed:
        members = self._replica.current_room.effective.nodes.values()
        return replace(seed, tls_pins=tuple(pin for each in members for pin in _tls_pins(each)))

    async def find_member_seed(self, node: str) -> Seed | None:
        """The address of a member as the room has it; None if the room has none."""
        member = self._replica.current_room.effective.nodes.get(node)
        if member is None or member.record.endpoint_ws is None:
            return None
        stored = await self._core.read(load_seeds)
        authorities = "\n".join(dict.fromkeys(seed.authorities for seed in stored))
        return _member_seed(member, authorities)

    def _own_url(self) -> str:
        return http_url(self._replica.endpoint or "")

    def _refresh_pins(self, seed: Seed) -> Seed:
        """Prefer the pin in a member's own record to the older one of its invite."""
        for member in self._replica.current_room.effective.nodes.values():
            if fingerprint_key(member.public_key) == seed.fingerprint:
                return replace(seed, tls_pins=_tls_pins(member))
        return seed

    def _member_seeds(self, authorities: str) -> list[Seed]:
        """Return backbone nodes, a different choice per gateway, and nodes we have mail for."""
        own = self._core.node.key.public
        mail_for = self._core.delivery.parts.deliveries.destinations
        backbone, others = [], []
        for member in self._replica.current_room.effective.nodes.values():
            if member.public_key == own or not self._can_dial(member):
                continue
            seed = _member_seed(member, authorities)
            if member.is_backbone:
                backbone.append(seed)
            elif member.id in mail_for:
                others.append(seed)
        shuffle = random.Random(self._core.node.id)
        return (
            sorted(backbone, key=lambda seed: shuffle.random())[:_MAX_BACKBONE_PEERS]
            + others[:_MAX_MAIL_PEERS]
        )

    def _can_dial(self, member: RoomMember) -> bool:
        """A loopback address of a member can be dialled only on the member's machine.

        The addresses of a name are checked when it is dialled.
        """
        endpoint = member.record.endpoint_ws
        if endpoint is not None and is_onion_url(endpoint):
            return self._replica.onion_proxy is not None
        return endpoint is not None and (
            not is_loopback_url(endpoint) or may_dial_loopback(self._replica)
        )


def may_dial_loopback(replica: RoomReplica) -> bool:
    """Whether to dial loopback: this gateway listens there only, or the settings allow it."""
    ours = replica.endpoint
    is_local = ours is not None and is_loopback_url(ours)
    return is_local or replica.core.settings.room.dial_loopback


def is_loopback_url(url: str) -> bool:
    return is_loopback(urlsplit(url).hostname or "")


def _member_seed(member: RoomMember, authorities: str) -> Seed:
    url, key = http_url(member.record.endpoint_ws or ""), fingerprint_key(member.public_key)
    return Seed(url, key, _tls_pins(member), authorities, from_room=True)


def _tls_pins(member: RoomMember) -> tuple[str, ...]:
    return () if member.record.tls_pin is None else (member.record.tls_pin,)
