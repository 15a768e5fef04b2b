"""Runs the command line inside the test's process, which saves the start of a new one."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO, TextIOWrapper
from typing import NamedTuple
from unittest.mock import patch

from gatepost.cli import main
from gatepost.cli.problems import ExitCode


class Streams(NamedTuple):
    """What stands in for the standard streams; like pipes, they are no terminals."""

    stdin: TextIOWrapper
    stdout: TextIOWrapper
    stderr: TextIOWrapper


def run_in_process(
    arguments: tuple[str, ...], env: Mapping[str, str], stdin: bytes
) -> tuple[int, str, str]:
    """Return the exit code, the output and the errors; an exception fails the test itself."""
    streams = Streams(_open_stream(stdin), _open_stream(), _open_stream())
    with _replace_surroundings(arguments, env, streams):
        code = _call_main()
    return code, _read_written(streams.stdout), _read_written(streams.stderr)


def _open_stream(content: bytes = b"") -> TextIOWrapper:
    return TextIOWrapper(BytesIO(content), encoding="utf-8")


@contextmanager
def _replace_surroundings(
    arguments: tuple[str, ...], env: Mapping[str, str], streams: Streams
) -> Iterator[None]:
    with (
        patch.object(sys, "argv", ["gatepost", *arguments]),
        patch.multiple(sys, **streams._asdict()),
        patch.dict("os.environ", env, clear=True),
    ):
        yield


def _call_main() -> int:
    try:
        main()
    except SystemExit as end:
        if end.code == ExitCode.INTERRUPTED:
            # Somebody wants to stop the tests, not only this command.
            raise KeyboardInterrupt from None
        assert isinstance(end.code, int), end
        return end.code
    raise AssertionError("the command line always ends with an exit code")


def _read_written(stream: TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, BytesIO)
    return buffer.getvalue().decode()
