"""Payloads as they are typed: text unless said otherwise, and standard input for `-`."""

import sys
from typing import Annotated

import msgspec
from cyclopts import Parameter

from gatepost.cli.problems import usage

# What surely fits into one request; more is uploaded first.
LARGE = 512 * 1024
_MOST = 64 * 1024 * 1024


def _refuse_option(_: object, value: str | None) -> None:
    """A mistyped option is not a payload; what follows `--` is."""
    text = value or ""
    if (
        text.startswith("-")
        and text[1:2].isalpha() | text.startswith("--")
        and "--" not in sys.argv
    ):
        raise ValueError("No such option; put -- before a payload that begins with a hyphen.")


PayloadText = Annotated[str | None, Parameter(allow_leading_hyphen=True, validator=_refuse_option)]


def json_payload_of(text: str, *, is_json: bool) -> bytes:
    """The payload's JSON; `text` may be `-` for standard input."""
    text = _from_stdin() if text == "-" else text
    if not is_json:
        return msgspec.json.encode(text)
    try:
        msgspec.json.decode(text)
        return text.encode()
    except msgspec.DecodeError as error:
        raise usage(f"the payload is not JSON: {error}") from None


def _from_stdin() -> str:
    data = sys.stdin.buffer.read(_MOST + 1)
    if len(data) > _MOST:
        raise usage("standard input is over 64 MiB: send less")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise usage("standard input is not text: send it with `--file -`") from None
