"""One run: a mesh drawn from a seed, traffic under faults, then healing and the check."""

from collections.abc import Callable
from functools import partial
from itertools import combinations
from random import Random
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from gatepost.config.hub_settings import HubSettings
from simulation.gateways import faults, floods
from simulation.gateways.gateway import RETRIED, SimulatedSettings
from simulation.gateways.mesh import SimulatedMesh
from simulation.gateways.users import AgentManners
from simulation.history import HistoryVerdict

# The most bytes that one message may cost, with receipts, reply, blob, retries and reconnections.
_LINK_BYTES = 40_000
_HASTY_MS = 1_000
# How many messages have a payload that travels as a blob.
_BLOBS = 0.06
# How many messages have no order, wait for a moment, or have a retry policy of their own.
_UNORDERED = 0.12
_DELAYED = 0.06
_OWN_RETRIES = 0.05
# How many agents work on several messages at once.
_SEVERAL_HANDS = 0.1
# How many agents the hub runs; how many tasks have a request that is a blob, or are cancelled.
_HUB_AGENTS = 0.3
_LARGE_REQUESTS = 0.15
_CANCELLED = 0.25
# How many tasks are tried again if their executor is lost.
_RETRIED = 0.4
# The silence of a gateway is longer than clocks jump and than senders wait for it. One flood fills
# the queue, if it may.
_HUB = HubSettings(max_sessions=3, max_queued=48, agent_silence_secs=10.0, abandon_secs=300.0)
# Where it is shorter than faults last, tasks are presumed to have failed that have not.
_IMPATIENT = 0.2
_IMPATIENT_SECS = 8.0
# How many single messages or bursts have callers that wait for the replies.
_CALLERS = 0.2


class RunShape(Struct, frozen=True):
    """The size of a run, and the kinds of faults in it."""

    nodes: int = 5
    messages: int = 500
    agents: int = 10
    faults: int = 20
    over_ms: int = 60_000
    kinds: list[str] = field(default_factory=lambda: [*faults.ALL_KINDS])
    tasks: int = 0

    def replay_command(self, seed: int) -> str:
        """The command line that replays this run with this seed."""
        given = [f"--seed {seed}"]
        default = RunShape()
        for name in ("nodes", "messages", "agents", "faults", "over_ms", "tasks"):
            if getattr(self, name) != getattr(default, name):
                given.append(f"--{name.replace('_', '-')} {getattr(self, name)}")
        if self.kinds != default.kinds:
            given.append(f"--kinds {','.join(self.kinds)}")
        return f"python -m simulation.gateways {' '.join(given)}"


class RunResult(Struct):
    """`drained`: nothing was open in the end. `took_ms` is virtual."""

    seed: int
    verdict: HistoryVerdict
    drained: bool
    took_ms: int
    commits: int
    bytes: int


def simulate(
    seed: int,
    shape: RunShape | None = None,
    trace: Callable[[str], None] | None = None,
    frames: bool = False,
) -> RunResult:
    shape = shape or RunShape()
    random, terms = Random(f"{seed}/run"), Random(f"{seed}/terms")
    settings, topology = _draw_settings(random), _draw_topology(random, shape.nodes)
    # Streams of their own: a seed without tasks is the same run as ever.
    late = Random(f"{seed}/late")
    impatient = late.random() < _IMPATIENT
    if shape.tasks:
        abandon_secs = _IMPATIENT_SECS if impatient else _HUB.abandon_secs
        settings = replace(settings, hub=replace(_HUB, abandon_secs=abandon_secs))
    with SimulatedMesh(seed, shape.nodes, settings, trace, **topology) as mesh:
        mesh.seen.brief = True
        mesh.seen.hasty = settings.retries.verdict_wait == _HASTY_MS
        if frames:
            mesh.trace_frames()
        began = mesh.loop.now
        _place_agents(mesh, random, terms, shape)
        work = Random(f"{seed}/tasks")
        if shape.tasks:
            _choose_hub_agents(mesh, work, shape)
        mesh.run(500)
        faults.plan_faults(mesh, random, shape.faults, shape.over_ms, shape.kinds)
        _plan_traffic(mesh, random, terms, shape)
        _plan_tasks(mesh, work, shape, may_retry=not impatient)
        flooded = 0
        if shape.tasks:
            # Who waits for a word less long than faults last asks for it less long too.
            kinds = [kind for kind in shape.kinds if kind != "pruned_reports" or not impatient]
            faults.plan_task_faults(mesh, late, shape.over_ms, kinds)
            flooded = floods.plan_floods(mesh, seed, shape.over_ms, shape.kinds)
        most = _LINK_BYTES * (shape.messages + shape.faults + 2 * shape.tasks + flooded)
        mesh.run(shape.over_ms + 1, lambda: mesh.network.total > most)
        mesh.heal()
        drained = mesh.network.total < most and mesh.drain()
        if mesh.network.total > most:
            mesh.seen.surprises.append(("", f"more than {most} bytes went over the links"))
        commits = sum(gateway.commits for gateway in mesh.gateways.values())
        size, took = mesh.network.total, mesh.loop.now - began
        return RunResult(seed, mesh.check_history(), drained, took, commits, size)


def _draw_settings(random: Random) -> SimulatedSettings:
    usual = SimulatedSettings()
    policy = replace(usual.policy, max_pending=random.choice((2, 10, 1_000)))
    window = random.choice((1_500, 20_000, 1 << 20))
    # Where senders wait less for an owner's word than faults last, it comes too late for some.
    wait = _HASTY_MS if random.random() < 0.3 else usual.retries.verdict_wait
    retries = replace(usual.retries, verdict_wait=wait)
    group_ms = random.choice((1, 3, 30))
    return replace(usual, retries=retries, policy=policy, window=window, group_ms=group_ms)


def _draw_topology(random: Random, nodes: int) -> dict[str, Any]:
    """Most meshes have one or two relays, and gateways that can meet nowhere else."""
    ids = [f"n{number}" for number in range(nodes)]
    if nodes < 3 or random.random() < 0.4:
        return {}
    backbone = random.sample(ids, min(random.choice((1, 2)), nodes - 2))
    edges = [id for id in ids if id not in backbone]
    pairs = list(combinations(edges, 2))
    unreachable = random.sample(pairs, min(len(pairs), random.randint(1, 2)))
    return {"backbone": backbone, "unreachable": unreachable}


def _place_agents(mesh: SimulatedMesh, random: Random, terms: Random, shape: RunShape) -> None:
    mesh.connect_all()
    ids = list(mesh.gateways)
    for number in range(shape.agents):
        home = ids[number % len(ids)]
        others = [id for id in ids if id != home]
        standbys = (random.choice(others),) if random.random() < 0.4 else ()
        manners = AgentManners(
            credit=random.randint(1, 5),
            nack=random.choice((0.0, 0.05)),
            hands=3 if terms.random() < _SEVERAL_HANDS else 1,
        )
        mesh.add_agent(f"a{number}", home, standbys, manners)


def _plan_traffic(mesh: SimulatedMesh, random: Random, terms: Random, shape: RunShape) -> None:
    """Single messages and bursts of them; few have little time."""
    names = [f"a{number}" for number in range(shape.agents)]
    left = shape.messages
    while left > 0:
        sender, target = random.sample(names, 2)
        fields: dict[str, Any] = {"ttl_secs": 3.0} if random.random() < 0.08 else {}
        fields |= {"replies": "caller"} if random.random() < _CALLERS else {}
        moment = random.randint(0, shape.over_ms)
        for _ in range(min(left, random.choice((1, 1, 1, 8)))):
            blob = random.randint(1, 3_000) if random.random() < _BLOBS else 0
            more = fields or _draw_terms(terms, mesh.loop.now + moment)
            send = partial(mesh.send, sender, target, blob_bytes=blob, **more)
            mesh.loop.call_after(moment, send)
            left -= 1


def _choose_hub_agents(mesh: SimulatedMesh, random: Random, shape: RunShape) -> None:
    """Every gateway runs some of its agents itself: in sessions."""
    for number in range(shape.agents):
        if random.random() < _HUB_AGENTS:
            mesh.tasks.run_agent_by_hub(f"a{number}", mesh.room.owner_of(f"a{number}"))


def _plan_tasks(mesh: SimulatedMesh, random: Random, shape: RunShape, *, may_retry: bool) -> None:
    names = [f"a{number}" for number in range(shape.agents)]
    for _ in range(shape.tasks):
        requester, agent = random.sample(names, 2)
        fields: dict[str, Any] = {"ttl_secs": 5.0} if random.random() < 0.08 else {}
        retried = random.random() < _RETRIED and may_retry
        fields |= {"required_capabilities": [RETRIED.id], "may_wait": True} if retried else {}
        large = random.randint(1, 3_000) if random.random() < _LARGE_REQUESTS else 0
        cancel = random.randint(0, 6_000) if random.random() < _CANCELLED else None
        create = partial(
            mesh.tasks.create_task,
            requester,
            agent,
            large_bytes=large,
            cancel_after=cancel,
            **fields,
        )
        mesh.loop.call_after(random.randint(0, shape.over_ms), create)


def _draw_terms(random: Random, now: int) -> dict[str, Any]:
    """The order, delay and retries of one message."""
    terms: dict[str, Any] = {}
    if random.random() < _UNORDERED:
        terms["order"] = "none"
    if random.random() < _DELAYED:
        terms["not_before"] = (now + random.randint(-2_000, 8_000)) / 1000
    if random.random() < _OWN_RETRIES:
        terms["max_retries"] = random.randint(0, 1)
    return terms
