"""The options of `send`, `request` and `broadcast`, in one place."""

from pathlib import Path
from typing import IO, TypedDict

from gatepost.client._encoding import Moment, to_epoch_secs
from gatepost.events import Order
from gatepost.wire.operations import NewSend

PayloadFile = Path | str | IO[bytes]


class SendOptions(TypedDict, total=False):
    """Keyword arguments of every call that sends a message; all can be left out.

    `timeout` bounds the call, in seconds. `payload_file` is sent instead of a payload, at any size.
    A repeated `idempotency_key` returns the first result. `corr_id` names the conversation, and
    `ttl_secs` is the time after which the message expires. `order="none"` lets it wait for no other
    message of its sender. Its turn begins at `not_before` or later, by the clock of the receiver's
    gateway, and is repeated `max_retries` times at most. `subject` says what it is about,
    for people who see it in a list of messages; it is not encrypted.
    """

    timeout: float
    payload_file: PayloadFile | None
    idempotency_key: str | None
    corr_id: str | None
    ttl_secs: float | None
    order: Order | None
    not_before: Moment | None
    max_retries: int | None
    subject: str | None
    traceparent: str | None


# Options of the call; the others are fields of the message.
_OF_THE_CALL = {"timeout", "payload_file"}
_OF_THE_MESSAGE = SendOptions.__optional_keys__ - _OF_THE_CALL


def apply_options(new: NewSend, options: SendOptions) -> None:
    """Set the fields of a message; TypeError for an option that does not exist."""
    for name, value in options.items():
        if name not in SendOptions.__optional_keys__:
            raise TypeError(f"a message has no option {name!r}")
        if value is not None and name in _OF_THE_MESSAGE:
            setattr(new, name, value)
    new.not_before = to_epoch_secs(options.get("not_before"))
