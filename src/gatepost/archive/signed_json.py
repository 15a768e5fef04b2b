"""Signed JSON files of the archive: a canonical encoding, signed without the signature itself."""

import msgspec
from msgspec import Struct

from gatepost.events import frame_parts

encode_canonical = msgspec.json.Encoder(order="sorted").encode


def bytes_to_sign(domain: str, document: Struct) -> bytes:
    """The document in canonical JSON without its `signature`, framed under `domain`."""
    fields = msgspec.to_builtins(document)
    del fields["signature"]
    return frame_parts(domain, encode_canonical(fields))
