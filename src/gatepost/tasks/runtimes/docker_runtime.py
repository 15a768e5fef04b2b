"""The docker runtime: each session is a container, run by Docker or by Podman's socket.

A container outlives the gateway, and is found again by its id. Its output is copied into the log of
the session as it comes. The SDK blocks, so every session has its own threads.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gatepost.errors import LaunchFailed
from gatepost.tasks.agent_definition import AgentDefinition
from gatepost.tasks.runtimes.rotating_log import RotatingLog, read_log, remove_log
from gatepost.tasks.runtimes.session_folder import make_session_folder, remove_secrets
from gatepost.tasks.runtimes.session_supervisor import SECRETS_FOLDER, WORK_FOLDER
from gatepost.tasks.runtimes.session_user import SessionUser, SessionUsers
from gatepost.tasks.session_runtime import (
    LogPiece,
    ReportStep,
    SessionExit,
    SessionHandle,
    SessionSpec,
)
from gatepost.tasks.session_states import SessionInput

log = logging.getLogger(__name__)

T = TypeVar("T")

_INSIDE = "/gatepost"
_SOCKET_INSIDE = "/gatepost-socket"
_LABEL = "gatepost.sessions"
# In the folder of every session that has a container.
_MARK_FILE = "container"
_SIGNAL_BASE = 128
_CALL_SECS = 60
_MIB = 1024 * 1024
# Engines split longer lines.
_CHUNK_BYTES = 16 * 1024
# The CPU limit of a container whose agent states none.
_DEFAULT_CPUS = 1.0


class DockerRuntime:
    """`root` holds one folder per session; containers carry it as a label."""

    def __init__(
        self,
        root: Path,
        host: str = "",
        max_sessions: int = 8,
        users: SessionUsers | None = None,
    ) -> None:
        self._root = root
        self._users = users or SessionUsers(root)
        self._host = host
        self._client: Any = None
        # One thread waits for each session, one copies its output, and some make calls.
        self._threads = ThreadPoolExecutor(2 * max_sessions + 4, "docker")

    def folder_inside(self, folder: Path) -> str:
        return _INSIDE

    def socket_inside(self, socket: Path) -> str:
        return f"{_SOCKET_INSIDE}/{socket.name}"

    async def launch(self, spec: SessionSpec, report: ReportStep) -> SessionHandle:
        try:
            report(SessionInput.PROVISION)
            user = self._users.find(spec.name)
            await asyncio.to_thread(make_session_folder, spec, user)
            (spec.folder / _MARK_FILE).touch()
            report(SessionInput.CONFIGURE)
            container = await self._call(partial(self._create_container, spec, user))
            report(SessionInput.START)
            await self._start(container)
        except OSError as error:
            remove_secrets(spec.folder)
            raise LaunchFailed(f"the session cannot be started: {error}") from None
        except Exception:
            remove_secrets(spec.folder)
            raise
        report(SessionInput.RUN)
        seconds = int(time.time() + spec.definition.limits.seconds)
        data: dict[str, str | int] = {"id": container.id, "until": seconds}
        data |= {"grace": max(1, int(spec.stop_grace)), "log_bytes": spec.log_bytes}
        return SessionHandle(spec.name, data)

    async def wait(self, handle: SessionHandle) -> SessionExit:
        folder = self._root / handle.name
        try:
            container = await self._find(handle)
            if container is None:
                return SessionExit("lost", None, "its container vanished")
            return await self._follow(container, handle)
        finally:
            remove_secrets(folder)

    async def stop(self, handle: SessionHandle) -> None:
        container = await self._find(handle)
        if container is not None:
            await self._run(partial(_stop_container, container, int(handle.data["grace"])))

    async def kill(self, handle: SessionHandle) -> None:
        container = await self._find(handle)
        if container is not None:
            await self._run(partial(_remove_container, container))

    async def remove_orphans(self, known: Collection[str]) -> list[str]:
        """Remove the containers of sessions that the journal does not know."""
        if self._client is None and not any(self._root.glob(f"*/{_MARK_FILE}")):
            return []  # The container never existed, and perhaps no engine runs.
        try:
            found = await self._call(self._list_containers)
        except LaunchFailed as error:
            log.warning("containers of earlier sessions cannot be found: %s", error.message)
            return []
        orphans = [each for each in found if each.labels.get("gatepost.session") not in known]
        for container in orphans:
            await self._run(partial(_remove_container, container))
        return [str(container.labels["gatepost.session"]) for container in orphans]

    def read_log(self, name: str, offset: int, limit: int) -> LogPiece:
        return LogPiece(*read_log(self._root / name, offset, limit))

    async def close(self) -> None:
        if self._client is not None:
            # This ends waiting calls; their containers continue.
            self._client.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # -- containers

    def _connect(self) -> Any:
        if self._client is None:
            try:
                import docker
            except ImportError:
                raise LaunchFailed("install the extra: pip install 'gatepost[docker]'") from None
            try:
                if self._host:
                    self._client = docker.DockerClient(base_url=self._host, timeout=_CALL_SECS)
                else:
                    self._client = docker.from_env(timeout=_CALL_SECS)
            except docker.errors.DockerException:
                # Its text is a chain of errors of the HTTP library.
                where = self._host or os.environ.get("DOCKER_HOST") or "Docker's usual socket"
                raise LaunchFailed(
                    f"no container engine answers at {where}: start Docker or Podman on this"
                    " machine, or set hub.docker_host"
                ) from None
        return self._client

    def _create_container(self, spec: SessionSpec, user: SessionUser) -> Any:
        definition = spec.definition
        return self._connect().containers.create(
            definition.image,
            list(definition.command) or None,
            name=container_name(spec.name),
            labels={_LABEL: str(self._root), "gatepost.session": spec.name},
            environment=spec.environment,
            volumes=_list_mounts(spec),
            working_dir=f"{_INSIDE}/{WORK_FOLDER}",
            user=f"{user.uid}:{user.gid}",
            network_mode="bridge" if definition.has_network else "none",
            log_config=_log_config(spec.log_bytes),
            init=True,
            detach=True,
            **_limit_container(definition, user),
        )

    async def _start(self, container: Any) -> None:
        try:
            await self._call(container.start)
        except LaunchFailed:
            await self._run(partial(_remove_container, container))
            raise

    def _list_containers(self) -> list[Any]:
        label = f"{_LABEL}={self._root}"
        found: list[Any] = self._connect().containers.list(all=True, filters={"label": label})
        return found

    async def _find(self, handle: SessionHandle) -> Any:
        """The container of a session; None if it is gone."""
        from docker.errors import NotFound

        try:
            return await self._run(lambda: self._connect().containers.get(handle.data["id"]))
        except NotFound:
            return None

    async def _follow(self, container: Any, handle: SessionHandle) -> SessionExit:
        copying = asyncio.ensure_future(self._run(partial(self._copy_output, container, handle)))
        ending = asyncio.ensure_future(self._run(partial(_wait_for_container, container)))
        left = max(0.0, int(handle.data["until"]) - time.time())
        done, _ = await asyncio.wait((ending,), timeout=left)
        if not done:
            await self.stop(handle)
        code, detail = await ending
        with contextlib.suppress(Exception):
            await asyncio.wait_for(copying, 10)
        await self._run(partial(_remove_container, container))
        if code is None:
            return SessionExit("lost", None, detail)
        return SessionExit("exited" if done else "time_limit", code, detail)

    def _copy_output(self, container: Any, handle: SessionHandle) -> None:
        """Copy all output that the engine still has, and what comes, until the container ends."""
        folder = self._root / handle.name
        remove_log(folder)
        target = RotatingLog(str(folder), int(handle.data["log_bytes"]))
        output = container.logs(stream=True, follow=True, stdout=True, stderr=True)
        unfinished = b""
        try:
            for piece in output:
                target.write(piece, time.monotonic())
                unfinished = (unfinished + piece).rpartition(b"\n")[2][-_CHUNK_BYTES:]
            for piece in _unfinished_lines(container):
                if piece not in unfinished:
                    target.write(piece, time.monotonic())
        finally:
            target.close()
            with contextlib.suppress(Exception):
                output.close()

    # -- calls of the SDK

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def _call(self, call: Callable[[], T]) -> T:
        """Make a call; any refusal of the engine is a LaunchFailed."""
        try:
            return await self._run(call)
        except LaunchFailed:
            raise
        except Exception as error:
            detail = getattr(error, "explanation", None) or error
            raise LaunchFailed(f"the container engine refused: {detail}") from None


def container_name(session_name: str) -> str:
    return f"gatepost-{session_name}"


def _limit_container(definition: AgentDefinition, user: SessionUser) -> dict[str, Any]:
    """Limits of every container, and what hardens one: read-only, and without privileges."""
    limits = definition.limits
    options: dict[str, Any] = {
        "mem_limit": limits.memory_bytes,
        "memswap_limit": limits.memory_bytes,
        "pids_limit": limits.processes,
        "nano_cpus": int((limits.cpus or _DEFAULT_CPUS) * 1e9),
        "security_opt": ["no-new-privileges"],
        "ulimits": _ulimits(definition),
    }
    if definition.hardened:
        # Docker ignores a requested mode and gives /tmp the image's.
        tmp = f"size=64m,mode=1777,uid={user.uid}"
        options |= {"read_only": True, "cap_drop": ["ALL"], "tmpfs": {"/tmp": tmp}}
    return options


def _ulimits(definition: AgentDefinition) -> list[Any]:
    from docker.types import Ulimit

    limits = definition.limits
    found = [
        Ulimit(name="nofile", soft=limits.open_files, hard=limits.open_files),
        Ulimit(name="fsize", soft=limits.file_mb * _MIB, hard=limits.file_mb * _MIB),
        Ulimit(name="core", soft=0, hard=0),
    ]
    if limits.cpu_seconds is not None:
        found.append(Ulimit(name="cpu", soft=limits.cpu_seconds, hard=limits.cpu_seconds))
    return found


def _list_mounts(spec: SessionSpec) -> dict[str, dict[str, str]]:
    mounts = {
        str(spec.folder / WORK_FOLDER): {"bind": f"{_INSIDE}/{WORK_FOLDER}", "mode": "rw"},
        str(spec.folder / SECRETS_FOLDER): {"bind": f"{_INSIDE}/{SECRETS_FOLDER}", "mode": "ro"},
    }
    for name in spec.files:
        mounts[str(spec.folder / name)] = {"bind": f"{_INSIDE}/{name}", "mode": "ro"}
    if spec.socket_folder is not None:
        mounts[str(spec.socket_folder)] = {"bind": _SOCKET_INSIDE, "mode": "ro"}
    return mounts


def _log_config(log_bytes: int) -> Any:
    from docker.types import LogConfig

    kib = max(4, log_bytes // 2048)
    return LogConfig(type="json-file", config={"max-size": f"{kib}k", "max-file": "2"})


def _unfinished_lines(container: Any) -> list[bytes]:
    """The last line of each output stream, if no newline ends it.

    An engine that is followed may leave these out when the container ends.
    """
    try:
        last = list(container.logs(stream=True, stdout=True, stderr=True, tail=2))
    except Exception as error:
        log.warning("the end of a container's output cannot be read: %s", error)
        return []
    return [piece for piece in last if not piece.endswith(b"\n")]


def _wait_for_container(container: Any) -> tuple[int | None, str]:
    """The exit code of a container, as for a process; None if the engine does not know it."""
    try:
        # The SDK's timeout is for one answer, and this one comes when the container ends.
        code = int(container.wait(timeout=None)["StatusCode"])
        container.reload()
    except Exception as error:
        return None, f"the container engine lost it: {error}"
    detail = "it ran out of memory" if container.attrs["State"].get("OOMKilled") else ""
    return (_SIGNAL_BASE - code if code > _SIGNAL_BASE else code), detail


def _stop_container(container: Any, grace: int) -> None:
    with contextlib.suppress(Exception):
        container.stop(timeout=grace)


def _remove_container(container: Any) -> None:
    with contextlib.suppress(Exception):
        container.remove(force=True, v=True)
