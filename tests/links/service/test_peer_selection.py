"""Which gateways are dialled, and that nobody can stand in the way of another."""

import pytest
from msgspec.structs import replace

from gatepost.config import RoomSettings
from gatepost.events import fingerprint_key
from gatepost.links.service.peer_selection import PeerSelection, may_dial_loopback
from gatepost.links.service.seeds import Seed, store_seed
from gatepost.room import RecordAuthor
from gatepost.room.admission_chain import sign_admission
from gatepost.room.service.room_replica import RoomReplica
from gatepost.room.signed_record import sign_record
from tests.room.sample_records import key, node

pytestmark = pytest.mark.anyio
ENDPOINT, URL = "wss://true.example:7433", "https://true.example:7433"


def admit(replica: RoomReplica, name: str, endpoint: str | None) -> str:
    """Put a backbone member with this address into the room; returns its fingerprint."""
    room, now = replica.current_room, replica.core.clock.now()
    issuer = replica.core.node
    link = sign_admission(issuer.key, issuer.id, name, key(name).public, "backbone", now)
    who = RecordAuthor(key(name), replica.chain_for(link))
    record = replace(node(who, room.genesis), endpoint_ws=endpoint)
    signed = sign_record(who, "nodes", name, 1, now, record)
    room.accept_record(signed.text, signed.signature)
    return fingerprint_key(key(name).public)


def use_settings(replica: RoomReplica, monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    settings = replica.core.settings
    room = RoomSettings(**changes)  # type: ignore[arg-type]
    monkeypatch.setattr(replica.core, "settings", replace(settings, room=room))


async def test_who_names_the_address_of_another_does_not_replace_it(replica: RoomReplica) -> None:
    """Whoever came last was expected there, and the true gateway was not dialled any more."""
    ben, eve = (admit(replica, name, ENDPOINT) for name in ("ben", "eve"))
    found = await PeerSelection(replica).find_seeds()
    assert found.keys() == {(URL, ben), (URL, eve)}
    assert all(seed.from_room for seed in found.values())


async def test_an_address_of_the_operator_is_not_taken_over(
    replica: RoomReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_settings(replica, monkeypatch, seeds=(URL,))
    admit(replica, "eve", ENDPOINT)
    found = await PeerSelection(replica).find_seeds()
    assert found.keys() == {(URL, None)}
    joined = Seed(URL, fingerprint_key(key("ben").public))
    await replica.core.commit(lambda tx: store_seed(tx, joined))
    found = await PeerSelection(replica).find_seeds()
    assert found[URL, joined.fingerprint] == joined
    assert not found[URL, joined.fingerprint].from_room


async def test_a_gateway_does_not_dial_the_address_it_has_itself(replica: RoomReplica) -> None:
    replica.endpoint = ENDPOINT
    admit(replica, "eve", ENDPOINT)
    assert await PeerSelection(replica).find_seeds() == {}


@pytest.mark.parametrize(
    ("own", "dial_loopback", "allowed"),
    [
        (None, False, False),
        (ENDPOINT, False, False),
        (ENDPOINT, True, True),
        ("ws://127.0.0.1:7433", False, True),
    ],
)
async def test_loopback_is_for_gateways_on_loopback(
    replica: RoomReplica,
    monkeypatch: pytest.MonkeyPatch,
    own: str | None,
    dial_loopback: bool,
    allowed: bool,
) -> None:
    use_settings(replica, monkeypatch, dial_loopback=dial_loopback)
    replica.endpoint = own
    admit(replica, "eve", "ws://localhost:6379")
    assert may_dial_loopback(replica) == allowed
    assert bool(await PeerSelection(replica).find_seeds()) == allowed
