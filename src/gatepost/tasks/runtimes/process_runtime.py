"""The process runtime: each session is a child process with limits, in its own folder.

A session has a supervisor (session_supervisor.py), which outlives the gateway. The gateway watches
supervisors by their pidfd, so it hears of an end at once, also of sessions that an earlier process
of the gateway started.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

import msgspec

from gatepost.errors import LaunchFailed
from gatepost.tasks.runtimes.bubblewrap import (
    find_bubblewrap,
    find_missing_program,
    sandbox_command,
)
from gatepost.tasks.runtimes.control_group import ControlGroup
from gatepost.tasks.runtimes.process_identity import (
    all_pids,
    boot_id,
    is_same_process,
    kill_group,
    pids_with_variable,
    send_signal,
)
from gatepost.tasks.runtimes.rotating_log import read_log
from gatepost.tasks.runtimes.session_folder import (
    make_session_folder,
    remove_secrets,
)
from gatepost.tasks.runtimes.session_supervisor import (
    EXIT_FILE,
    STATUS_FILE,
    STOP_FILE,
    WORK_FOLDER,
)
from gatepost.tasks.runtimes.session_user import SessionUser, SessionUsers, find_any_user, is_root
from gatepost.tasks.session_runtime import (
    LogPiece,
    ReportStep,
    SessionExit,
    SessionHandle,
    SessionSpec,
)
from gatepost.tasks.session_states import SessionInput

# Every process of a session has the session's name in this variable.
SESSION_VARIABLE = "GATEPOST_SESSION"
SandboxChoice = Literal["auto", "bubblewrap", "none"]
SessionEnds = dict[str, "asyncio.Future[None]"]

_LAUNCH_SECS = 30.0
_KILL_PAUSE_SECS = 0.01
_KILL_ROUNDS = 500
_MIB = 1024 * 1024


class ProcessRuntime:
    """`root` holds one folder per session. `sandbox` says whether bubblewrap is used.

    If this process is root, sessions run as `users` says. They can reach the folders `shown`
    although others may not enter the state directory.
    """

    def __init__(
        self,
        root: Path,
        sandbox: SandboxChoice = "auto",
        users: SessionUsers | None = None,
        shown: tuple[Path, ...] = (),
    ) -> None:
        self._root = root
        self._sandbox = sandbox
        self._users = users or SessionUsers(root)
        self._shown = shown
        self._spawners: list[_Spawner] = []
        # Folder → the end of a session that this process started.
        self._ends: SessionEnds = {}

    def folder_inside(self, folder: Path) -> str:
        return str(folder)

    def socket_inside(self, socket: Path) -> str:
        return str(socket)

    async def launch(self, spec: SessionSpec, report: ReportStep) -> SessionHandle:
        try:
            report(SessionInput.PROVISION)
            user = self._users.find(spec.name)
            if spec.is_large:
                await asyncio.to_thread(make_session_folder, spec, user)
            else:
                make_session_folder(spec, user)
            report(SessionInput.CONFIGURE)
            launch = self._describe_launch(spec, user)
            report(SessionInput.START)
            status = await self._spawn(launch)
        except OSError as error:
            remove_secrets(spec.folder)
            raise LaunchFailed(f"the session cannot be started: {error}") from None
        except Exception:
            remove_secrets(spec.folder)
            raise
        report(SessionInput.RUN)
        return SessionHandle(spec.name, status)

    async def wait(self, handle: SessionHandle) -> SessionExit:
        folder = f"{self._root}/{handle.name}"
        try:
            await self._wait_for_end(handle, self._ends.get(folder))
        finally:
            self._ends.pop(folder, None)
        found = self._read_exit(handle.name)
        if found is None:
            await self._end_processes(handle)
            found = SessionExit("lost", None, "its supervisor vanished")
        remove_secrets(self._root / handle.name)
        return found

    async def stop(self, handle: SessionHandle) -> None:
        pid = self._supervisor_pid(handle)
        if pid is not None:
            (self._root / handle.name / STOP_FILE).touch(mode=0o600)
            send_signal(pid, signal.SIGTERM)

    async def kill(self, handle: SessionHandle) -> None:
        pid = self._supervisor_pid(handle)
        if pid is not None:
            send_signal(pid, signal.SIGKILL)
        await self._end_processes(handle)

    async def remove_orphans(self, known: Collection[str]) -> list[str]:
        """End the processes of sessions that the journal does not know, and empty their folders.

        A session is unknown if the gateway ended between its launch and the note of it.
        """
        removed = []
        folders = list(self._root.iterdir()) if self._root.is_dir() else []
        for folder in folders:
            if folder.name not in known and folder.is_dir():
                status = _read_json(f"{folder}/{STATUS_FILE}")
                if status is not None and not (folder / EXIT_FILE).exists():
                    await self.kill(SessionHandle(folder.name, status))
                    removed.append(folder.name)
                remove_secrets(folder)
        return removed

    def read_log(self, name: str, offset: int, limit: int) -> LogPiece:
        return LogPiece(*read_log(self._root / name, offset, limit))

    async def close(self) -> None:
        for spawner in self._spawners:
            await spawner.close()

    # -- launching

    def _describe_launch(self, spec: SessionSpec, user: SessionUser) -> dict[str, Any]:
        limits = spec.definition.limits
        command = self._wrap_command(spec, user)
        return {
            "folder": str(spec.folder),
            "name": spec.name,
            "command": command,
            "user": (user.uid, user.gid),
            "is_private_user": user.is_private,
            "is_sandboxed": command != list(spec.definition.command),
            "environment": {**spec.environment, SESSION_VARIABLE: spec.name},
            "work": str(spec.folder / WORK_FOLDER),
            "log_bytes": spec.log_bytes,
            "grace": spec.stop_grace,
            "limits": {
                "memory": limits.memory_bytes,
                "processes": limits.processes,
                "open_files": limits.open_files,
                "file_bytes": limits.file_mb * _MIB,
                "cpus": limits.cpus,
                "cpu_seconds": limits.cpu_seconds,
                "seconds": limits.seconds,
                "user_processes": 0 if user.is_private else _count_processes_of(user.uid),
            },
        }

    def _wrap_command(self, spec: SessionSpec, user: SessionUser) -> list[str]:
        definition = spec.definition
        is_required = definition.hardened or self._sandbox == "bubblewrap"
        bubblewrap = None
        if self._sandbox != "none" or is_required:
            # Any user of a session stands for all of them.
            bubblewrap = find_bubblewrap(find_any_user() if user.is_private else user)
        if bubblewrap is not None:
            if (missing := find_missing_program(spec)) is not None:
                raise LaunchFailed(
                    f"the command cannot be started: the sandbox has no program {missing!r}"
                )
            return sandbox_command(bubblewrap, spec, has_network=definition.has_network)
        if is_required:
            raise LaunchFailed(
                f"{definition.name} needs a sandbox, and bubblewrap is missing or does not work:"
                " install it, or use the docker runtime"
            )
        return list(definition.command)

    async def _spawn(self, launch: dict[str, Any]) -> dict[str, Any]:
        if sys.platform != "linux":
            raise LaunchFailed("the process runtime needs Linux; use the docker runtime")
        if not self._spawners or self._spawners[-1].has_ended:
            self._spawners.append(await _Spawner.start(self._ends, self._list_shown()))
        spawner = self._spawners[-1]
        try:
            status = await asyncio.wait_for(spawner.spawn(launch), _LAUNCH_SECS)
        except TimeoutError:
            raise LaunchFailed("the session did not start in time") from None
        if "error" in status:
            raise LaunchFailed(f"the command cannot be started: {status['error']}")
        return status

    def _list_shown(self) -> dict[str, list[str]]:
        """What sessions of other users reach: their folders, and the Python of this gateway."""
        if not is_root():
            return {}
        pythons = {sys.prefix, sys.base_prefix}
        readable = [str(path) for path in self._shown if path.is_dir()]
        return {"writable": [str(self._root)], "readable": [*readable, *sorted(pythons)]}

    # -- ends

    async def _wait_for_end(
        self, handle: SessionHandle, ended: "asyncio.Future[None] | None"
    ) -> None:
        """Wait until a session or its supervisor has ended."""
        try:
            descriptor = os.pidfd_open(int(handle.data["pid"]))
        except ProcessLookupError:
            return
        loop = asyncio.get_running_loop()
        ended = loop.create_future() if ended is None else ended
        try:
            # The pid may have been reused before it was opened.
            if self._supervisor_pid(handle) is None:
                return
            loop.add_reader(descriptor, _resolve_once, ended)
            await ended
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    def _supervisor_pid(self, handle: SessionHandle) -> int | None:
        """The pid of a session's supervisor; None if the session or the supervisor has ended.

        A supervisor may serve another session by now.
        """
        pid, started = int(handle.data["pid"]), int(handle.data["started"])
        if handle.data["boot"] != boot_id() or not is_same_process(pid, started):
            return None
        has_ended = os.path.exists(f"{self._root}/{handle.name}/{EXIT_FILE}")  # noqa: PTH110
        return None if has_ended else pid

    def _read_exit(self, name: str) -> SessionExit | None:
        found = _read_json(f"{self._root}/{name}/{EXIT_FILE}")
        return None if found is None else SessionExit(found["reason"], found["code"])

    async def _end_processes(self, handle: SessionHandle) -> None:
        """End the processes of a session whose supervisor is gone."""
        child = int(handle.data["child"])
        if handle.data["boot"] != boot_id():
            return
        if is_same_process(child, int(handle.data["child_started"])):
            kill_group(child)
        group = ControlGroup(handle.name)
        group.find()
        for _ in range(_KILL_ROUNDS):
            # A process can leave its process group and clear its variables, but not leave its
            # control group.
            named = await asyncio.to_thread(pids_with_variable, SESSION_VARIABLE, handle.name)
            pids = group.list_pids().union(named)
            if not pids:
                break
            for pid in pids:
                send_signal(pid, signal.SIGKILL)
            await asyncio.sleep(_KILL_PAUSE_SECS)
        group.remove()


class _Spawner:
    """The process that forks supervisors, and its pending answers."""

    def __init__(
        self, process: subprocess.Popen[bytes], channel: socket.socket, ends: SessionEnds
    ) -> None:
        self._process = process
        self._channel = channel
        self._ends = ends
        self._answers: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._sending = asyncio.Lock()

    @classmethod
    async def start(cls, ends: SessionEnds, shown: dict[str, list[str]]) -> "_Spawner":
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "gatepost.tasks.runtimes.session_spawner"]
            process = subprocess.Popen(
                [*command, str(theirs.fileno()), msgspec.json.encode(shown).decode()],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        ours.setblocking(False)
        spawner = cls(process, ours, ends)
        spawner._reading = asyncio.create_task(spawner._read_answers())
        return spawner

    _reading: asyncio.Task[None]

    @property
    def has_ended(self) -> bool:
        return self._reading.done() or self._process.poll() is not None

    async def spawn(self, launch: dict[str, Any]) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        folder, line = launch["folder"], msgspec.json.encode(launch) + b"\n"
        answer: asyncio.Future[dict[str, Any]] = loop.create_future()
        self._answers[folder] = answer
        self._ends[folder] = loop.create_future()
        try:
            # One line at a time: a long one may be sent in several pieces.
            async with self._sending:
                await loop.sock_sendall(self._channel, line)
            return await answer
        except OSError as error:
            raise LaunchFailed(f"the spawner of sessions ended: {error}") from None
        finally:
            self._answers.pop(folder, None)

    async def _read_answers(self) -> None:
        loop, rest = asyncio.get_running_loop(), b""
        try:
            while data := await loop.sock_recv(self._channel, 65_536):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._resolve(msgspec.json.decode(line))
        except (OSError, msgspec.MsgspecError):
            pass
        finally:
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(LaunchFailed("the spawner of sessions ended"))

    def _resolve(self, status: dict[str, Any]) -> None:
        folder = status.pop("folder", "")
        if "ended" in status:
            _resolve_once(self._ends.get(folder))
            return
        answer = self._answers.get(folder)
        if answer is not None and not answer.done():
            answer.set_result(status)

    async def close(self) -> None:
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading
        self._channel.close()
        await asyncio.to_thread(self._process.wait)


def _resolve_once(ended: "asyncio.Future[None] | None") -> None:
    if ended is not None and not ended.done():
        ended.set_result(None)


def _read_json(path: str) -> dict[str, Any] | None:
    try:
        with open(path, "rb", 0) as file:  # noqa: PTH123
            found: dict[str, Any] = msgspec.json.decode(file.read(), type=dict)
    except (OSError, ValueError, RecursionError):
        return None
    return found


def _count_processes_of(uid: int) -> int:
    """The processes of a user, which count towards its limit."""
    count = 0
    for pid in all_pids():
        with contextlib.suppress(OSError):
            count += os.stat(f"/proc/{pid}").st_uid == uid  # noqa: PTH116
    return count
