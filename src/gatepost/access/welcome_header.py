"""The welcome header: tells a joining node which room it entered, and its admission.

It is a header of the WebSocket handshake response: it arrives before the first byte of the room,
and standard Yjs clients can ignore it. The admitting gateway signs it together with the session,
because the joining node will trust this genesis from then on.
"""

import binascii

import msgspec
from msgspec import Struct

from gatepost.access.tokens import decode_b64, encode_b64
from gatepost.errors import InvalidTicket
from gatepost.events import NodeKey, frame_parts, verify_signature
from gatepost.room import AdmissionLink, Genesis
from gatepost.room.epoch_proof import EpochProof

WELCOME_HEADER = "gatepost-welcome"
SUBPROTOCOL = "gatepost"
TICKET_PREFIX = "ticket."


class Welcome(Struct, frozen=True, forbid_unknown_fields=True):
    """The room entered. `chain` is set if the signing gateway itself admitted the node.

    An epoch after the first comes with its proof.
    """

    genesis: Genesis
    epoch: int
    chain: tuple[AdmissionLink, ...] = ()
    epoch_proof: EpochProof | None = None


def encode_welcome(welcome: Welcome, session: str, key: NodeKey) -> str:
    body = msgspec.json.encode(welcome)
    return f"{encode_b64(body)}.{encode_b64(key.sign(_signed_statement(session, body)))}"


def decode_welcome(text: str, session: str, issuer_key: bytes) -> Welcome:
    """Decode the header; raise InvalidTicket unless the issuer signed it for this session."""
    encoded, _, signature = text.partition(".")
    try:
        body = decode_b64(encoded)
        if verify_signature(issuer_key, _signed_statement(session, body), decode_b64(signature)):
            return msgspec.json.decode(body, type=Welcome)
    except (binascii.Error, ValueError, RecursionError):
        pass
    raise InvalidTicket("the peer's welcome is not signed by the peer; do not trust it")


def _signed_statement(session: str, body: bytes) -> bytes:
    return frame_parts("gatepost/welcome/1", session.encode(), body)
