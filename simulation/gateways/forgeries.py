"""Frames that a cheating relay could send: each takes a frame and returns a forged one.

A frame that a forgery has no use for comes back as it is.
"""

from collections.abc import Callable
from hashlib import sha256
from typing import Any, TypeGuard

import msgspec
from msgspec.structs import replace

from gatepost.delivery.frames import (
    AnyFrame,
    BlobPiece,
    CommitGroup,
    EventsFrame,
    IncarnationsFrame,
    decode_frame,
    encode_frame,
)

_TRACKED = ("message", "reply", "task_create", "task_cancel")
_HASH = 32


def altered_event(data: bytes) -> bytes:
    """One event says something else; its proof is the old one."""
    frame = decode_frame(data)
    if not is_relayed(frame):
        return data
    return encode_frame(replace(frame, events=[_alter(frame.events[0]), *frame.events[1:]]))


def altered_group(data: bytes) -> bytes:
    """One event says something else, and digests and chain agree; only the signature cannot."""
    frame = decode_frame(data)
    if not is_relayed(frame) or not frame.groups:
        return data
    seq = msgspec.json.decode(frame.events[0])["seq"]
    body = _alter(frame.events[0])
    groups = [_agree(group, seq, body) for group in frame.groups]
    return encode_frame(replace(frame, events=[body, *frame.events[1:]], groups=groups))


def missing_proof(data: bytes) -> bytes:
    """The events come without their groups."""
    frame = decode_frame(data)
    return encode_frame(replace(frame, groups=[])) if is_relayed(frame) else data


def invented_incarnation(data: bytes) -> bytes:
    """The source is said to have been restored."""
    frame = decode_frame(data)
    if not isinstance(frame, IncarnationsFrame):
        return data
    incarnations = [*frame.incarnations, ("invented", frame.incarnations[-1][1] + 5)]
    return encode_frame(replace(frame, incarnations=incarnations))


# A group that only its signature gives away is the best forgery, and comes twice as often.
FORGERIES: tuple[Callable[[bytes], bytes], ...] = (
    altered_event,
    altered_group,
    altered_group,
    missing_proof,
    invented_incarnation,
)


def wrong_piece(data: bytes) -> bytes:
    """A piece of a blob has one wrong byte."""
    frame = decode_frame(data)
    if not isinstance(frame, BlobPiece) or not frame.data:
        return data
    return encode_frame(replace(frame, data=bytes([frame.data[0] ^ 1]) + frame.data[1:]))


def is_relayed(frame: AnyFrame) -> TypeGuard[EventsFrame]:
    """Whether it is a frame of a relay, of which another fault has left at least one event."""
    return isinstance(frame, EventsFrame) and frame.stream == "relay" and bool(frame.events)


def _alter(body: bytes) -> bytes:
    """The same event under another id, or about another one, or with another outcome."""
    event: dict[str, Any] = msgspec.json.decode(body)
    if event["kind"] in _TRACKED:
        event["eventId"] = _other_id(event["eventId"])
    elif event["kind"] == "ack" and event["payload"].get("outcome") == "ok":
        event["payload"]["outcome"] = "dead_letter"
    elif event.get("refEventId"):
        event["refEventId"] = _other_id(event["refEventId"])
    else:
        event["createdAt"] += 1
    return msgspec.json.encode(event)


def _other_id(id: str) -> str:
    """The next id, so that two forgeries of one event do not make it true again."""
    return f"{id[:-1]}{(int(id[-1], 16) + 1) % 16:x}"


def _agree(group: CommitGroup, seq: int, body: bytes) -> CommitGroup:
    """The group as it would be if event `seq` had this body."""
    digests = [group.digests[at : at + _HASH] for at in range(0, len(group.digests), _HASH)]
    if group.first <= seq <= group.last:
        digests[seq - group.first] = sha256(body).digest()
    chain = group.previous
    for digest in digests:
        chain = sha256(chain + digest).digest()
    return replace(group, digests=b"".join(digests), chain=chain)
