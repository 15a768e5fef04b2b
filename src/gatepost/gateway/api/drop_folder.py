r"""The drop folder: frames in files, for programs that can only write files.

    cd "$GATEPOST_HOME/drop"
    printf '%s' '{"op":"enqueue","messages":[
        {"msg_id":"a:1","from":"a","to":"b","payload":"hi"}]}' > tmp/x1.json && mv tmp/x1.json new/
    until [ -e out/x1.json ]; do sleep 0.1; done; cat out/x1.json

A client writes a request to `tmp/` and renames it to `new/NAME.json`. It holds one frame: an
operation or an array of them, which are run in order. The answer appears, whole, as
`out/NAME.json`: one answer, or an array of them. Answers are removed after a day. Entries of
`new/` that are not regular files with a valid name are moved to `bad/`, with the reason beside
them.

A request is removed only once its answer is on disk. After a crash it is run again, which is
harmless: mail is enqueued once per msg_id; a message sent without key or id gets an idempotency key
derived from its file; and mail the request has dequeued is leased to the consumer `drop:NAME`,
which gets the same lease again. So give every request a different name.
"""

import asyncio
import contextlib
import errno
import logging
import os
import re
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
from msgspec import UNSET, Struct

from gatepost.core.folder_watch import watch_folder
from gatepost.errors import (
    ERRORS_BY_CODE,
    ConfigError,
    GatepostError,
    InvalidId,
    InvalidRequest,
    PayloadTooLarge,
    RateLimited,
    Unavailable,
)
from gatepost.files import open_replacement_in
from gatepost.gateway.api.frame_channel import read_frame
from gatepost.gateway.api.operations import Operations
from gatepost.wire.frame_types import Op
from gatepost.wire.operations import (
    AnyAnswer,
    Dequeue,
    Failed,
    Failure,
    Send,
    Subscribe,
    Unsubscribe,
)

log = logging.getLogger(__name__)

_REQUEST_NAME = re.compile(r"\A([A-Za-z0-9][A-Za-z0-9._-]{0,99})\.json\Z")
_MAX_CONCURRENT = 16
_RETRY_SECS = 1.0
# A symbolic link, a socket or another user's file. Other errors may be temporary.
_UNREADABLE_ERRNOS = (errno.ELOOP, errno.ENXIO, errno.EACCES)
_KEEP_ANSWERS_SECS = 86_400
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class DropRequest(Struct, frozen=True):
    """A request file. `mark` distinguishes it from a later file of the same name."""

    name: str
    content: bytes
    mark: str


class DropFolder:
    """Serves requests in the order of their names, a few concurrently."""

    def __init__(self, operations: Operations, path: Path) -> None:
        self._operations = operations
        self._clock = operations.core.clock
        self._path = path
        self._max_bytes = operations.core.settings.limits.max_body_bytes
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)
        self._changed = asyncio.Event()
        self._running: dict[str, asyncio.Task[None]] = {}
        # Names listed again while running, perhaps another file: checked when the first is done.
        self._seen_again: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._resources = contextlib.AsyncExitStack()

    async def start(self) -> None:
        self._files = DropFiles(self._path)
        self._resources.callback(self._files.close)
        self._files.remove_answers(lambda name, _: name.startswith("."))
        await self._resources.enter_async_context(
            watch_folder(self._path / "new", self._changed.set)
        )
        self._taker = asyncio.create_task(self._take_requests())

    async def stop(self) -> None:
        """Cancel running requests; their files are still there at the next start."""
        tasks = [self._taker, *self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._resources.aclose()

    async def sweep_answers(self) -> int:
        """Remove answers that are older than a day; return how many."""
        before = self._clock.now() / 1000 - _KEEP_ANSWERS_SECS
        return await asyncio.to_thread(self._files.remove_answers, lambda _, at: at < before)

    async def _take_requests(self) -> None:
        while True:
            self._changed.clear()
            for name in await asyncio.to_thread(self._files.request_names):
                if name in self._running:
                    self._seen_again.add(name)
                else:
                    await self._slots.acquire()
                    await self._take_request(name)
            await self._changed.wait()

    async def _take_request(self, name: str) -> None:
        # Files are read one after the other and started at once, so that they run in their order.
        try:
            request = await asyncio.to_thread(self._files.read_request, name, self._max_bytes + 1)
        except (OSError, InvalidRequest) as error:
            self._slots.release()
            await self._set_aside(name, error)
            return
        task = self._running[name] = asyncio.create_task(self._serve_request(request))
        task.add_done_callback(partial(self._request_ended, name))

    async def _set_aside(self, name: str, error: OSError | InvalidRequest) -> None:
        if isinstance(error, FileNotFoundError):
            # It was answered and removed after it had been listed.
            return
        if isinstance(error, OSError):
            if error.errno not in _UNREADABLE_ERRNOS:
                self._retry_later(name, error)
                return
            error = InvalidRequest(f"the file cannot be read: {error.strerror}")
        log.warning("drop folder: %r is moved to bad/: %s", name, error.message)
        answer = msgspec.json.encode(Failed(error=Failure.from_error(error)))
        try:
            await asyncio.to_thread(self._files.set_aside, name, answer)
        except OSError as problem:
            self._retry_later(name, problem)

    def _request_ended(self, name: str, task: "asyncio.Task[None]") -> None:
        del self._running[name]
        self._slots.release()
        if name in self._seen_again:
            self._seen_again.remove(name)
            self._changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("drop folder: %s failed unexpectedly", name, exc_info=error)

    async def _serve_request(self, request: DropRequest) -> None:
        try:
            answer = msgspec.json.encode(await self._answer_request(request))
            done = await asyncio.to_thread(self._files.write_answer, request, answer)
        except (Unavailable, OSError) as error:
            self._retry_later(request.name, error)
        else:
            if not done:
                self._changed.set()

    def _retry_later(self, name: str, error: Exception) -> None:
        log.warning("drop folder: %r waits, for %s", name, error)
        loop = asyncio.get_running_loop()
        if self._timer is None or self._timer.when() <= loop.time():
            self._timer = loop.call_later(_RETRY_SECS, self._changed.set)

    async def _answer_request(self, request: DropRequest) -> AnyAnswer | list[AnyAnswer]:
        if len(request.content) > self._max_bytes:
            error = PayloadTooLarge(f"a request may have {self._max_bytes} bytes")
            return Failed(error=Failure.from_error(error))
        try:
            frame = read_frame(request.content)
        except InvalidRequest as error:
            return Failed(error=Failure.from_error(error))
        if not isinstance(frame, list):
            return await self._run_operation(frame, request, 0)
        return [await self._run_operation(op, request, index) for index, op in enumerate(frame)]

    async def _run_operation(self, op: Op, request: DropRequest, index: int) -> AnyAnswer:
        if isinstance(op, Subscribe | Unsubscribe):
            refusal = InvalidRequest("a file cannot subscribe; dequeue instead")
            return Failed(re=op.id, error=Failure.from_error(refusal))
        _make_repeatable(op, request, index)
        await self._wait_for_admission(op)
        reply = await self._operations.answer(op)
        if isinstance(reply, Failed):
            _raise_if_temporary(reply.error)
        return reply

    async def _wait_for_admission(self, op: Op) -> None:
        """Wait while the rate limit is exceeded, because a client of files cannot be refused."""
        while True:
            try:
                return self._operations.admit(op)
            except RateLimited as error:
                await asyncio.sleep(error.retry_after or _RETRY_SECS)


def _make_repeatable(op: Op, request: DropRequest, index: int) -> None:
    """Give the operation a consumer or idempotency keys that are the same when it runs again."""
    stem = request.name.removesuffix(".json")
    if isinstance(op, Dequeue):
        op.consumer = op.consumer or f"drop:{stem}"
    elif isinstance(op, Send):
        for number, new in enumerate(op.messages):
            if new.event_id is UNSET and new.idempotency_key is UNSET:
                new.idempotency_key = f"drop:{stem}:{request.mark}:{index}.{number}"


def _raise_if_temporary(failure: Failure) -> None:
    """Raise a temporary failure, so that the request is retried: a written answer is final."""
    if issubclass(ERRORS_BY_CODE.get(failure.code, GatepostError), Unavailable):
        raise failure.to_error()


class DropFiles:
    """The folders, accessed only through their descriptors, so that no file name leads outside."""

    def __init__(self, path: Path) -> None:
        path.mkdir(mode=0o700, exist_ok=True)
        self._folders = {name: _open_folder(path / name) for name in ("tmp", "new", "out", "bad")}
        self._new, self._out, self._bad = (self._folders[name] for name in ("new", "out", "bad"))

    def close(self) -> None:
        for descriptor in self._folders.values():
            os.close(descriptor)

    def request_names(self) -> list[str]:
        with os.scandir(self._new) as entries:
            return sorted(entry.name for entry in entries)

    def read_request(self, name: str, max_bytes: int) -> DropRequest:
        """Read up to `max_bytes` of a request; raise InvalidRequest if it is not a valid one."""
        if not _REQUEST_NAME.match(name):
            raise InvalidId("a request is named NAME.json: letters, digits, '.', '_' and '-'")
        descriptor = os.open(name, _READ_FLAGS, dir_fd=self._new)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise InvalidRequest("not a regular file")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                return DropRequest(name, file.read(max_bytes), _file_mark(status))
        finally:
            os.close(descriptor)

    def write_answer(self, request: DropRequest, answer: bytes) -> bool:
        """Write the answer, then remove the request; return False if the file was replaced."""
        self._write_file(self._out, request.name, answer)
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(request.name, dir_fd=self._new, follow_symlinks=False)
            if _file_mark(status) != request.mark:
                return False
            os.unlink(request.name, dir_fd=self._new)
            os.fsync(self._new)
        return True

    def set_aside(self, name: str, answer: bytes) -> None:
        """Move an invalid request to `bad/`, and write the reason beside it."""
        new_name = self._free_name(name)
        os.rename(name, new_name, src_dir_fd=self._new, dst_dir_fd=self._bad)
        self._write_file(self._bad, f"{new_name}.error.json", answer)

    def remove_answers(self, unwanted: Callable[[str, float], bool]) -> int:
        removed = 0
        with os.scandir(self._out) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                    if unwanted(entry.name, entry.stat(follow_symlinks=False).st_mtime):
                        os.unlink(entry.name, dir_fd=self._out)
                        removed += 1
        return removed

    def _write_file(self, folder: int, name: str, content: bytes) -> None:
        with open_replacement_in(folder, name) as file:
            file.write(content)

    def _free_name(self, name: str) -> str:
        # Shortened: a name may be as long as the system allows, and gets a suffix here.
        free = short = os.fsdecode(os.fsencode(name)[:200])
        number = 0
        while _name_exists(free, self._bad):
            number += 1
            free = f"{short}.{number}"
        return free


def _open_folder(path: Path) -> int:
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        return os.open(path, _FOLDER_FLAGS)
    except OSError as error:
        raise ConfigError(f"{path} must be a folder ({error.strerror}); remove it") from None


def _file_mark(status: os.stat_result) -> str:
    return f"{status.st_ino:x}-{status.st_mtime_ns:x}"


def _name_exists(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
