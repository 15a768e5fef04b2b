"""The world a synthetic archive is about: nodes, agents, who talks to whom, and when."""

import base64
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gatepost.events import NodeKey, Sealed

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
# One value for all rows, or one for each.
Value = int | NDArray[Any]

# 2026-03-02T22:30:00Z: even the shortest run crosses midnight.
START: Final = 1_772_490_600_000
MINUTE: Final = 60_000
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
TTL: Final = DAY
# A node that stops first finishes what it has begun.
DRAIN: Final = MINUTE
OFF: Final = 5 * MINUTE

_AGENTS = 6
_PAIRS = 40
_PAYLOADS = 256
_BLOBS = 64


class Capability(NamedTuple):
    id: str
    version: str
    delegation: str
    executor: str
    type: str
    median_secs: float


CAPABILITIES: Final = (
    Capability("summarise", "1.2.0", "1.0.0", "2.1.0", "text", 8.0),
    Capability("translate", "2.0.1", "1.1.0", "1.4.0", "text", 15.0),
    Capability("review-code", "0.9.0", "0.3.0", "0.8.2", "code", 60.0),
    Capability("plan-trip", "1.0.0", "1.0.0", "1.0.0", "plan", 30.0),
    Capability("ocr", "3.1.0", "2.0.0", "3.0.0", "image", 4.0),
)


class Payload(NamedTuple):
    """A sealed payload as it stands in an event, and the bytes that it seals."""

    text: str
    size: int


class Blob(NamedTuple):
    digest: str
    size: int


class Window(NamedTuple):
    """A node that is away from `start` to `end`, and then catches up."""

    start: int
    end: int

    @property
    def catch_up(self) -> int:
        return (self.end - self.start) // 10


class World(Struct):
    """Everything that is settled before the first event. Times are ms since START."""

    seed: int
    nodes: list[str]
    keys: list[NodeKey]
    agents: list[str]
    owner: list[int]
    standby: list[int]
    pair_from: Ints
    pair_to: Ints
    pair_weight: NDArray[np.float64]
    payloads: list[Payload]
    blobs: list[Blob]
    duration: int
    capabilities: list[Capability]
    away: dict[int, Window]
    restored: int
    restored_at: int

    def agent(self, name: str, owner: int, standby: int = 0) -> int:
        """One more agent; planted stories have theirs, so that nobody else is disturbed."""
        self.agents.append(name)
        self.owner.append(owner)
        self.standby.append(standby)
        return len(self.agents) - 1

    def incarnation(self, node: int, life: int) -> str:
        return np.random.default_rng([self.seed, 7, node, life]).bytes(8).hex()


def build(seed: int, nodes: int, duration: int) -> World:
    rng = np.random.default_rng([seed, 1])
    agents = nodes * _AGENTS
    pairs = _pairs(rng, agents, nodes * _PAIRS)
    weight = np.arange(1, len(pairs) + 1) ** -0.5
    return World(
        seed=seed,
        nodes=[f"node-{n:02d}" for n in range(1, nodes + 1)],
        keys=[NodeKey(rng.bytes(32)) for _ in range(nodes)],
        agents=[f"agent-{a:03d}" for a in range(1, agents + 1)],
        owner=[a % nodes for a in range(agents)],
        standby=[(a + 1 + a // nodes % (nodes - 1)) % nodes for a in range(agents)],
        pair_from=pairs[:, 0],
        pair_to=pairs[:, 1],
        pair_weight=np.cumsum(weight / weight.sum()),
        payloads=[_payload(rng, size) for size in _sizes(rng)],
        blobs=[_blob(rng) for _ in range(_BLOBS)],
        duration=duration,
        capabilities=list(CAPABILITIES),
        away={1: Window(duration // 10, duration // 10 + OFF)},
        restored=0,
        restored_at=duration * 13 // 20,
    )


def arrivals(world: World, first: int, last: int, total: int, rng: np.random.Generator) -> Ints:
    """When the messages `first` to `last` of `total` are sent: more by day than by night."""
    grid = np.linspace(0, world.duration, 4097)
    hours = (grid + START) % DAY / DAY
    rate = 1 + 0.6 * np.sin(2 * np.pi * (hours - 0.375))
    area = np.concatenate(([0.0], np.cumsum((rate[1:] + rate[:-1]) / 2)))
    share = np.sort(rng.uniform(first, last, last - first)) / total
    return np.asarray(np.interp(share, area / area[-1], grid), dtype=np.int64)


def moment(world: World, message: int, total: int) -> int:
    """The moment by which `message` of `total` messages were sent."""
    unjittered = np.random.default_rng(0)
    if message >= total:
        return world.duration
    return int(arrivals(world, message, message + 1, total, unjittered)[0])


def _pairs(rng: np.random.Generator, agents: int, wanted: int) -> Ints:
    """Who writes to whom. Only upwards: the way back is for replies, in an order of their own."""
    every = np.array([(a, b) for a in range(agents) for b in range(a + 1, agents)], dtype=np.int64)
    return every[rng.permutation(len(every))[:wanted]]


def _sizes(rng: np.random.Generator) -> list[int]:
    sizes = np.clip(rng.lognormal(5.3, 0.9, _PAYLOADS), 16, 32_768)
    return [int(size) for size in sizes]


def _payload(rng: np.random.Generator, size: int) -> Payload:
    sealed = Sealed("xchacha20poly1305", rng.bytes(size + 40), {rng.bytes(16).hex(): rng.bytes(72)})
    return Payload(msgspec.json.encode(sealed).decode(), size)


def large_payload(world: World, size: int) -> int:
    """A payload of this size, whatever the limit; returns its place in the pool."""
    world.payloads.append(_payload(np.random.default_rng([world.seed, 2, size]), size))
    return len(world.payloads) - 1


def _blob(rng: np.random.Generator) -> Blob:
    size = int(np.clip(rng.lognormal(13.0, 1.0), 70_000, 60_000_000))
    return Blob(f"sha256:{rng.bytes(32).hex()}", size)


def wrapped_key(blob: Blob) -> str:
    """The blob's content key for its recipient, as it stands in an event."""
    digits = blob.digest.removeprefix("sha256:")
    wrapped = base64.b64encode(bytes.fromhex(digits + digits + digits[:16])).decode()
    return f'{{"{digits[:32]}":"{wrapped}"}}'
