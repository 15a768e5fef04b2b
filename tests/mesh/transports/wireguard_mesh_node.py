"""A mesh node of rank 100 in a network namespace, in a tunnel with one other member, `node-b`.

Run with: python wireguard_mesh_node.py INTERFACE TUNNEL_IP. It prints `ready KEY ADDRESS`, then for
each datagram `judged TYPE VERDICT` and `publisher NODE` when it honours another one. The command
`peer KEY IP ENDPOINT` puts node-b into the tunnel.
"""

import asyncio
import json
import sys
import time

from gatepost.clock import SystemClock
from gatepost.events import NodeKey
from gatepost.mesh.address_cookie import AddressCookies
from gatepost.mesh.datagram_judge import DatagramJudge
from gatepost.mesh.datagram_signature import NodeKeySigner
from gatepost.mesh.decisions import DatagramRefused, ElectionChanged, MeshDecision, SendDatagram
from gatepost.mesh.engine import MeshEngine
from gatepost.mesh.members import MeshMember, TunnelPlace
from gatepost.mesh.mesh_node import MeshNode
from gatepost.mesh.mesh_time import MeshTime, MeshTimers
from gatepost.mesh.outgoing_messages import MeshIdentity
from gatepost.mesh.transports.wireguard import WireGuardPeer, WireGuardSetup, WireGuardTransport
from gatepost.mesh.tunnel_addresses import parse_network
from gatepost.mesh.wireguard_keys import WireGuardIdentity

TOKEN = "secret-token-here"
TIMERS = MeshTimers(heartbeat_ms=200, suspect_ms=3000, grace_ms=2000)
FOREIGN = "node-b"


class TunnelledNode:
    def __init__(self, interface: str, tunnel_ip: str) -> None:
        setup = WireGuardSetup(interface, parse_network("10.201.0.0/16"), 51_820, 7433)
        self.transport = WireGuardTransport(setup, WireGuardIdentity(b"a" * 32), tunnel_ip)
        clock = SystemClock()
        cookies = AddressCookies(clock.random(32))
        identity = MeshIdentity(node="node-a", priority=100, may_lead=True)
        core = MeshEngine(identity, TIMERS, cookies, now().steady_ms)
        signer = NodeKeySigner(NodeKey.generate(clock), b"room")
        judge = DatagramJudge("node-a", signer, cookies, TIMERS, now().steady_ms)
        self.node = MeshNode(core, judge)
        self.node.set_cluster_tokens((TOKEN,))
        self.foreign_key = NodeKey.generate(clock).public

    async def run(self) -> None:
        try:
            await self.transport.start(self.receive)
            say("ready", self.transport.public_key, self.transport.local_address)
            ticking = asyncio.create_task(self.tick_forever())
            while line := (await asyncio.to_thread(sys.stdin.readline)).split():
                _, key, ip, endpoint = line
                peer = WireGuardPeer(key, ip, endpoint, FOREIGN)
                await self.transport.configure(self.transport.tunnel_ip, [peer])
                host = self.transport.authenticated_hosts[FOREIGN]
                member = MeshMember(FOREIGN, self.foreign_key, True, TunnelPlace(host))
                self.apply(self.node.set_members({FOREIGN: member}, now()))
                say("done", *line)
            ticking.cancel()
        finally:
            await self.transport.close()

    async def tick_forever(self) -> None:
        while True:
            self.apply(self.node.tick(now()))
            await asyncio.sleep(TIMERS.heartbeat_ms / 1000)

    def receive(self, datagram: bytes, source: str) -> bool:
        decisions = self.node.receive(datagram, source, now())
        refused = [each.refusal for each in decisions if isinstance(each, DatagramRefused)]
        say("judged", json.loads(datagram)["type"], refused[0] if refused else "taken")
        self.apply(decisions)
        return not refused

    def apply(self, decisions: list[MeshDecision]) -> None:
        for decision in decisions:
            if isinstance(decision, SendDatagram):
                self.transport.send(decision.address, decision.datagram)
            elif isinstance(decision, ElectionChanged):
                say("publisher", str(decision.publisher))


def now() -> MeshTime:
    return MeshTime(time.monotonic_ns() // 1_000_000, int(time.time()))


def say(*words: str) -> None:
    print(*words, flush=True)


if __name__ == "__main__":
    asyncio.run(TunnelledNode(*sys.argv[1:]).run())
