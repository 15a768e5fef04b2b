"""Makes `node-b` a member of a room, and names its place in the WireGuard tunnel there.

Run with: python foreign_member.py GATEWAY OWN_ADDRESS JOIN_SECRET. It prints the private key and
the address of the node in the tunnel, and the gateway's answer to the join request. What node-b
does from then on needs no code of Gatepost's: only records of the room are signed.
"""

import json
import sys
import time
from base64 import b64encode
from types import SimpleNamespace
from typing import Any
from urllib.request import Request, urlopen

from gatepost.access.join_secret import parse_join_secret
from gatepost.mesh.tunnel_addresses import derive_candidate, parse_network
from gatepost.mesh.wireguard_keys import WireGuardIdentity
from gatepost.room import TransportRecord, lib0
from gatepost.room.signed_record import sign_record
from tests.live_mesh.tools import BareNode
from tests.room.sample_records import node, update

NAME = "node-b"
IDENTITY = WireGuardIdentity(b"b" * 32)


def join_room(gateway: str, own_address: str, join_secret: str) -> dict[str, Any]:
    host: Any = SimpleNamespace(url=f"http://{gateway}:7433")
    member = BareNode(host, NAME)
    network = parse_network("10.200.0.0/16")
    tunnel_ip = derive_candidate(network, member.key.fingerprint, 0)
    place = TransportRecord(
        wg_public_key=IDENTITY.public_key,
        wg_proof=IDENTITY.prove_owner(member.key.public),
        wg_endpoint=f"{own_address}:51820",
        tunnel_ip=tunnel_ip,
    )
    answer = ask_to_join(member, join_secret, place)
    genesis, author = member.enter(answer["invite"])
    at = author.chain[-1].issued_at
    with member.open(member.ticket()) as room:
        for map, record in (("nodes", node(author, genesis)), ("transports", place)):
            signed = sign_record(author, map, NAME, 1, at, record)
            room.send(b"\x00\x02" + lib0.encode_bytes(update(signed)))
        room.ping().wait(20)
    key = b64encode(bytes(IDENTITY.private_key)).decode()
    return {"private_key": key, "tunnel_ip": tunnel_ip, "answer": answer}


def ask_to_join(member: BareNode, join_secret: str, place: TransportRecord) -> Any:
    """The join request of the protocol, with the name and the key of the node."""
    secret = parse_join_secret(join_secret)
    body = {
        "cluster_token": secret.cluster_token,
        "wg_pubkey": place.wg_public_key,
        "wg_endpoint": place.wg_endpoint,
        "tunnel_ip": place.tunnel_ip,
        "request_time": int(time.time()),
        "node_id": NAME,
        "node_key": b64encode(member.key.public).decode(),
    }
    url = f"{member.host.url}/.rb/{secret.join_secret}"
    with urlopen(Request(url, json.dumps(body).encode()), timeout=20) as answer:
        return json.loads(answer.read())


if __name__ == "__main__":
    print(json.dumps(join_room(*sys.argv[1:])))
