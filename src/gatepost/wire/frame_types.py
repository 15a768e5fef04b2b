"""The bases of all operations of clients, and of all answers of a gateway."""

from typing import Annotated

from msgspec import Meta, Struct

# The start of the first line of a client that speaks the protocol of a door instead of frames.
DOOR_GREETING = b'{"door":'


class Op(Struct, tag_field="op", tag=str.lower, kw_only=True, forbid_unknown_fields=True):
    id: Annotated[int, Meta(ge=0, le=2**53)] = 0


class Answer(Struct, tag_field="op", tag=str.lower, kw_only=True, omit_defaults=True):
    re: int = 0
