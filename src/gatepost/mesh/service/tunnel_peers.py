"""Keeps the WireGuard tunnel of this gateway in step with the room.

Every node names its key, its endpoint and its address in the tunnel in its record `transports`.
This gateway makes a peer of each other member whose address counts, and moves to another address if
a senior node claims its own. A revoked node is not a member, so it loses its address in the tunnel.
"""

import asyncio
import contextlib

from msgspec.structs import replace

from gatepost.access.issuer import Issuer
from gatepost.config import Settings
from gatepost.errors import ConfigError
from gatepost.events import NodeKey, fingerprint_key
from gatepost.mesh.service.room_addresses import is_usable
from gatepost.mesh.transports.wireguard import (
    WireGuardPeer,
    WireGuardSetup,
    WireGuardTransport,
    interface_name,
    numeric_endpoint,
)
from gatepost.mesh.tunnel_addresses import (
    TunnelClaim,
    choose_address,
    derive_candidate,
    honoured_claims,
    parse_network,
    routed_addresses,
)
from gatepost.mesh.wireguard_keys import WireGuardIdentity, is_owner_proven
from gatepost.room import RoomChange, SharedRoom, TransportRecord
from gatepost.room.membership import OUTSIDER_RANK
from gatepost.room.service.room_replica import RoomReplica

_CHECK_SECS = 5.0
_RELEVANT_MAPS = {"nodes", "standing", "transports"}


def create_wireguard_transport(
    settings: Settings, issuer: Issuer, datagram_port: int
) -> WireGuardTransport:
    """The tunnel of this gateway, at the first address that its key gives it."""
    endpoint = settings.wireguard.endpoint
    if endpoint and numeric_endpoint(endpoint) is None:
        raise ConfigError(f"wireguard.endpoint is IP:PORT with a numeric IP, not {endpoint!r}")
    network = parse_network(settings.wireguard.network)
    name = interface_name(issuer.key.fingerprint)
    setup = WireGuardSetup(name, network, settings.wireguard.port, datagram_port)
    address = derive_candidate(network, issuer.key.fingerprint, 0)
    return WireGuardTransport(setup, WireGuardIdentity(issuer.derive_key("wireguard")), address)


class TunnelPeers:
    def __init__(self, replica: RoomReplica, transport: WireGuardTransport) -> None:
        self._replica = replica
        self._key: NodeKey = replica.core.node.key
        self._node = replica.core.node.id
        self._transport = transport
        settings = replica.core.settings.wireguard
        self._network = parse_network(settings.network)
        self._endpoint = numeric_endpoint(settings.endpoint)
        self._changed = asyncio.Event()
        replica.watch_changes(self._note_change)

    async def follow_once(self) -> None:
        """One turn of the background loop: follow the room, then wait for a change."""
        self._changed.clear()
        await self.follow_room()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CHECK_SECS):
                await self._changed.wait()

    async def follow_room(self) -> None:
        room = self._replica.room
        others = [] if room is None else self._list_claims(room)
        own = self._own_claim(room)
        address = choose_address(self._network, own, others)
        peers = [] if room is None else self._list_peers(room, address, others)
        await self._transport.configure(address, peers)
        self._replica.transport = replace(
            self._replica.transport,
            udp=self._transport.local_address or None,
            wg_public_key=self._transport.public_key,
            wg_proof=self._transport.identity.prove_owner(self._key.public),
            wg_endpoint=self._endpoint,
            tunnel_ip=address,
        )

    def _own_claim(self, room: SharedRoom | None) -> TunnelClaim:
        member = None if room is None else room.effective.nodes.get(self._node)
        rank = OUTSIDER_RANK if member is None else member.rank
        address = self._transport.tunnel_ip
        return TunnelClaim(self._node, rank, address, self._key.fingerprint)

    def _list_claims(self, room: SharedRoom) -> list[TunnelClaim]:
        members, found = room.effective.nodes, room.effective.transports
        return [
            TunnelClaim(node, member.rank, record.tunnel_ip, fingerprint_key(member.public_key))
            for node, record in found.items()
            if node != self._node
            and (member := members.get(node)) is not None
            and record.tunnel_ip is not None
        ]

    def _list_peers(
        self, room: SharedRoom, own_address: str, claims: list[TunnelClaim]
    ) -> list[WireGuardPeer]:
        """One peer for each address, whose node has proved that its key is its own."""
        routed = routed_addresses(honoured_claims(self._network, claims))
        return [
            WireGuardPeer(record.wg_public_key, address, self._choose_endpoint(record), node)
            for node, address in routed.items()
            if address != own_address
            and (record := room.effective.transports[node]).wg_public_key is not None
            and is_owner_proven(
                record.wg_public_key, record.wg_proof or "", room.effective.nodes[node].public_key
            )
        ]

    def _choose_endpoint(self, record: TransportRecord) -> str | None:
        """The endpoint that a member names, unless it is on this machine or cannot be a host."""
        endpoint = numeric_endpoint(record.wg_endpoint)
        allowed = self._replica.core.settings.room.dial_loopback
        is_good = endpoint is not None and is_usable(endpoint, allow_loopback=allowed)
        return endpoint if is_good else None

    def _note_change(self, change: RoomChange | None) -> None:
        if change is None or any(signed.map in _RELEVANT_MAPS for signed in change.changed):
            self._changed.set()
