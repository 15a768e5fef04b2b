"""Real gateways under attack, and the four questions each attack has to answer.

Did the state of others change, did others wait longer, did the gateway grow, was the attacker
named?
"""

import contextlib
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gatepost.client import SyncClient
from gatepost.errors import UnknownAgent
from gatepost.testing import GatewayProcess
from simulation.hostile import HostileConnection, HostileNode
from tests.conftest import choose
from tests.live_mesh.conftest import running
from tests.live_mesh.tools import Gateway
from tests.security.honest_agents import HonestAgents, Turn
from tests.waiting import wait_until

_USUAL_TURNS = 5
# The median turn during an attack is at most twice the usual one, and this longer: the disk and the
# caches are shared with others. The full run is for a machine that does nothing else.
_NOISE_SECS = choose(100, 10) / 1000
# Fewer turns say little about their median: the attack was over before others could wait for it.
_FEWEST_TURNS = 5
# The same for each single turn.
_WORST_SECS = 1.0


class Siege:
    """Ann founded the room, bob is backbone too. The agent `al` lives at ann, `bo` at bob.

    All attacks go against ann. `bo` answers every message until the siege ends.
    """

    def __init__(self, ann: Gateway, bob: Gateway) -> None:
        self.ann = ann
        self.bob = bob
        self._agents = HonestAgents(ann, bob)
        self._client = SyncClient("al", state_dir=ann.state_dir)

    @classmethod
    @contextlib.contextmanager
    def laid(cls, folder: Path, **settings: object) -> "Iterator[Siege]":
        """The siege while it lasts."""
        # Everybody comes from one address here, and no test is about the rate of joining.
        with running(folder, "ann", "bob", room__join_burst=100_000, **settings) as (ann, bob):
            bob.join(ann)
            ann.call("PUT", "/agents/al")
            bob.call("PUT", "/agents/bo")
            siege = cls(ann, bob)
            with siege._client, contextlib.closing(siege._agents):
                wait_until(lambda: siege._is_routed("bo"))
                wait_until(lambda: {"al@ann", "bo@bob"} <= ann.routes())
                yield siege

    # -- attackers

    def admit(self, name: str, tier: str = "edge") -> HostileNode:
        """A hostile node whom ann has admitted, and whose own record everybody has."""
        node = HostileNode(self.ann.url, name)
        with node.join(self.ann.invite(name, tier)) as connection:
            spy = spy_of(node)
            connection.send_records(node.sign_node(), node.sign_agent(spy))
            wait_until(lambda: f"nodes {name}" in self.bob.records())
            # Routing hears of an agent a moment after the room does.
            wait_until(lambda: self._is_routed(spy))
        return node

    @contextlib.contextmanager
    def linked(self, node: HostileNode) -> Iterator[HostileConnection]:
        """A connection over which ann reads the node's outbox."""
        with node.connect() as connection:
            connection.greet()
            yield connection

    def member_keys(self) -> dict[str, str]:
        """The fingerprint of every member's key, as ann has it."""
        return {id: each["fingerprint"] for id, each in self.ann.nodes().items()}

    # -- the four questions

    @contextlib.contextmanager
    def expect_no_harm(
        self, node: HostileNode | None = None, *, grow_mib: int = 64, named: bool = True
    ) -> Iterator[None]:
        """Nobody else is worse off for the attack inside, which may grow the gateway that much.

        An incident names the attacker, unless the attack breaks no rule or has a grace to be
        justified by the room.
        """
        usual = statistics.median(t.waited for t in self._agents.take_turns(_USUAL_TURNS))
        before, size = self._state_of_others(node), resident_mib(self.ann)
        with self._agents.watching() as turns:
            yield
        _expect_short_turns(turns + self._agents.take_turns(1), usual)
        assert self._state_of_others(node) == before
        grown = resident_mib(self.ann) - size
        assert grown <= grow_mib, f"the gateway has grown by {grown} MiB"
        if node is not None and named:
            self.expect_named(node.name)

    def send(self, agent: str, payload: object, **options: Any) -> Any:
        """A message of `al`."""
        return self._client.send(agent, payload, **options)

    def expect_named(self, source: str) -> None:
        """Wait until an incident names the source."""
        wait_until(lambda: self.naming(source), 30, failure=lambda: str(self.incidents()))

    def naming(self, source: str, at: Gateway | None = None) -> list[Any]:
        """The incidents of a gateway, ann's usually, whose subject begins with the source."""
        found = self.incidents(at)
        return [each for each in found if each["subject"].startswith((f"{source}/", f"{source}@"))]

    def incidents(self, at: Gateway | None = None) -> list[Any]:
        found: list[Any] = (at or self.ann).call("GET", "/incidents")["incidents"]
        return found

    # -- honest users

    def _is_routed(self, agent: str) -> bool:
        try:
            self._client.send(agent, "are you there?")
        except UnknownAgent:
            return False
        return True

    def _state_of_others(self, node: HostileNode | None) -> str:
        """The owners of agents and the members of the room, except the attacker's own."""
        name = None if node is None else node.name
        nodes = {id: each["tier"] for id, each in self.ann.nodes().items()}
        nodes.pop(name or "", None)
        agents = {
            key: record["data"].get("gateway")
            for key, record in self.ann.records().items()
            if key.startswith("agents ") and not key.endswith(f"@{name}")
        }
        return json.dumps([nodes, agents], sort_keys=True)


def _expect_short_turns(turns: list[Turn], usual: float) -> None:
    """During an attack, turns take no more than twice as long as usual."""
    delays = [turn.delay for turn in turns]
    middle, worst = statistics.median(delays), max(delays)
    said = f"a turn usually takes {usual:.3f} s, now {middle:.3f} s, at worst {worst:.3f} s"
    assert worst <= 2 * usual + _WORST_SECS, said
    assert len(delays) < _FEWEST_TURNS or middle <= 2 * usual + _NOISE_SECS, said


def spy_of(node: HostileNode) -> str:
    """The agent that really lives behind a hostile node."""
    return f"spy-{node.name}"


def resident_mib(gateway: GatewayProcess) -> int:
    """The memory of a gateway's process."""
    status = Path(f"/proc/{gateway.pid}/status").read_text()
    (kib,) = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(kib) // 1024
