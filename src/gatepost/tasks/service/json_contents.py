"""Reads large JSON contents without blocking other work.

No other thread runs while JSON is decoded, so large contents are decoded in a process.
"""

import asyncio
import subprocess
import sys
from collections.abc import Callable

from gatepost.child_process import run_process
from gatepost.errors import InvalidRequest
from gatepost.events.json_payload import check_json_payload
from gatepost.tasks.task_request import input_of

# Reading a content of this size costs less than a thread.
SMALL_BYTES = 65_536
MOST_IN_THREAD = 1024 * 1024
_SECS = 60.0
_MAX_PROBLEM_BYTES = 1000
_CHECK = """
import sys
from gatepost.events.json_payload import check_json_payload
from gatepost.errors import GatepostError
try:
    check_json_payload(sys.stdin.buffer.read())
except GatepostError as error:
    sys.exit(print(error.message) or 1)
"""
_FIND_INPUT = """
import sys
from gatepost.tasks.task_request import input_of
try:
    found = input_of(sys.stdin.buffer.read())
except ValueError as error:
    sys.exit(print(error) or 1)
sys.stdout.buffer.write(found)
"""


async def check_json(content: bytes) -> None:
    """Raise InvalidRequest unless this is one JSON value that every agent can read."""
    await _run(check_json_payload, _CHECK, content)


async def find_input(request: bytes) -> bytes:
    """The input of an encoded request. ValueError or InvalidRequest if it cannot be read."""
    return await _run(input_of, _FIND_INPUT, request)


async def _run(read: Callable[[bytes], bytes | None], script: str, content: bytes) -> bytes:
    if len(content) <= SMALL_BYTES:
        return read(content) or b""
    if len(content) <= MOST_IN_THREAD:
        return await asyncio.to_thread(read, content) or b""
    try:
        ended = await run_process(sys.executable, "-c", script, stdin=content, timeout=_SECS)
    except subprocess.TimeoutExpired:
        raise InvalidRequest("it takes too long to read as JSON") from None
    if ended.returncode:
        said = ended.stdout[:_MAX_PROBLEM_BYTES].decode(errors="replace").strip()
        raise InvalidRequest(said or "it cannot be read as JSON")
    return ended.stdout
