"""A faulty network between simulated gateways: connections that are slow, cut, or broken unnoticed.

Within one connection bytes arrive in order or not at all, as over TCP. What is lost, doubled or
out of order comes from connections that break and are opened anew, and from ends that notice it
at different times.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import msgspec

from gatepost.delivery.frames import Events, Frame, pack, unpack
from gatepost.delivery.link import Link
from gatepost.errors import GatepostError, LinkError
from gatepost.journal import Tx
from gatepost.journal.outbox import Appended
from gatepost.testing.simulation.gateway import SimulatedGateway
from gatepost.testing.simulation.loop import Loop

Lane = tuple[str, str]  # from, to
# What becomes of a frame on its way: the same, another, or None if it never comes.
Tamper = Callable[[Lane, bytes], bytes | None]

_DIAL_MS = (100, 600)
_NOTICE_MS = (50, 4_000)


class Network:
    """`cut` lanes carry nothing; `on_presence` hears whose neighbours may have changed."""

    def __init__(self, loop: Loop, gateways: dict[str, SimulatedGateway], seed: int) -> None:
        self.loop = loop
        self.gateways = gateways
        self.random = Random(f"{seed}/network")
        self.pipes = {id: Pipes(self, gateway) for id, gateway in gateways.items()}
        self.cut: set[Lane] = set()
        self.latency: dict[Lane, int] = {}
        self.tamper: Tamper = lambda lane, data: data
        self.on_presence: Callable[[str], None] = lambda node: None
        self.on_link_error: Callable[[str, str, GatepostError], None] = lambda *_: None
        self.bytes: Counter[Lane] = Counter()
        self.total = 0
        self._cables: list[Cable] = []
        self._dialling: set[Lane] = set()
        # Lanes whose dialler has a connection, so that it need not try.
        self._idle: set[Lane] = set()

    # -- connections

    def keep_connected(self, dialler: str, other: str) -> None:
        """From now on `dialler` opens a connection whenever it has none to `other`."""
        if (dialler, other) not in self._dialling:
            self._dialling.add((dialler, other))
            self.loop.after(self.random.randint(1, 20), lambda: self._dial((dialler, other)))

    def _dial(self, lane: Lane) -> None:
        dialler, other = lane
        if self.pipes[dialler].ends_to(other):
            self._idle.add(lane)
            return
        if self._is_open(lane):
            rtt = self._latency(lane) + self._latency((other, dialler))
            self.loop.after(rtt, lambda: self._connect(lane))
        self.loop.after(self.random.randint(*_DIAL_MS), lambda: self._dial(lane))

    def lost(self, lane: Lane) -> None:
        """A connection is gone; who dialled it dials again."""
        if lane in self._idle:
            self._idle.discard(lane)
            self.loop.after(self.random.randint(*_DIAL_MS), lambda: self._dial(lane))

    def connect(self, dialler: str, other: str) -> None:
        """Open one more connection, whether there is one or not."""
        if self._is_open((dialler, other)):
            self._connect((dialler, other))

    def _connect(self, lane: Lane) -> None:
        if self._is_open(lane):
            cable = Cable(self, lane)
            self._cables.append(cable)
            cable.open()

    def _is_open(self, lane: Lane) -> bool:
        there, back = lane, (lane[1], lane[0])
        return (
            self.gateways[lane[0]].up
            and self.gateways[lane[1]].up
            and there not in self.cut
            and back not in self.cut
        )

    def _latency(self, lane: Lane) -> int:
        return self.latency.get(lane, 2) + self.random.randint(0, 3)

    # -- what breaks them

    def cut_lane(self, source: str, target: str) -> None:
        """Nothing gets from `source` to `target` any more; both ends find out in their own time."""
        self.cut.add((source, target))
        for cable in self._between(source, target):
            cable.dead_lanes.add((source, target))
            self._notice_later(cable)

    def _notice_later(self, cable: "Cable") -> None:
        for id in cable.ends:
            self.loop.after(self.random.randint(*_NOTICE_MS), partial(cable.close, id))

    def drop(self, source: str, target: str) -> None:
        """Connections between the two break, with everything that is in flight."""
        for cable in self._between(source, target):
            cable.dead_lanes |= {(source, target), (target, source)}
            self._notice_later(cable)

    def heal(self) -> None:
        self.cut.clear()
        self.latency.clear()

    def _between(self, a: str, b: str) -> "list[Cable]":
        self._cables = [cable for cable in self._cables if cable.alive()]
        return [cable for cable in self._cables if {a, b} == set(cable.ends)]

    # -- frames

    def transmit(self, cable: "Cable", lane: Lane, data: bytes) -> None:
        self.bytes[lane] += len(data)
        self.total += len(data)
        arrival = max(self.loop.now + self._latency(lane), cable.busy_until[lane])
        cable.busy_until[lane] = arrival
        self.loop.at(arrival, lambda: self._arrive(cable, lane, data))

    def _arrive(self, cable: "Cable", lane: Lane, data: bytes) -> None:
        if lane in cable.dead_lanes:
            return
        tampered = self.tamper(lane, data)
        if tampered is not None:
            cable.ends[lane[1]].receive(tampered)


class Cable:
    """One connection and its two ends. Each end is closed when its gateway notices."""

    def __init__(self, network: Network, lane: Lane) -> None:
        self.network = network
        self.lane = lane
        back = (lane[1], lane[0])
        self.busy_until = {lane: 0, back: 0}
        self.dead_lanes: set[Lane] = set()
        self.ends = {id: End(self, network.pipes[id], peer) for id, peer in (lane, back)}

    def open(self) -> None:
        """Who dialled speaks first."""
        for end in self.ends.values():
            end.pipes.joined(end)
        self.ends[self.lane[0]].open()

    def alive(self) -> bool:
        return any(not end.closed for end in self.ends.values())

    def close(self, id: str) -> None:
        """One end goes. What it sent before may still arrive; nothing comes back."""
        end = self.ends[id]
        if end.closed:
            return
        end.closed = True
        end.pipes.left(end)
        (peer,) = (other for other in self.ends if other != id)
        if (id, peer) not in self.dead_lanes:
            delay = self.network.random.randint(5, 200)
            self.network.loop.after(delay, lambda: self.close(peer))


class End:
    """One end of a connection, and the port of the link that runs over it."""

    def __init__(self, cable: Cable, pipes: "Pipes", peer: str) -> None:
        self._cable = cable
        self.pipes = pipes
        self.peer = peer
        self.closed = False
        self._opened = False
        self._gateway = gateway = pipes.gateway
        window = gateway.habits.window
        self.link = Link(self, gateway.node, gateway.coordinator, peer, window)
        self.link.may_read = lambda: pipes.may_read(self)
        self.link.on_live = pipes.go_live

    def open(self) -> None:
        if not self._opened:
            self._opened = True
            self.link.open()

    def receive(self, data: bytes) -> None:
        if self.closed:
            return
        self.open()
        try:
            self.link.receive(unpack(data))
        except GatepostError as error:
            self.end(error)

    # -- the port

    def send(self, frame: Frame) -> None:
        if not self.closed:
            self._cable.network.transmit(self._cable, (self._gateway.id, self.peer), pack(frame))

    def commit(self, operation: Callable[[Tx], Any], done: Callable[[Any], None]) -> None:
        self._gateway.call(operation, lambda value, error: self._done(done, value, error))

    def _done(self, done: Callable[[Any], None], value: Any, error: GatepostError | None) -> None:
        if self.closed:
            return
        try:
            if error is not None:
                raise error
            done(value)
        except GatepostError as mistake:
            self.end(mistake)

    def now(self) -> int:
        return self._gateway.clock.now()

    def end(self, error: GatepostError) -> None:
        if not self.closed:
            if isinstance(error, LinkError):
                self._cable.network.on_link_error(self._gateway.id, self.peer, error)
            self._cable.close(self._gateway.id)


class Pipes:
    """The links of one gateway."""

    def __init__(self, network: Network, gateway: SimulatedGateway) -> None:
        self._network = network
        self.gateway = gateway
        self.ends: list[End] = []
        self.last_seen: dict[str, int] = {}
        gateway.on_up.append(self._start)
        gateway.on_down.append(self._stop)

    def ends_to(self, peer: str) -> list[End]:
        return [end for end in self.ends if end.peer == peer]

    def joined(self, end: End) -> None:
        self.ends.append(end)
        self._network.on_presence(self.gateway.id)

    def left(self, end: End) -> None:
        self.ends.remove(end)
        self.last_seen[end.peer] = self._network.loop.now
        self._network.lost((self.gateway.id, end.peer))
        if self.gateway.up:
            self.go_live()
            self._read_elsewhere(end.peer)
            self._network.on_presence(self.gateway.id)

    def may_read(self, end: End) -> bool:
        others = (other for other in self.ends_to(end.peer) if other is not end)
        return not any(other.link.reading for other in others)

    def go_live(self) -> None:
        peers = (end.peer for end in self.ends if end.link.feed is not None)
        self.gateway.outbox.live = frozenset(peers)

    def _read_elsewhere(self, peer: str) -> None:
        for end in self.ends_to(peer):
            if end.link.greeted and not end.link.reading and self.may_read(end):
                end.link.read()

    def _published(self, group: Appended) -> None:
        for end in list(self.ends):
            end.link.appended(group)

    def _start(self) -> None:
        self.gateway.outbox.published = self._published

    def _stop(self) -> None:
        """The power is gone: the other ends will find out."""
        for end in list(self.ends):
            end._cable.close(self.gateway.id)


def leave_out(data: bytes, place: int) -> bytes:
    """The same frame without one of its events, as an emitter that cheats would send it."""
    frame = unpack(data)
    if not isinstance(frame, Events):
        return data
    events = list(frame.events)
    del events[place]
    return pack(msgspec.structs.replace(frame, events=events))
