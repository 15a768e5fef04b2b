"""One process that checks contracts, as the gateway sees it: started, asked, and killed."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from importlib.util import find_spec
from typing import NamedTuple

import msgspec
from msgspec import Struct

from gatepost.child_process import PIPE, ChildProcess, start_process, wait_for_exit
from gatepost.errors import ExtraMissing
from gatepost.tasks.capabilities.contract import ContractPart, ContractVerdict
from gatepost.tasks.contract_checks.contract_worker import (
    LENGTH_BYTES,
    CheckAnswer,
    CheckRequest,
    KnownTexts,
)

_PIECE_BYTES = 256 * 1024
_READ_BYTES = 64 * 1024
# Wall time includes waiting for the processor.
_WALL_PER_CPU_SEC = 10.0
_START_SECS = 10.0
_SEND_SECS = 30.0
_KILLED = "cannot be checked: the process that checks it was killed"
_decode_answer = msgspec.msgpack.Decoder(CheckAnswer).decode


# The node that brought a contract, and the node or agent whose content is checked.
Source = tuple[str, str]
LoadContent = Callable[[], Awaitable[bytes]]


class ContractCheck(Struct, eq=False):
    """A check with a waiting caller. Without a part, the contract is only compiled.

    A large content is loaded when its turn comes.
    """

    source: Source
    contract: str
    body: bytes
    part: ContractPart | None
    content: bytes | LoadContent
    verdict: "asyncio.Future[ContractVerdict]"
    tries: int = 0

    @property
    def is_large(self) -> bool:
        return not isinstance(self.content, bytes)

    @property
    def size(self) -> int:
        """The memory in bytes of a waiting check."""
        return len(self.content) if isinstance(self.content, bytes) else 0


class ProcessLimits(Struct, frozen=True):
    """The limits of a process; `nice` above 0 lowers its priority."""

    memory_bytes: int
    cpu_secs: float
    large_cpu_secs: float
    nice: int = 0

    def cpu_secs_of(self, check: ContractCheck) -> float:
        return self.large_cpu_secs if check.is_large else self.cpu_secs


class BatchEnd(NamedTuple):
    """`deferred` have to be sent again.

    If the process has died, it worked on the first of the `unanswered`. `death` says why, and is
    empty if the process ended by itself to make way for a fresh one.
    """

    deferred: list[ContractCheck]
    unanswered: list[ContractCheck]
    death: str | None = None
    is_killed: bool = False


class ContractProcess:
    def __init__(self, process: ChildProcess, pipes: "_Pipes", limits: ProcessLimits) -> None:
        self._process = process
        self._pipes = pipes
        self._limits = limits
        self._texts = KnownTexts()
        self._batch = 0
        self._received = b""
        self._is_new = True

    @classmethod
    async def start(cls, limits: ProcessLimits) -> "ContractProcess":
        """Start a process without the gateway's environment, files and secrets."""
        if find_spec("jsonschema_rs") is None:
            raise ExtraMissing(
                "contracts are checked by JSON Schema, which is not installed:"
                " pip install 'gatepost[hub]', then restart the gateway"
            )
        process = await start_process(
            *(sys.executable, "-I", "-m", "gatepost.tasks.contract_checks.contract_worker"),
            *(str(limits.memory_bytes), str(limits.nice)),
            stdin=PIPE,
            stdout=PIPE,
            env={"PATH": os.defpath},
            cwd="/",
        )
        return cls(process, await _Pipes.open(process), limits)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def run_batch(self, checks: Sequence[ContractCheck]) -> BatchEnd:
        """Run checks in order until all are answered or the process dies."""
        self._batch += 1
        sent = await self._send(checks)
        deferred: list[ContractCheck] = []
        for index, check in enumerate(sent):
            answer = await self._receive_in_time(self._limits.cpu_secs_of(check))
            if answer is None:
                death = await self._find_death()
                return BatchEnd(deferred, sent[index:], death, death == _KILLED)
            if answer.is_deferred:
                deferred.append(check)
            elif not check.verdict.done():
                check.verdict.set_result(ContractVerdict(answer.problem))
        return BatchEnd(deferred, [])

    async def _send(self, checks: Sequence[ContractCheck]) -> list[ContractCheck]:
        """Send requests, except for those whose content cannot be loaded."""
        sent = []
        for check in checks:
            try:
                content = await _load_content(check)
            except Exception as error:
                if not check.verdict.done():
                    check.verdict.set_exception(error)
                continue
            sent.append(check)
            # A process that has died or hangs is noticed when it does not answer.
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_SEND_SECS):
                    await self._send_one(check, content)
        return sent

    async def _send_one(self, check: ContractCheck, content: bytes) -> None:
        stdin = self._pipes.stdin
        body = check.body if self._texts.add(check.contract) else b""
        cpu_secs = self._limits.cpu_secs_of(check)
        request = msgspec.msgpack.encode(
            CheckRequest(self._batch, check.contract, check.part, len(body), len(content), cpu_secs)
        )
        head = len(request).to_bytes(LENGTH_BYTES) + request + body
        if len(content) <= _PIECE_BYTES:
            stdin.write(head + content)
            return
        stdin.write(head)
        for begin in range(0, len(content), _PIECE_BYTES):
            stdin.write(content[begin : begin + _PIECE_BYTES])
            await stdin.drain()

    async def _receive_in_time(self, cpu_secs: float) -> CheckAnswer | None:
        secs = _WALL_PER_CPU_SEC * max(cpu_secs, 0.5) + (_START_SECS if self._is_new else 0)
        try:
            async with asyncio.timeout(secs):
                answer = await self._receive()
        except TimeoutError:
            return None
        self._is_new = False
        return answer

    async def _receive(self) -> CheckAnswer | None:
        """The next answer; None if the process has died."""
        while True:
            size = int.from_bytes(self._received[:LENGTH_BYTES])
            end = LENGTH_BYTES + size
            if len(self._received) >= LENGTH_BYTES and len(self._received) >= end:
                answer, self._received = self._received[LENGTH_BYTES:end], self._received[end:]
                return _decode_answer(answer)
            piece = await self._pipes.stdout.read(_READ_BYTES)
            if not piece:
                return None
            self._received += piece

    async def _find_death(self) -> str:
        """Why the process died. A process that still runs took too long, and is killed."""
        if not self._pipes.stdout.at_eof():
            await self.kill()
            return "takes too much time to check"
        code = await wait_for_exit(self._process)
        if code == 0:
            return ""
        if code == -signal.SIGPROF:
            return "takes too much time to check"
        if code == -signal.SIGKILL:
            return _KILLED
        return "takes too much memory to check, or breaks the process that checks it"

    async def kill(self) -> None:
        self._process.kill()
        await wait_for_exit(self._process)
        self._pipes.close()


class _Pipes(NamedTuple):
    """The standard input and output of a process, on the event loop."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    reading: asyncio.BaseTransport

    @classmethod
    async def open(cls, process: ChildProcess) -> "_Pipes":
        loop = asyncio.get_running_loop()
        stdout = asyncio.StreamReader()
        reading, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stdout), process.stdout
        )
        writing, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), process.stdin
        )
        return cls(asyncio.StreamWriter(writing, protocol, None, loop), stdout, reading)

    def close(self) -> None:
        self.stdin.close()
        self.reading.close()


async def _load_content(check: ContractCheck) -> bytes:
    return check.content if isinstance(check.content, bytes) else await check.content()
