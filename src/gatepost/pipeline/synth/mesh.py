"""The mesh of a synthetic archive: nodes, agents, pairs of agents, payloads and absences."""

import base64
from typing import Final, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gatepost.events import EncryptedPayload, NodeKey

IntArray = NDArray[np.int64]
IdWords = NDArray[np.uint64]
# One value for all rows, or an array with one value for each row.
FieldValue = int | NDArray[np.generic]

# 2026-03-02T22:30:00Z: even the shortest run crosses midnight.
START: Final = 1_772_490_600_000
MINUTE: Final = 60_000
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
TTL: Final = DAY
# A node that stops keeps writing for this long, to finish the work it has begun.
DRAIN: Final = MINUTE
SHORT_ABSENCE: Final = 5 * MINUTE

_AGENTS_PER_NODE = 6
_PAIRS_PER_NODE = 40
_PAYLOAD_COUNT = 256
_BLOB_COUNT = 64


class SynthCapability(NamedTuple):
    id: str
    version: str
    delegation: str
    executor: str
    type: str
    median_secs: float


CAPABILITIES: Final = (
    SynthCapability("summarise", "1.2.0", "1.0.0", "2.1.0", "text", 8.0),
    SynthCapability("translate", "2.0.1", "1.1.0", "1.4.0", "text", 15.0),
    SynthCapability("review-code", "0.9.0", "0.3.0", "0.8.2", "code", 60.0),
    SynthCapability("plan-trip", "1.0.0", "1.0.0", "1.0.0", "plan", 30.0),
    SynthCapability("ocr", "3.1.0", "2.0.0", "3.0.0", "image", 4.0),
)


class SynthPayload(NamedTuple):
    """An encrypted payload as its JSON text, and the size of its content in bytes."""

    text: str
    size: int


class SynthBlob(NamedTuple):
    digest: str
    size: int


class AbsenceWindow(NamedTuple):
    """The time from `start` to `end` in which a node is away; afterwards it catches up."""

    start: int
    end: int

    @property
    def catch_up_ms(self) -> int:
        return (self.end - self.start) // 10


class SyntheticMesh(Struct):
    """Everything that is fixed before the first event. Times are ms since START."""

    seed: int
    nodes: list[str]
    keys: list[NodeKey]
    agents: list[str]
    owner: list[int]
    standby: list[int]
    pair_from: IntArray
    pair_to: IntArray
    pair_weight: NDArray[np.float64]
    payloads: list[SynthPayload]
    blobs: list[SynthBlob]
    duration_ms: int
    capabilities: list[SynthCapability]
    absences: dict[int, AbsenceWindow]
    restored_node: int
    restored_at: int

    def add_agent(self, name: str, owner: int, standby: int = 0) -> int:
        """Add an agent and return its index. Faults use separate agents."""
        self.agents.append(name)
        self.owner.append(owner)
        self.standby.append(standby)
        return len(self.agents) - 1

    def incarnation_id(self, node: int, number: int) -> str:
        return np.random.default_rng([self.seed, 7, node, number]).bytes(8).hex()


def build_mesh(seed: int, nodes: int, duration: int) -> SyntheticMesh:
    rng = np.random.default_rng([seed, 1])
    agents = nodes * _AGENTS_PER_NODE
    pairs = _choose_pairs(rng, agents, nodes * _PAIRS_PER_NODE)
    weight = np.arange(1, len(pairs) + 1) ** -0.5
    return SyntheticMesh(
        seed=seed,
        nodes=[f"node-{n:02d}" for n in range(1, nodes + 1)],
        keys=[NodeKey(rng.bytes(32)) for _ in range(nodes)],
        agents=[f"agent-{a:03d}" for a in range(1, agents + 1)],
        owner=[a % nodes for a in range(agents)],
        standby=[(a + 1 + a // nodes % (nodes - 1)) % nodes for a in range(agents)],
        pair_from=pairs[:, 0],
        pair_to=pairs[:, 1],
        pair_weight=np.cumsum(weight / weight.sum()),
        payloads=[make_payload(rng, size) for size in _payload_sizes(rng)],
        blobs=[_make_blob(rng) for _ in range(_BLOB_COUNT)],
        duration_ms=duration,
        capabilities=list(CAPABILITIES),
        absences={1: AbsenceWindow(duration // 10, duration // 10 + SHORT_ABSENCE)},
        restored_node=0,
        restored_at=duration * 13 // 20,
    )


def arrival_times(
    mesh: SyntheticMesh, first: int, last: int, total: int, rng: np.random.Generator
) -> IntArray:
    """The sending times of the messages `first` to `last` of `total`: more by day than by night."""
    grid = np.linspace(0, mesh.duration_ms, 4097)
    hours = (grid + START) % DAY / DAY
    rate = 1 + 0.6 * np.sin(2 * np.pi * (hours - 0.375))
    area = np.concatenate(([0.0], np.cumsum((rate[1:] + rate[:-1]) / 2)))
    share = np.sort(rng.uniform(first, last, last - first)) / total
    return np.asarray(np.interp(share, area / area[-1], grid), dtype=np.int64)


def message_time(mesh: SyntheticMesh, message: int, total: int) -> int:
    """The time before which `message` of `total` messages are sent."""
    unjittered = np.random.default_rng(0)
    if message >= total:
        return mesh.duration_ms
    return int(arrival_times(mesh, message, message + 1, total, unjittered)[0])


def _choose_pairs(rng: np.random.Generator, agents: int, wanted: int) -> IntArray:
    """Choose (sender, receiver) pairs, always from a lower to a higher agent.

    The opposite direction is left to replies, which have a separate order.
    """
    every = np.stack(np.triu_indices(agents, 1), axis=1)
    chosen: IntArray = every[rng.permutation(len(every))[:wanted]]
    return chosen


def _payload_sizes(rng: np.random.Generator) -> list[int]:
    sizes = np.clip(rng.lognormal(5.3, 0.9, _PAYLOAD_COUNT), 16, 32_768)
    return [int(size) for size in sizes]


def make_payload(rng: np.random.Generator, size: int) -> SynthPayload:
    encrypted = EncryptedPayload(
        "xchacha20poly1305", rng.bytes(size + 40), {rng.bytes(16).hex(): rng.bytes(72)}
    )
    return SynthPayload(msgspec.json.encode(encrypted).decode(), size)


def _make_blob(rng: np.random.Generator) -> SynthBlob:
    size = int(np.clip(rng.lognormal(13.0, 1.0), 70_000, 60_000_000))
    return SynthBlob(f"sha256:{rng.bytes(32).hex()}", size)


def wrapped_key(blob: SynthBlob) -> str:
    """The content key of a blob, wrapped for its recipient, as the JSON in an event."""
    digits = blob.digest.removeprefix("sha256:")
    wrapped = base64.b64encode(bytes.fromhex(digits + digits + digits[:16])).decode()
    return f'{{"{digits[:32]}":"{wrapped}"}}'
