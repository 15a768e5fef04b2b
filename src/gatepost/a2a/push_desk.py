"""Push notifications: which there are, and one loop for each that follows its task.

A notification is tried again with growing pauses. After a restart of the gateway, the loop goes on
with what was told last, so a change can be told twice. It ends with the task, with the session that
set it up, or when its target does not take anything for too long.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from hashlib import sha256

import httpx
import msgspec
from a2a.types import a2a_pb2 as pb
from a2a.utils.proto_utils import to_stream_response
from google.protobuf.json_format import MessageToDict, ParseDict

from gatepost.a2a.callers import A2aCaller
from gatepost.a2a.door_records import DoorRecords, PushRecord
from gatepost.a2a.json_text import encode_json
from gatepost.a2a.push_targets import check_push_url, create_push_client, find_address, post_push
from gatepost.a2a.task_desk import Snapshot, TaskDesk
from gatepost.a2a.task_events import StreamEvent, list_changes
from gatepost.errors import (
    Forbidden,
    GatepostError,
    InvalidRequest,
    RateLimited,
    UnknownTask,
)
from gatepost.gateway.doors import DoorServices

log = logging.getLogger(__name__)

_PAUSES_SECS = (0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0)
_RETRY_SECS = 5.0
_MAX_PER_TASK = 5
_MAX_CONFIG_BYTES = 8192
_MAX_HEADER = 4096


class PushDesk:
    def __init__(self, services: DoorServices, records: DoorRecords, desk: TaskDesk) -> None:
        self._services = services
        self._records = records
        self._desk = desk
        self._client = create_push_client()
        self._loops: dict[tuple[str, str], asyncio.Task[None]] = {}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        for push in await self._records.list_pushes():
            self._start(push)
        try:
            yield
        finally:
            loops = list(self._loops.values())
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            await self._client.aclose()

    @property
    def _allow_private(self) -> bool:
        return self._services.settings.a2a.allow_private_push

    # -- which there are

    async def check(self, caller: A2aCaller, config: pb.TaskPushNotificationConfig) -> None:
        """Refuse a target that cannot be one, and more of them than the caller may have."""
        if caller.is_anonymous:
            raise Forbidden("push notifications need a token")
        auth = config.authentication
        parts = check_push_url(config.url, allow_private=self._allow_private)
        await find_address(parts, allow_private=self._allow_private)
        for value in (config.token, auth.scheme, auth.credentials, config.id):
            if len(value) > _MAX_HEADER or not value.isprintable() or not value.isascii():
                raise InvalidRequest("credentials and ids are printable ASCII, and not too long")
        if len(_encode(config)) > _MAX_CONFIG_BYTES:
            raise InvalidRequest("the push notification is too large")
        most = self._services.settings.a2a.max_push_per_caller
        if len(await self._records.list_pushes(caller=caller.key)) >= most:
            raise RateLimited("too many push notifications at once", retry_after=60.0)

    async def add(
        self, caller: A2aCaller, shot: Snapshot, config: pb.TaskPushNotificationConfig
    ) -> pb.TaskPushNotificationConfig:
        kept = pb.TaskPushNotificationConfig()
        kept.CopyFrom(config)
        kept.task_id = shot.record.id
        # The same call made twice is one notification.
        kept.id = config.id or sha256(_encode(config)).hexdigest()[:32]
        others = [each.id for each in await self._records.list_pushes(task=kept.task_id)]
        if kept.id not in others and len(others) >= _MAX_PER_TASK:
            raise RateLimited(f"a task has at most {_MAX_PER_TASK} push notifications")
        push = PushRecord(kept.task_id, kept.id, caller.key, caller.session, _encode(kept))
        if shot.is_final:
            return kept
        await self._records.add_push(push)
        self._start(push)
        return kept

    async def list_configs(self, task: str) -> list[pb.TaskPushNotificationConfig]:
        return [_decode(each.config) for each in await self._records.list_pushes(task=task)]

    async def remove(self, task: str, id: str) -> None:
        await self._records.remove_push(task, id)
        if (loop := self._loops.get((task, id))) is not None:
            loop.cancel()

    # -- telling

    def _start(self, push: PushRecord) -> None:
        key = (push.task, push.id)
        if (before := self._loops.get(key)) is not None:
            before.cancel()
        loop = asyncio.create_task(self._follow(push))
        self._loops[key] = loop
        loop.add_done_callback(lambda _: self._forget(key, loop))

    def _forget(self, key: tuple[str, str], loop: "asyncio.Task[None]") -> None:
        if self._loops.get(key) is loop:
            del self._loops[key]

    async def _follow(self, push: PushRecord) -> None:
        while True:
            try:
                await self._tell_all(push)
                await self._records.remove_push(push.task, push.id)
                return
            except (UnknownTask, InvalidRequest, Forbidden) as error:
                log.warning("push %s of task %s ends: %s", push.id, push.task, error.message)
                await self._records.remove_push(push.task, push.id)
                return
            except GatepostError as error:
                log.info("push of task %s has to wait: %s", push.task, error.message)
            except Exception:
                log.exception("push of task %s failed unexpectedly", push.task)
            await asyncio.sleep(_RETRY_SECS)

    async def _tell_all(self, push: PushRecord) -> None:
        """Tell each change until the task has ended, or the gateway stops."""
        door = self._services.local_caller(push.caller, is_operator=False)
        caller, config = A2aCaller(door), _decode(push.config)
        shot = await self._desk.load(caller, push.task)
        if shot.mark != push.told:
            await self._tell(push, config, None, shot)
        async for changed in self._desk.watch(caller, shot, until_question=False):
            await self._tell(push, config, shot, changed)
            shot = changed
        if not shot.is_final:
            # The gateway stops; the next one goes on.
            await asyncio.Event().wait()

    async def _tell(
        self,
        push: PushRecord,
        config: pb.TaskPushNotificationConfig,
        before: Snapshot | None,
        now: Snapshot,
    ) -> None:
        for event in list_changes(before, now):
            await self._post(push, config, event)
        await self._records.note_told(push, now.mark)

    async def _post(
        self, push: PushRecord, config: pb.TaskPushNotificationConfig, event: StreamEvent
    ) -> None:
        """Post one change until the target takes it. Forbidden once that is given up."""
        body = msgspec.json.encode(MessageToDict(to_stream_response(event)))
        why = ""
        for pause in (0.0, *_PAUSES_SECS):
            await asyncio.sleep(pause)
            if not await self._services.is_session_live(push.session):
                raise Forbidden("the session that set it up has ended")
            try:
                status = await post_push(
                    self._client,
                    config.url,
                    body,
                    _list_headers(config),
                    allow_private=self._allow_private,
                )
            except (httpx.HTTPError, OSError) as error:
                why = type(error).__name__
                continue
            except InvalidRequest as error:
                # Its name cannot be looked up now, or stands for another address than at first.
                why = error.message
                continue
            if 200 <= status < 300:
                return
            why = f"status {status}"
        raise Forbidden(f"its target did not take it: {why}")


def _list_headers(config: pb.TaskPushNotificationConfig) -> dict[str, str]:
    headers = {}
    if config.token:
        headers["x-a2a-notification-token"] = config.token
    auth = config.authentication
    if auth.scheme and auth.credentials:
        headers["authorization"] = f"{auth.scheme} {auth.credentials}"
    return headers


def _encode(config: pb.TaskPushNotificationConfig) -> bytes:
    return encode_json(MessageToDict(config))


def _decode(data: bytes) -> pb.TaskPushNotificationConfig:
    config = pb.TaskPushNotificationConfig()
    ParseDict(msgspec.json.decode(data), config)
    return config
