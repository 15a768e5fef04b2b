"""The files that the hub follows: definitions of agents, and its policy."""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from gatepost.core.folder_watch import ALL_CHANGES, watch_folder
from gatepost.errors import InvalidPolicy
from gatepost.tasks.policy import MAX_POLICY_BYTES, Policy
from gatepost.tasks.policy_language import DEFAULT_POLICY
from gatepost.tasks.registry import MAX_FILE_BYTES, AgentRegistry, FileContent

log = logging.getLogger(__name__)

_NO_FILE = None


class RegistryFolder:
    """Reads the folder of definitions and calls `changed` after changes."""

    def __init__(self, registry: AgentRegistry, folder: Path) -> None:
        self._registry = registry
        self.folder = folder

    def load(self) -> bool:
        """Read all files; returns whether any definition or problem changed."""
        before = (dict(self._registry.agents), list(self._registry.problems))
        self._registry.load_files(read_definition_files(self.folder))
        after = (self._registry.agents, self._registry.problems)
        for problem in self._registry.problems:
            if problem not in before[1]:
                log.warning("the definition of an agent cannot be used: %s", problem)
        return before != after


def read_definition_files(folder: Path) -> dict[str, FileContent]:
    """The JSON files of a folder, each read one byte further than it may be long."""
    files: dict[str, FileContent] = {}
    if not folder.is_dir():
        return files
    for path in folder.glob("*.json"):
        try:
            with open(path, "rb", opener=_open_without_waiting) as file:
                files[path.name] = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            continue  # It was removed in the meantime.
        except OSError as error:
            files[path.name] = error
    return files


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file without blocking, even if it is a pipe without a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


class PolicyFile:
    """Follows the policy file. A wrong file is reported and changes nothing."""

    def __init__(self, policy: Policy, path: Path) -> None:
        self._policy = policy
        self.path = path
        self._content: FileContent | None = _NO_FILE
        self.problem: str | None = None

    def load_first(self) -> None:
        """Load the rules at start; if they are unreadable, everything is denied."""
        self.load()
        if self.problem is not None:
            self._policy.deny_everything()

    def load(self) -> None:
        content = self._read()
        if content == self._content:
            return
        self._content = content
        try:
            self._policy.replace_rules(DEFAULT_POLICY if content is None else _decode(content))
        except InvalidPolicy as error:
            before, self.problem = self.problem, f"{self.path.name} is not used: {error.message}"
            if self.problem != before:
                log.warning("%s", self.problem)
        else:
            log.info("the policy of the hub was loaded")
            self.problem = None

    def _read(self) -> FileContent | None:
        try:
            with open(self.path, "rb", opener=_open_without_waiting) as file:
                return file.read(MAX_POLICY_BYTES + 1)
        except FileNotFoundError:
            return _NO_FILE
        except OSError as error:
            return error


def _decode(content: FileContent) -> str:
    if isinstance(content, OSError):
        raise InvalidPolicy(f"it cannot be read: {content.strerror}")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise InvalidPolicy("it is no UTF-8 text") from None


@contextlib.asynccontextmanager
async def follow_folder(folder: Path, changed: Callable[[], None]) -> AsyncIterator[None]:
    """Call `changed` soon after files of a folder change, once for several changes together."""
    loop = asyncio.get_running_loop()
    pending: list[asyncio.TimerHandle] = []

    def call() -> None:
        pending.clear()
        changed()

    def schedule() -> None:
        if not pending:
            pending.append(loop.call_later(0.02, call))

    async with watch_folder(folder, schedule, ALL_CHANGES):
        try:
            yield
        finally:
            for handle in pending:
                handle.cancel()
