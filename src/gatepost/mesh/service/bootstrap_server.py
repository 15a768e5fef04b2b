"""Server side of joining with the join secret: `POST /.rb/<join_secret>`.

A machine that has the secrets gets an invite. Any other request gets the 404 of an unknown path,
whatever its fault: the method, the secret, the body, the time, a revoked node, too many attempts,
or a gateway that admits no machine. So an attacker does not learn that there is anything to guess.
"""

import logging
from typing import Any

import msgspec
from litestar import HttpMethod, MediaType, Response, route
from litestar.exceptions import NotFoundException

from gatepost.access import Issuer, node_invites
from gatepost.access.node_directory import KnownNode, check_node_identity
from gatepost.errors import Forbidden, GatepostError, PayloadTooLarge
from gatepost.journal import Tx
from gatepost.listening.connection_guard import ConnectionGuard
from gatepost.listening.connection_pool import connection_source
from gatepost.listening.operator_access import GuessLimit
from gatepost.listening.route_parameters import AnyRequest
from gatepost.mesh.bootstrap import (
    BOOTSTRAP_PREFIX,
    MAX_BODY_BYTES,
    BootstrapAnswer,
    BootstrapRequest,
    decode_request,
    describe_peer,
    is_granted,
    list_known_peers,
)
from gatepost.mesh.service.mesh_secret_sharing import MeshSecretSharing
from gatepost.room.service.room_replica import RoomReplica

log = logging.getLogger(__name__)

_INVITE_MS = 600_000
_ALL_METHODS = list(HttpMethod)


class BootstrapServer:
    def __init__(
        self, replica: RoomReplica, sharing: MeshSecretSharing, guard: ConnectionGuard
    ) -> None:
        self._replica = replica
        self._core = replica.core
        self._sharing = sharing
        self._guard = guard
        self._settings = replica.core.settings.bootstrap
        per_minute = self._settings.attempts_per_min
        self._attempts = GuessLimit(per_minute, replica.core.abuse, replica.core.clock)

    async def answer_request(self, request: AnyRequest, path_secret: str) -> BootstrapAnswer | None:
        """The answer to a machine that may join; None for any other, whatever the reason."""
        try:
            self._attempts.note_guess(connection_source(request))
            self._guard.require_tls(request)
            if request.method != "POST" or not self._settings.accept_joins:
                raise Forbidden("joining this way is switched off")
            asked = decode_request(await _read_body(request))
            secrets = await self._sharing.current_secrets()
            granted = is_granted(secrets, path_secret, asked, self._core.clock.now())
            if asked is None or not granted:
                raise Forbidden("the secrets do not match, or the request is old")
            return await self._invite_node(asked)
        except GatepostError as error:
            log.debug("a machine did not join by the join secret: %s", error.code)
        except Exception:
            log.exception("a request to join with the join secret failed")
        return None

    async def _invite_node(self, asked: BootstrapRequest) -> BootstrapAnswer:
        room, own = self._replica.current_room, self._core.node.id
        issued = await self._core.commit(lambda tx: self._issue_invite(tx, asked))
        log.info("%s may join: it has the join secret", asked.node_id or "a machine without a key")
        ours = describe_peer(room, own)
        return BootstrapAnswer(
            success=True,
            responder_node_id=own,
            responder_wg_pubkey=ours.wg_pubkey,
            responder_wg_endpoint=ours.wg_endpoint,
            responder_tunnel_ip=ours.tunnel_ip,
            known_peers=list_known_peers(room, own, asked.node_id or ""),
            invite=issued.token,
        )

    def _issue_invite(self, tx: Tx, asked: BootstrapRequest) -> node_invites.IssuedNodeInvite:
        """Issue an invite for this node and key alone; a revoked node gets none."""
        issuer = self._replica.create_issuer()
        known = self._find_known(tx, issuer, asked)
        return node_invites.issue_node_invite(
            tx,
            issuer,
            # A member that joins again keeps its tier.
            tier=self._settings.tier if known is None else known.tier,
            ttl=_INVITE_MS,
            actor="bootstrap",
            expected_node_id=asked.node_id,
            expected_key=asked.node_key,
            tls_pin=self._replica.tls_pin,
        )

    def _find_known(self, tx: Tx, issuer: Issuer, asked: BootstrapRequest) -> KnownNode | None:
        if asked.is_keyless and self._replica.policy.allow_keyless:
            return None
        if asked.node_id is None or asked.node_key is None:
            raise Forbidden("the request names no node and key")
        identity = (asked.node_id, asked.node_key)
        return check_node_identity(tx, self._replica.directory, issuer, *identity)


def create_routes(server: BootstrapServer) -> list[Any]:
    @route(
        BOOTSTRAP_PREFIX + "/{secret:path}",
        http_method=_ALL_METHODS,
        opt={"open": True},
        include_in_schema=False,
    )
    async def bootstrap(request: AnyRequest) -> Response[bytes]:
        path_secret = request.scope["path"].removeprefix(f"{BOOTSTRAP_PREFIX}/")
        answer = await server.answer_request(request, path_secret)
        if answer is None:
            raise NotFoundException
        return Response(msgspec.json.encode(answer), status_code=200, media_type=MediaType.JSON)

    return [bootstrap]


async def _read_body(request: AnyRequest) -> bytes:
    """Read the body, but no more than the limit."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise PayloadTooLarge("the request is too long")
    return bytes(body)
