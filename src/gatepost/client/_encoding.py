"""Encodes payloads as JSON and checks values before they enter a frame.

The gateway refuses a frame that does not decode, with every operation in it. So each value is
checked before it is coalesced with those of other callers.
"""

from collections.abc import Iterable, Set
from datetime import datetime
from math import isfinite
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gatepost.errors import InvalidRequest
from gatepost.wire.operations import NewMessage, NewSend
from gatepost.wire.tasks import NewTask, TaskReport

T = TypeVar("T")

# The gateway's default limit is 1 MiB; the rest is for the fields around the payload.
MAX_FRAME_BYTES = 1_000_000

_encoder = msgspec.json.Encoder()
_raw_decoder = msgspec.json.Decoder(Raw)
_FAITHFUL = frozenset({str, int, bool, type(None), Raw})
_checkers: dict[type, msgspec.json.Decoder[Any]] = {
    NewMessage: msgspec.json.Decoder(NewMessage),
    NewSend: msgspec.json.Decoder(NewSend),
    NewTask: msgspec.json.Decoder(NewTask),
    TaskReport: msgspec.json.Decoder(TaskReport),
}


class UploadedReply(NamedTuple):
    """A reply too large for a frame, stored as a blob at the gateway."""

    digest: str


EncodedReply = Raw | UploadedReply

# A time of day: Unix seconds, or a datetime.
Moment = float | datetime


def encode_payload(payload: Any) -> Raw:
    """Encode a value as JSON; a `Raw` is JSON already and is only checked."""
    try:
        if isinstance(payload, Raw):
            return _raw_decoder.decode(payload)
        _check_faithful(payload)
        return Raw(_encoder.encode(payload))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the payload is not JSON-encodable: {error}") from None


def fits_frame(payload: Raw) -> bool:
    return memoryview(payload).nbytes <= MAX_FRAME_BYTES


def decode_json(content: bytes) -> Raw | UnsetType:
    """The content of a blob as JSON; unset if it is something else."""
    try:
        return _raw_decoder.decode(content)
    except msgspec.DecodeError:
        return UNSET


def _check_faithful(value: Any) -> None:
    """Refuse values that the encoder would turn into something else: bytes, sets, NaN."""
    kind = type(value)
    if kind in _FAITHFUL:
        return
    if kind is float:
        if not isfinite(value):
            raise ValueError(f"JSON has no {value}")
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_faithful(key)
            _check_faithful(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_faithful(item)
    elif isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"JSON has no {kind.__name__}; send text, or bytes as a file")
    elif isinstance(value, Set):
        raise TypeError(f"JSON has no {kind.__name__}; send a list")
    else:
        for name in _field_names(kind):
            _check_faithful(getattr(value, name, None))


def _field_names(kind: type) -> Iterable[str]:
    """The fields of a struct or dataclass."""
    return getattr(kind, "__struct_fields__", ()) or getattr(kind, "__dataclass_fields__", ())


def check_lease_handle(lease_handle: str) -> None:
    if len(lease_handle) > 64:
        raise InvalidRequest("not a lease handle: it is longer than 64 characters")


def check_encodable(new: NewMessage | NewSend | NewTask | TaskReport) -> None:
    try:
        _checkers[type(new)].decode(_encoder.encode(new))
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from None


def check_report(report: TaskReport) -> None:
    """Check the parts of a report that its sender chose; most have none but progress."""
    is_plain = report.note is UNSET and report.eta_secs is UNSET and not report.error
    progress = report.progress
    if is_plain and (progress is UNSET or (type(progress) is float and 0 <= progress <= 1)):
        return
    check_encodable(report)


def to_epoch_secs(moment: Moment | None) -> float | UnsetType:
    """A moment as the wire has it. A datetime without a time zone is local time."""
    if moment is None:
        return UNSET
    return moment.timestamp() if isinstance(moment, datetime) else float(moment)


def unset_if_none(value: T | None) -> T | UnsetType:
    return UNSET if value is None else value
