"""The plan of one run: the nodes, and the faults that they meet, drawn from a seed."""

from random import Random

from msgspec import Struct
from msgspec.structs import replace

from gatepost.mesh.mesh_time import MeshTimers

_SECOND = 1000
# How often each size of a mesh is drawn. Large ones cost much more than small ones.
_SIZES = ((3, 7, 90), (8, 14, 8), (15, 30, 1.8), (50, 50, 0.2))
_ONLY_CLOCKS = 0.2
_ONE_FOREIGN = 0.25
_FAULT_MS = (100 * _SECOND, 400 * _SECOND)


class NodePlan(Struct, frozen=True):
    """One node. `bootstrap` are numbers of nodes whose addresses it is told.

    `is_foreign`: it is another implementation, which knows the protocol's document alone.
    """

    name: str
    priority: int
    may_lead: bool
    skew_secs: int
    phase_ms: int
    bootstrap: tuple[int, ...]
    is_foreign: bool = False


class CutPlan(Struct, frozen=True):
    """From `begin` to `end` no datagram passes from a node of one set to one of the other."""

    begin: int
    end: int
    sources: frozenset[int]
    targets: frozenset[int]


class StopPlan(Struct, frozen=True):
    """A node stops. `end` None: for ever. `kind`: crash, pause or leave (a graceful stop)."""

    begin: int
    end: int | None
    node: int
    kind: str


class ClockPlan(Struct, frozen=True):
    """From `begin` to `end` the clock of a node is `secs` ahead, or behind."""

    begin: int
    end: int
    node: int
    secs: int


class MeshFaultPlan(Struct, frozen=True):
    seed: int
    nodes: tuple[NodePlan, ...]
    loss: float
    duplicates: float
    max_delay_ms: int
    cuts: tuple[CutPlan, ...]
    stops: tuple[StopPlan, ...]
    clocks: tuple[ClockPlan, ...]
    heals_at: int
    timers: MeshTimers = MeshTimers()

    @property
    def settle_ms(self) -> int:
        """The time that an election takes, in which peers fall silent first."""
        return self.timers.takeover_ms + 2 * self.timers.heartbeat_ms

    @property
    def settles_at(self) -> int:
        """From here on there is exactly one publisher."""
        return self.heals_at + self.settle_ms

    @property
    def disturbances(self) -> int:
        return len(self.cuts) + len(self.stops) + len(self.clocks)


def draw_plan(seed: int, size: int | None = None) -> MeshFaultPlan:
    random = Random(seed)
    count = size or _draw_size(random)
    heals_at = random.randint(*_FAULT_MS)
    # In some runs the clocks are all that is wrong.
    only_clocks = random.random() < _ONLY_CLOCKS
    cuts = 0 if only_clocks else random.randint(0, 4)
    stops = [] if only_clocks else _draw_stops(random, count, heals_at)
    nodes = [_draw_node(random, number, count, stops) for number in range(count)]
    plan = MeshFaultPlan(
        seed=seed,
        nodes=tuple(nodes),
        loss=random.choice((0.0, 0.05, 0.3)),
        duplicates=random.choice((0.0, 0.1)),
        max_delay_ms=random.choice((5, 200, 900)),
        cuts=tuple(cut for _ in range(cuts) for cut in _draw_cut(random, count, heals_at)),
        stops=tuple(stops),
        clocks=tuple(_draw_clocks(random, count, heals_at)),
        heals_at=heals_at,
    )
    has_foreign = not only_clocks and random.random() < _ONE_FOREIGN
    return _replace_one_by_foreign(random, plan) if has_foreign else plan


def _replace_one_by_foreign(random: Random, plan: MeshFaultPlan) -> MeshFaultPlan:
    """One of the first two nodes, which may lead. It takes no part in finding wrong clocks."""
    nodes, number = list(plan.nodes), random.randrange(2)
    priority = random.choice((5, 10, 20, 40))
    nodes[number] = replace(nodes[number], is_foreign=True, priority=priority)
    return replace(plan, nodes=tuple(nodes), clocks=())


def _draw_size(random: Random) -> int:
    low, high, _ = random.choices(_SIZES, [weight for *_, weight in _SIZES])[0]
    return random.randint(low, high)


def _draw_node(random: Random, number: int, count: int, stops: list[StopPlan]) -> NodePlan:
    others = [each for each in range(count) if each != number]
    bootstrap = random.sample(others, random.randint(1, min(3, len(others))))
    if any(stop.end is None for stop in stops):
        # Nobody depends on a node that never returns: it is one of the first two.
        bootstrap += [each for each in (0, 1) if each != number]
    elif number:
        # A chain to the first node: the mesh is connected, however it is drawn.
        bootstrap.append(random.randrange(number))
    return NodePlan(
        name=f"n{number:02}",
        # Few values, so that equal priorities are common.
        priority=random.choice((10, 10, 20, 30)),
        may_lead=number < 2 or random.random() < 0.7,
        skew_secs=random.randint(-2, 2),
        phase_ms=random.randrange(10 * _SECOND),
        bootstrap=tuple(dict.fromkeys(bootstrap)),
    )


def _draw_cut(random: Random, count: int, heals_at: int) -> list[CutPlan]:
    """A partition, or a connection that works in one direction only."""
    begin = random.randrange(heals_at)
    end = min(heals_at, begin + random.randint(5 * _SECOND, 250 * _SECOND))
    everybody = frozenset(range(count))
    one = frozenset(random.sample(range(count), random.randint(1, count - 1)))
    cut = CutPlan(begin, end, one, everybody - one)
    if random.random() < 0.3:
        return [cut]
    return [cut, CutPlan(begin, end, cut.targets, cut.sources)]


def _draw_clocks(random: Random, count: int, heals_at: int) -> list[ClockPlan]:
    """Clocks that are wrong for a while: by as much as others, or by more or less."""
    secs = random.choice((-1, 1)) * random.choice((8, 60, 3660))
    nodes = random.sample(range(count), min(count, random.choice((0, 0, 1, 1, 2))))
    clocks = []
    for node in nodes:
        begin = random.randrange(heals_at)
        end = min(heals_at, begin + random.choice((15, 100, 400)) * _SECOND)
        clocks.append(ClockPlan(begin, end, node, random.choice((secs, secs, -2 * secs))))
    return clocks


def _draw_stops(random: Random, count: int, heals_at: int) -> list[StopPlan]:
    stops: list[StopPlan] = []
    free_from = dict.fromkeys(range(count), 0)
    for _ in range(random.randint(0, 4)):
        node, begin = random.randrange(count), random.randrange(heals_at)
        if begin < free_from[node]:
            continue
        kind = random.choice(("crash", "crash", "pause", "leave"))
        end = min(heals_at, begin + random.randint(1 * _SECOND, 200 * _SECOND))
        free_from[node] = end + 1
        stops.append(StopPlan(begin, end, node, kind))
    if random.random() < 0.3:
        # One of the first two, which may lead, is gone for ever; the other one is not.
        node = random.randrange(2)
        stops = [stop for stop in stops if stop.node != node]
        stops.append(
            StopPlan(random.randrange(heals_at), None, node, random.choice(("crash", "leave")))
        )
    return sorted(stops, key=lambda stop: stop.begin)
