"""Payload arguments: text by default, JSON on request, standard input for `-`."""

import sys
from typing import Annotated

import msgspec
from cyclopts import Parameter

from gatepost.cli.problems import usage_problem

# A payload up to this size fits into any request; larger ones are uploaded as blobs.
MAX_INLINE_BYTES = 512 * 1024
_MAX_STDIN_BYTES = 64 * 1024 * 1024


def _refuse_mistyped_option(_: object, value: str | None) -> None:
    """Refuse a mistyped option as payload, unless `--` comes before it."""
    text = value or ""
    if (
        text.startswith("-")
        and text[1:2].isalpha() | text.startswith("--")
        and "--" not in sys.argv
    ):
        raise ValueError("No such option; put -- before a payload that begins with a hyphen.")


PayloadText = Annotated[
    str | None, Parameter(allow_leading_hyphen=True, validator=_refuse_mistyped_option)
]


def encode_payload_argument(text: str, *, is_json: bool) -> bytes:
    """Encode the payload argument as JSON; `-` reads standard input."""
    text = _read_stdin_text() if text == "-" else text
    if not is_json:
        return msgspec.json.encode(text)
    try:
        msgspec.json.decode(text)
        return text.encode()
    except msgspec.DecodeError as error:
        raise usage_problem(f"the payload is not JSON: {error}") from None


def _read_stdin_text() -> str:
    data = sys.stdin.buffer.read(_MAX_STDIN_BYTES + 1)
    if len(data) > _MAX_STDIN_BYTES:
        raise usage_problem("standard input is larger than 64 MiB, the limit for payloads")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise usage_problem("standard input is not text: send it with `--file -`") from None
