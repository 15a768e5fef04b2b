"""A live, read-only fallback to the legacy document: new items of old writers are imported at once.

The document is a file that is exported again and again, or a Yjs room that y-websocket serves. It
is only read: old writers keep writing to it, and everything undelivered in it reaches the gateway
once, however often it is read. See the ledger in `migration_ledger`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from gatepost.errors import InvalidRequest, RoomViolation, Unavailable
from gatepost.migration import yjs_document
from gatepost.migration.legacy_dump import LEGACY_KINDS, LegacyDump, read_dump
from gatepost.room import lib0
from gatepost.room.lib0 import Lib0Reader
from gatepost.room.sync_protocol import STEP_1, STEP_2, SYNC, UPDATE

log = logging.getLogger(__name__)

_FILE_SECS = 0.5
_FIRST_RETRY_SECS = 0.5
_MAX_RETRY_SECS = 30.0
# Changes within this time are imported together.
_COALESCE_SECS = 0.2
_OPEN_SECS = 10.0
_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
# An update that contains nothing: no structs, and an empty delete set.
_EMPTY_UPDATE = b"\x00\x00"


def follow_document(source: str) -> AsyncIterator[LegacyDump]:
    """The content of a legacy document, now and after each change: a file, or a ws:// address."""
    if source.startswith(("ws://", "wss://")):
        return follow_room(source)
    return follow_file(Path(source))


async def follow_file(path: Path, secs: float = _FILE_SECS) -> AsyncIterator[LegacyDump]:
    """Read the file whenever it was changed. A file that is half written is read again."""
    seen: tuple[int, int] | None = None
    problem = ""
    while True:
        with suppress(FileNotFoundError):
            found = path.stat()
            if (found.st_mtime_ns, found.st_size) != seen:
                try:
                    dump = read_dump(path)
                except InvalidRequest as error:
                    if error.message != problem:
                        log.warning("%s is read again when it changes: %s", path, error.message)
                    problem = error.message
                else:
                    seen, problem = (found.st_mtime_ns, found.st_size), ""
                    yield dump
        await asyncio.sleep(secs)


async def follow_room(url: str) -> AsyncIterator[LegacyDump]:
    """Stay connected to a Yjs room, and read it after each change; dial again when it ends."""
    wait = _FIRST_RETRY_SECS
    while True:
        try:
            async for dump in _read_room(url):
                wait = _FIRST_RETRY_SECS
                yield dump
        except (OSError, TimeoutError, WebSocketException) as error:
            log.warning("the legacy room at %s is dialled again: %s", url, error)
        except RoomViolation as error:
            raise Unavailable(f"{url} does not speak the Yjs protocol: {error.message}") from None
        await asyncio.sleep(wait)
        wait = min(wait * 2, _MAX_RETRY_SECS)


async def _read_room(url: str) -> AsyncIterator[LegacyDump]:
    doc = yjs_document.new_document()
    async with connect(
        url, max_size=_MAX_MESSAGE_BYTES, open_timeout=_OPEN_SECS, proxy=None
    ) as socket:
        await socket.send(_sync_message(STEP_1, doc.get_state()))
        while True:
            if await _receive_changes(socket, doc):
                yield _dump_document(doc)


async def _receive_changes(socket: Any, doc: Any) -> bool:
    """Apply the next messages; returns whether the document may have changed.

    Nothing is ever sent but empty answers, so the room stays as old writers left it.
    """
    if not await _apply_message(socket, doc, await socket.recv()):
        return False
    with suppress(TimeoutError):
        async with asyncio.timeout(_COALESCE_SECS):
            while True:
                await _apply_message(socket, doc, await socket.recv())
    return True


async def _apply_message(socket: Any, doc: Any, message: bytes | str) -> bool:
    if isinstance(message, str):
        return False
    reader = Lib0Reader(message)
    if reader.read_uint() != SYNC:
        return False
    step, data = reader.read_uint(), reader.read_bytes(_MAX_MESSAGE_BYTES)
    if step == STEP_1:
        await socket.send(_sync_message(STEP_2, _EMPTY_UPDATE))
        return False
    if step not in (STEP_2, UPDATE):
        return False
    try:
        doc.apply_update(data)
    except ValueError as error:
        raise RoomViolation(f"not a Yjs update: {error}", rule="update") from None
    return True


def _dump_document(doc: Any) -> LegacyDump:
    names = yjs_document.root_names(doc)
    records = {kind: yjs_document.read_records(doc, kind) for kind in LEGACY_KINDS}
    return LegacyDump(records, sorted(set(names).difference(LEGACY_KINDS)))


def _sync_message(step: int, data: bytes) -> bytes:
    return bytes((SYNC, step)) + lib0.encode_bytes(data)
