"""A mesh of simulated gateways: build it, connect it, use it, break it, heal it, check it.

Everything follows from one seed. Time passes only while `run` lets it.
"""

import shutil
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any, Self

from msgspec import Raw
from msgspec.structs import replace

from gatepost.delivery.abuse import AbuseKind
from gatepost.errors import GatepostError, StorageFailed, TooManyAgents
from gatepost.events import Envelope, EventKind, Receipt, encode_payload
from gatepost.tasks.capabilities.contract import contract_digest, encode_contract
from gatepost.tasks.capabilities.publication import (
    NewCapability,
    PublishedCapability,
    catalog_record,
    index_record,
    keep_publication,
)
from gatepost.tasks.task_routing import routing_entry
from gatepost.wire.operations import NewSend, Sent
from simulation.gateways.gateway import SimulatedGateway, SimulatedSettings, make_room
from simulation.gateways.network import Direction, SimulatedNetwork
from simulation.gateways.observer import MeshObserver, TraceLine
from simulation.gateways.room import SimulatedRoom
from simulation.gateways.task_traffic import TaskTraffic
from simulation.gateways.users import AgentManners, SimulatedAgent, SimulatedClient
from simulation.gateways.virtual_time import VirtualLoop
from simulation.history import (
    HistoryVerdict,
    ObservedSend,
    check_history,
    read_journal,
)

_ABUSE = "SELECT subject, detail FROM incident WHERE class = 'abuse'"
_OPEN = """
SELECT (SELECT count(*) FROM delivery WHERE processed_at IS NULL)
     + (SELECT count(*) FROM mail WHERE state < 3)
     + (SELECT count(*) FROM task WHERE ended_at IS NULL)
"""
_LOOK_EVERY_MS = 500
# How long a restored reader may wait for a relay to follow an outbox for it again.
_RESTART_MS = 16_000
# A lease ends by its gateway's clock, and a fault sets clocks back by a minute, some of them twice.
_PATIENCE_MS = 180_000
# Mail for a gateway that never returns waits until it expires.
_LOST_PATIENCE_MS = 900_000


class SimulatedMesh:
    """`with SimulatedMesh(seed=7, nodes=3) as mesh:` gives gateways n0, n1 and n2.

    `backbone` gateways relay outboxes and blobs. `unreachable` pairs never connect, so everything
    between them goes through a relay that both can reach.
    """

    def __init__(
        self,
        seed: int,
        nodes: int = 3,
        settings: SimulatedSettings | None = None,
        trace: TraceLine | None = None,
        folder: Path | None = None,
        backbone: Sequence[str] = (),
        unreachable: Iterable[tuple[str, str]] = (),
    ) -> None:
        self.seed = seed
        self.random = Random(f"{seed}/mesh")
        self.loop = VirtualLoop()
        self._folder = folder or Path(mkdtemp(prefix="gatepost-mesh-", dir=_fastest_folder()))
        self.gateways = {
            id: SimulatedGateway(self.loop, self._folder, id, seed, settings or SimulatedSettings())
            for id in (f"n{number}" for number in range(nodes))
        }
        self.backbone = list(backbone)
        for gateway in self.gateways.values():
            gateway.backbone = frozenset(backbone)
        self.network = SimulatedNetwork(self.loop, self.gateways, seed)
        for pair in unreachable:
            self.network.forbid_connection(*pair)
        self.observer = MeshObserver(self.network, trace)
        self.seen, self.trace = self.observer.seen, self.observer.trace
        self.room = SimulatedRoom(self.loop, self.gateways, self.network, seed)
        self.agents: dict[tuple[str, str], SimulatedAgent] = {}
        self.tasks = TaskTraffic(self.gateways, self.network, self.observer, self.room, seed)
        self.has_tasks = settings is not None and settings.hub is not None
        self._clients: list[SimulatedClient] = []
        self._honest = self.network.tamper
        self.healed = False
        # Directions in which events were left out; they start afresh when all is healed.
        self.omitted: set[Direction] = set()
        # (gateway, agent) for every gateway that forged receipts for an agent's mail.
        self.lies: set[tuple[str, str]] = set()
        self._liars: set[str] = set()
        # Kinds of abuse that only liars can be reported for.
        self._honest_kinds = set(AbuseKind)

    def __enter__(self) -> Self:
        self.observer.watch_logs()
        for id, gateway in self.gateways.items():
            self.observer.watch_gateway(gateway, self.network.links[id].files)
            gateway.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.observer.unwatch_logs()
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __getitem__(self, id: str) -> SimulatedGateway:
        return self.gateways[id]

    # -- gateways and agents

    def connect_all(self) -> None:
        ids = list(self.gateways)
        for number, a in enumerate(ids):
            for b in ids[number + 1 :]:
                self.network.keep_connected(a, b)

    def add_agent(
        self,
        name: str,
        home: str,
        standbys: tuple[str, ...] = (),
        manners: AgentManners | None = None,
    ) -> None:
        """`name` lives behind `home`; the `standbys` stand in for it if that fails."""
        self.host_agent(name, home, manners)
        for node in standbys:
            self.host_agent(name, node, manners, standby=True)
        unordered = manners is not None and manners.hands > 1
        self.room.place_agent(name, home, standbys, unordered=unordered)

    def host_agent(
        self, name: str, node: str, manners: AgentManners | None = None, standby: bool = False
    ) -> None:
        gateway = self.gateways[node]
        if (node, name) not in self.agents:
            random = Random(f"{self.seed}/{node}/{name}")
            self.agents[node, name] = SimulatedAgent(
                gateway,
                name,
                manners or AgentManners(),
                random,
                self.observer.note_turn,
                self.network.links[node].files,
                standby,
            )
            self.agents[node, name].on_accepted = partial(self.tasks.begin_work, node, name)
        agent = self.agents[node, name]
        agent.standby, agent.dismissed = standby, False
        self._submit_until_done(
            gateway,
            lambda tx: gateway.agents.register(tx, name, standby=standby),
            lambda: agent.dismissed,
        )

    def dismiss_agent(self, name: str, node: str) -> None:
        """`node` hosts `name` no more and accepts nothing new for it."""
        gateway, agent = self.gateways[node], self.agents[node, name]
        agent.dismissed = True
        self._submit_until_done(
            gateway,
            lambda tx: gateway.agents.remove(tx, name, "simulation"),
            lambda: not agent.dismissed,
        )

    def move_agent(self, name: str, to: str) -> None:
        """`name` lives behind `to` from now on; its old home works off the mail it accepted."""
        self.host_agent(name, to)
        self.room.place_agent(name, to)

    def publish_capabilities(
        self, node: str, documents: list[NewCapability], unseen_by: str = ""
    ) -> None:
        """`node` publishes capabilities; `unseen_by` takes the room for one without them."""
        entries = []
        for new in documents:
            body = encode_contract(new.contract)
            eligible = (new.owner_agent_id, *new.eligible_agent_ids)
            published = PublishedCapability(new, contract_digest(body), 1, self.loop.now, eligible)
            records = (catalog_record(published, 1), index_record(published, 1))
            entries.append(routing_entry(new.capability_id, *records))
            self._submit_until_done(
                self.gateways[node],
                partial(keep_publication, new=new, is_routable=eligible.__contains__),
            )
        for id, gateway in self.gateways.items():
            if id != unseen_by:
                gateway.hub.show_capabilities(entries)
        self.gateways[node].hub.begin_distribution()

    def _submit_until_done(
        self,
        gateway: SimulatedGateway,
        operation: Callable[[Any], Any],
        is_obsolete: Callable[[], bool] = lambda: False,
    ) -> None:
        """Run the operation now, or as soon as the gateway can; not if it is obsolete by then."""

        def later() -> None:
            if not gateway.destroyed:
                self.loop.call_after(200, attempt)

        def again(value: Any, error: GatepostError | None) -> None:
            if isinstance(error, StorageFailed | TooManyAgents):
                later()

        def attempt() -> None:
            if not is_obsolete():
                gateway.submit(operation, again, later)

        attempt()

    # -- traffic

    def send(
        self,
        sender: str,
        target: str,
        node: str | None = None,
        blob_bytes: int = 0,
        **fields: Any,
    ) -> ObservedSend:
        """Have a client send; the answer it gets will stand in the result.

        A payload of `blob_bytes` travels as a blob.
        """
        node = node or self.room.owner_of(sender)
        key = f"k{len(self.seen.sends)}"
        seen = ObservedSend(node, sender, target, key, self.loop.now)
        if not node:
            # Its gateway was revoked, and it has found no other yet.
            return seen
        self.seen.sends.append(seen)
        filler = b',"x":"' + b"x" * blob_bytes + b'"' if blob_bytes else b""
        payload = b'{"n":"' + key.encode() + b'"' + filler + b"}"
        seen.payload = sha256(payload).hexdigest()
        new = NewSend(sender, target, Raw(payload), idempotency_key=key, **fields)
        files = self.network.links[node].files if blob_bytes else None
        client = SimulatedClient(self.gateways[node], new, seen, files)
        self._clients.append(client)
        client.send()
        return seen

    def expect_abuse(self, kind: AbuseKind) -> None:
        """A gateway is the source of a flood. Others may forward it in their own name."""
        self._honest_kinds.discard(kind)

    def status_of(self, seen: ObservedSend) -> Sent:
        gateway = self.gateways[seen.node]
        sent: Sent = gateway.run_now(lambda tx: gateway.coordinator.sent.status(tx, seen.event_id))
        return sent

    def forge_receipt(self, forger: str, victim: str, event_id: str, receipt: Receipt) -> None:
        """`forger` gives a receipt for an event of `victim` that was never routed to it."""
        self._liars.add(forger)
        gateway = self.gateways[forger]
        draft = Envelope(
            event_id=gateway.node.event_ids.next_id(),
            kind=EventKind.ACK,
            source_agent_id="forger",
            to_node_id=victim,
            ref_event_id=event_id,
            payload=encode_payload(receipt),
        )
        self._submit_until_done(gateway, lambda tx: tx.append_event(draft))

    # -- time

    def run(self, ms: int, enough: Callable[[], bool] = lambda: False) -> bool:
        return self.loop.run(self.loop.now + ms, enough)

    def heal(self) -> None:
        """Everything works again: gateways, disks, lines, agents."""
        self.trace("all", "heal")
        self.healed = True
        self.seen.healed_at = self.loop.now
        self.network.heal_directions()
        self.network.tamper = self._honest
        # A reader cannot tell that the last event was left out, until another one follows.
        for direction in sorted(self.omitted):
            self.network.drop_connections(*direction)
        for links in self.network.links.values():
            links.files.fails_until, links.files.crashes_at_next = 0, False
        self.room.slow.clear()
        for gateway in self.gateways.values():
            gateway.cancel_crash()
            gateway.free_disk()
            make_room(gateway)
            # Requests to a gateway that never returns would follow one another for half an hour.
            gateway.hub.end_distribution()
            if not gateway.up:
                gateway.start()
        for agent in self.agents.values():
            agent.manners = replace(agent.manners, forget=0.0, nack=0.0)
            agent.resume_work()

    def drain(self, patience_ms: int = 0) -> bool:
        """Let time pass until nothing is open anywhere and stays so; returns whether that came.

        It gives up when nothing more was settled for `patience_ms`.
        """
        patience_ms = patience_ms or (_LOST_PATIENCE_MS if self.seen.lost else _PATIENCE_MS)
        while self._settle(patience_ms):
            # Cursors and signals still travel, and clients that a full disk turned away try again.
            self.run(_RESTART_MS if self.seen.restored else 4 * _LOOK_EVERY_MS)
            if not self.open_work():
                return True
        return False

    def _settle(self, patience_ms: int) -> bool:
        left, until = self.open_work(), self.loop.now + patience_ms
        while left and self.loop.now < until:
            self.run(_LOOK_EVERY_MS)
            if (now := self.open_work()) < left:
                left, until = now, self.loop.now + patience_ms
        return left == 0

    def open_work(self) -> int:
        """The number of open deliveries, unsettled mail, waiting operations and unread events."""
        alive = [each for each in self.gateways.values() if not each.destroyed]
        return sum(map(_open_at, alive)) + self._count_unread_events()

    def _count_unread_events(self) -> int:
        excused = self.seen.restored | self.seen.lost
        unread = self.observer.find_unread_events()
        return sum(excused.isdisjoint((reader, source)) for reader, source, _ in unread)

    # -- the end

    def close(self) -> None:
        for gateway in self.gateways.values():
            gateway.crash()

    def check_history(self, drained: bool = True) -> HistoryVerdict:
        """Stop all gateways and check their history."""
        self._note_false_accusations()
        self.close()
        journals = [
            read_journal(each.path, each.key.public, each.blob_folder)
            for each in self.gateways.values()
        ]
        return check_history(journals, self.seen, drained=drained)

    def _note_false_accusations(self) -> None:
        """No gateway may be reported for abuse, but for those that did forge something."""
        for gateway in self.gateways.values():
            for subject, detail in gateway.query(_ABUSE) if gateway.up else ():
                node, _, kind = subject.partition("@")[0].partition("/")
                if node not in self._liars and kind in self._honest_kinds:
                    self.seen.surprises.append((gateway.id, f"a false accusation: {detail}"))

    def finish(self) -> HistoryVerdict:
        """Heal, drain and check the history."""
        self.heal()
        self.drain()
        return self.check_history()

    def trace_frames(self) -> None:
        """Trace every frame as it arrives."""
        self.network.tamper = self._honest = self.observer.trace_frame


def _open_at(gateway: SimulatedGateway) -> int:
    ((found,),) = gateway.query(_OPEN)
    return int(found) + gateway.pending_work()


def _fastest_folder() -> str | None:
    """A folder in memory, if this machine has one."""
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() else None
