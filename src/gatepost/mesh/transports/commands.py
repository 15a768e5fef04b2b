"""Running the tools of a transport: found on the path, with a deadline, without secrets in argv."""

import asyncio
import os
import shutil
from typing import IO

from gatepost.errors import TransportUnavailable

_COMMAND_SECS = 10.0


class CommandFailed(Exception):
    """A tool ended with an error. `text` is its message."""

    def __init__(self, tool: str, text: str) -> None:
        super().__init__(f"{tool}: {text}")
        self.text = text


def find_tool(name: str, package: str) -> str:
    """The path of a tool; TransportUnavailable, with the package to install, if it is missing."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/local/sbin")
    if found is None:
        raise TransportUnavailable(
            f"the program {name} is missing: install it (Debian: apt-get install {package}),"
            " or choose another mesh.transport"
        )
    return found


async def run_command(*command: str, stdin: bytes = b"") -> bytes:
    """Run a tool to its end, and return its output; CommandFailed if that is an error."""
    pipe = asyncio.subprocess.PIPE
    with _memory_file(stdin) as source:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=source, stdout=pipe, stderr=pipe
        )
    try:
        async with asyncio.timeout(_COMMAND_SECS):
            output, errors = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise CommandFailed(command[0], f"did not end within {_COMMAND_SECS:g} s") from None
    if process.returncode:
        raise CommandFailed(command[0], errors.decode(errors="replace").strip()[:500])
    return output


def _memory_file(content: bytes) -> IO[bytes]:
    """A file without a name. Unlike a pipe it can be written although its reader has ended."""
    file = os.fdopen(os.memfd_create("stdin"), "wb+")
    file.write(content)
    file.seek(0)
    return file


async def stop_process(process: asyncio.subprocess.Process, secs: float = 3.0) -> None:
    """Ask a process to end, and end it if it does not."""
    if process.returncode is None:
        process.terminate()
        try:
            async with asyncio.timeout(secs):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
