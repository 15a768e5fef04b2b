"""Client side of joining with the join secret, given one address or the descriptor file.

1. Get the descriptor: from the file, or from any node at the address. It is public and signed. Its
   signature leads to the genesis, whose fingerprint is in the join secret.
2. Ask one gateway of the descriptor after the other for an invite, backbone nodes only. Each proves
   its key, and its TLS key if it has a pin, before it gets the secrets.
3. Join with the invite, as with any other.
"""

import logging

from gatepost.access.join_secret import JoinSecret, parse_join_secret
from gatepost.access.node_invites import read_invite_issuer
from gatepost.errors import GatepostError, InvalidRequest, NotFound, Unavailable, WrongHost
from gatepost.links.service.dialer import Dialer
from gatepost.links.service.join_client import (
    NETWORK_ERRORS,
    JoinClient,
    JoinedPeer,
    dial_error,
    http_url,
)
from gatepost.links.service.peer_selection import may_dial_loopback
from gatepost.links.service.seeds import Seed
from gatepost.mesh.bootstrap import BootstrapRequest
from gatepost.mesh.rendezvous import VerifiedDescriptor, joinable_points, verify_document
from gatepost.room import DescriptorPoint
from gatepost.room.service.room_replica import RoomReplica

log = logging.getLogger(__name__)

_MAX_ATTEMPTS = 8
_REFUSED = (
    "it does not let this machine in: the join secret may have been rotated, the clock of this"
    " machine may be wrong, or this machine was revoked"
)


class BootstrapClient:
    def __init__(self, replica: RoomReplica, dialer: Dialer) -> None:
        self._replica = replica
        self._core = replica.core
        self._dialer = dialer
        self._http = JoinClient(
            replica.core,
            replica.members,
            lambda: may_dial_loopback(replica),
            lambda: replica.onion_proxy,
        )

    async def join_mesh(
        self, via: str, descriptor: str, secret_text: str, authorities: str = ""
    ) -> JoinedPeer:
        """Join by an address (`via`) or by the text of a descriptor."""
        secret = parse_join_secret(secret_text)
        await self._replica.check_may_join()
        found = await self._get_descriptor(via, descriptor, secret)
        failures: dict[str, str] = {}
        for point in joinable_points(found.data)[:_MAX_ATTEMPTS]:
            try:
                return await self._join_through(point, via, secret, authorities)
            except (GatepostError, *NETWORK_ERRORS) as error:
                failures[point.node] = dial_error(_point_url(point), error).message
        told = "; ".join(f"{node}: {reason}" for node, reason in failures.items())
        raise Unavailable(f"no gateway of the descriptor could be joined ({told or 'it is empty'})")

    async def _get_descriptor(
        self, via: str, descriptor: str, secret: JoinSecret
    ) -> VerifiedDescriptor:
        if bool(via) == bool(descriptor):
            raise InvalidRequest("give either an address or a descriptor")
        document = descriptor.encode()
        if via:
            try:
                document = await self._http.fetch_descriptor(via)
            except NETWORK_ERRORS as error:
                raise dial_error(via, error) from None
        now = self._core.clock.now()
        return verify_document(document, now, secret.genesis_fingerprint)

    async def _join_through(
        self, point: DescriptorPoint, via: str, secret: JoinSecret, authorities: str
    ) -> JoinedPeer:
        url = _point_url(point)
        pins = () if point.tls_pin is None else (point.tls_pin,)
        seed = Seed(url, point.key, pins, authorities, from_room=url != via)
        try:
            answer = await self._http.request_invite(seed, secret, self._make_request(secret))
        except NotFound:
            raise WrongHost(_REFUSED) from None
        if read_invite_issuer(answer.invite).fingerprint != point.key:
            raise WrongHost("its invite is of another gateway; do not continue")
        log.info("%s lets this machine in", point.node)
        genesis = secret.genesis_fingerprint
        return await self._dialer.join_room(url, answer.invite, authorities, genesis)

    def _make_request(self, secret: JoinSecret) -> BootstrapRequest:
        node, transport = self._core.node, self._replica.transport
        return BootstrapRequest(
            cluster_token=secret.cluster_token,
            request_time=self._core.clock.now() // 1000,
            node_id=node.id,
            node_key=node.key.public,
            wg_pubkey=transport.wg_public_key or "",
            wg_endpoint=transport.wg_endpoint or transport.udp or "",
            tunnel_ip=transport.tunnel_ip or "",
        )


def _point_url(point: DescriptorPoint) -> str:
    return http_url(point.endpoint_ws or "")
