"""The archive of a simulated mesh: the real protocol, under all faults but lies."""

from pathlib import Path
from random import Random

from gatepost.archive import room_facts
from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.outbox_archive import ArchivePolicy, OutboxArchive
from gatepost.archive.room_facts import NodeFact, RoomFacts
from gatepost.archive.service.seen_heads import read_seen_heads
from gatepost.journal import Tx
from simulation.gateways import RunShape, SimulatedGateway, SimulatedMesh, faults
from simulation.gateways.run import _draw_settings, _place_agents, _plan_traffic
from simulation.history import HistoryVerdict

# A forged receipt is a broken promise, and would be found.
HONEST = [kind for kind in faults.FAULTS if kind != "forged_receipt"]
_ARCHIVE_EVERY_MS = 4_000
_HOUR_MS = 3_600_000


def archive_of(root: Path, seed: int, shape: RunShape, restores: int = 2) -> HistoryVerdict:
    """What became of a run, by the journals; the archive lies at `root`."""
    random, terms = Random(f"{seed}/run"), Random(f"{seed}/terms")
    with SimulatedMesh(seed, shape.nodes, _draw_settings(random)) as mesh:
        for gateway in mesh.gateways.values():
            _keep_archiving(gateway, root)
            # A machine that is destroyed leaves the facts it wrote before.
            _tell_facts(gateway, mesh, root, after_ms=0)
        _place_agents(mesh, random, terms, shape)
        mesh.run(500)
        faults.plan_faults(mesh, random, shape.faults, shape.over_ms, HONEST)
        faults.plan_faults(mesh, random, restores, shape.over_ms // 2, ["restore"])
        _plan_traffic(mesh, random, terms, shape)
        mesh.run(shape.over_ms + 1)
        mesh.heal()
        mesh.drain()
        left = [each for each in mesh.gateways.values() if not each.destroyed]
        for gateway in left:
            _archive_outbox(gateway, root)
        for gateway in left:
            _tell_facts(gateway, mesh, root, after_ms=_HOUR_MS)
        return mesh.check_history()


def _keep_archiving(gateway: SimulatedGateway, root: Path) -> None:
    def again() -> None:
        if gateway.up:
            _archive_outbox(gateway, root)
        gateway.loop.call_after(_ARCHIVE_EVERY_MS, again)

    again()


def _tell_facts(
    gateway: SimulatedGateway, mesh: SimulatedMesh, root: Path, *, after_ms: int
) -> None:
    """What a gateway knows of the others, and how far it has read them, some time later."""
    now = gateway.clock.now()
    facts = RoomFacts(
        node=gateway.id,
        at=now + after_ms,
        nodes=tuple(
            NodeFact(
                id=each.id, public_key=each.key.public, tier="backbone", added_by="", added_at=0
            )
            for each in mesh.gateways.values()
        ),
        heads=read_seen_heads(Tx(gateway.connection, now)),
    )
    store = ArchiveStore.open(str(root))
    room_facts.write_facts(store, room_facts.sign_facts(facts, gateway.key))


def _archive_outbox(gateway: SimulatedGateway, root: Path) -> None:
    store, node = ArchiveStore.open(str(root)), gateway.node
    policy = ArchivePolicy(max_rows=500, max_age=0, bodies=False)
    archive = OutboxArchive(store, gateway.id, node.incarnation, gateway.key, policy)
    while archive.archive_segment(Tx(gateway.connection, gateway.clock.now())):
        pass
