"""Three linked gateways, and an agent that moves between them."""

from collections import deque
from collections.abc import Callable
from itertools import permutations
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from gatepost.delivery import LocalNode, RetryPolicy, build_core
from gatepost.delivery.frames import LinkFrame, decode_frame, encode_frame
from gatepost.delivery.send_request import fingerprint_send
from gatepost.errors import GatepostError
from gatepost.events import NodeKey, decode_event
from gatepost.journal import Tx
from gatepost.journal.database import open_memory_journal
from gatepost.journal.outbox import OutboxGroup
from gatepost.links.outbox_link import OutboxLink
from gatepost.mailbox import MailboxPolicy
from gatepost.routing import AgentHome, GatewayEntry, RoutingDirectory
from gatepost.testing import ManualClock
from gatepost.wire.operations import LeasedMessage, NewSend, Sent

WINDOW = 1 << 20


class Box:
    """One gateway: a real journal and core. Its memory is lost whenever it is `restarted`."""

    def __init__(self, world: "World", id: str) -> None:
        self.world = world
        self.connection = open_memory_journal()
        self.node = LocalNode(id, f"{id}-1", NodeKey.generate(world.clock), world.clock)
        self.connection.execute("INSERT INTO incarnation VALUES (?, 1)", (f"{id}-1",))
        self.start()

    def start(self) -> None:
        retries = RetryPolicy(base_backoff=1_000, ttl=60_000)
        policy = MailboxPolicy(max_retries=0, inflight_timeout=5_000, ttl=60_000)
        self.core = core = build_core(self.node, retries, policy)
        self.agents = core.agents
        self.coordinator = core.coordinator
        self.dispatcher = core.dispatcher
        core.outbox.on_published = self._published
        self.writer = core.build_writer(self.connection, lambda outcomes: None)
        self.links: list[OutboxLink] = []

    def _published(self, group: OutboxGroup) -> None:
        for link in self.links:
            link.publish_group(group)

    def run(self, operation: Callable[[Tx], Any] = lambda tx: None) -> Any:
        found: list[tuple[Any, GatepostError | None]] = []
        jobs = [(operation, lambda value, error: found.append((value, error)))]
        for done, value, error in self.writer.run_group(jobs):
            done(value, error)
        ((value, error),) = found
        if error is not None:
            raise error
        return value

    def knows(self, directory: RoutingDirectory) -> None:
        self.run(lambda tx: self.coordinator.room_changed(tx, directory))

    def send(self, to: str, payload: object = None, sender: str = "al", **more: Any) -> Sent:
        new = NewSend(sender, to, Raw(msgspec.json.encode(payload)), **more)
        sent: Sent = self.run(lambda tx: self.coordinator.send(tx, new, fingerprint_send(new)))
        return sent

    def status(self, sent: Sent) -> Sent:
        found: Sent = self.run(lambda tx: self.coordinator.sent.status(tx, sent.event_id))
        return found

    def take(self, agent: str = "job", limit: int = 100) -> list[LeasedMessage]:
        taken: list[LeasedMessage] = self.run(
            lambda tx: self.dispatcher.dequeue(tx, agent, "consumer", limit)
        )
        return taken

    def ack(self, *messages: LeasedMessage, reply: object = None) -> None:
        receipts = [message.receipt for message in messages]
        said = {} if reply is None else {r: Raw(msgspec.json.encode(reply)) for r in receipts}
        to = messages[0].to
        settled = self.run(lambda tx: self.coordinator.ack(tx, to, receipts, [], said))
        assert settled.settled == len(messages)

    def nack(self, message: LeasedMessage) -> None:
        self.run(lambda tx: self.coordinator.nack(tx, message.to, [message.receipt], [], "broken"))

    def events(self, kind: str = "message") -> list[Any]:
        rows = self.run(lambda tx: tx.fetch_all("SELECT body FROM outbox ORDER BY seq"))
        return [event for event in (decode_event(row[0]) for row in rows) if event.kind == kind]

    def waiting(self, agent: str = "job") -> int:
        row = self.run(
            lambda tx: tx.fetch_one("SELECT waiting FROM mailbox WHERE name = ?", (agent,))
        )
        return int(row[0]) if row else 0


class Port:
    is_congested = False

    def __init__(self, box: Box, wire: "deque[bytes]") -> None:
        self._box = box
        self._wire = wire

    def send(self, frame: LinkFrame) -> None:
        self._wire.append(encode_frame(frame))

    def commit(
        self, operation: Callable[[Tx], Any], done: Callable[[Any], None], weight: int = 1
    ) -> None:
        done(self._box.run(operation))

    def now(self) -> int:
        return self._box.world.clock.now()

    def uptime(self) -> int:
        return self._box.world.clock.now()

    def end(self, error: GatepostError) -> None:
        raise error


class World:
    """Gateways a, b and c, each linked to each other. The agent `job` lives behind b."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.boxes = {id: Box(self, id) for id in "abc"}
        gateways = {id: GatewayEntry(box.node.key.public) for id, box in self.boxes.items()}
        self.directory = RoutingDirectory(
            gateways, {"job": AgentHome("b"), "al": AgentHome("a"), "bo": AgentHome("b")}
        )
        self.wires: dict[tuple[str, str], deque[bytes]] = {}
        for id, agent in (("a", "al"), ("b", "job"), ("b", "bo")):
            self.register(id, agent)
        self.know(*self.boxes)
        self.connect()

    def register(self, id: str, agent: str) -> None:
        box = self.boxes[id]
        box.run(lambda tx: box.agents.register(tx, agent))

    def connect(self) -> None:
        self.wires = {ends: deque() for ends in permutations(self.boxes, 2)}
        for box in self.boxes.values():
            box.links = []
        for (here, there), wire in self.wires.items():
            box = self.boxes[here]
            link = OutboxLink(Port(box, wire), box.node, box.coordinator, there, WINDOW)
            box.links.append(link)
            link.open()
        self.flow()

    def flow(self) -> None:
        """Let everything that is on its way arrive."""
        while any(self.wires.values()):
            for (here, there), wire in self.wires.items():
                if wire:
                    links = self.boxes[there].links
                    (link,) = (link for link in links if link.peer == here)
                    link.receive_frame(decode_frame(wire.popleft()))
            self.settle()

    def settle(self) -> None:
        """Run the groups that are due at once."""
        for box in self.boxes.values():
            while box.writer.idle_timeout() == 0:
                box.run()

    def move(self, to: str, agent: str = "job") -> None:
        known = self.directory.agents[agent]
        former = {*known.former, known.owner or ""} - {to, ""}
        agents = self.directory.agents | {agent: AgentHome(to, former=tuple(sorted(former)))}
        self.directory = replace(self.directory, agents=agents)

    def know(self, *ids: str) -> None:
        for id in ids:
            self.boxes[id].knows(self.directory)

    def moves(self, to: str, agent: str = "job") -> None:
        """As the gateways do it: registered there, transferred, removed here, known to all."""
        before = self.directory.agents[agent].owner or ""
        self.register(to, agent)
        self.move(to, agent)
        self.know(before)
        old = self.boxes[before]
        old.run(lambda tx: old.agents.remove(tx, agent, "transfer"))
        self.know(*self.boxes)
        self.settle()
        self.flow()

    def restart(self, id: str) -> None:
        """Whatever was on its way is gone, and so is what was in its memory."""
        self.boxes[id].start()
        self.know(id)
        self.connect()
