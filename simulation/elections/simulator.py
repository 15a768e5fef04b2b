"""A mesh on virtual time: nodes that tick, datagrams that may travel, and the planned faults."""

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from random import Random

from gatepost.mesh.decisions import ElectionChanged, MeshDecision, SendDatagram, SendMessage
from gatepost.wire.mesh_views import Term
from simulation.elections.checker import ElectionChecker
from simulation.elections.faults import ClockPlan, CutPlan, MeshFaultPlan, StopPlan
from simulation.elections.foreign_node import ForeignMeshNode
from simulation.elections.simulated_node import (
    Parcel,
    SimulatedMeshNode,
    make_members,
)

MakeNode = type[SimulatedMeshNode]
_Action = Callable[[], None]


class MeshSimulator:
    def __init__(
        self, plan: MeshFaultPlan, make_node: MakeNode = SimulatedMeshNode, on_wire: bool = False
    ) -> None:
        self.plan = plan
        self.now = 0
        self.delivered = 0
        self.checker = ElectionChecker()
        members = make_members(plan.nodes)
        self.nodes = [
            (ForeignMeshNode if each.is_foreign else make_node)(each, members, plan.timers, on_wire)
            for each in plan.nodes
        ]
        self._number_of = {node.name: number for number, node in enumerate(self.nodes)}
        self._paused: set[str] = set()
        # Writer → the term that it wrote into the room last, which no clock hinders.
        self._room: dict[str, Term] = {}
        self._random = Random(plan.seed + 1)
        self._queue: list[tuple[int, int, _Action]] = []
        self._count = 0

    def run_until(self, end: int) -> None:
        while self._queue and self._queue[0][0] <= end:
            self.now, _, action = heappop(self._queue)
            action()
        self.now = end

    def start_all(self) -> None:
        for node in self.nodes:
            self._start_node(node)
        for stop in self.plan.stops:
            self._at(stop.begin, partial(self._begin_stop, stop))
            if stop.end is not None:
                self._at(stop.end, partial(self._end_stop, stop))
        for clock in self.plan.clocks:
            self._at(clock.begin, partial(self._set_clock, clock, clock.secs))
            self._at(clock.end, partial(self._set_clock, clock, 0))

    # -- nodes

    def _start_node(self, node: SimulatedMeshNode) -> None:
        node.start(self.now)
        self._at(self.now + node.plan.phase_ms, lambda: self._tick(node, node.lives))

    def _tick(self, node: SimulatedMeshNode, life: int) -> None:
        if node.lives != life or not node.is_running:
            return
        if node.name not in self._paused:
            self._follow_room(node)
            self._apply(node, node.tick(self.now))
            election = node.engine.election
            if self._is_disturbed_by_clocks_alone():
                self.checker.check_clocks(self.nodes)
            if election.is_publisher and election.honoured is not None:
                self._room[node.name] = election.honoured
        self._at(self.now + self.plan.timers.heartbeat_ms, lambda: self._tick(node, life))

    def _follow_room(self, node: SimulatedMeshNode) -> None:
        terms = [term for writer, term in self._room.items() if not self._is_apart(writer, node)]
        if terms:
            node.hear_room_term(max(terms), self.now)

    def _is_apart(self, writer: str, reader: SimulatedMeshNode) -> bool:
        pair = self._number_of[writer], self._number_of[reader.name]
        return any(self._is_cut(cut, *pair) for cut in self.plan.cuts)

    def _is_disturbed_by_clocks_alone(self) -> bool:
        """Whether clocks are wrong, and nothing else is, for as long as an election takes."""
        plan, since = self.plan, self.now - self.plan.settle_ms
        if not plan.clocks or plan.cuts or plan.stops:
            return False
        # A clock that is only a little off differs from some nodes, and not from others.
        least_secs = 2 * plan.timers.clock_tolerance_secs
        return all(
            clock.begin <= since and self.now < clock.end and abs(clock.secs) > least_secs
            for clock in plan.clocks
        )

    def _set_clock(self, clock: ClockPlan, secs: int) -> None:
        self.nodes[clock.node].clock_fault_secs = secs

    def _begin_stop(self, stop: StopPlan) -> None:
        node = self.nodes[stop.node]
        if stop.kind == "pause":
            self._paused.add(node.name)
            return
        if stop.kind == "leave":
            self._apply(node, node.release_lease(self.now))
        node.stop()

    def _end_stop(self, stop: StopPlan) -> None:
        node = self.nodes[stop.node]
        if stop.kind == "pause":
            self._paused.discard(node.name)
        else:
            self._start_node(node)

    # -- decisions and datagrams

    def _apply(self, node: SimulatedMeshNode, decisions: list[MeshDecision]) -> None:
        for decision in decisions:
            if isinstance(decision, SendMessage | SendDatagram):
                self._send(node, decision.address, node.make_parcel(decision, self.now))
            elif isinstance(decision, ElectionChanged) and decision.term is not None:
                node.kept_term = decision.term
                self.checker.note_term(node.name, decision.term)

    def _send(self, node: SimulatedMeshNode, address: str, parcel: Parcel) -> None:
        faulty = self.now < self.plan.heals_at
        if faulty and self._is_lost(node.name, address):
            return
        self._deliver_later(node.name, address, parcel)
        if faulty and self._random.random() < self.plan.duplicates:
            self._deliver_later(node.name, address, parcel)

    def _is_lost(self, source: str, target: str) -> bool:
        if self._random.random() < self.plan.loss:
            return True
        pair = self._number_of[source], self._number_of[target]
        return any(self._is_cut(cut, *pair) for cut in self.plan.cuts)

    def _is_cut(self, cut: CutPlan, source: int, target: int) -> bool:
        in_time = cut.begin <= self.now < cut.end
        return in_time and source in cut.sources and target in cut.targets

    def _deliver_later(self, source: str, address: str, parcel: Parcel) -> None:
        target = self.nodes[self._number_of[address]]
        delay = 1 + int(self._random.random() * self.plan.max_delay_ms)
        self._at(self.now + delay, lambda: self._deliver(target, source, parcel))

    def _deliver(self, target: SimulatedMeshNode, source: str, parcel: Parcel) -> None:
        if not target.is_running or target.name in self._paused:
            return
        self.delivered += 1
        self._apply(target, target.receive(parcel, source, self.now))

    def _at(self, moment: int, action: _Action) -> None:
        self._count += 1
        heappush(self._queue, (moment, self._count, action))
