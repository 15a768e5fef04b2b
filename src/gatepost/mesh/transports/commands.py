"""Running the tools of a transport: found on the path, with a deadline, without secrets in argv."""

import shutil
import subprocess

from gatepost.child_process import run_process
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
    try:
        ended = await run_process(*command, stdin=stdin, timeout=_COMMAND_SECS)
    except subprocess.TimeoutExpired:
        raise CommandFailed(command[0], f"did not end within {_COMMAND_SECS:g} s") from None
    if ended.returncode:
        raise CommandFailed(command[0], ended.stderr.decode(errors="replace").strip()[:500])
    return ended.stdout
