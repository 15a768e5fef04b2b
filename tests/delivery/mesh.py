"""Real gateway cores linked in memory: journals, links, relays, and a network that can be cut.

Nothing happens by itself. `flow` runs everything until all is quiet; `step` does one thing.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import apsw
from msgspec import Raw
from msgspec.structs import replace

from gatepost.delivery import LocalNode, RetryPolicy, build_core
from gatepost.delivery.frames import PIECE_BYTES, AnyFrame, decode_frame
from gatepost.delivery.send_request import fingerprint_send
from gatepost.errors import GatepostError
from gatepost.events import Envelope, NodeKey, decode_event
from gatepost.journal import Tx, open_memory_journal
from gatepost.journal.writer import JobOutcome, WriteJob
from gatepost.links.blob_ports import FetchLimits
from gatepost.links.peer_links import PeerLinks, PeerLinkSettings
from gatepost.mailbox import MailboxPolicy
from gatepost.routing import AgentHome, GatewayEntry, RoutingDirectory
from gatepost.testing import ManualClock
from gatepost.wire.operations import NewSend, Sent

START = 1_800_000_000_000
WINDOW = 1 << 20
CONGESTED_BYTES = 256 * 1024


class Gate:
    """One gateway's core. Its agent has the gate's name in capitals."""

    def __init__(self, id: str, clock: ManualClock, relays: bool = False) -> None:
        self.id = id
        self.clock = clock
        self.relays = relays
        self.key = NodeKey.generate(clock)
        self.connection = open_memory_journal()
        self.incarnations = 0
        self.directory = RoutingDirectory()
        self._window = WINDOW
        self.backbone = {id} if relays else set()
        self.start(1)

    def start(self, first_seq: int | None = None) -> None:
        """Come up with the journal there is; with `first_seq` it is a new incarnation of it."""
        if first_seq is not None:
            self.incarnations += 1
            # An incarnation in which nothing was written leaves no trace.
            self.connection.execute("DELETE FROM incarnation WHERE first_seq >= ?", (first_seq,))
            row = (f"{self.id}-{self.incarnations}", first_seq)
            self.connection.execute("INSERT INTO incarnation VALUES (?, ?)", row)
        self.node = LocalNode(self.id, f"{self.id}-{self.incarnations}", self.key, self.clock)
        self.core = core = build_core(self.node, RetryPolicy(), MailboxPolicy())
        self.agents = core.agents
        self.coordinator = core.coordinator
        self.dispatcher = core.dispatcher
        self.outbox = core.outbox
        self.blobs_wanted: list[tuple[str, str]] = []
        self.coordinator.observe(on_blob_wanted=self._want_blob)
        self.writer = core.build_writer(self.connection, lambda outcomes: None)
        self.jobs: list[WriteJob] = []
        self.ends: list[End] = []
        settings = PeerLinkSettings(self._window, FetchLimits(max_bytes=8 * PIECE_BYTES))
        # Tests of blobs put files in place; without them no blob is ever asked for.
        self.peers = PeerLinks(self, None, settings)  # type: ignore[arg-type]
        self.host = self.peers.relay_host if self.relays else None
        self.reader = self.peers.relay_reader
        self.peers.start()
        self.work()
        self.do(lambda tx: self.coordinator.room_changed(tx, self.directory))
        self.do(lambda tx: self.agents.register(tx, self.id.upper()))

    @property
    def window(self) -> int:
        return self._window

    @window.setter
    def window(self, window: int) -> None:
        """For links that are opened from now on."""
        self._window = self.peers.relay_host.window = self.peers.relay_reader.window = window
        self.peers.settings = replace(self.peers.settings, window_bytes=window)

    def restore(self, backup: apsw.Connection) -> None:
        """Start a new incarnation from a backup."""
        self.connection = backup
        self.start(self.value("SELECT coalesce(max(last_seq), 0) + 1 FROM head"))

    def backup(self) -> apsw.Connection:
        copy = apsw.Connection(":memory:")
        with copy.backup("main", self.connection, "main") as work:
            work.step()
        return copy

    # -- its journal

    def do(self, operation: Callable[[Tx], Any]) -> Any:
        """Commit one operation now; returns what it returned."""
        found: list[JobOutcome] = []
        outcomes = self.writer.run_group([(operation, lambda v, e: found.append((_drop, v, e)))])
        for done, value, error in outcomes:
            done(value, error)
        ((_, value, error),) = found
        if error is not None:
            raise error
        return value

    def now(self) -> int:
        return self.clock.now()

    def uptime(self) -> int:
        return self.clock.now()

    def commit(
        self,
        operation: Callable[[Tx], Any],
        done: Callable[[Any, GatepostError | None], None],
        weight: int = 1,
    ) -> None:
        self.jobs.append((operation, done))

    def is_backbone(self, node: str) -> bool:
        return node in self.backbone

    def work(self) -> bool:
        """Commit what waits, as one group."""
        jobs, self.jobs = self.jobs, []
        for done, value, error in self.writer.run_group(jobs) if jobs else ():
            done(value, error)
        return bool(jobs)

    def rows(self, sql: str, *params: Any) -> list[Any]:
        return self.connection.execute(sql, params).fetchall()

    def value(self, sql: str, *params: Any) -> Any:
        ((found,),) = self.rows(sql, *params)
        return found

    def _want_blob(self, digest: str, source: str) -> None:
        self.blobs_wanted.append((digest, source))

    # -- what it does

    def send(self, to: "Gate", payload: bytes = b'"hi"', **fields: Any) -> Sent:
        new = NewSend(self.id.upper(), to.id.upper(), Raw(payload), **fields)
        sent: Sent = self.do(lambda tx: self.coordinator.send(tx, new, fingerprint_send(new)))
        return sent

    def send_many(self, to: "Gate", count: int, size: int = 2) -> list[str]:
        """All in one commit group."""

        def all(tx: Tx) -> list[str]:
            payload = b'"' + b"x" * size + b'"'
            news = [NewSend(self.id.upper(), to.id.upper(), Raw(payload)) for _ in range(count)]
            return [self.coordinator.send(tx, new, fingerprint_send(new)).event_id for new in news]

        found: list[str] = self.do(all)
        return found

    def note(self, to: str | None) -> None:
        """An event that nobody acts upon."""
        draft = Envelope(
            event_id=self.node.event_ids.next_id(), kind="notice", source_agent_id="gateway",
            to_node_id=to,
        )  # fmt: skip
        self.do(lambda tx: tx.append_event(draft))

    def mail(self) -> list[str]:
        """The event ids in its agent's mailbox, in order."""
        query = """SELECT m.msg_id FROM mail m JOIN mailbox b ON b.id = m.mailbox
            WHERE b.name = ? ORDER BY m.arrival"""
        return [row[0] for row in self.rows(query, self.id.upper())]

    def settle(self) -> int:
        """Take and ack all the mail there is."""
        taken = 0
        while mail := self.do(lambda tx: self.dispatcher.dequeue(tx, self.id.upper(), "c", 100)):
            receipts = [each.receipt for each in mail]
            self.do(partial(self._ack, receipts))
            taken += len(mail)
        return taken

    def _ack(self, receipts: list[str], tx: Tx) -> None:
        self.coordinator.ack(tx, self.id.upper(), receipts, [], {})

    def see(self, directory: RoutingDirectory) -> None:
        """The room looks like this from now on."""
        self.directory = directory
        self.do(lambda tx: self.coordinator.room_changed(tx, directory))
        if self.host is not None:
            self.host.retry_unserved()

    def state(self, event_id: str) -> str:
        found: Sent = self.do(lambda tx: self.coordinator.sent.status(tx, event_id))
        return found.state

    def events(self) -> list[Envelope]:
        return [decode_event(row[0]) for row in self.rows("SELECT body FROM outbox ORDER BY seq")]

    def addressed_to(self, node: str) -> list[str]:
        """The event ids it wrote for a node, in order."""
        return [each.event_id for each in self.events() if each.to_node_id == node]

    def incidents(self, kind: str | None = None) -> list[str]:
        query = "SELECT class, subject FROM incident ORDER BY raised_at, id"
        return [subject for found, subject in self.rows(query) if kind in (None, found)]


class End:
    """One end of a wire: the connection that a link runs over."""

    def __init__(self, wire: "Wire", gate: Gate, peer: Gate) -> None:
        self.wire = wire
        self.gate = gate
        self.peer = peer
        self.out: deque[bytes] = deque()
        self.seen: list[AnyFrame] = []
        self.tamper: Callable[[AnyFrame], AnyFrame | None] = lambda frame: frame
        gate.backbone |= {peer.id} if peer.relays else set()
        self.peers = gate.peers
        self.port = self.peers.add_link(self, peer.id)
        self.link = self.port.outbox
        gate.ends.append(self)
        self.port.open()

    def send_frame(self, data: bytes) -> None:
        if not self.wire.broken:
            self.out.append(data)

    @property
    def queued_bytes(self) -> int:
        return sum(map(len, self.out))

    @property
    def is_congested(self) -> bool:
        return self.queued_bytes >= CONGESTED_BYTES

    def end(self, error: GatepostError) -> None:
        self.wire.errors.append(error.message)
        self.wire.cut()

    def close(self) -> None:
        self.out.clear()
        if self in self.gate.ends:
            self.gate.ends.remove(self)
        # A gate that was started again has forgotten the links it had.
        if self.peers is self.gate.peers:
            self.peers.remove_link(self.port)

    def deliver(self, other: "End") -> bool:
        """Hand the next frame to the other end."""
        if not self.out:
            return False
        was_congested = self.is_congested
        frame = self.tamper(decode_frame(self.out.popleft()))
        if was_congested and not self.is_congested:
            self.port.resume_requests()
        if frame is not None:
            other.seen.append(frame)
            other.hear(frame)
        return True

    def hear(self, frame: AnyFrame) -> None:
        try:
            self.link.receive_frame(frame)
        except GatepostError as error:
            self.port.end(error)


class Wire:
    """A connection between two gates, until it is cut."""

    def __init__(self, one: Gate, other: Gate) -> None:
        self.broken = False
        self.errors: list[str] = []
        self.one = End(self, one, other)
        self.other = End(self, other, one)

    def end_of(self, gate: Gate) -> End:
        return self.one if self.one.gate is gate else self.other

    def step(self) -> bool:
        if self.broken:
            return False
        moved = self.one.deliver(self.other)
        return self.other.deliver(self.one) or moved

    def cut(self) -> None:
        if self.broken:
            return
        self.broken = True
        for end in (self.one, self.other):
            end.close()


class Mesh:
    """A room of gates that all know each other, whoever is linked with whom."""

    def __init__(self, *names: str, relays: Iterable[str] = ()) -> None:
        self.clock = ManualClock(START)
        self.gates = {name: Gate(name, self.clock, name in relays) for name in names}
        self.wires: list[Wire] = []
        self.meet()

    def __getitem__(self, name: str) -> Gate:
        return self.gates[name]

    def meet(self) -> None:
        """Everyone sees the room as it is now."""
        gateways = {name: GatewayEntry(gate.key.public) for name, gate in self.gates.items()}
        agents = {name.upper(): AgentHome(name) for name in self.gates}
        for gate in self.gates.values():
            gate.see(RoutingDirectory(gateways, agents))

    def link(self, one: str, other: str) -> Wire:
        wire = Wire(self[one], self[other])
        self.wires.append(wire)
        return wire

    def step(self) -> bool:
        """Everyone commits what waits and every wire carries one frame each way."""
        self.wires = [wire for wire in self.wires if not wire.broken]
        worked = [gate.work() for gate in self.gates.values()]
        return any([wire.step() for wire in self.wires] + worked)

    def flow(self, most: int = 20_000) -> None:
        for _ in range(most):
            if not self.step():
                return
        raise AssertionError("they never come to rest")

    def refresh(self) -> None:
        for gate in self.gates.values():
            gate.peers.relay_host.flush_readings()
            gate.peers.relay_host.retry_restarts()
            gate.reader.refresh_requests()
        self.flow()


def _drop(value: Any, error: GatepostError | None) -> None:
    """Already kept."""
