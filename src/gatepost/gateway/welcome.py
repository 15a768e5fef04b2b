"""What a host tells a node as it lets it in: which room this is, and the node's own admission.

It travels in a header of the answer to the WebSocket handshake, so that it is there before the
first byte of the room and standard Yjs clients need not know of it. The host signs it together
with the session, for the genesis is what a newcomer will trust from then on.
"""

import binascii

import msgspec
from msgspec import Struct

from gatepost.access.tokens import b64, unb64
from gatepost.errors import InvalidTicket
from gatepost.events import NodeKey, frame, verify
from gatepost.room import Genesis, Link

HEADER = "gatepost-welcome"
SUBPROTOCOL = "gatepost"
TICKET_PREFIX = "ticket."


class Welcome(Struct, frozen=True, forbid_unknown_fields=True):
    """`chain` is there if the host itself admitted the node."""

    genesis: Genesis
    epoch: int
    chain: tuple[Link, ...] = ()


def write(welcome: Welcome, session: str, key: NodeKey) -> str:
    body = msgspec.json.encode(welcome)
    return f"{b64(body)}.{b64(key.sign(_statement(session, body)))}"


def read(text: str, session: str, issuer_key: bytes) -> Welcome:
    """The welcome, if the issuer gave it for this session."""
    encoded, _, signature = text.partition(".")
    try:
        body = unb64(encoded)
        if verify(issuer_key, _statement(session, body), unb64(signature)):
            return msgspec.json.decode(body, type=Welcome)
    except (binascii.Error, ValueError):
        pass
    raise InvalidTicket("the host's welcome is not signed by the host; do not go on")


def _statement(session: str, body: bytes) -> bytes:
    return frame("gatepost/welcome/1", session.encode(), body)
