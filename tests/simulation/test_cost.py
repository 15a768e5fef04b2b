"""What a link carries grows with what is sent over it, not with how many gateways there are."""

from random import Random

from simulation.gateways import AgentManners, SimulatedMesh

PROMPT = AgentManners(think_ms=(1, 5), reply=0.0, nack=0.0, forget=0.0)


def link_bytes(gateways: int, messages: int) -> int:
    """Bytes on all links for so many messages between any two of so many gateways."""
    with SimulatedMesh(seed=3, nodes=gateways) as mesh:
        ids = list(mesh.gateways)
        mesh.connect_all()
        for id in ids:
            mesh.add_agent(f"agent-{id}", id, manners=PROMPT)
        mesh.run(3_000)
        before = mesh.network.total
        random = Random(gateways)
        for _ in range(messages):
            sender, target = random.sample(ids, 2)
            mesh.send(f"agent-{sender}", f"agent-{target}")
            mesh.run(20)
        carried = mesh.network.total
        verdict = mesh.finish()
        assert verdict.ok, verdict
        assert verdict.counts.processed == messages
        return carried - before


def test_bytes_grow_with_messages_and_not_with_gateways() -> None:
    few, many = link_bytes(50, 100), link_bytes(50, 200)
    assert 1.7 < many / few < 2.3
    small = link_bytes(10, 200)
    assert 0.8 < many / small < 1.25
