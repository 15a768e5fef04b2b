"""The SDK's request handler, on tasks of the fabric."""

import asyncio
import base64
import contextlib
import logging
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.request_handler import RequestHandler, validate_request_params
from a2a.types import a2a_pb2 as pb
from a2a.utils import errors as a2a_errors
from msgspec import Struct

from gatepost.a2a.callers import A2aCaller, StreamPlaces
from gatepost.a2a.push_desk import PushDesk
from gatepost.a2a.task_desk import Snapshot, TaskDesk
from gatepost.a2a.task_events import StreamEvent, list_changes, read_message, show_task
from gatepost.errors import GatepostError, InvalidRequest, NotFound, UnknownTask, WrongState
from gatepost.events import format_event_id, parse_event_id

log = logging.getLogger(__name__)

CALL_KEY = "gatepost.a2a.call"
# A blocking call answers with the task as it is then; the client asks again.
_MAX_BLOCK_SECS = 300.0
_PAGE, _MAX_PAGE = 50, 100


class A2aCall(Struct, frozen=True):
    """One request: who calls, and the agent whose door it is; None: the gateway's own."""

    caller: A2aCaller
    agent: str | None


class FabricRequestHandler(RequestHandler):
    def __init__(self, desk: TaskDesk, pushes: PushDesk, places: StreamPlaces) -> None:
        self._desk = desk
        self._pushes = pushes
        self._places = places

    # -- messages

    async def _begin(self, params: pb.SendMessageRequest, call: A2aCall) -> Snapshot:
        wants_push = params.configuration.HasField("task_push_notification_config")
        if wants_push:
            await self._pushes.check(
                call.caller, params.configuration.task_push_notification_config
            )
        shot = await self._desk.begin(call.caller, call.agent, read_message(params.message))
        if wants_push:
            wanted = params.configuration.task_push_notification_config
            wanted.task_id = shot.record.id
            await self._pushes.add(call.caller, shot, wanted)
        return shot

    @validate_request_params
    async def on_message_send(
        self, params: pb.SendMessageRequest, context: ServerCallContext
    ) -> pb.Task:
        with _translating_errors():
            call, wanted = _call_of(context), params.configuration
            if wanted.return_immediately:
                shot = await self._begin(params, call)
            else:
                with self._places.taking(call.caller):
                    shot = await self._wait(call.caller, await self._begin(params, call))
            return show_task(shot, _history_length(wanted))

    async def _wait(self, caller: A2aCaller, shot: Snapshot) -> Snapshot:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_MAX_BLOCK_SECS):
                async for changed in self._desk.watch(caller, shot, until_question=True):
                    shot = changed
        return shot

    @validate_request_params
    async def on_message_send_stream(
        self, params: pb.SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[StreamEvent, None]:
        with _translating_errors():
            call = _call_of(context)
            with self._places.taking(call.caller):
                shot = await self._begin(params, call)
                async for event in self._stream(call.caller, shot, until_question=True):
                    yield event

    @validate_request_params
    async def on_subscribe_to_task(
        self, params: pb.SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[StreamEvent, None]:
        with _translating_errors():
            caller = _call_of(context).caller
            with self._places.taking(caller):
                shot = await self._desk.load(caller, params.id)
                if shot.is_final:
                    raise a2a_errors.UnsupportedOperationError("the task has ended")
                async for event in self._stream(caller, shot, until_question=False):
                    yield event

    async def _stream(
        self, caller: A2aCaller, shot: Snapshot, *, until_question: bool
    ) -> AsyncGenerator[StreamEvent, None]:
        yield show_task(shot)
        async for changed in self._desk.watch(caller, shot, until_question=until_question):
            for event in list_changes(shot, changed):
                yield event
            shot = changed

    # -- tasks

    @validate_request_params
    async def on_get_task(self, params: pb.GetTaskRequest, context: ServerCallContext) -> pb.Task:
        with _translating_errors():
            shot = await self._desk.load(_call_of(context).caller, params.id)
            return show_task(shot, _history_length(params))

    @validate_request_params
    async def on_list_tasks(
        self, params: pb.ListTasksRequest, context: ServerCallContext
    ) -> pb.ListTasksResponse:
        with _translating_errors():
            caller, size = _call_of(context).caller, _page_size(params)
            history = params.history_length if params.HasField("history_length") else 0
            found, total, more = await self._find_tasks(caller, params, size)
            tasks = [show_task(shot, history) for shot in found]
            if not params.include_artifacts:
                for task in tasks:
                    del task.artifacts[:]
            token = _encode_cursor(found[-1].record.id) if more else ""
            return pb.ListTasksResponse(
                tasks=tasks, next_page_token=token, page_size=size, total_size=total
            )

    async def _find_tasks(
        self, caller: A2aCaller, params: pb.ListTasksRequest, size: int
    ) -> tuple[list[Snapshot], int, bool]:
        """One page, how many tasks match in all, and whether there are more pages."""
        before = _decode_cursor(params.page_token)
        records = await self._desk.list_records(caller, params.context_id)
        if not params.status and not params.HasField("status_timestamp_after"):
            left = [each for each in records if before is None or each.id < before]
            page = [await self._try_load(caller, each.id) for each in left[:size]]
            return [each for each in page if each], len(records), len(left) > size
        shots = [await self._try_load(caller, each.id) for each in records]
        matching = [each for each in shots if each is not None and _matches(each, params)]
        rest = [each for each in matching if before is None or each.record.id < before]
        return rest[:size], len(matching), len(rest) > size

    async def _try_load(self, caller: A2aCaller, id: str) -> Snapshot | None:
        try:
            return await self._desk.load(caller, id)
        except UnknownTask:
            return None

    @validate_request_params
    async def on_cancel_task(
        self, params: pb.CancelTaskRequest, context: ServerCallContext
    ) -> pb.Task:
        with _translating_errors():
            try:
                shot = await self._desk.cancel(_call_of(context).caller, params.id)
            except WrongState as error:
                raise a2a_errors.TaskNotCancelableError(error.message) from None
            return show_task(shot)

    # -- push notifications

    @validate_request_params
    async def on_create_task_push_notification_config(
        self, params: pb.TaskPushNotificationConfig, context: ServerCallContext
    ) -> pb.TaskPushNotificationConfig:
        with _translating_errors():
            caller = _call_of(context).caller
            shot = await self._desk.load(caller, params.task_id)
            await self._pushes.check(caller, params)
            return await self._pushes.add(caller, shot, params)

    @validate_request_params
    async def on_get_task_push_notification_config(
        self, params: pb.GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> pb.TaskPushNotificationConfig:
        for config in await self._list_pushes(params.task_id, context):
            if config.id == params.id:
                return config
        raise a2a_errors.TaskNotFoundError("no such push notification")

    @validate_request_params
    async def on_list_task_push_notification_configs(
        self, params: pb.ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> pb.ListTaskPushNotificationConfigsResponse:
        configs = await self._list_pushes(params.task_id, context)
        return pb.ListTaskPushNotificationConfigsResponse(configs=configs)

    async def _list_pushes(
        self, task: str, context: ServerCallContext
    ) -> list[pb.TaskPushNotificationConfig]:
        with _translating_errors():
            await self._desk.load(_call_of(context).caller, task)
            return await self._pushes.list_configs(task)

    @validate_request_params
    async def on_delete_task_push_notification_config(
        self, params: pb.DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        with _translating_errors():
            await self._desk.load(_call_of(context).caller, params.task_id)
            await self._pushes.remove(params.task_id, params.id)

    @validate_request_params
    async def on_get_extended_agent_card(
        self, params: pb.GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> pb.AgentCard:
        raise a2a_errors.UnsupportedOperationError("there is no extended card")


def _call_of(context: ServerCallContext) -> A2aCall:
    call = context.state[CALL_KEY]
    assert isinstance(call, A2aCall), "the endpoint has put it there"
    return call


def _history_length(params: Any) -> int | None:
    if not params.HasField("history_length"):
        return None
    if params.history_length < 0:
        raise InvalidRequest("historyLength is 0 or more")
    return int(params.history_length)


def _page_size(params: pb.ListTasksRequest) -> int:
    if not params.HasField("page_size"):
        return _PAGE
    if not 1 <= params.page_size <= _MAX_PAGE:
        raise InvalidRequest(f"pageSize is 1 to {_MAX_PAGE}")
    return params.page_size


def _matches(shot: Snapshot, params: pb.ListTasksRequest) -> bool:
    shown = show_task(shot, 0)
    if params.status and shown.status.state != params.status:
        return False
    if not params.HasField("status_timestamp_after"):
        return True
    return shot.view.updated_at >= int(params.status_timestamp_after.ToMilliseconds())


def _encode_cursor(id: str) -> str:
    return base64.urlsafe_b64encode(id.encode()).decode()


def _decode_cursor(token: str) -> str | None:
    """The last task of the page before."""
    try:
        id = base64.b64decode(token, altchars=b"-_", validate=True).decode() if token else None
        return id if id is None else format_event_id(parse_event_id(id))
    except (ValueError, InvalidRequest):
        raise InvalidRequest("this pageToken was not given by this gateway") from None


@contextlib.contextmanager
def _translating_errors() -> Iterator[None]:
    """Errors of the gateway as A2A names them. What goes wrong unexpectedly is not shown."""
    try:
        yield
    except a2a_errors.A2AError:
        raise
    except UnknownTask as error:
        raise a2a_errors.TaskNotFoundError(error.message) from None
    except WrongState as error:
        raise a2a_errors.UnsupportedOperationError(error.message) from None
    except (InvalidRequest, NotFound) as error:
        raise a2a_errors.InvalidParamsError(f"{error.code}: {error.message}") from None
    except GatepostError as error:
        kind = a2a_errors.InternalError
        if 400 <= error.status < 429:
            kind = a2a_errors.InvalidParamsError  # type: ignore[assignment]
        raise kind(f"{error.code}: {error.message}") from None
    except Exception:
        log.exception("a call of A2A failed unexpectedly")
        raise a2a_errors.InternalError("an internal error; see the gateway's log") from None
