"""Messages and tasks as the SDK has them, and what changed between two moments of a task."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value
from msgspec import UNSET, Raw, UnsetType

from gatepost.a2a.json_text import encode_json
from gatepost.a2a.task_desk import InputRequired, MessageDraft, Snapshot
from gatepost.errors import InvalidRequest

_S = pb.TaskState
_STATES = {
    "pending": _S.TASK_STATE_SUBMITTED,
    "accepted": _S.TASK_STATE_SUBMITTED,
    "running": _S.TASK_STATE_WORKING,
    "unknown": _S.TASK_STATE_WORKING,
    "input_required": _S.TASK_STATE_INPUT_REQUIRED,
    "completed": _S.TASK_STATE_COMPLETED,
    "failed": _S.TASK_STATE_FAILED,
    "cancelled": _S.TASK_STATE_CANCELED,
}
# The code with which an agent refuses a task for good.
_REJECTED = "rejected"
_MAX_MESSAGE_ID = 256
# Longer text is in the input, and its begin describes the task.
_MAX_DESCRIPTION = 16_384
_NO_TEXT = "a message without text"

StreamEvent = pb.Task | pb.TaskStatusUpdateEvent | pb.TaskArtifactUpdateEvent


# -- what clients send


def read_message(message: pb.Message) -> MessageDraft:
    if not 1 <= len(message.message_id) <= _MAX_MESSAGE_ID:
        raise InvalidRequest(f"a messageId has 1 to {_MAX_MESSAGE_ID} characters")
    if message.role != pb.Role.ROLE_USER:
        raise InvalidRequest("a client's message has the role of the user")
    if not message.parts:
        raise InvalidRequest("a message has at least one part")
    shown = MessageToDict(message)
    text = "\n".join(part.text for part in message.parts if part.HasField("text"))
    fields = message.metadata.fields
    skill = fields["skill"].string_value if "skill" in fields else ""
    encoded = encode_json(shown)
    ids = (message.message_id, message.task_id, message.context_id)
    input = _find_input(message.parts, is_long=len(text) > _MAX_DESCRIPTION)
    return MessageDraft(*ids, skill, encoded, text[:_MAX_DESCRIPTION] or _NO_TEXT, input)


def _find_input(parts: Sequence[pb.Part], *, is_long: bool) -> Raw | UnsetType:
    """The one data part is the input as it is; text alone is no input, unless it is long."""
    others = [part for part in parts if not part.HasField("text")]
    if not others and not is_long:
        return UNSET
    if len(others) == 1 and others[0].HasField("data"):
        return Raw(encode_json(_plain(others[0].data)))
    return Raw(encode_json({"parts": [MessageToDict(part) for part in parts]}))


def _plain(value: Value) -> Any:
    """JSON of a value. All numbers are floats there: whole ones become integers again."""
    return _with_integers(MessageToDict(value))


def _with_integers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {key: _with_integers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_integers(each) for each in value]
    return value


# -- what clients get


def show_task(shot: Snapshot, history_length: int | None = None) -> pb.Task:
    task = pb.Task(id=shot.record.id, context_id=shot.record.context, status=_show_status(shot))
    if history_length != 0:
        history = list(_show_history(shot))
        task.history.extend(history if history_length is None else history[-history_length:])
    if shot.state == "completed":
        task.artifacts.append(_show_artifact(shot))
    task.metadata.update({"agent": shot.view.agent_name})
    return task


def _show_history(shot: Snapshot) -> Iterator[pb.Message]:
    for turn in shot.turns:
        message = ParseDict(msgspec.json.decode(turn.message), pb.Message())
        message.task_id, message.context_id = shot.record.id, shot.record.context
        yield message
        if turn.question:
            yield _agent_message(shot, f"{turn.fabric_id}-question", turn.question)


def _show_status(shot: Snapshot) -> pb.TaskStatus:
    view, state = shot.view, _STATES[shot.state]
    if shot.state == "failed" and view.error_code == _REJECTED:
        state = _S.TASK_STATE_REJECTED
    status = pb.TaskStatus(state=state)
    status.timestamp.FromMilliseconds(view.updated_at)
    if text := _status_text(shot):
        status.message.CopyFrom(_agent_message(shot, f"{view.id}-{view.updated_at}", text))
    return status


def _status_text(shot: Snapshot) -> str:
    view = shot.view
    if shot.question is not None:
        return shot.question
    if shot.state == "failed":
        return ": ".join(filter(None, (view.error_code, view.error)))
    if shot.state == "unknown":
        return f"No word from {view.executor_node or 'the gateway of the agent'} yet."
    return "" if shot.is_final else view.note or ""


def _agent_message(shot: Snapshot, id: str, text: str) -> pb.Message:
    return pb.Message(
        message_id=id,
        task_id=shot.record.id,
        context_id=shot.record.context,
        role=pb.Role.ROLE_AGENT,
        parts=[pb.Part(text=text)],
    )


def _show_artifact(shot: Snapshot) -> pb.Artifact:
    return pb.Artifact(artifact_id=f"{shot.view.id}-result", parts=[show_part(shot.result)])


def show_part(value: Any) -> pb.Part:
    """Text as text, and any other JSON value as data."""
    if isinstance(value, str):
        return pb.Part(text=value, media_type="text/plain")
    plain = None if isinstance(value, UnsetType) else value
    return pb.Part(data=ParseDict(plain, Value()), media_type="application/json")


def list_changes(before: Snapshot | None, now: Snapshot) -> Iterator[StreamEvent]:
    """What a client has to hear after `before`; all of it if it has heard nothing."""
    if before is not None and before.mark == now.mark:
        return
    task, context = now.record.id, now.record.context
    if now.state == "completed":
        yield pb.TaskArtifactUpdateEvent(
            task_id=task, context_id=context, artifact=_show_artifact(now), last_chunk=True
        )
    event = pb.TaskStatusUpdateEvent(task_id=task, context_id=context, status=_show_status(now))
    if now.view.progress is not None:
        event.metadata.update({"progress": now.view.progress})
    yield event


# -- what agents elsewhere get and give


def draft_message(id: str, text: str, value: Any, metadata: dict[str, Any]) -> pb.Message:
    """A message for an agent elsewhere: text, and what is not text as data."""
    parts = [pb.Part(text=text)] if text else []
    if not isinstance(value, UnsetType):
        parts.append(show_part(value))
    message = pb.Message(message_id=id, role=pb.Role.ROLE_USER, parts=parts or [pb.Part(text="")])
    message.metadata.update(metadata)
    return message


def read_parts(parts: Iterable[pb.Part]) -> Any:
    """The value of parts: the one part's, else a list of all."""
    values = [_read_part(part) for part in parts]
    return values[0] if len(values) == 1 else values


def _read_part(part: pb.Part) -> Any:
    if part.HasField("text"):
        return part.text
    return _plain(part.data) if part.HasField("data") else MessageToDict(part)


def read_outcome(task: pb.Task) -> Any:
    """What an agent elsewhere gave as a result: its artifacts, else its last words."""
    parts = [part for artifact in task.artifacts for part in artifact.parts]
    if not parts:
        parts = list(task.status.message.parts)
    return read_parts(parts) if parts else None


def ask_for_input(task: pb.Task) -> InputRequired:
    said = [part.text for part in task.status.message.parts if part.HasField("text")]
    return InputRequired("\n".join(said))
