"""Gateways that can meet only through a relay, and payloads that travel as blobs."""

from collections.abc import Callable, Iterator

import pytest

from gatepost.delivery.frames import BlobPiece, EventsFrame, decode_frame
from simulation.gateways import AgentManners, SimulatedMesh
from simulation.gateways.forgeries import FORGERIES, wrong_piece
from simulation.gateways.network import Direction
from simulation.history import ObservedSend

PROMPT = AgentManners(think_ms=(1, 5), reply=0.0, nack=0.0, forget=0.0)
LARGE = 5_000


@pytest.fixture
def mesh() -> Iterator[SimulatedMesh]:
    """al behind n0 and bob behind n1, which never connect; n2 and n3 are relays."""
    with SimulatedMesh(seed=1, nodes=4, backbone=["n2", "n3"], unreachable=[("n0", "n1")]) as mesh:
        mesh.connect_all()
        mesh.add_agent("al", "n0", manners=PROMPT)
        mesh.add_agent("bob", "n1", manners=PROMPT)
        mesh.run(3_000)
        yield mesh


def completed(mesh: SimulatedMesh, seen: ObservedSend) -> bool:
    return any(t.event_id == seen.event_id and t.result == "ok" for t in mesh.seen.turns)


def finish(mesh: SimulatedMesh, *sent: ObservedSend) -> None:
    mesh.seen.brief = True
    verdict = mesh.finish()
    assert verdict.ok, verdict
    assert all(completed(mesh, seen) for seen in sent)


def tamper_once(mesh: SimulatedMesh, change: Callable[[Direction, bytes], bytes | None]) -> None:
    done: list[Direction] = []

    def tamper(direction: Direction, data: bytes) -> bytes | None:
        changed = data if done else change(direction, data)
        if changed != data:
            done.append(direction)
        return changed

    mesh.network.tamper = tamper


@pytest.mark.parametrize("size", [0, LARGE], ids=["inline", "blob"])
def test_a_message_gets_there_through_a_relay(mesh: SimulatedMesh, size: int) -> None:
    seen = mesh.send("al", "bob", blob_bytes=size)
    mesh.run(5_000)
    assert completed(mesh, seen)
    assert not mesh.network.links["n0"].ends_to("n1")
    finish(mesh, seen)


def test_relays_that_lose_power_in_turn_lose_nothing(mesh: SimulatedMesh) -> None:
    sent = []
    for turn in range(6):
        relay = mesh["n2" if turn % 2 else "n3"]
        relay.crash()
        sent += [mesh.send("al", "bob", blob_bytes=LARGE * (n % 2)) for n in range(4)]
        mesh.run(1_500)
        relay.start()
        mesh.run(1_500)
    finish(mesh, *sent)


@pytest.mark.parametrize("forge", FORGERIES[:1] + FORGERIES[2:], ids=lambda f: f.__name__)
def test_a_relay_that_forges_is_noticed_and_nothing_wrong_is_taken(
    mesh: SimulatedMesh, forge: Callable[[bytes], bytes]
) -> None:
    def change(direction: Direction, data: bytes) -> bytes:
        forged = forge(data) if direction[1] == "n1" else data
        if forged != data:
            mesh.observer.expect_link_error("n1", direction[0], forge.__name__)
        return forged

    for relay in ("n2", "n3"):
        mesh.network.drop_connections(relay, "n1")
    tamper_once(mesh, change)
    mesh.run(5_000)
    sent = [mesh.send("al", "bob") for _ in range(3)]
    mesh.run(10_000)
    assert [noticed for _, _, noticed in mesh.seen.forged] == [True]
    finish(mesh, *sent)


def test_a_range_that_is_lost_is_asked_for_again(mesh: SimulatedMesh) -> None:
    def lose(direction: Direction, data: bytes) -> bytes | None:
        return None if isinstance(decode_frame(data), BlobPiece) else data

    tamper_once(mesh, lose)
    seen = mesh.send("al", "bob", blob_bytes=LARGE)
    mesh.run(20_000)
    assert completed(mesh, seen)
    finish(mesh, seen)


def test_an_altered_range_is_found_out_and_the_blob_fetched_again(mesh: SimulatedMesh) -> None:
    tamper_once(mesh, lambda direction, data: wrong_piece(data))
    seen = mesh.send("al", "bob", blob_bytes=LARGE)
    mesh.run(20_000)
    assert completed(mesh, seen)
    assert mesh["n1"].query("SELECT count(*) FROM incident WHERE class = 'blob_forged'") == [(1,)]
    finish(mesh, seen)


def test_power_that_goes_between_a_blob_and_its_commit_loses_nothing(mesh: SimulatedMesh) -> None:
    mesh.network.links["n1"].files.crashes_at_next = True
    seen = mesh.send("al", "bob", blob_bytes=LARGE)
    assert mesh.run(10_000, lambda: not mesh["n1"].up), "the blob never came"
    mesh["n1"].start()
    mesh.run(10_000)
    assert completed(mesh, seen)
    finish(mesh, seen)


def test_blob_files_that_fail_for_a_while_delay_a_message(mesh: SimulatedMesh) -> None:
    seen = mesh.send("al", "bob", blob_bytes=LARGE)
    mesh.network.links["n1"].files.fails_until = mesh.loop.now + 3_000
    mesh.run(2_500)
    assert not completed(mesh, seen)
    mesh.run(10_000)
    finish(mesh, seen)


def test_the_last_event_that_a_relay_leaves_out_comes_when_it_is_honest(
    mesh: SimulatedMesh,
) -> None:
    def omit(direction: Direction, data: bytes) -> bytes | None:
        frame = decode_frame(data)
        if direction[1] != "n1" or not isinstance(frame, EventsFrame) or frame.stream != "relay":
            return data
        mesh.omitted.add(direction)
        return None

    tamper_once(mesh, omit)
    seen = mesh.send("al", "bob", ttl_secs=100.0)
    mesh.run(100)
    assert not completed(mesh, seen)
    finish(mesh, seen)
