"""JSON whose bytes are the same for the same value: maps of protobuf are in any order."""

from typing import Any

import msgspec


def encode_json(value: Any) -> bytes:
    return msgspec.json.encode(value, order="deterministic")
