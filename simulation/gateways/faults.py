"""The faults of a run and their moments, all drawn from the seed."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from gatepost.delivery.frames import (
    BlobPiece,
    BlobRequest,
    EventsFrame,
    SkipFrame,
    decode_frame,
    encode_frame,
)
from gatepost.events import EventKind, Receipt, decode_event
from simulation.gateways.floods import FLOODS
from simulation.gateways.forgeries import FORGERIES, is_relayed, wrong_piece
from simulation.gateways.gateway import RETRIED, SimulatedGateway, make_room
from simulation.gateways.mesh import SimulatedMesh
from simulation.gateways.network import Direction, leave_out_event
from simulation.gateways.task_users import SilentAgent
from simulation.history import ObservedSend

Fault = Callable[[SimulatedMesh, Random], None]


def partition(mesh: SimulatedMesh, random: Random) -> None:
    """Some gateways cannot reach the others for a while."""
    ids = list(mesh.gateways)
    island = set(random.sample(ids, random.randint(1, len(ids) // 2)))
    lanes = [(a, b) for a in ids for b in ids if (a in island) != (b in island)]
    _cut_for_a_while(mesh, random, lanes)


def one_way(mesh: SimulatedMesh, random: Random) -> None:
    """A gateway is heard but hears nothing, not even receipts for messages with little time."""
    a, b = random.sample(list(mesh.gateways), 2)
    _cut_for_a_while(mesh, random, [(a, b)])
    for sender in mesh.room.agents_behind(b):
        for target in mesh.room.agents_behind(a):
            mesh.send(sender, target, b, ttl_secs=2.0)


def cut_way_back(mesh: SimulatedMesh, random: Random) -> None:
    """Agents work on tasks while nothing that their gateway says gets through.

    Some of the tasks have less time than that lasts.
    """
    requester, executor = random.sample(list(mesh.gateways), 2)
    others = [id for id in mesh.gateways if id != executor]
    _cut_for_a_while(mesh, random, [(executor, other) for other in others], 40_000)
    for sender in mesh.room.agents_behind(requester)[:2]:
        for target in mesh.room.agents_behind(executor)[:2]:
            mesh.tasks.create_task(sender, target, ttl_secs=random.choice((2.0, 60.0)))
            mesh.send(sender, target, requester, ttl_secs=random.choice((2.0, 60.0)))


def prune_reports(mesh: SimulatedMesh, random: Random) -> None:
    """The outbox of an executor's gateway has forgotten reports that a requester never read."""
    executor, requester = random.sample(list(mesh.gateways), 2)

    def skip(data: bytes) -> bytes | None:
        kinds = _event_kinds(data)
        frame = decode_frame(data)
        if not kinds or not isinstance(frame, EventsFrame) or is_relayed(frame):
            return data
        if not all(kind in _REPORTS for kind in kinds):
            return data
        mesh.gateways[executor].submit(
            lambda tx: tx.execute(_CUT_OFF, (frame.upto, requester)), lambda value, error: None
        )
        # The credit for what is left out is gone, so the link goes too.
        mesh.loop.call_after(1, partial(mesh.network.drop_connections, executor, requester))
        where = (frame.source, frame.incarnation, frame.first_seq, frame.upto)
        return encode_frame(SkipFrame(*where, "cut off"))

    for _ in range(3):
        _tamper_once(mesh, (executor, requester), skip, f"{executor} has no reports any more")


def remove_agent(mesh: SimulatedMesh, random: Random) -> None:
    """An agent is removed for good while it works on tasks that permit further attempts."""
    node, other = random.sample(list(mesh.gateways), 2)
    if {node, other} & (mesh.seen.lost | mesh.seen.restored) or mesh.healed:
        return
    name = f"r{len(mesh.seen.tasks)}"
    mesh.trace("agents", f"{name} begins behind {node}, and is removed while it works")
    agent = SilentAgent(mesh.gateways[node], name)
    mesh.room.claim_agents([name], node)
    fields: dict[str, Any] = {"required_capabilities": [RETRIED.id], "may_wait": True}
    for requester in mesh.room.agents_behind(node)[:1] + mesh.room.agents_behind(other)[:1]:
        mesh.loop.call_after(500, partial(mesh.tasks.create_task, requester, name, **fields))
    for moment in (1_000, 2_000, 3_000):
        mesh.loop.call_after(moment, agent.accept_tasks)
    mesh.loop.call_after(4_000, agent.remove)
    mesh.loop.call_after(4_000, partial(mesh.room.drop_agent, name))


_CUT_OFF = "UPDATE recipient SET cut_seq = max(cut_seq, ?) WHERE node_id = ?"
_REPORTS = (
    EventKind.TASK_ACCEPT,
    EventKind.TASK_UPDATE,
    EventKind.TASK_COMPLETE,
    EventKind.TASK_FAILED,
)


def _cut_for_a_while(
    mesh: SimulatedMesh, random: Random, lanes: list[Direction], longest: int = 15_000
) -> None:
    mesh.trace("network", f"cut {lanes}")
    for lane in lanes:
        mesh.network.cut_direction(*lane)
    mesh.loop.call_after(
        random.randint(200, longest), lambda: mesh.network.cut.difference_update(lanes)
    )


def drop(mesh: SimulatedMesh, random: Random) -> None:
    """A connection breaks, with everything in flight."""
    a, b = random.sample(list(mesh.gateways), 2)
    mesh.trace("network", f"drop {a} {b}")
    mesh.network.drop_connections(a, b)


def slow_direction(mesh: SimulatedMesh, random: Random) -> None:
    a, b = random.sample(list(mesh.gateways), 2)
    mesh.network.latency[a, b] = random.choice((50, 500, 2_500))
    mesh.trace("network", f"slow {a} {b}")
    mesh.loop.call_after(random.randint(1_000, 20_000), lambda: _restore_latency(mesh, (a, b)))


def _restore_latency(mesh: SimulatedMesh, lane: Direction) -> None:
    mesh.network.latency.pop(lane, None)


def second_connection(mesh: SimulatedMesh, random: Random) -> None:
    """Both sides dialled, or one did not notice that its first connection still works."""
    a, b = random.sample(list(mesh.gateways), 2)
    mesh.trace("network", f"one more connection {a} {b}")
    mesh.network.open_connection(a, b)


def crash(mesh: SimulatedMesh, random: Random) -> None:
    """Power goes: at once, just before a commit, or just after one."""
    gateway = _pick_gateway(mesh, random)
    moment = random.choice(("now", "before", "after"))
    mesh.trace(gateway.id, f"crash {moment}")
    if moment == "now":
        gateway.crash()
    else:
        gateway.crash_at_commit("before" if moment == "before" else "after")
    mesh.loop.call_after(random.randint(500, 10_000), lambda: _start_gateway(gateway))


def _start_gateway(gateway: SimulatedGateway) -> None:
    gateway.cancel_crash()
    if not gateway.up:
        gateway.start()


def disk_full(mesh: SimulatedMesh, random: Random) -> None:
    gateway = _pick_gateway(mesh, random)
    if gateway.up:
        mesh.trace(gateway.id, "disk full")
        gateway.fill_disk()
        mesh.loop.call_after(random.randint(500, 8_000), gateway.free_disk)


def freeze(mesh: SimulatedMesh, random: Random) -> None:
    """A gateway stands still for longer than messages to it have time."""
    gateway = _pick_gateway(mesh, random)
    others = [id for id in mesh.gateways if id != gateway.id]
    for target in mesh.room.agents_behind(gateway.id):
        for sender in mesh.room.agents_behind(random.choice(others)):
            moment = random.randint(0, 1_000)
            mesh.loop.call_after(moment, partial(mesh.send, sender, target, ttl_secs=2.0))
    mesh.trace(gateway.id, "stands still")
    mesh.loop.call_after(300, lambda: gateway.freeze(random.randint(1_000, 15_000)))


def clock_jump(mesh: SimulatedMesh, random: Random) -> None:
    gateway = _pick_gateway(mesh, random)
    jump = random.choice((-60_000, -5_000, -500, 500, 5_000, 60_000))
    gateway.clock.offset += jump
    if jump < 0:
        mesh.seen.set_back.add(gateway.id)
    mesh.trace(gateway.id, f"clock is off by {gateway.clock.offset}")


def idle_agent(mesh: SimulatedMesh, random: Random) -> None:
    """An agent takes no mail for a while: leases run out and the mailbox runs full.

    Sometimes its gateway is restarted in the middle of it.
    """
    node, name = random.choice(list(mesh.agents))
    consumer = mesh.agents[node, name]
    consumer.paused = True
    mesh.trace("agents", f"{name} pauses behind {node}")
    mesh.loop.call_after(random.randint(1_000, 10_000), consumer.resume_work)
    others = [agent for agent in mesh.room.hosted if agent != name]
    for sender in random.choices(others, k=8):
        mesh.loop.call_after(random.randint(0, 1_000), partial(mesh.send, sender, name))
    if random.random() < 0.5:
        mesh.loop.call_after(1_500, lambda: _restart_gateway(mesh, mesh.gateways[node]))


def _restart_gateway(mesh: SimulatedMesh, gateway: SimulatedGateway) -> None:
    if not mesh.healed:
        mesh.trace(gateway.id, "restart")
        gateway.crash()
        _start_gateway(gateway)


def move_agent(mesh: SimulatedMesh, random: Random) -> None:
    """An agent without standbys moves, and some gateways learn of it late."""
    name, homes = _pick_movable_agent(mesh, random)
    if not homes:
        return
    to = random.choice(homes)
    old = mesh.room.owner_of(name)
    late = random.choice(list(mesh.gateways))
    mesh.room.slow[late] = random.randint(100, 5_000)
    mesh.trace("room", f"{name} moves from {old} to {to}; {late} learns it late")
    mesh.move_agent(name, to)
    if old not in (to, ""):
        mesh.loop.call_after(random.randint(500, 5_000), lambda: _dismiss_if_moved(mesh, name, old))


def crowd(mesh: SimulatedMesh, random: Random) -> None:
    """A gateway has no room for more agents, and one that moves there cannot register yet."""
    gateway = _pick_gateway(mesh, random)
    gateway.agents.max_agents = 0
    mesh.trace(gateway.id, "has as many agents as fit")
    mesh.loop.call_after(random.randint(500, 8_000), partial(make_room, gateway))
    name, homes = _pick_movable_agent(mesh, random)
    if gateway.id in homes:
        mesh.move_agent(name, gateway.id)


def _pick_movable_agent(mesh: SimulatedMesh, random: Random) -> tuple[str, list[str]]:
    """An agent without standbys, and the gateways it may move to; none if no agent may move."""
    names = [name for name, home in mesh.room.hosted.items() if not home.standbys]
    if not names:
        return "", []
    name = random.choice(names)
    refused = {id for id, agent in mesh.lies if agent == name} | mesh.seen.lost
    return name, [id for id in mesh.gateways if id not in refused]


def round_trip(mesh: SimulatedMesh, random: Random) -> None:
    """An agent with waiting mail moves away and back, under load."""
    name, homes = _pick_movable_agent(mesh, random)
    home = mesh.room.owner_of(name) if homes else ""
    if home not in homes:
        return
    for consumer in (agent for (_, held), agent in mesh.agents.items() if held == name):
        consumer.paused = True
        mesh.loop.call_after(6_000, consumer.resume_work)
    others = [agent for agent in mesh.room.hosted if agent != name]
    for sender in random.choices(others, k=3):
        for wait in (0, 0, 0, 1_500, 3_000):
            mesh.loop.call_after(wait, partial(mesh.send, sender, name))
        if mesh.has_tasks:
            mesh.loop.call_after(0, partial(mesh.tasks.create_task, sender, name))
    stops = [random.choice(homes) for _ in range(random.randint(1, 3))]
    for number, to in enumerate([*stops, home], 1):
        mesh.loop.call_after(number * 1_000, partial(_move_if_alive, mesh, name, to))


def _move_if_alive(mesh: SimulatedMesh, name: str, to: str) -> None:
    lied = (to, name) in mesh.lies
    if to not in mesh.seen.lost and not lied and not mesh.healed:
        mesh.trace("room", f"{name} moves to {to}")
        mesh.move_agent(name, to)


def _dismiss_if_moved(mesh: SimulatedMesh, name: str, node: str) -> None:
    if mesh.room.owner_of(name) != node:
        mesh.dismiss_agent(name, node)


def forged_receipt(mesh: SimulatedMesh, random: Random) -> None:
    """A gateway gives a receipt for a message that was never routed to it, and never will be.

    A receipt of the owner counts, even a false one, so the forger must never become the owner.
    """
    known = [seen for seen in mesh.seen.sends[-100:] if seen.event_id]
    if not known:
        return
    seen = random.choice([seen for seen in known if _is_open_delivery(mesh, seen)] or known)
    believed = mesh.room.believed[seen.target]
    others = [id for id in mesh.gateways if id not in believed and id != seen.node]
    if others:
        forger = random.choice(others)
        mesh.trace(forger, f"forges a receipt for {seen.event_id}")
        mesh.lies.add((forger, seen.target))
        mesh.forge_receipt(forger, seen.node, seen.event_id, random.choice(_FORGED_RECEIPTS))


def _is_open_delivery(mesh: SimulatedMesh, seen: ObservedSend) -> bool:
    gateway = mesh.gateways[seen.node]
    id = bytes.fromhex(seen.event_id.replace("-", ""))
    query = "SELECT 1 FROM delivery WHERE event_id = ? AND processed_at IS NULL"
    return gateway.up and bool(gateway.query(query, id))


_FORGED_RECEIPTS = (
    Receipt(status="accepted"),
    Receipt(status="processed", outcome="ok"),
    Receipt(status="refused", reason="forged"),
)


def omission(mesh: SimulatedMesh, random: Random) -> None:
    """An emitter or relay leaves out one event: rather a signal than a message that comes again."""
    a, b = random.sample(list(mesh.gateways), 2)
    any_kind = random.random() < 0.3

    def leave_out(data: bytes) -> bytes | None:
        kinds = _event_kinds(data)
        indexes = [index for index, kind in enumerate(kinds) if any_kind or kind in _SAID_ONCE]
        if not indexes:
            return data
        mesh.omitted.add((a, b))
        return leave_out_event(data, random.choice(indexes))

    _tamper_once(mesh, (a, b), leave_out, f"an event from {a} to {b} is left out")


_SAID_ONCE = (EventKind.SIGNAL, EventKind.DEAD_LETTER)


def relay_omission(mesh: SimulatedMesh, random: Random) -> None:
    """A relay leaves out one event; its reader has to get it after all."""
    readers = sorted({one for one, _ in mesh.network.unreachable})
    if not readers:
        return
    relay, reader = random.choice(mesh.backbone), random.choice(readers)

    def leave_out(data: bytes) -> bytes | None:
        frame = decode_frame(data)
        if not is_relayed(frame):
            return data
        index = random.randrange(len(frame.events))
        mesh.observer.expect_event(reader, frame.source, decode_event(frame.events[index]).seq)
        mesh.omitted.add((relay, reader))
        return leave_out_event(data, index)

    _tamper_once(mesh, (relay, reader), leave_out, f"{relay} leaves out an event for {reader}")


def _event_kinds(data: bytes) -> list[str]:
    frame = decode_frame(data)
    return (
        [decode_event(body).kind for body in frame.events] if isinstance(frame, EventsFrame) else []
    )


def relay_forgery(mesh: SimulatedMesh, random: Random) -> None:
    """A relay passes on something that its source did not write; its reader has to notice."""
    readers = sorted({one for one, _ in mesh.network.unreachable})
    if not readers:
        return
    relay, reader = random.choice(mesh.backbone), random.choice(readers)
    forge = random.choice(FORGERIES)

    def change(data: bytes) -> bytes | None:
        forged = data if _ignores_frame(mesh, relay, reader, data) else forge(data)
        if forged != data:
            mesh.observer.expect_link_error(
                reader, relay, f"{relay} sent {forge.__name__} to {reader}"
            )
        return forged

    _tamper_once(mesh, (relay, reader), change, f"{relay} forges what it relays to {reader}")


def _ignores_frame(mesh: SimulatedMesh, relay: str, reader: str, data: bytes) -> bool:
    """Whether the reader has no use for this frame of the relay, true or forged."""
    frame = decode_frame(data)
    ends = mesh.network.links[reader].ends_to(relay)
    return is_relayed(frame) and any(end.link.reader.ignores_source(frame.source) for end in ends)


def blob_forgery(mesh: SimulatedMesh, random: Random) -> None:
    """A piece of a blob arrives with a wrong byte."""
    a, b = random.sample(list(mesh.gateways), 2)
    _tamper_once(mesh, (a, b), wrong_piece, f"a piece of a blob from {a} to {b} is altered")


def blob_loss(mesh: SimulatedMesh, random: Random) -> None:
    """A request for a range of a blob, or the answer to it, never arrives."""
    a, b = random.sample(list(mesh.gateways), 2)

    def lose(data: bytes) -> bytes | None:
        return None if isinstance(decode_frame(data), BlobRequest | BlobPiece) else data

    for _ in range(random.randint(1, 3)):
        _tamper_once(mesh, (a, b), lose, f"a range of a blob is lost between {a} and {b}")


def _tamper_once(
    mesh: SimulatedMesh,
    direction: Direction,
    change: Callable[[bytes], bytes | None],
    what: str,
) -> None:
    """Change the next frame in this direction that `change` returns other than it was.

    A frame is changed once: whoever leaves out a forged event leaves nothing to be noticed.
    """
    inner, done = mesh.network.tamper, False

    def tamper(on: Direction, data: bytes) -> bytes | None:
        nonlocal done
        passed = inner(on, data)
        if done or passed is None or passed != data or on != direction:
            return passed
        changed = change(passed)
        if changed != passed:
            done = True
            mesh.trace("network", what)
        return changed

    mesh.network.tamper = tamper


def blob_disk(mesh: SimulatedMesh, random: Random) -> None:
    """The blob files of a gateway can neither be read nor written for a while."""
    gateway = _pick_gateway(mesh, random)
    mesh.trace(gateway.id, "blob files fail")
    mesh.network.links[gateway.id].files.fails_until = mesh.loop.now + random.randint(200, 3_000)


def blob_crash(mesh: SimulatedMesh, random: Random) -> None:
    """Power goes when the next blob is complete on disk, before the journal knows of it."""
    gateway = _pick_gateway(mesh, random)
    files = mesh.network.links[gateway.id].files
    files.crashes_at_next = True

    def start() -> None:
        files.crashes_at_next = False
        _start_gateway(gateway)

    mesh.loop.call_after(random.randint(2_000, 10_000), start)


def restore(mesh: SimulatedMesh, random: Random) -> None:
    """A gateway is backed up, goes on, and is restored from that backup later."""
    gateway = _pick_gateway(mesh, random)
    if not gateway.up:
        return
    mesh.trace(gateway.id, "backup")
    gateway.back_up()
    mesh.loop.call_after(
        random.randint(500, 20_000), lambda: _restore_backup(mesh, gateway, random)
    )


def _restore_backup(mesh: SimulatedMesh, gateway: SimulatedGateway, random: Random) -> None:
    if mesh.healed:
        return
    mesh.trace(gateway.id, "restore")
    mesh.seen.restored.add(gateway.id)
    gateway.restore(gateway.backups[-1])
    mesh.loop.call_after(random.randint(100, 3_000), lambda: _start_gateway(gateway))


def lost_gateway(mesh: SimulatedMesh, random: Random) -> None:
    """A machine never comes back. Often it is revoked later, or its agents live elsewhere."""
    if mesh.seen.lost or mesh.healed:
        return
    # Without any relay, gateways that cannot connect have nothing to say to each other.
    node = random.choice([id for id in mesh.gateways if mesh.backbone != [id]])
    to = random.choice([id for id in mesh.gateways if id != node])
    mesh.trace(node, "is destroyed")
    mesh.seen.lost.add(node)
    mesh.gateways[node].destroy()
    if random.random() < 0.7:
        wait = random.randint(1_000, 20_000)
        mesh.loop.call_after(wait, lambda: _revoke_gateway(mesh, node))
    if random.random() < 0.7:
        wait = random.randint(1_000, 20_000)
        mesh.loop.call_after(wait, lambda: _rehome_agents(mesh, node, to))


def _revoke_gateway(mesh: SimulatedMesh, node: str) -> None:
    mesh.trace("room", f"{node} is revoked")
    mesh.seen.revoked.add(node)
    mesh.room.revoke_node(node)


def _rehome_agents(mesh: SimulatedMesh, lost: str, to: str) -> None:
    """The agents of a lost gateway live behind another one from now on, unless it lied of them."""
    for name, home in list(mesh.room.hosted.items()):
        if home.owner in (None, lost) and (to, name) not in mesh.lies:
            mesh.trace("room", f"{name} lives behind {to}, for {lost} is lost")
            mesh.move_agent(name, to)


def _pick_gateway(mesh: SimulatedMesh, random: Random) -> SimulatedGateway:
    return mesh.gateways[random.choice(list(mesh.gateways))]


# Each fault with its weight among the others.
FAULTS: dict[str, tuple[Fault, int]] = {
    "partition": (partition, 4),
    "one_way": (one_way, 4),
    "drop": (drop, 6),
    "slow_lane": (slow_direction, 4),
    "second_connection": (second_connection, 3),
    "crash": (crash, 8),
    "disk_full": (disk_full, 3),
    "freeze": (freeze, 3),
    "clock_jump": (clock_jump, 3),
    "lazy_agent": (idle_agent, 3),
    "move_agent": (move_agent, 3),
    "round_trip": (round_trip, 2),
    "crowd": (crowd, 2),
    "forged_receipt": (forged_receipt, 4),
    "omission": (omission, 3),
    "relay_forgery": (relay_forgery, 3),
    "relay_omission": (relay_omission, 3),
    "blob_forgery": (blob_forgery, 2),
    "blob_loss": (blob_loss, 2),
    "blob_disk": (blob_disk, 2),
    "blob_crash": (blob_crash, 2),
    "restore": (restore, 1),
    "lost_gateway": (lost_gateway, 1),
}
# Planned apart from the others, in runs with tasks.
TASK_FAULTS: dict[str, Fault] = {
    "way_back": cut_way_back,
    "pruned_reports": prune_reports,
    "removed_agent": remove_agent,
}
ALL_KINDS = (*FAULTS, *TASK_FAULTS, *FLOODS)


def plan_faults(
    mesh: SimulatedMesh, random: Random, faults: int, over_ms: int, kinds: list[str]
) -> None:
    """Spread `faults` faults of these kinds over the time to come."""
    kinds = [kind for kind in kinds if kind in FAULTS]
    if not kinds:
        return
    weights = [FAULTS[kind][1] for kind in kinds]
    for kind in random.choices(kinds, weights, k=faults):
        fault = FAULTS[kind][0]
        when = random.randint(0, over_ms)
        mesh.loop.call_after(when, partial(fault, mesh, random))


def plan_task_faults(
    mesh: SimulatedMesh, random: Random, over_ms: int, kinds: list[str], each: int = 2
) -> None:
    """Spread faults that concern tasks over the time to come."""
    for kind, fault in TASK_FAULTS.items():
        for _ in range(each if kind in kinds else 0):
            mesh.loop.call_after(random.randint(0, over_ms), partial(fault, mesh, random))
