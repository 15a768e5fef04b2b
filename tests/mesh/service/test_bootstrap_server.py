"""The join endpoint: whatever is wrong, the answer is that of a path that does not exist."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from gatepost.access import MeshSecrets, MeshSecretStore, NodeRevoker, node_invites
from gatepost.access.node_directory import admit_node
from gatepost.delivery.abuse import AbuseKind
from gatepost.gateway.api.operations import Operations
from gatepost.gateway.app import create_app
from gatepost.gateway.monitoring.metrics import Metrics
from gatepost.listening.connection_guard import ConnectionGuard
from gatepost.mesh.bootstrap import MAX_BODY_BYTES, BootstrapAnswer, BootstrapRequest
from gatepost.mesh.service import bootstrap_server
from gatepost.mesh.service.bootstrap_server import BootstrapServer
from gatepost.mesh.service.mesh_secret_sharing import MeshSecretSharing
from gatepost.room.service.current_publisher import CurrentPublisher
from gatepost.room.service.record_announcer import RecordAnnouncer
from gatepost.room.service.room_replica import RoomReplica
from gatepost.testing import ManualClock
from tests.gateway.tools import opened
from tests.room.sample_records import key

pytestmark = pytest.mark.anyio


class Endpoint:
    """The join endpoint of ann, and the requests of a machine that may know the secrets."""

    def __init__(self, operations: Operations, replica: RoomReplica, secrets: MeshSecrets) -> None:
        self.core = operations.core
        self.replica = replica
        self.secrets = secrets
        announcer = RecordAnnouncer(replica)
        sharing = MeshSecretSharing(announcer, CurrentPublisher(replica))
        guard = ConnectionGuard(self.core.settings.room, self.core.clock)
        routes = bootstrap_server.create_routes(BootstrapServer(replica, sharing, guard))
        unused: Any = None
        self.app: Any = create_app(operations, unused, Metrics(self.core), routes)

    def request(self, **changes: object) -> bytes:
        now = self.core.clock.now() // 1000
        made = BootstrapRequest(self.secrets.cluster_token, now, "lea", key("lea").public)
        return msgspec.json.encode(msgspec.structs.replace(made, **changes))

    async def call(
        self,
        body: bytes | None = None,
        path: str | None = None,
        host: str = "127.0.0.1",
        method: str = "POST",
    ) -> httpx.Response:
        transport = httpx.ASGITransport(app=self.app, client=(host, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
            path = f"/.rb/{self.secrets.join_secret}" if path is None else path
            return await http.request(method, path, content=body or self.request())


@pytest.fixture
async def endpoint(state: Path, clock: ManualClock) -> AsyncIterator[Endpoint]:
    async with opened(state, clock, node__id="ann", bootstrap__attempts_per_min=50) as operations:
        yield await found_endpoint(operations)


async def found_endpoint(operations: Operations) -> Endpoint:
    replica = RoomReplica(operations.core)
    await replica.load_room()
    await replica.found_room(lambda tx: None)
    store = MeshSecretStore(replica.create_issuer())
    secrets = await operations.core.commit(store.rotate_secrets)
    return Endpoint(operations, replica, secrets)


def seen(answer: httpx.Response) -> tuple[int, dict[str, str], bytes]:
    return answer.status_code, dict(answer.headers), answer.content


async def test_the_secrets_give_an_invite_for_this_node_and_key_alone(endpoint: Endpoint) -> None:
    answer = await endpoint.call()
    assert answer.status_code == 200
    said = msgspec.json.decode(answer.content, type=BootstrapAnswer)
    issuer = endpoint.replica.create_issuer()
    invite = await endpoint.core.read(
        lambda tx: node_invites.find_redeemable_invite(tx, said.invite, issuer)
    )
    assert (invite.expected_node_id, invite.expected_key) == ("lea", key("lea").public)
    assert (invite.tier, invite.created_by) == ("edge", "bootstrap")


async def test_a_join_request_gives_no_place_in_the_tunnel(endpoint: Endpoint) -> None:
    """Its fields of WireGuard are no record of the room, which alone says who is in the tunnel."""
    place = {"wg_pubkey": "k" * 43 + "=", "wg_endpoint": "1.2.3.4:51820", "tunnel_ip": "10.200.0.9"}
    answer = await endpoint.call(endpoint.request(**place))
    assert answer.status_code == 200
    assert not endpoint.replica.current_room.effective.transports
    assert b"10.200.0.9" not in answer.content


async def test_the_five_fields_of_the_protocol_are_enough_where_nodes_need_no_key(
    state: Path, clock: ManualClock
) -> None:
    fields = {
        "wg_pubkey": "joiner-wireguard-pubkey",
        "wg_endpoint": "1.2.3.4:51820",
        "tunnel_ip": "10.200.200.11",
    }
    values: dict[str, object] = {"room__allow_keyless": True, "room__profile": "development"}
    for allowed, path in ((values, state), ({}, state.with_name("strict"))):
        path.mkdir(mode=0o700, exist_ok=True)
        async with opened(path, clock, node__id="ann", **allowed) as operations:
            endpoint = await found_endpoint(operations)
            times = {"request_time": operations.core.clock.now() // 1000}
            body = {"cluster_token": endpoint.secrets.cluster_token, **fields, **times}
            answer = await endpoint.call(msgspec.json.encode(body))
            half = await endpoint.call(msgspec.json.encode(body | {"node_id": "lea"}))
            nowhere = seen(await endpoint.call(path="/nowhere"))
            assert seen(half) == nowhere
            if not allowed:
                assert seen(answer) == nowhere
                continue
            said = msgspec.json.decode(answer.content)
            assert said["success"] and said["responder_node_id"] == "ann"
            (invite,) = await endpoint.core.read(node_invites.list_node_invites)
            assert (invite.expected_node_id, invite.expected_key) == (None, None)


async def test_a_member_that_joins_again_keeps_its_tier(endpoint: Endpoint) -> None:
    issuer, public = endpoint.replica.create_issuer(), key("lea").public
    await endpoint.core.commit(lambda tx: admit_node(tx, issuer, "lea", public, "backbone"))
    assert (await endpoint.call()).status_code == 200
    (invite,) = await endpoint.core.read(node_invites.list_node_invites)
    assert invite.tier == "backbone"


async def test_every_failure_is_the_404_of_a_path_that_does_not_exist(endpoint: Endpoint) -> None:
    nowhere = seen(await endpoint.call(path="/nowhere"))
    assert nowhere[0] == 404
    now, secret = endpoint.core.clock.now() // 1000, endpoint.secrets.join_secret
    failures = [
        await endpoint.call(path="/.rb/" + "x" * 43),
        await endpoint.call(path="/.rb/"),
        await endpoint.call(path=f"/.rb/{secret}/more"),
        await endpoint.call(path=f"/.rb/{secret[:-1]}"),
        await endpoint.call(path=f"/.rb/{secret}%00"),
        await endpoint.call(method="GET"),
        await endpoint.call(method="PUT"),
        await endpoint.call(method="DELETE"),
        await endpoint.call(b"not json"),
        await endpoint.call(b'{"cluster_token": 1}'),
        await endpoint.call(endpoint.request(cluster_token="wrong")),
        await endpoint.call(endpoint.request(request_time=now - 301)),
        await endpoint.call(endpoint.request(request_time=now + 60)),
        await endpoint.call(endpoint.request() + b" " * MAX_BODY_BYTES),
        await endpoint.call(endpoint.request(node_id="ann")),
        await endpoint.call(endpoint.request(node_key=endpoint.core.node.key.public)),
        # Plain HTTP from another machine.
        await endpoint.call(host="192.0.2.7"),
    ]
    assert [seen(each) for each in failures] == [nowhere] * len(failures)
    assert await endpoint.core.read(node_invites.list_node_invites) == []


async def test_options_and_head_tell_nothing_either(endpoint: Endpoint) -> None:
    for method in ("HEAD", "OPTIONS", "PATCH"):
        known = await endpoint.call(method=method)
        assert seen(known) == seen(await endpoint.call(path="/nowhere", method=method))


async def test_brute_force_is_throttled_and_named_and_harms_nobody_else(
    endpoint: Endpoint, clock: ManualClock
) -> None:
    wrong = endpoint.request(cluster_token="wrong")
    for _ in range(50):
        await endpoint.call(wrong)
    nowhere = seen(await endpoint.call(path="/nowhere"))
    assert seen(await endpoint.call()) == nowhere, "also the right secrets have to wait now"
    assert ("address:127.0.0.1", AbuseKind.TOKEN_GUESSING) in endpoint.core.abuse.counts()
    assert (await endpoint.call(host="::1")).status_code == 200
    clock.advance(60_000)
    assert (await endpoint.call()).status_code == 200


async def test_a_revoked_node_does_not_come_back(endpoint: Endpoint) -> None:
    issuer, public = endpoint.replica.create_issuer(), key("lea").public
    await endpoint.core.commit(lambda tx: admit_node(tx, issuer, "lea", public, "edge"))
    store = MeshSecretStore(issuer)
    revoker = NodeRevoker(issuer, endpoint.replica.directory, store)
    revoked = await endpoint.core.commit(
        lambda tx: revoker.revoke_node(tx, "lea", actor="operator", last_seq=0)
    )
    nowhere = seen(await endpoint.call(path="/nowhere"))
    assert seen(await endpoint.call()) == nowhere, "the secrets it knew are no longer valid"
    endpoint.secrets = revoked.secrets
    tries = [
        endpoint.request(),
        endpoint.request(node_key=key("another").public),
        endpoint.request(node_id="another"),
    ]
    for body in tries:
        assert seen(await endpoint.call(body)) == nowhere
    newcomer = endpoint.request(node_id="max", node_key=key("max").public)
    assert (await endpoint.call(newcomer)).is_success


async def test_a_gateway_without_secrets_or_that_accepts_no_joins_tells_nothing(
    state: Path, clock: ManualClock
) -> None:
    values: dict[str, object] = {"node__id": "ann", "bootstrap__accept_joins": "false"}
    async with opened(state, clock, **values) as operations:
        replica = RoomReplica(operations.core)
        await replica.load_room()
        empty = Endpoint(operations, replica, MeshSecrets(1, "ann", "c", "no join secret"))
        nowhere = seen(await empty.call(path="/nowhere"))
        assert seen(await empty.call()) == nowhere
        await replica.found_room(lambda tx: None)
        store = MeshSecretStore(replica.create_issuer())
        empty.secrets = await operations.core.commit(store.rotate_secrets)
        assert seen(await empty.call()) == nowhere
