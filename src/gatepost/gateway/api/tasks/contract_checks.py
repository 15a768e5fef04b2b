"""Checks of large contents against contracts: in a thread if they are quick, else in a process."""

import asyncio
import os
import sys
from typing import IO, Literal

from gatepost.capabilities.contract import Contract
from gatepost.capabilities.contract_process import CPU_SECS, encode_check
from gatepost.errors import ContractMismatch

ContractPart = Literal["input", "result"]

_AT_ONCE = 2
# The process waits for the processor too.
_DEADLINE_SECS = 6.0 * CPU_SECS
_MAX_PROBLEM_BYTES = 2000


class ContractChecks:
    """At most two processes check at a time."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def check(self, contract: Contract, part: ContractPart, content: bytes) -> None:
        """Raise ContractMismatch unless a content fits its contract."""
        schema = contract.input if part == "input" else contract.output
        if await asyncio.to_thread(schema.is_quick, content):
            await asyncio.to_thread(schema.check, content)
            return
        async with self._slots:
            problem = await _run_process(part, encode_check(contract, content))
        if problem:
            raise ContractMismatch(problem)


async def _run_process(part: ContractPart, given: bytes) -> str:
    """The problem that the process finds, also if it does not come to an end."""
    with _memory_file(given) as source:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gatepost.capabilities.contract_process", part),
            stdin=source,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    try:
        async with asyncio.timeout(_DEADLINE_SECS):
            output, _ = await process.communicate()
    except TimeoutError:
        output = b""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        return f"{part}: takes too much time or memory to check"
    return output[:_MAX_PROBLEM_BYTES].decode(errors="replace")


def _memory_file(content: bytes) -> IO[bytes]:
    """A file without a name: the process reads it at its own pace."""
    file = os.fdopen(os.memfd_create("contract-check"), "wb+")
    file.write(content)
    file.seek(0)
    return file
