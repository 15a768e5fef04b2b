"""The Unix socket of a gateway, as light programs find and greet it."""

import json
import os
import socket


def greet(greeting: dict[str, object]) -> bytes:
    """The first line of a connection. The gateway tells a door by its first bytes."""
    line = json.dumps({"door": "mcp", **greeting}, separators=(",", ":"))
    return line.encode() + b"\n"


class GatewayAway(Exception):
    """No gateway answers; the text says what to do."""


def open_gateway(state_dir: str | None, greeting: dict[str, object]) -> socket.socket:
    """A connection to the gateway of a state directory, with the greeting sent."""
    home = state_dir or os.environ.get("GATEPOST_HOME") or "~/.gatepost"
    file = os.path.join(os.path.expanduser(home), "endpoint.json")
    try:
        with open(file, "rb") as announced:
            path = json.load(announced)["socket"]
    except FileNotFoundError:
        raise GatewayAway(
            f"no gateway runs here ({file} is missing); start one with `gatepost up`"
        ) from None
    except (OSError, ValueError, KeyError) as error:
        raise GatewayAway(f"{file} cannot be read: {error}") from None
    if path is None:
        raise GatewayAway("this gateway has no Unix socket: set listen.unix_socket = true")
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
        connection.sendall(greet(greeting))
    except OSError as error:
        connection.close()
        raise GatewayAway(
            f"the gateway at {path} does not answer ({error.strerror}); start it with `gatepost up`"
        ) from None
    return connection
