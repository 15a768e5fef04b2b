"""The addresses that nodes named in `intro_points`: they may be newer than the room's records.

A node speaks for itself only, under the key by which its datagram was verified. So it can state no
more than in its own record of the room, and the later statement counts.
"""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Container

import msgspec
from msgspec import Struct

from gatepost.mesh.messages import IntroPoint, IntroPoints
from gatepost.room.records import WebSocketUrl


class HeardAddress(Struct, frozen=True):
    """The address that other gateways dial, None if there is none; `since` is in milliseconds."""

    endpoint: str | None
    since: int


class HeardAddresses:
    """The latest address of each member. A node with a new key counts as another member."""

    def __init__(self) -> None:
        self._latest: dict[tuple[str, bytes], HeardAddress] = {}

    def note_points(self, node: str, key: bytes, points: IntroPoints, now: int) -> None:
        """Remember the first usable point; points that cannot be dialled are ignored."""
        endpoints = [url for each in points.intro_points if (url := decode_point(each))]
        if points.intro_points and not endpoints:
            return
        # A time in the future would override later statements of the node.
        since = min(points.fetched_at * 1000, now)
        known = self._latest.get((node, key))
        if known is None or known.since <= since:
            self._latest[node, key] = HeardAddress(endpoints[0] if endpoints else None, since)

    def find_address(self, node: str, key: bytes) -> HeardAddress | None:
        return self._latest.get((node, key))

    def keep_members(self, members: Container[tuple[str, bytes]]) -> None:
        self._latest = {each: said for each, said in self._latest.items() if each in members}


def encode_point(endpoint: str) -> IntroPoint:
    return IntroPoint(b64encode(endpoint.encode()).decode())


def decode_point(point: IntroPoint) -> str | None:
    """The address in an intro point; None if a gateway cannot have that address."""
    try:
        return msgspec.convert(b64decode(point.data, validate=True).decode(), WebSocketUrl)
    except (binascii.Error, ValueError):
        return None
