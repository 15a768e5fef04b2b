"""The request of a task: one JSON document that travels encrypted, inline or as a blob."""

from collections.abc import Callable

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from gatepost.events import Envelope, fingerprint_content
from gatepost.wire.tasks import Description, NewTask, RequiredCapabilities


class TaskRequest(Struct, frozen=True, rename="camel", omit_defaults=True):
    description: Description = ""
    task_type: str = ""
    required_capabilities: RequiredCapabilities = []
    input: Raw | UnsetType = UNSET


_decoder = msgspec.json.Decoder(TaskRequest)


class RequestContent(Struct, frozen=True):
    """An encoded request, inline or as a blob, and the fingerprint of its content."""

    mark: bytes
    payload: bytes = b"null"
    digest: str | None = None


def encode_request(new: NewTask) -> bytes:
    capabilities = new.required_capabilities
    return msgspec.json.encode(
        TaskRequest(
            new.description,
            new.task_type,
            [] if isinstance(capabilities, UnsetType) else capabilities,
            new.input,
        )
    )


def decode_request(payload: bytes) -> TaskRequest:
    """ValueError if it is not a request, or is nested too deeply."""
    try:
        return _decoder.decode(payload)
    except RecursionError as error:
        raise ValueError(str(error)) from None


def read_request(payload: bytes) -> TaskRequest | None:
    """The request of another gateway; None if it cannot be read."""
    try:
        return decode_request(payload)
    except ValueError:
        return None


def input_of(payload: bytes) -> bytes:
    """The input of an encoded request; null if it has none."""
    found = decode_request(payload).input
    return b"null" if isinstance(found, UnsetType) else bytes(found)


def mark_input(content: RequestContent) -> bytes:
    """The key under which verdicts about the input of a request are noted."""
    if content.digest is not None:
        return content.digest.encode()
    return fingerprint_content(input_of(content.payload))


def content_of(envelope: Envelope, open_payload: Callable[[], bytes]) -> RequestContent:
    """The content of a request that arrived as an event, without its fingerprint."""
    if envelope.payload_ref is not None:
        return RequestContent(b"", digest=envelope.payload_ref.digest)
    return RequestContent(b"", open_payload())
