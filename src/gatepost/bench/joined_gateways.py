"""Gateways of a benchmark: asking one over HTTP, and joining two of them."""

from typing import Any

from gatepost.connect.http_calls import HttpCalls
from gatepost.testing import GatewayProcess


def join_gateways(host: GatewayProcess, guest: GatewayProcess, name: str) -> None:
    """Let the guest, whose node id is `name`, join the room of the host."""
    wanted = {"tier": "backbone", "node": name}
    invite = call_gateway(host, "POST", "/v1/room/invites", wanted)
    body = {"seed": host.url, "token": invite["token"]}
    call_gateway(guest, "POST", "/v1/room/join", body)


def call_gateway(
    gateway: GatewayProcess, method: str, path: str, body: object = None
) -> dict[str, Any]:
    with HttpCalls(gateway.url, gateway.token) as calls:
        answer: dict[str, Any] = calls.call(method, path, dict, body=body)
        return answer
