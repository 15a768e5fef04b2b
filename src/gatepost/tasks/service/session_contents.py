"""The inputs of a session, and the result that it leaves."""

import asyncio
import os
import stat
from pathlib import Path

from gatepost.core.gateway_core import Core
from gatepost.delivery.blob_records import find_blob
from gatepost.errors import GatepostError, InvalidRequest, LaunchFailed, PayloadTooLarge
from gatepost.events import fingerprint_content
from gatepost.tasks.runtimes.session_supervisor import SECRETS_FOLDER, WORK_FOLDER
from gatepost.tasks.service.json_contents import SMALL_BYTES, check_json
from gatepost.tasks.service.task_contents import TaskContents
from gatepost.tasks.session_runtime import SessionRuntime, SessionSpec
from gatepost.tasks.session_tasks import ClaimedTask
from gatepost.tasks.task_table import TaskPayload

TASK_FILE, RESULT_FILE, TOKEN_FILE = "task.json", "result.json", "token"
# Variables of the gateway that every session gets; see `pass_environment` for more.
_PASSED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ")


class SessionContents:
    """`base_url` is that of this gateway, once it listens."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._settings = core.settings.hub
        self._task_contents = TaskContents(core)
        self.base_url = ""

    async def describe_session(self, claimed: ClaimedTask, runtime: SessionRuntime) -> SessionSpec:
        name = claimed.session_name
        folder = self._core.state.sessions / name
        return SessionSpec(
            name=name,
            folder=folder,
            definition=claimed.definition,
            environment=self._build_environment(claimed, runtime, folder),
            files={TASK_FILE: await self._load_request(claimed)},
            secrets={TOKEN_FILE: claimed.token.text.encode(), **self._load_secrets(claimed)},
            socket_folder=self._core.state.session_socket(name).parent,
            hidden=(self._core.state.path,),
            log_bytes=self._settings.log_bytes,
            stop_grace=self._settings.stop_grace_secs,
        )

    def _build_environment(
        self, claimed: ClaimedTask, runtime: SessionRuntime, outside: Path
    ) -> dict[str, str]:
        definition, folder = claimed.definition, runtime.folder_inside(outside)
        names = (*_PASSED, *definition.pass_environment)
        passed = {name: os.environ[name] for name in names if name in os.environ}
        own = {
            "HOME": f"{folder}/{WORK_FOLDER}",
            "GATEPOST_URL": self.base_url,
            "GATEPOST_SOCKET": runtime.socket_inside(
                self._core.state.session_socket(claimed.session_name)
            ),
            "GATEPOST_AGENT": definition.name,
            "GATEPOST_TASK_ID": claimed.task.id,
            "GATEPOST_TASK_FILE": f"{folder}/{TASK_FILE}",
            "GATEPOST_RESULT_FILE": f"{folder}/{WORK_FOLDER}/{RESULT_FILE}",
            "GATEPOST_TOKEN_FILE": f"{folder}/{SECRETS_FOLDER}/{TOKEN_FILE}",
            "GATEPOST_SECRETS": f"{folder}/{SECRETS_FOLDER}",
        }
        return {**passed, **definition.environment, **own}

    async def _load_request(self, claimed: ClaimedTask) -> bytes:
        payload = claimed.payload
        if payload.request_ref is None:
            return payload.request or b"{}"
        digest = payload.request_ref
        key, _ = await self._core.read(lambda tx: find_blob(tx, digest))
        pieces = self._core.blobs.read_payload(digest, key)
        return await asyncio.to_thread(lambda: b"".join(pieces))

    def _load_secrets(self, claimed: ClaimedTask) -> dict[str, bytes]:
        found = {}
        for name in claimed.definition.secrets:
            try:
                found[name] = (self._core.state.secrets / name).read_bytes()
            except OSError as error:
                raise LaunchFailed(f"the secret {name!r} cannot be read: {error}") from None
        return found

    async def read_result(self, name: str, task_id: str) -> TaskPayload | GatepostError | None:
        """The result that a session left as a file, which is a blob if it is large.

        A fault of the result is returned as an error. An error that is raised is about the disk of
        this gateway, or about the processes that check contents.
        """
        path = self._core.state.sessions / name / WORK_FOLDER / RESULT_FILE
        try:
            content = await self._read_file(path)
            if content is None:
                return None
            await check_json(content)
        except PayloadTooLarge as error:
            return error
        except Exception as error:
            detail = error.message if isinstance(error, GatepostError) else str(error)
            return InvalidRequest(f"its result file cannot be used: {detail}")
        if len(content) <= self._core.settings.limits.max_payload_inline:
            result = TaskPayload(result=content, mark=fingerprint_content(content))
        else:
            blob = await self._core.keep_payload([content])
            result = TaskPayload(result_ref=blob.digest, mark=blob.digest.encode())
        await self._task_contents.check_result(task_id, result)
        return result

    async def _read_file(self, path: Path) -> bytes | None:
        limit = self._core.settings.limits.max_blob_bytes
        try:
            file = open(path, "rb", opener=_open_without_following)  # noqa: SIM115
        except FileNotFoundError:
            return None
        with file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise OSError("it is no regular file")
            if status.st_size <= SMALL_BYTES:
                content = file.read(SMALL_BYTES)
            else:
                content = await asyncio.to_thread(file.read, limit + 1)
        if len(content) > limit:
            raise PayloadTooLarge(f"its result has more than {limit} bytes")
        return content


def _open_without_following(path: str, flags: int) -> int:
    """Open a result without following links or blocking on pipes, which a session could leave."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
