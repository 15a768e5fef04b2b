"""The interface of all runtimes: launch a session, wait for its end, stop it, read its log."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct

from gatepost.tasks.agent_definition import AgentDefinition
from gatepost.tasks.session_states import SessionInput

LOST = "lost"
# Writing files of this size costs less than a thread.
_LARGE_BYTES = 65_536

EndReason = Literal["exited", "stopped", "time_limit", "lost"]
ReportStep = Callable[[SessionInput], None]


class SessionSpec(Struct, frozen=True, kw_only=True):
    """The inputs of a session. Its `folder` exists as long as its task is kept.

    `environment` is complete: nothing is inherited. `files` are for the session to read, and
    `secrets` too; the latter are removed as soon as the session ends. `socket_folder` has the Unix
    socket of the gateway, which is another file after each restart.
    """

    name: str
    folder: Path
    definition: AgentDefinition
    environment: dict[str, str]
    files: dict[str, bytes]
    secrets: dict[str, bytes]
    socket_folder: Path | None = None
    hidden: tuple[Path, ...] = ()
    log_bytes: int = 1024 * 1024
    stop_grace: float = 10.0

    @property
    def is_large(self) -> bool:
        """Whether its files are so large that a thread should write them."""
        return sum(map(len, self.files.values())) > _LARGE_BYTES


class SessionHandle(Struct, frozen=True):
    """Plain data in the journal, with which a runtime finds a session again after a restart."""

    name: str
    data: dict[str, str | int]


class SessionExit(Struct, frozen=True):
    """How a session ended. `code` is negative for a signal, and None if it is unknown."""

    reason: EndReason
    code: int | None = None
    detail: str = ""

    @property
    def is_success(self) -> bool:
        return self.reason == "exited" and self.code == 0

    @property
    def is_lost(self) -> bool:
        """Whether the session vanished or was killed, instead of ending by itself."""
        return self.reason == LOST or (self.code is not None and self.code < 0)

    def __str__(self) -> str:
        if self.reason == LOST:
            return self.detail or "it vanished"
        how = "it was not started" if self.code is None else f"it exited with {self.code}"
        if self.code is not None and self.code < 0:
            how = f"it was ended by signal {-self.code}"
        return f"{how} ({self.detail})" if self.detail else how


class LogPiece(Struct, frozen=True):
    """Bytes of a log from `offset` on. Earlier bytes may have been dropped."""

    offset: int
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


class SessionRuntime(Protocol):
    def folder_inside(self, folder: Path) -> str:
        """Where the session sees its own folder."""

    def socket_inside(self, socket: Path) -> str:
        """Where the session sees the socket of the gateway."""

    async def launch(self, spec: SessionSpec, report: ReportStep) -> SessionHandle:
        """Start a session; LaunchFailed, without leftovers, if that is not possible."""

    async def wait(self, handle: SessionHandle) -> SessionExit:
        """Wait for the end of a session, which this process may not have started itself."""

    async def stop(self, handle: SessionHandle) -> None:
        """Ask the session to end, and kill it later if it does not. Returns once it was asked."""

    async def kill(self, handle: SessionHandle) -> None:
        """End everything that belongs to the session, at once."""

    async def remove_orphans(self, known: Collection[str]) -> list[str]:
        """End all sessions but those with these names; returns the names of those it ended."""

    def read_log(self, name: str, offset: int, limit: int) -> LogPiece:
        """Read the log of a session, running or ended. A negative offset counts from the end."""

    async def close(self) -> None:
        """Release the resources of this process. Sessions continue."""
