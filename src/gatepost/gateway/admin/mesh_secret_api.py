"""Operator API of the mesh secrets (/v1/mesh/secrets): show the join secret, rotate it."""

from typing import Any

from gatepost.access import MeshSecrets
from gatepost.access.join_secret import JoinSecret
from gatepost.errors import Forbidden, Unavailable
from gatepost.events import fingerprint_key
from gatepost.listening.route_decorators import get, post
from gatepost.mesh.onion.onion_identity import master_identity
from gatepost.mesh.service.mesh_secret_sharing import MeshSecretSharing
from gatepost.room import MeshSecretRecord
from gatepost.room.roles import may_write
from gatepost.room.service.room_replica import RoomReplica
from gatepost.wire.mesh_views import MeshSecretView


def create_routes(sharing: MeshSecretSharing, replica: RoomReplica) -> list[Any]:
    def view_secrets(secrets: MeshSecrets | None) -> MeshSecretView:
        genesis = replica.current_room.genesis
        if secrets is None:
            raise Unavailable(
                "this gateway has not received the mesh secrets yet; wait until it is connected"
            )
        join = JoinSecret.of_mesh(fingerprint_key(genesis.key), secrets)
        master = master_identity(secrets).host
        return MeshSecretView(secrets.version, secrets.rotated_by, join.text, master)

    @get("/v1/mesh/secrets", summary="The secret by which machines join without an invite")
    async def show() -> MeshSecretView:
        return view_secrets(await sharing.current_secrets())

    @post("/v1/mesh/secrets/rotate", status_code=200, summary="Replace the mesh secrets")
    async def rotate() -> MeshSecretView:
        own = replica.current_room.effective.nodes.get(replica.core.node.id)
        if own is None or not may_write(own.role, MeshSecretRecord):
            raise Forbidden("only a backbone node of the room can rotate the mesh secrets")
        return view_secrets(await sharing.rotate_secrets())

    return [show, rotate]
