"""One node in a network namespace: reads commands from standard input, prints what happens.

Run with: python wireguard_node.py INTERFACE SEED TUNNEL_IP. The first line that it prints is its
public key. `peer KEY IP ENDPOINT`, `move IP` and `send ADDRESS TEXT` are the commands.
"""

import asyncio
import sys

from gatepost.errors import GatepostError
from gatepost.mesh.transports.wireguard import WireGuardPeer, WireGuardSetup, WireGuardTransport
from gatepost.mesh.tunnel_addresses import parse_network
from gatepost.mesh.wireguard_keys import WireGuardIdentity


async def run(interface: str, seed: str, tunnel_ip: str) -> None:
    setup = WireGuardSetup(interface, parse_network("10.201.0.0/16"), 51_820, 7433)
    transport = WireGuardTransport(
        setup, WireGuardIdentity(seed.encode().ljust(32, b".")), tunnel_ip
    )
    peers: dict[str, WireGuardPeer] = {}
    try:
        await transport.start(lambda datagram, source: say("got", datagram.decode(), source))
        say("ready", transport.public_key, transport.local_address)
        while line := (await asyncio.to_thread(sys.stdin.readline)).split():
            match line:
                case ["peer", key, ip, endpoint]:
                    peers[key] = WireGuardPeer(key, ip, endpoint)
                    await transport.configure(transport.tunnel_ip, peers.values())
                case ["forget", key]:
                    del peers[key]
                    await transport.configure(transport.tunnel_ip, peers.values())
                case ["move", ip]:
                    await transport.configure(ip, peers.values())
                case ["send", address, text]:
                    transport.send(address, text.encode())
            say("done", *line)
    except GatepostError as error:
        say("refused", error.code, error.message)
    finally:
        await transport.close()


def say(*words: str) -> None:
    print(*words, flush=True)


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
