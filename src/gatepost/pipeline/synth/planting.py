"""Events that stand in a synthetic archive beside its ordinary traffic: none, unless planted."""

import numpy as np
from msgspec import Struct

from gatepost.pipeline.synth.event_records import Records, make_records
from gatepost.pipeline.synth.mesh import SyntheticMesh
from gatepost.pipeline.synth.node_writer import ChainTampering
from gatepost.pipeline.synth.ordinary_traffic import TrafficTotals


class PlantedTerm(Struct):
    """A claim of a node to be the publisher of a term."""

    counter: int
    node: int
    at: int


class Planting:
    """The room's terms and revocations, and planted events. Times are ms since START."""

    def __init__(self, mesh: SyntheticMesh) -> None:
        self.mesh = mesh
        self.rows: list[Records] = []
        self.totals = TrafficTotals()
        self.revoked: dict[int, int] = {}
        self.terms = [PlantedTerm(1, 0, 0), PlantedTerm(2, 1, mesh.duration_ms // 3)]

    @property
    def tampering(self) -> ChainTampering:
        """Where the chain itself is to be broken: nowhere."""
        return ChainTampering()

    def event_rows(self) -> Records:
        return np.concatenate(self.rows) if self.rows else make_records(np.zeros(0, np.int64), 0, 0)
