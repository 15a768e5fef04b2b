"""Runs a command for each message of an agent: payload on its standard input, reply on its output.

- Input: a payload that is a JSON string as its text, any other JSON as JSON, other bytes as they
  are; GATEPOST_PAYLOAD says which.
- Exit code 0 ends the turn well. The output is the reply: nothing but white space is none, JSON is
  that value, anything else is text, without the newlines at its end.
- Any other end fails the turn. The reason is the last line on standard error.

The command and what it starts are a process group, which is killed when the command has ended, at
the time limit, and when the turn is cancelled.
"""

import asyncio
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import msgspec
from msgspec import Raw

from gatepost.child_process import (
    PIPE,
    ChildProcess,
    signal_group,
    start_process,
    wait_for_group,
)
from gatepost.client import Message, Retry
from gatepost.durations import format_duration
from gatepost.errors import InvalidRequest

# The largest payload that a gateway takes.
_MAX_OUTPUT_BYTES = 64 * 1024 * 1024
_MAX_LINE_BYTES = 8192
_PIECE_BYTES = 256 * 1024
# The time between the request to end and the kill.
GRACE_SECS = 5.0


class HandlerCommand:
    """One command for all messages. `environment` lacks the variables of a message."""

    def __init__(
        self,
        command: tuple[str, ...],
        environment: Mapping[str, str],
        *,
        time_limit: float,
        concurrency: int,
        as_text: bool = False,
    ) -> None:
        self._command = command
        self._environment = environment
        self._time_limit = time_limit
        self._as_text = as_text
        # Three streams of each turn; all of them end with the process group.
        self._threads = ThreadPoolExecutor(3 * concurrency, "handler")

    async def handle_message(self, message: Message) -> Any:
        """The reply of the command; None for none. Raises Retry if it failed."""
        kind, payload = _input_of(message)
        process = await self._start(self._describe(message, kind))
        conversing = asyncio.ensure_future(self._converse(process, payload))
        try:
            async with asyncio.timeout(self._time_limit):
                code, output, last_line = await asyncio.shield(conversing)
        except TimeoutError:
            await _end_group(process, conversing)
            limit = format_duration(self._time_limit)
            raise Retry(f"the command took longer than {limit}") from None
        except BaseException:
            await _end_group(process, conversing)
            raise
        if code != 0:
            raise Retry(last_line or _describe_end(code))
        return self._read_reply(output)

    def _describe(self, message: Message, payload_kind: str) -> dict[str, str]:
        event = message.event
        return {
            **self._environment,
            "GATEPOST_AGENT": message.to,
            "GATEPOST_MESSAGE_ID": message.msg_id,
            "GATEPOST_SENDER": message.from_,
            "GATEPOST_CORRELATION_ID": message.msg_id if event is None else event.corr_id,
            "GATEPOST_KIND": message.kind,
            "GATEPOST_ATTEMPT": str(message.attempt),
            "GATEPOST_PAYLOAD": payload_kind,
        }

    async def _start(self, env: Mapping[str, str]) -> ChildProcess:
        try:
            return await start_process(
                *self._command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                env=env,
                # Ctrl-C at the terminal is for us: we let the turns end.
                start_new_session=True,
            )
        except OSError as error:
            raise Retry(f"{self._command[0]} cannot be started: {error.strerror}") from None

    async def _converse(
        self, process: ChildProcess, payload: AsyncIterator[bytes]
    ) -> tuple[int, bytes, str]:
        """The exit code, the output, and the last line on standard error."""
        loop = asyncio.get_running_loop()
        assert process.stdin and process.stdout and process.stderr
        reading = loop.run_in_executor(self._threads, _read_output, process.stdout, process)
        following = loop.run_in_executor(self._threads, _follow_errors, process.stderr)
        feeding = asyncio.ensure_future(self._feed(process.stdin, payload))
        try:
            code = await wait_for_group(process)
            output = await reading
            if output is None:
                raise Retry(f"its output is larger than {_MAX_OUTPUT_BYTES >> 20} MiB")
            return code, output, await following
        finally:
            feeding.cancel()
            streams: list[asyncio.Future[Any]] = [feeding, reading, following]
            await asyncio.wait(streams)

    async def _feed(self, pipe: IO[bytes], payload: AsyncIterator[bytes]) -> None:
        """Write the payload; a command need not read all of it."""
        loop = asyncio.get_running_loop()
        try:
            async for piece in payload:
                await loop.run_in_executor(self._threads, _write_all, pipe, piece)
        except BrokenPipeError:
            pass
        finally:
            pipe.close()

    def _read_reply(self, output: bytes) -> Any:
        if not output.strip():
            return None
        if not self._as_text:
            with suppress(msgspec.DecodeError):
                return msgspec.json.decode(output, type=Raw)
        try:
            return output.decode().rstrip("\n")
        except UnicodeDecodeError:
            raise Retry("its output is neither JSON nor UTF-8 text") from None


def handler_environment(
    env: Mapping[str, str],
    *,
    state_dir: Path | None,
    url: str | None,
    token_file: Path | None,
    context: str | None,
) -> dict[str, str]:
    """The environment in which `gatepost` of a handler talks to the gateway of its agent."""
    named = {
        "GATEPOST_HOME": None if state_dir is None else str(state_dir.absolute()),
        "GATEPOST_URL": url,
        "GATEPOST_TOKEN_FILE": None if token_file is None else str(token_file.absolute()),
        "GATEPOST_CONTEXT": context,
    }
    chosen = {name: value for name, value in named.items() if value is not None}
    if not chosen:
        return dict(env)
    others = ("GATEPOST_URL", "GATEPOST_TOKEN_FILE", "GATEPOST_CONTEXT")
    return {name: value for name, value in env.items() if name not in others} | chosen


def _input_of(message: Message) -> tuple[str, AsyncIterator[bytes]]:
    """What the payload is (text, json or bytes), and its bytes as the command reads them."""
    try:
        payload = message.payload
    except InvalidRequest:
        return "bytes", message.stream()
    if isinstance(payload, str):
        return "text", _split(payload.encode("utf-8", "surrogatepass"))
    return "json", _split(msgspec.json.encode(payload))


async def _split(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), _PIECE_BYTES):
        yield content[start : start + _PIECE_BYTES]


def _write_all(pipe: IO[bytes], piece: bytes) -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[pipe.write(rest) :]


def _read_output(pipe: IO[bytes], process: ChildProcess) -> bytes | None:
    """The output to its end; None, and the end of the command, if there is too much of it."""
    with pipe:
        pieces: list[bytes] = []
        size = 0
        while piece := pipe.read(_PIECE_BYTES):
            size += len(piece)
            if size > _MAX_OUTPUT_BYTES:
                signal_group(process, signal.SIGKILL)
                return None
            pieces.append(piece)
        return b"".join(pieces)


def _follow_errors(pipe: IO[bytes]) -> str:
    """Pass standard error on as it comes; returns its last line that is not empty."""
    last = line = b""
    with pipe:
        while piece := pipe.read(_PIECE_BYTES):
            sys.stderr.buffer.write(piece)
            sys.stderr.buffer.flush()
            *ended, line = (line + piece).split(b"\n")
            last = next((each for each in reversed(ended) if each.strip()), last)
            line = line[:_MAX_LINE_BYTES]
    found = line if line.strip() else last
    return found[:_MAX_LINE_BYTES].decode(errors="replace").strip()


def _describe_end(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"ended by {signal.Signals(-code).name}"
    return f"ended by signal {-code}"


async def _end_group(process: ChildProcess, conversing: "asyncio.Future[Any]") -> None:
    """Ask the command to end, and kill it if it does not."""
    try:
        if not conversing.done():
            signal_group(process, signal.SIGTERM)
            await asyncio.wait([conversing], timeout=GRACE_SECS)
    finally:
        signal_group(process, signal.SIGKILL)
    await asyncio.wait([conversing])
    if not conversing.cancelled():
        # It has ended because we ended it.
        conversing.exception()


def check_program(program: str) -> str | None:
    """Why a program cannot be started; None if it can."""
    if shutil.which(program) is not None:
        return None
    if Path(program).exists():
        return f"{program} is not executable: run `chmod +x {program}`"
    return f"there is no program {program}"
