"""Histories that broke systems like this one before, each by its name."""

from collections.abc import Callable, Iterator
from random import Random

import pytest
from msgspec.structs import replace

from gatepost.config.hub_settings import HubSettings
from gatepost.delivery.frames import EventsFrame, SkipFrame, decode_frame
from gatepost.events import Receipt
from simulation.gateways import AgentManners, SimulatedMesh, SimulatedSettings
from simulation.gateways.faults import forged_receipt, move_agent
from simulation.gateways.network import Direction, leave_out_event
from simulation.gateways.task_users import WorkManners
from simulation.history import ObservedSend

PROMPT = AgentManners(think_ms=(1, 5), reply=0.0, nack=0.0, forget=0.0)

Build = Callable[..., SimulatedMesh]


@pytest.fixture
def build() -> Iterator[Build]:
    """A mesh of three gateways: al behind n0, bob behind n1, and everybody connected."""
    meshes: list[SimulatedMesh] = []

    def built(
        standbys: tuple[str, ...] = (), habits: SimulatedSettings | None = None
    ) -> SimulatedMesh:
        mesh = SimulatedMesh(seed=1, nodes=3, settings=habits)
        meshes.append(mesh)
        mesh.__enter__()
        mesh.connect_all()
        mesh.add_agent("al", "n0", manners=PROMPT)
        mesh.add_agent("bob", "n1", standbys, PROMPT)
        mesh.run(1_000)
        return mesh

    yield built
    for mesh in meshes:
        mesh.__exit__()


def acknowledged(mesh: SimulatedMesh, seen: ObservedSend) -> ObservedSend:
    assert mesh.run(5_000, lambda: bool(seen.event_id)), "the send was never answered"
    return seen


def inbox_state(mesh: SimulatedMesh, node: str, seen: ObservedSend) -> str | None:
    id = bytes.fromhex(seen.event_id.replace("-", ""))
    rows = mesh[node].query("SELECT state FROM inbox WHERE event_id = ?", id)
    return rows[0][0] if rows else None


def turns(mesh: SimulatedMesh, seen: ObservedSend) -> list[str]:
    """Where its turns were completed."""
    mine = (turn for turn in mesh.seen.turns if turn.event_id == seen.event_id)
    return [turn.node for turn in mine if turn.result == "ok"]


def test_owner_accepts_and_crashes_before_its_receipt_is_read_and_the_sender_reroutes(
    build: Build,
) -> None:
    mesh = build(standbys=("n2",))
    seen = acknowledged(mesh, mesh.send("al", "bob"))
    # Everything n1 says is lost from here on, so that it accepts and nobody hears of it.
    mesh.network.cut_direction("n1", "n0")
    assert mesh.run(2_000, lambda: inbox_state(mesh, "n1", seen) == "offered")
    mesh["n1"].crash()
    assert mesh.run(20_000, lambda: turns(mesh, seen) == ["n2"]), "no fallback took it"
    mesh.network.heal_directions()
    mesh["n1"].start()
    mesh.run(5_000)
    assert inbox_state(mesh, "n1", seen) == "withdrawn"
    verdict = mesh.finish()
    assert verdict.ok, verdict
    assert (verdict.counts.processed, verdict.counts.doubled) == (1, 0)


def test_a_late_receipt_amends_what_the_sender_was_told(build: Build) -> None:
    mesh = build()
    mesh.network.cut_direction("n1", "n0")
    seen = acknowledged(mesh, mesh.send("al", "bob", ttl_secs=3.0))
    mesh.run(10_000)
    assert mesh.status_of(seen).state == "retry_pending", "its owner may have it"
    mesh.run(150_000)
    assert mesh.status_of(seen).state == "dead_letter"
    assert turns(mesh, seen) == ["n1"]
    verdict = mesh.finish()
    assert verdict.ok, verdict
    assert verdict.amended == [seen.event_id]
    counts = verdict.counts
    assert (counts.processed, counts.dead_lettered, counts.amended) == (1, 0, 1)


@pytest.mark.parametrize(
    "lie",
    [
        Receipt(status="accepted"),
        Receipt(status="processed", outcome="ok"),
        Receipt(status="refused", reason="forged"),
    ],
    ids=lambda lie: lie.status,
)
def test_a_forged_receipt_from_a_third_node_counts_for_nothing(build: Build, lie: Receipt) -> None:
    mesh = build()
    mesh.agents["n1", "bob"].paused = True
    mesh.network.cut_direction("n0", "n1")
    seen = acknowledged(mesh, mesh.send("al", "bob"))
    mesh.forge_receipt("n2", "n0", seen.event_id, lie)
    mesh.run(1_000)
    assert mesh.status_of(seen).state in ("emitted", "retry_pending")
    verdict = mesh.finish()
    assert verdict.ok, verdict
    assert turns(mesh, seen) == ["n1"]


def test_no_receipt_is_forged_by_a_gateway_the_message_is_routed_to(build: Build) -> None:
    """Its agent has moved since, but a sender that cannot know better believes its old home."""
    mesh = build()
    mesh.seen.brief = True
    mesh.network.cut_direction("n0", "n1")
    seen = acknowledged(mesh, mesh.send("al", "bob"))
    mesh.move_agent("bob", "n2")
    mesh.run(500)
    mesh.dismiss_agent("bob", "n1")
    for seed in range(10):
        forged_receipt(mesh, Random(seed))
    mesh.run(1_000)
    assert mesh.status_of(seen).state in ("emitted", "retry_pending")
    verdict = mesh.finish()
    assert verdict.ok, verdict
    assert turns(mesh, seen) == ["n2"]


def test_no_agent_moves_to_a_gateway_that_forged_receipts_for_its_mail(build: Build) -> None:
    """If its mail were routed there, what was forged before might count."""
    mesh = build()
    acknowledged(mesh, mesh.send("al", "bob"))
    forged_receipt(mesh, Random(1))
    homes = set()
    for seed in range(20):
        move_agent(mesh, Random(seed))
        homes.add(mesh.room.owner_of("bob"))
    assert homes == {"n0", "n1"}


@pytest.mark.parametrize("place", ["first", "last"])
def test_an_event_that_is_left_out_is_noticed_and_read_after_all(build: Build, place: str) -> None:
    """`last`: the one who reads has moved its cursor past what it never got."""
    mesh = build()
    left_out: list[int] = []

    def omit(lane: Direction, data: bytes) -> bytes:
        frame = decode_frame(data)
        if lane != ("n0", "n1") or not isinstance(frame, EventsFrame) or left_out:
            return data
        left_out.append(len(frame.events))
        return leave_out_event(data, 0 if place == "first" else -1)

    mesh.network.tamper = omit
    sent = [mesh.send("al", "bob") for _ in range(5)]
    mesh.run(30_000)
    assert left_out
    mesh.send("al", "bob")
    mesh.run(10_000)
    assert any("left out" in message for _, _, message in mesh.observer.link_errors)
    verdict = mesh.finish()
    assert verdict.ok, verdict
    assert [turns(mesh, seen) for seen in sent] == [["n1"]] * 5


def test_an_owner_restored_from_an_old_backup_does_nothing_twice(build: Build) -> None:
    mesh = build()
    before = acknowledged(mesh, mesh.send("al", "bob"))
    mesh.run(1_000)
    mesh["n1"].back_up()
    done = acknowledged(mesh, mesh.send("al", "bob"))
    mesh.run(1_000)
    mesh.agents["n1", "bob"].paused = True
    taken = acknowledged(mesh, mesh.send("al", "bob"))
    mesh.run(1_000)
    assert mesh.status_of(taken).state == "accepted"
    mesh.seen.restored.add("n1")
    mesh["n1"].restore(mesh["n1"].backups[0])
    mesh["n1"].start()
    mesh.run(5_000)
    # Nobody can say what became of it, so its sender is told that.
    assert mesh.status_of(taken).state == "dead_letter"
    assert mesh.status_of(taken).reason == "owner_restored"
    after = acknowledged(mesh, mesh.send("al", "bob"))
    verdict = mesh.finish()
    assert verdict.ok, verdict
    assert [turns(mesh, seen) for seen in (before, done, after)] == [["n1"]] * 3


def test_a_restored_owner_that_never_heard_what_to_skip_is_told_again(build: Build) -> None:
    mesh = build()
    mesh["n1"].back_up()
    done = acknowledged(mesh, mesh.send("al", "bob"))
    mesh.run(1_000)
    lost: list[Direction] = []

    def lose_skips(lane: Direction, data: bytes) -> bytes | None:
        if not isinstance(decode_frame(data), SkipFrame) or lane in lost:
            return data
        lost.append(lane)
        mesh.network.drop_connections(*lane)
        return None

    mesh.network.tamper = lose_skips
    mesh.seen.restored.add("n1")
    mesh["n1"].restore(mesh["n1"].backups[0])
    mesh["n1"].start()
    mesh.run(15_000)
    assert ("n0", "n1") in lost
    after = acknowledged(mesh, mesh.send("al", "bob"))
    verdict = mesh.finish()
    assert verdict.ok, verdict
    assert [turns(mesh, seen) for seen in (done, after)] == [["n1"]] * 2


def test_a_sender_restored_from_an_old_backup_is_noticed_and_goes_on(build: Build) -> None:
    mesh = build()
    first = acknowledged(mesh, mesh.send("al", "bob"))
    mesh.run(1_000)
    mesh["n0"].back_up()
    forgotten = acknowledged(mesh, mesh.send("al", "bob"))
    mesh.run(1_000)
    assert turns(mesh, forgotten) == ["n1"]
    mesh.seen.restored.add("n0")
    mesh["n0"].restore(mesh["n0"].backups[0])
    mesh["n0"].start()
    mesh.run(2_000)
    again = acknowledged(mesh, mesh.send("al", "bob"))
    verdict = mesh.finish()
    assert verdict.ok, verdict
    assert [turns(mesh, seen) for seen in (first, forgotten, again)] == [["n1"]] * 3
    assert verdict.counts.rewound == 1


def test_a_full_mailbox_does_not_hold_up_the_receipts_behind_it(build: Build) -> None:
    policy = replace(SimulatedSettings().policy, max_pending=2)
    mesh = build(habits=replace(SimulatedSettings(), policy=policy))
    mesh.agents["n1", "bob"].paused = True
    mail = [mesh.send("al", "bob") for _ in range(12)]
    mesh.run(1_000)
    held = mesh["n1"].query("SELECT count(*) FROM held")
    assert held[0][0] > 0
    # What bob sends is receipted by n0 in the same outbox, behind all that n1 cannot take.
    answer = acknowledged(mesh, mesh.send("bob", "al"))
    assert mesh.run(1_000, lambda: mesh.status_of(answer).state == "processed")
    verdict = mesh.finish()
    assert verdict.ok, verdict
    assert all(turns(mesh, seen) == ["n1"] for seen in mail)


def test_a_commit_group_larger_than_the_credit_window_gets_through(build: Build) -> None:
    mesh = build(habits=replace(SimulatedSettings(), window=700, group_ms=50))
    mail = [mesh.send("al", "bob") for _ in range(40)]
    mesh.run(200)
    ((groups, events),) = mesh["n0"].query(
        "SELECT count(*), sum(last_seq - first_seq + 1) FROM head"
    )
    assert groups < events / 5, "the sends did not share a commit group"
    verdict = mesh.finish()
    assert verdict.ok, verdict
    assert all(turns(mesh, seen) == ["n1"] for seen in mail)


def break_disk(mesh: SimulatedMesh, node: str) -> None:
    """Fill the disk, and let the journal find out with something that does not fit."""
    gateway = mesh[node]
    gateway.fill_disk()
    large = "INSERT OR REPLACE INTO fact VALUES ('large', zeroblob(1000000))"
    gateway.submit(lambda tx: tx.execute(large), lambda value, error: None)
    assert mesh.run(1_000, lambda: gateway.writer.failure is not None)


def test_whom_a_full_disk_turned_away_has_a_say_before_everything_is_judged(build: Build) -> None:
    mesh = build()
    slow = replace(PROMPT, think_ms=(300, 300))
    mesh.agents["n1", "bob"].manners = slow
    break_disk(mesh, "n0")
    sent = [mesh.send("al", "bob") for _ in range(8)]
    mesh.run(500)
    verdict = mesh.finish()
    assert verdict.ok, verdict
    assert [turns(mesh, seen) for seen in sent] == [["n1"]] * 8


def test_who_cannot_write_yet_reads_what_it_was_told_before_everything_is_judged(
    build: Build,
) -> None:
    mesh = build()
    break_disk(mesh, "n1")
    seen = acknowledged(mesh, mesh.send("al", "bob", ttl_secs=2.0))
    mesh.run(155_000)
    assert mesh.status_of(seen).state == "dead_letter"
    # It has just found its disk full once more, and takes its time to look again.
    looked = mesh["n1"].commits
    assert mesh.run(5_000, lambda: mesh["n1"].commits > looked)
    verdict = mesh.finish()
    assert verdict.ok, verdict


def test_an_unknown_task_and_its_result_survive_crashes_of_both_gateways(build: Build) -> None:
    mesh = build(habits=replace(SimulatedSettings(), hub=HubSettings()))
    mesh.tasks.manners = WorkManners(fail=0.0, vanish=0.0, contradict=0.0, large_result=0.0)
    mesh.network.cut_direction("n1", "n0")
    seen = mesh.tasks.create_task("al", "bob", ttl_secs=3.0)
    assert seen is not None
    assert mesh.run(200_000, lambda: task_states(mesh, "n0") == ["unknown"])
    assert task_states(mesh, "n1") == ["completed"], "nobody hears of it yet"
    for node in ("n0", "n1"):
        mesh[node].crash()
        mesh[node].start()
    mesh.run(1_000)
    assert task_states(mesh, "n0") == ["unknown"]
    mesh.network.heal_directions()
    verdict = mesh.finish()
    assert verdict.ok, verdict
    assert (verdict.counts.tasks, verdict.counts.tasks_completed) == (1, 1)


def task_states(mesh: SimulatedMesh, node: str) -> list[str]:
    return [row[0] for row in mesh[node].query("SELECT state FROM task")]
